"""Verify names what is wrong, where, and which VLSN it costs; what is normal after a crash is no finding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder, Placed
from tests.vlsn.logs import DIRECTORY, Machine, Opened
from tests.vlsn.segments.test_reader import logs
from vlsn.errors import Damaged, LogInUse
from vlsn.format import block as block_format
from vlsn.format.checksum import crc
from vlsn.format.frame import FrameKind
from vlsn.format.segment import FIRST_FRAME, SegmentState, segment_name, sidecar_name
from vlsn.format.sidecar import Sidecar
from vlsn.ids import NULL_LSN, Lsn, Term, Vlsn, lsn
from vlsn.index.bucket import Bucket, bucket_key
from vlsn.index.index import VlsnIndex
from vlsn.index.range import VlsnRange
from vlsn.index.stored import RECORD_KEY, Record
from vlsn.state import node_file
from vlsn.state.node_file import SLOT_BYTES, NodeRecord
from vlsn.state.state_store import Checkpoint, IdleEnd, StateStore
from vlsn.verify.dump import DumpFilter, dump_rows
from vlsn.verify.inspection import Rule
from vlsn.verify.report import VerifyReport
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call, FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores

Row = tuple[str, str, int, int]


def log(segment_bytes: int = 64 * 1024, disk: FakeDisk | None = None) -> LogBuilder:
    built = LogBuilder(disk or FakeDisk(), "/d", segment_bytes=segment_bytes)
    built.disk.make_directory("/d")
    node_file.create(built.disk, "/d/node.id", NodeRecord(group="g", node="n1", incarnation=7, term=99)).close()
    return built


def check(built: LogBuilder, stores: FakeStores | None = None, *, live: bool = False) -> VerifyReport:
    return verify(built.disk, stores or FakeStores(), "/d", live=live)


def rows(report: VerifyReport) -> list[Row]:
    return [(each.rule.value, each.file, each.offset, each.vlsn) for each in report.findings]


def three_segments() -> LogBuilder:
    """VLSNs 1–5, 6–10 (a checkpoint between), 11–14; all stated to be synced but the last frame."""
    built = log().blocks(5).roll().blocks(3).checkpoint().blocks(2).roll().blocks(3)
    return built.synced().block()


def state_with(
    *,
    idle: Lsn | None = None,
    checkpoint_end: Lsn | None = None,
    scan_from: Lsn = NULL_LSN,
    stores: FakeStores | None = None,
) -> FakeStores:
    stores = stores or FakeStores()
    state = StateStore(stores.open("/d/state", map_bytes=1 << 20))
    if idle is not None:
        state.save(idle_end=IdleEnd(lsn=idle, term=Term(1), vlsn=Vlsn(1)))
    if checkpoint_end is not None:
        checkpoint = Checkpoint(
            id=1,
            start_lsn=Lsn(0),
            end_lsn=checkpoint_end,
            scan_lsn=scan_from,
            first_vlsn=Vlsn(0),
            last_vlsn=Vlsn(0),
            dtvlsn=Vlsn(0),
            clean=False,
            time_us=1,
        )
        state.save(checkpoint=checkpoint)
    state.close()
    return stores


def index_of(*mappings: tuple[Placed, int]) -> FakeStores:
    """An index of one bucket a segment, each mapping a frame and the VLSN it is said to begin with."""
    stores = FakeStores()
    store = stores.open("/d/index", map_bytes=1 << 20)
    numbers = sorted({frame.number for frame, _ in mappings})
    buckets = []
    for number in numbers:
        of_it = [(vlsn, frame) for frame, vlsn in mappings if frame.number == number]
        first = of_it[0][0]
        deltas, offsets = [vlsn - first for vlsn, _ in of_it], [frame.offset for _, frame in of_it]
        buckets.append(Bucket(number, Vlsn(first), Vlsn(of_it[-1][0]), deltas, offsets))
    span = VlsnRange(buckets[0].first, buckets[-1].last, buckets[-1].last)
    store.write(
        [(bucket_key(each.first), each.encode()) for each in buckets] + [(RECORD_KEY, Record(1, span).encode())]
    )
    store.close()
    return stores


@pytest.mark.parametrize("sidecars", [False, True])
def test_a_right_log_has_no_finding_and_is_counted(sidecars: bool) -> None:
    built = three_segments()
    built.term = 2
    built.block(b"a", b"b", b"c").write(sidecars=sidecars)
    report = check(built)
    assert rows(report) == []
    assert (report.ok, report.torn_tail, report.segments, report.frames) == (True, False, 3, len(built.frames))
    assert (report.blocks, report.entries, report.first, report.last) == (15, 17, 1, 17)
    assert [(run.term, run.first, run.last) for run in report.term_runs] == [(1, 1, 14), (2, 15, 17)]


@pytest.mark.parametrize("at", [0, 8, 17, 30, 50, 1000, 4093])
def test_a_damaged_header_page_is_named_and_its_frames_are_still_read(at: int) -> None:
    built = three_segments().write()
    built.pieces[1].data[at] ^= 0x04
    built.put("00000002.vlog", bytes(built.pieces[1].data))
    report = check(built)
    assert rows(report) == [("segment-header", "00000002.vlog", 0, 6)]
    assert report.entries == 14


def test_dead_bytes_past_the_end_that_the_next_header_names_are_nothing() -> None:
    built = log().blocks(3).roll().blocks(2)
    first = built.pieces[0]
    first.data[first.end : first.end + 500] = b"\xee" * 500
    assert rows(check(built.write(sidecars=True))) == []


def test_a_next_header_that_names_an_earlier_end_ends_the_segment_there() -> None:
    built = log().blocks(3)
    dead = built.frames[-1]
    first = built.piece
    first.frames.pop()
    first.end, built.next_vlsn = dead.offset, 3
    built.roll().blocks(2).write()
    report = check(built)
    assert (rows(report), report.last, report.blocks) == ([], 4, 4)


def test_a_next_header_that_names_a_later_end_is_damage_of_this_segment() -> None:
    built = log().blocks(3)
    built.piece.end += 80
    built.roll().blocks(1).write()
    assert rows(check(built)) == [("frame-header", "00000001.vlog", built.pieces[0].end - 80, 4)]


def test_a_missing_segment_is_a_gap_and_a_burnt_number_is_none() -> None:
    built = log().blocks(2).roll(4).blocks(2).roll().blocks(1).write()
    assert rows(check(built)) == []
    built.disk.remove("/d/00000004.vlog")
    assert rows(check(built)) == [("gap", "00000004.vlog", 0, 3)]


def test_a_missing_last_segment_is_a_gap_where_state_says_that_it_was_synced() -> None:
    built = three_segments().write()
    stores = state_with(idle=lsn(3, FIRST_FRAME + 100))
    assert rows(check(built, stores)) == []
    built.disk.remove("/d/00000003.vlog")
    assert rows(check(built, stores)) == [("gap", "00000003.vlog", 0, 11)]
    assert rows(check(built)) == []


Fault = Callable[[LogBuilder], None]


def _flip_last(built: LogBuilder) -> None:
    built.flip(built.frames[-1], 70)


def _zero_second_last(built: LogBuilder) -> None:
    built.zero(built.frames[-2])


def _wrong_salt(built: LogBuilder) -> None:
    built.flip(built.frames[-1], 18)


@pytest.mark.parametrize(("fault", "back"), [(_flip_last, 1), (_zero_second_last, 2), (_wrong_salt, 1)])
def test_what_nothing_says_was_synced_is_a_torn_tail_and_else_damage(fault: Fault, back: int) -> None:
    built = three_segments().block()
    built.piece.synced = 0
    victim = built.frames[-back]
    fault(built)
    built.write()
    report = check(built)
    assert (rows(report), report.torn_tail, report.last) == ([], True, victim.first - 1)
    damaged = check(built, state_with(idle=lsn(3, built.piece.end)))
    ((_, file, offset, vlsn),) = rows(damaged)
    assert (file, offset, vlsn, damaged.torn_tail) == ("00000003.vlog", victim.offset, victim.first, False)


@pytest.mark.parametrize("left", [1, 30, 3_000, 60_000])
def test_a_last_segment_that_was_cut_short_is_damage_and_is_not_opened(left: int) -> None:
    """No crash shortens a file: its size is synced before its first frame."""
    machine = Machine()
    opened = Opened(machine)
    values = [b"%d" % number for number in range(5)]
    for value in values:
        opened.append(value)
    machine.kill()
    path = f"{DIRECTORY}/00000001.vlog"
    content = machine.disk.content(path)
    machine.disk.write_content(path, content[: FIRST_FRAME + left])
    report = verify(machine.disk, machine.stores, DIRECTORY)
    assert ("segment-header", "00000001.vlog", FIRST_FRAME + left) in [row[:3] for row in rows(report)]
    before = {name: machine.disk.content(name) for name in machine.disk.files(DIRECTORY) if name.endswith(".vlog")}
    with pytest.raises(Damaged, match="cut short"):
        Opened(machine)
    machine.stores.abandon()
    assert {name: machine.disk.content(name) for name in before} == before
    machine.disk.write_content(path, content)
    assert list(Opened(machine).entries().values()) == values


def test_an_end_short_of_what_was_stated_is_damage() -> None:
    built = three_segments()
    gone = built.frames[-1]
    built.zero(gone)
    built.write()
    assert rows(check(built)) == []
    report = check(built, state_with(idle=lsn(3, gone.offset + gone.size)))
    assert rows(report) == [("frame-header", "00000003.vlog", gone.offset, gone.first)]


def test_zeros_with_a_frame_behind_that_says_they_were_synced_are_damage() -> None:
    built = three_segments()
    lost = built.pieces[2].frames[1]
    built.zero(lost)
    assert rows(check(built.write())) == [("frame-header", "00000003.vlog", lost.offset, lost.first)]


def test_the_checkpoint_of_state_must_be_there() -> None:
    built = three_segments().write()
    end = next(each for each in built.frames if each.kind == FrameKind.CHECKPOINT_END)
    assert rows(check(built, state_with(checkpoint_end=end.lsn))) == []
    wrong = check(built, state_with(checkpoint_end=built.frames[0].lsn))
    assert rows(wrong) == [("record", "00000001.vlog", FIRST_FRAME, 1)]


def test_vlsns_that_do_not_follow_on_and_terms_that_fall() -> None:
    built = log().blocks(3)
    built.next_vlsn = 6
    built.block()
    built.next_vlsn, built.term = 7, 3
    built.block()
    built.term = 2
    built.roll().block()
    report = check(built.write())
    assert rows(report) == [
        ("contiguity", "00000001.vlog", built.frames[3].offset, 4),
        ("term-order", "00000002.vlog", FIRST_FRAME, 8),
    ]
    doubled = log().blocks(2)
    doubled.next_vlsn = 2
    doubled.blocks(1)
    assert rows(check(doubled.write())) == [("contiguity", "00000001.vlog", doubled.frames[2].offset, 3)]


def _broken_block(at: int, change: int, *, of: bytes) -> bytes:
    data = bytearray(of)
    data[at] ^= change
    head = bytes(data[:60])
    data[60:64] = crc(head).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "rule"),
    [(2, "block-header"), (4, "block-header"), (32 - 8, "block-header"), (56, "block-body")],
)
def test_a_block_that_cannot_be_under_a_right_frame_is_named(at: int, rule: str) -> None:
    built = log().blocks(2)
    whole = log().blocks(3).frames[2].payload
    place = built.frame(FrameKind.BLOCK, _broken_block(at, 0x08, of=whole))
    built.next_vlsn = 4
    built.blocks(2).write()
    assert rows(check(built)) == [(rule, "00000001.vlog", place.offset, 3)]


def test_bodies_are_checked_whatever_their_columns() -> None:
    for values, keys in (([b"a"], None), ([b"a", b"b"], None), ([b"v"] * 100, None), ([b"a", b"b"], [b"k", b""])):
        columns = block_format.columns_of(values, keys)
        data = block_format.build(term=1, first_vlsn=1, dtvlsn=0, clock_us=1, kind=0, columns=columns, submissions=1)
        body = bytearray(data[64:])
        body[0] ^= 1  # offsets no longer begin at 0, under a right checksum
        header = bytearray(data[:60])
        header[56:60] = crc(bytes(body)).to_bytes(4, "little")
        built = log()
        built.frame(FrameKind.BLOCK, bytes(header) + crc(bytes(header)).to_bytes(4, "little") + bytes(body))
        assert rows(check(built.write())) == [("block-body", "00000001.vlog", FIRST_FRAME, 1)]


def test_a_sidecar_is_held_against_its_segment() -> None:
    def report_with(change: Callable[[Sidecar], Sidecar | bytes]) -> list[Row]:
        built = three_segments().write(sidecars=True)
        changed = change(built.sidecar(built.pieces[1]))
        built.put(sidecar_name(2), changed if isinstance(changed, bytes) else changed.encode())
        return rows(check(built))

    def rebuilt(old: Sidecar, **changes: int) -> Sidecar:
        fields = {
            name: getattr(old, name) for name in ("number", "salt", "first_vlsn", "last_vlsn", "end", "entries", "crc")
        }
        return Sidecar(**{**fields, **changes}, offsets=old.offsets)

    named = [("sidecar", "00000002.vidx", 0, 6)]
    assert report_with(lambda old: old) == []
    assert report_with(lambda old: rebuilt(old, crc=old.crc ^ 1)) == named
    assert report_with(lambda old: rebuilt(old, salt=old.salt ^ 1)) == named
    assert report_with(lambda old: rebuilt(old, last_vlsn=11, entries=6)) == named
    assert report_with(lambda old: old.encode()[:-1])[0][:2] == ("sidecar", "00000002.vidx")
    fewer = report_with(
        lambda old: Sidecar(
            old.number, old.salt, old.first_vlsn, old.last_vlsn, old.end, old.entries, old.crc, old.offsets[:-1]
        )
    )
    assert fewer == named


def test_every_mapping_points_at_the_visible_block_that_begins_there() -> None:
    built = log().blocks(4).roll().blocks(4).rollback(6).blocks(3).write()
    first, second = built.pieces[0].frames, built.pieces[1].frames
    assert rows(check(built, index_of((first[0], 1), (first[2], 3), (second[1], 6)))) == []
    wrong_vlsn = check(built, index_of((first[0], 1), (first[2], 4), (second[1], 6)))
    assert rows(wrong_vlsn) == [("index", "00000001.vlog", first[2].offset, 4)]
    overmarked = check(built, index_of((first[0], 1), (second[2], 7)))
    assert rows(overmarked) == [("index", "00000002.vlog", second[2].offset, 7)]
    built.disk.remove("/d/00000001.vlog")
    assert rows(check(built, index_of((first[0], 1), (second[1], 6)))) == [("index", "00000001.vlog", FIRST_FRAME, 1)]


@pytest.mark.parametrize("sidecars", [False, True])
def test_no_block_is_later_than_the_time_index_says(sidecars: bool) -> None:
    built = log().block(b"a", clock_us=50).block(b"b", clock_us=70).block(b"c", clock_us=60).roll()
    built.block(b"d", clock_us=10).block(b"e", clock_us=20).rollback(4).block(b"E", clock_us=15)
    built.write(sidecars=sidecars)
    blocks = built.visible()
    for clocks, late in (([50, 70, 60, 10, 15], []), ([50, 69, 60, 10, 15], [1]), ([50, 70, 60, 1, 14], [4]), ([], [])):
        stores = FakeStores()
        index = VlsnIndex(stores.open("/d/index", map_bytes=1 << 20), nullcontext())
        index.put_run(
            [each.first for each in blocks], [each.last for each in blocks], [each.lsn for each in blocks], clocks
        )
        index.save(1)
        index.close()
        wrong = [blocks[number] for number in late]
        assert rows(check(built, stores)) == [
            ("index", segment_name(each.number), each.offset, each.first) for each in wrong
        ]


def test_an_index_of_a_segment_that_is_not_there_is_a_finding_that_json_can_say() -> None:
    built = log().blocks(3).write()
    gone = replace(built.frames[2], lsn=lsn(9, built.frames[2].offset))
    report = check(built, index_of((built.frames[0], 1), (gone, 3)))
    assert rows(report) == [("index", "00000009.vlog", gone.offset, 3)]
    assert msgspec.json.decode(msgspec.json.encode(report.findings))[0]["offset"] == gone.offset


def test_a_place_that_a_replacement_left_is_normal_until_a_checkpoint_after_it() -> None:
    """The block of VLSN 3 was written again in the next segment; the next open reads it there."""
    built = log().blocks(3)
    left = built.frames[-1]
    built.piece.frames.pop()
    built.piece.end, built.next_vlsn = left.offset, 3
    built.roll().blocks(1).checkpoint().blocks(1).write()
    stores = index_of((built.frames[0], 1), (left, 3))
    again, end = built.pieces[1].frames[0], built.pieces[1].frames[2]
    for scan_from in (NULL_LSN, built.frames[0].lsn, left.lsn):
        assert rows(check(built, state_with(checkpoint_end=end.lsn, scan_from=scan_from, stores=stores))) == []
    late = state_with(checkpoint_end=end.lsn, scan_from=again.lsn, stores=stores)
    assert rows(check(built, late)) == [("index", "00000001.vlog", left.offset, 3)]


def test_an_index_of_blocks_that_a_power_cut_took_is_normal() -> None:
    """The blocks were written and not synced when a checkpoint flushed it."""
    built = log().blocks(4)
    gone = built.frames[3]
    assert rows(check(built.write(), index_of((built.frames[0], 1), (gone, 4)))) == []
    built.piece.data[gone.offset :] = bytes(len(built.piece.data) - gone.offset)
    assert rows(check(built.write(), index_of((built.frames[0], 1), (gone, 4)))) == []


def test_a_first_group_that_was_never_synced_is_a_torn_tail_however_its_header_page_came_out() -> None:
    def with_header(page: bytes, *, synced: bool, stores: FakeStores | None = None) -> VerifyReport:
        built = log().blocks(3).roll().block()
        if synced:
            built.synced().block()
        built.write()
        built.put("00000002.vlog", page + bytes(built.piece.data[4096:]))
        return check(built, stores)

    prepared = replace(
        log().roll().piece.header, state=SegmentState.PREPARED, prev_number=0, prev_end=0, prev_last_vlsn=0
    )
    for page in (bytes(4096), prepared.encode()):
        report = with_header(page, synced=False)
        assert (rows(report), report.torn_tail, report.last) == ([], True, 3)
        assert rows(with_header(page, synced=True)) == [("segment-header", "00000002.vlog", 0, 4)]
        idle = state_with(idle=lsn(2, FIRST_FRAME + 8))
        assert rows(with_header(page, synced=False, stores=idle)) == [("segment-header", "00000002.vlog", 0, 4)]


def test_rotten_stores_and_node_file_are_named() -> None:
    built = three_segments().write()
    stores = FakeStores()
    stores.unreadable |= {"/d/index", "/d/state"}
    assert [row[:2] for row in rows(check(built, stores))] == [("index", "index"), ("state", "state")]
    file = built.disk.open("/d/node.id", write=True)
    file.write(10, [b"\xff"])
    assert rows(check(built)) == []  # one slot is enough
    file.write(4096 + 10, [b"\xff"])
    assert rows(check(built)) == [("node-file", "node.id", 0, 0)]
    built.disk.remove("/d/node.id")
    assert rows(check(built)) == [("node-file", "node.id", 0, 0)]


@pytest.mark.parametrize("slot", [1, 2])
@pytest.mark.parametrize("victim", ["rot", "bad sector"])
def test_a_slot_of_the_node_file_that_cannot_be_read_is_a_note(slot: int, victim: str) -> None:
    built = three_segments().write()
    disk = built.disk
    assert isinstance(disk, FakeDisk)
    assert check(built).notes == []
    offset = (slot - 1) * SLOT_BYTES + 50
    if victim == "rot":
        disk.flip_bit("/d/node.id", offset)
    else:
        disk.lose_page("/d/node.id", offset)
    for live in (False, True):
        report = check(built, live=live)
        assert report.ok
        assert len(report.notes) == 1
        assert report.notes[0].startswith(f"node.id: slot {slot} of 2 cannot be read (")
    disk.flip_bit("/d/node.id", (2 - slot) * SLOT_BYTES + 50)
    report = check(built)
    assert rows(report) == [("node-file", "node.id", 0, 0)]
    assert report.notes == []


def test_a_running_node_is_verified_only_up_to_its_stated_end() -> None:
    built = three_segments().block()
    built.flip(built.frames[-1], 60)
    built.write()
    lock = built.disk.lock("/d/LOCK")
    with pytest.raises(LogInUse):
        check(built)
    report = check(built, live=True)
    assert (rows(report), report.torn_tail, report.last) == ([], False, 13)
    built.flip(built.frames[-4], 60)
    built.write()
    assert rows(check(built, live=True)) == [("frame-crc", "00000003.vlog", built.frames[-4].offset, 12)]
    lock.release()


def test_the_idle_end_of_a_running_node_counts_and_its_index_does_not() -> None:
    built = three_segments().block().write()
    whole = state_with(idle=lsn(3, built.piece.end))
    lock = built.disk.lock("/d/LOCK")
    assert check(built, live=True).last == 13
    assert (check(built, whole, live=True).last, rows(check(built, whole, live=True))) == (15, [])
    built.flip(built.frames[-1], 70)
    built.write()
    assert rows(check(built, whole, live=True)) == [("frame-crc", "00000003.vlog", built.frames[-1].offset, 15)]
    whole.unreadable |= {"/d/index"}
    assert [row[0] for row in rows(check(built, whole, live=True))] == ["frame-crc"]
    lock.release()


def test_a_segment_of_another_node_is_named() -> None:
    built = log().blocks(3).roll().blocks(3).roll().blocks(3)
    other = replace(built.pieces[1].header, node="n2")
    built.pieces[1].data[:4096] = other.encode()
    assert rows(check(built.write())) == [("segment-header", "00000002.vlog", 0, 4)]


def test_cut_bytes_kept_aside_are_named_with_what_is_in_them() -> None:
    built = log().blocks(5).write()
    piece, frame = built.piece, built.frames[3]
    assert check(built).kept_aside == []
    built.put(f"00000001.cut-{frame.offset}", bytes(piece.data[frame.offset : piece.end]))
    built.put(f"00000001.cut-{frame.offset}.1", b"junk")
    built.put("00000001.cut-", b"not one")
    kept = check(built).kept_aside
    assert [(each.file, each.bytes, each.term, each.last) for each in kept] == [
        (f"00000001.cut-{frame.offset}", piece.end - frame.offset, 1, 5),
        (f"00000001.cut-{frame.offset}.1", 4, 0, 0),
    ]


@pytest.mark.parametrize(("victim", "synced"), [(6, True), (11, True), (13, False)])
def test_bytes_that_the_disk_does_not_give_are_a_finding(victim: int, synced: bool) -> None:
    built = log().blocks(5).roll().blocks(3).checkpoint().blocks(2).roll()
    built.block(b"x" * 5000).block(b"y" * 9000).synced().blocks(2).write(sidecars=True)
    frame = built.frames[victim]
    page = (frame.offset + frame.size - 1) // 4096 * 4096
    disk = built.disk
    assert isinstance(disk, FakeDisk)

    def bad(call: Call) -> bool:
        return (
            call.name == "read"
            and call.path.endswith(built.piece_of(frame.number).name)
            and call.offset <= page < call.offset + call.size
        )

    disk.fail_at(bad, times=1000)
    report = check(built)
    file = built.piece_of(frame.number).name
    assert ("unreadable", file, page) in [row[:3] for row in rows(report)]
    assert any(row[0] == "frame-header" or row[0] == "frame-crc" for row in rows(report)) == synced
    every = list(dump_rows(disk, FakeStores(), "/d", DumpFilter(all=True)))
    assert (file, page, "UNREADABLE", True) in [(row.file, row.offset, row.kind, row.damaged) for row in every]
    assert any("the disk cannot read" in row.detail for row in every)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_header_page_that_the_disk_does_not_give_is_a_finding(number: int) -> None:
    built = three_segments().write(sidecars=True)
    assert isinstance(built.disk, FakeDisk)
    name = f"{number:08d}.vlog"
    built.disk.lose_page(f"/d/{name}", 0)
    found = check(built, state_with(idle=lsn(3, FIRST_FRAME)))
    assert ("segment-header", name, 0, (1, 6, 11)[number - 1]) in rows(found)
    assert {row[1] for row in rows(found) if row[0] != "index"} == {name}


def test_verify_writes_nothing() -> None:
    built = three_segments().write(sidecars=True)
    before = len(built.disk.calls)  # type: ignore[attr-defined]
    check(built, state_with(idle=lsn(3, FIRST_FRAME)))
    assert not [call for call in built.disk.calls[before:] if call.changes]  # type: ignore[attr-defined]


def test_an_unused_standby_and_an_empty_directory_are_normal() -> None:
    built = log()
    built.pieces.clear()
    assert rows(check(built)) == []
    built = three_segments().write()
    built.put("00000004.vlog", bytes(built.segment_bytes))
    assert (rows(check(built)), check(built).torn_tail) == ([], False)


@settings(max_examples=60, deadline=None)
@given(logs(), st.booleans())
def test_any_log_that_a_log_could_write_verifies(built: LogBuilder, sidecars: bool) -> None:
    node_file.create(built.disk, "/node.id", NodeRecord(group="g", node="n1", incarnation=7, term=99)).close()
    built.write(sidecars=sidecars)
    built.disk.rename("/node.id", "/d/node.id")
    report = check(built)
    assert rows(report) == []
    visible = built.visible()
    assert report.entries == sum(each.last - each.first + 1 for each in visible)
    assert (report.first, report.last) == ((visible[0].first, visible[-1].last) if visible else (0, 0))
    assert (report.frames, report.blocks) == (len(built.frames), len(visible))


@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_any_flipped_bit_in_any_synced_frame_is_found_there(built: LogBuilder, data: st.DataObject) -> None:
    node_file.create(built.disk, "/node.id", NodeRecord(group="g", node="n1", incarnation=7, term=99)).close()
    built.block().synced().block().write(sidecars=data.draw(st.booleans()))
    built.disk.rename("/node.id", "/d/node.id")
    number = data.draw(st.integers(0, len(built.frames) - 2))
    victim = built.frames[number]
    at = data.draw(st.integers(0, victim.size - 1))
    built.flip(victim, at, 1 << data.draw(st.integers(0, 7)))
    piece = built.piece_of(victim.number)
    built.put(piece.name, bytes(piece.data))
    report = check(built)
    found = [row for row in rows(report) if row[0] in (Rule.FRAME_CRC, Rule.FRAME_HEADER)]
    assert [row[1:3] for row in found] == [(piece.name, victim.offset)] and not report.torn_tail
    if victim.first and not victim.overmarked:
        assert found[0][3] == victim.first


def test_a_transaction_that_is_not_whole_in_its_block_is_named() -> None:
    columns = block_format.columns_of([b"a", b"b"])
    ids = msgspec.structs.replace(columns, txns=(1).to_bytes(8, "little") * 2)
    for kinds, expected in (([0, 3], []), ([0, 0], [("transaction", "00000001.vlog", FIRST_FRAME, 1)])):
        data = block_format.build(term=1, first_vlsn=1, dtvlsn=0, clock_us=1, kind=kinds, columns=ids, submissions=1)
        built = log()
        built.frame(FrameKind.BLOCK, data)
        assert rows(check(built.write())) == expected
