"""The node file: every cut leaves the record that was promised, or the one being made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import flips, names, u64
from vlsn.errors import BadBody, Damaged, LogFailed
from vlsn.format.checksum import crc
from vlsn.state.node_file import SLOT_BYTES, NodeFile, NodeRecord, create, read
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

PATH = "/n1/node.id"
FIRST = NodeRecord(group="g", node="n1", incarnation=7)


@st.composite
def node_records(draw: st.DrawFn) -> NodeRecord:
    term = draw(u64)
    vote_term = draw(st.integers(0, term))
    return NodeRecord(
        group=draw(names),
        node=draw(names),
        incarnation=draw(u64),
        term=term,
        voted_for=draw(names) if vote_term and draw(st.booleans()) else "",
        vote_term=vote_term,
        floor_term=draw(u64),
        floor_vlsn=draw(u64),
        sequence=draw(st.integers(1, 2**64 - 1)),
    )


def next_record(record: NodeRecord) -> NodeRecord:
    return NodeRecord(
        group="g", node="n1", incarnation=7, term=record.term + 1, voted_for="n2", vote_term=record.term + 1
    )


def disk_with_file() -> FakeDisk:
    disk = FakeDisk()
    disk.make_directory("/n1")
    create(disk, PATH, FIRST).close()
    disk.settle()
    return disk


@given(node_records())
def test_record_survives_its_slot(record: NodeRecord) -> None:
    slot = record.encode()
    assert len(slot) == SLOT_BYTES
    assert NodeRecord.decode(slot) == record


def test_record_any_flipped_bit_is_found() -> None:
    for slot in flips(FIRST.encode()):
        with pytest.raises(BadBody):
            NodeRecord.decode(slot)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"VLSNNODF"),
        (12, b"\1"),  # zero
        (16, bytes(8)),  # sequence
        (40, b"\1"),  # a vote in a term not reached
        (64, bytes(32)),  # group
        (96, b"n n"),  # node
        (128, b"n2"),  # a vote in no term
        (128, b"/"),
        (160, b"\1"),
    ],
)
def test_record_out_of_its_rules_is_refused(at: int, data: bytes) -> None:
    page = FIRST.encode()[:-4]
    assert NodeRecord.decode(page + crc(page).to_bytes(4, "little")) == FIRST
    page = page[:at] + data + page[at + len(data) :]
    with pytest.raises(BadBody):
        NodeRecord.decode(page + crc(page).to_bytes(4, "little"))


@pytest.mark.parametrize("size", [0, SLOT_BYTES - 1, SLOT_BYTES + 1])
def test_record_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(BadBody):
        NodeRecord.decode((FIRST.encode() + b"\0")[:size])


def test_replace_writes_and_syncs_one_slot_after_the_other() -> None:
    disk = disk_with_file()
    with_file = NodeFile.open(disk, PATH)
    before = len(disk.calls)
    stored = with_file.replace(next_record(FIRST))
    assert [(call.name, call.offset) for call in disk.calls[before:]] == [
        ("write", 0),
        ("sync", 0),
        ("write", SLOT_BYTES),
        ("sync", 0),
    ]
    assert with_file.record == stored == read(disk, PATH)
    assert (stored.term, stored.sequence) == (1, 2)
    assert disk.durable_content(PATH) == stored.encode() * 2


def test_a_floor_alone_keeps_the_sequence_and_slot_one_is_the_newer() -> None:
    disk = disk_with_file()
    before = NodeFile.open(disk, PATH).record
    floor = replace(before, floor_term=before.term, floor_vlsn=9)
    calls = len(disk.calls)
    for number in range(1, 9):
        cut = disk.clone()
        node_file = NodeFile.open(cut, PATH)
        cut.stop_at(len(cut.calls) + number)
        with suppress(StopHere):
            assert node_file.replace(floor).sequence == before.sequence
        cut.process_kill()
        assert NodeFile.open(cut, PATH).record == (before if number == 1 else floor)
        assert cut.durable_content(PATH)[:SLOT_BYTES] == cut.durable_content(PATH)[SLOT_BYTES:]
    assert len(disk.calls) == calls
    with_vote = NodeFile.open(disk, PATH).replace(replace(floor, term=floor.term + 1))
    assert with_vote.sequence == before.sequence + 1


def test_a_term_that_was_learned_keeps_the_sequence() -> None:
    disk = disk_with_file()
    node_file = NodeFile.open(disk, PATH)
    before = node_file.record
    learned = node_file.replace(replace(before, term=before.term + 3), learned=True)
    assert (learned.term, learned.sequence) == (before.term + 3, before.sequence)
    assert NodeFile.open(disk, PATH).record == learned


@pytest.mark.parametrize(("voted_for", "vote_term"), [("n3", 5), ("", 0), ("", 5), ("n2", 4)])
def test_replace_refuses_another_vote_in_a_term(voted_for: str, vote_term: int) -> None:
    """The rule holds whoever asks: one vote for an incarnation in a term (Raft, section 5.2)."""
    disk = FakeDisk()
    node_file = create(disk, "node.id", replace(FIRST, term=5, vote_term=5, voted_for="n2"))
    with pytest.raises(LogFailed):
        node_file.replace(replace(node_file.record, voted_for=voted_for, vote_term=vote_term))
    assert read(disk, "node.id") == node_file.record
    assert (node_file.record.vote_term, node_file.record.voted_for) == (5, "n2")
    assert node_file.replace(replace(node_file.record, floor_vlsn=9)).voted_for == "n2"
    assert node_file.replace(replace(node_file.record, term=6, voted_for="n3", vote_term=6)).voted_for == "n3"
    another = replace(node_file.record, incarnation=FIRST.incarnation + 1, voted_for="", vote_term=0)
    assert node_file.replace(another).voted_for == ""


def test_replace_refuses_a_lower_term() -> None:
    node_file = NodeFile.open(disk_with_file(), PATH)
    stored = node_file.replace(next_record(FIRST))
    with pytest.raises(AssertionError):
        node_file.replace(FIRST)
    assert node_file.record == stored


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("rots", [False, True])
def test_open_mends_a_slot_in_a_bad_sector_from_the_other(slot: int, rots: bool) -> None:
    disk = disk_with_file()
    damage = disk.flip_bit if rots else disk.lose_page
    damage(PATH, slot * SLOT_BYTES + 50)
    calls = len(disk.calls)
    assert read(disk, PATH) == FIRST
    assert not [call for call in disk.calls[calls:] if call.changes], "reading writes nothing"
    NodeFile.open(disk, PATH).close()
    assert disk.open(PATH).read(0, 2 * SLOT_BYTES) == FIRST.encode() * 2 == disk.durable_content(PATH)


def test_a_file_whose_sectors_are_both_bad_is_not_lost() -> None:
    """The disk may give them yet: nothing says that this store is another incarnation."""
    disk = disk_with_file()
    disk.lose_page(PATH, 0)
    disk.flip_bit(PATH, SLOT_BYTES + 8)
    for opened in (NodeFile.open, read):
        with pytest.raises(OSError, match=PATH):
            opened(disk, PATH)


@pytest.mark.parametrize("size", [0, 10, SLOT_BYTES - 1])
def test_open_of_a_short_file_is_damaged(size: int) -> None:
    disk = disk_with_file()
    disk.write_content(PATH, FIRST.encode()[:size])
    with pytest.raises(Damaged, match="neither slot"):
        NodeFile.open(disk, PATH)


def test_open_with_both_slots_bad_is_damaged() -> None:
    disk = disk_with_file()
    disk.flip_bit(PATH, 8)
    disk.flip_bit(PATH, SLOT_BYTES + 8)
    for opened in (NodeFile.open, read):
        with pytest.raises(Damaged) as caught:
            opened(disk, PATH)
        assert caught.value.file == PATH


def test_open_without_a_file_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        NodeFile.open(FakeDisk(), PATH)


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_replace_after_a_failed_call_never_works_again(failing: str) -> None:
    disk = disk_with_file()
    node_file = NodeFile.open(disk, PATH)
    disk.fail_at(lambda call: call.name == failing)
    for _ in range(2):
        with pytest.raises(LogFailed):
            node_file.replace(next_record(FIRST))
    assert node_file.record == FIRST


def test_open_whose_sync_fails_does_not_answer() -> None:
    disk = disk_with_file()
    disk.fail_at(lambda call: call.name == "sync")
    with pytest.raises(LogFailed):
        NodeFile.open(disk, PATH)


def cuts(disk: FakeDisk) -> Iterator[FakeDisk]:
    """Yields the disks that may come back: killed alone, and power cuts that keep this or that."""
    killed = disk.clone()
    yield killed
    for seed in range(12):
        cut = disk.clone()
        cut.power_cut(Random(seed), tear=seed % 2 == 1)
        yield cut


@pytest.mark.parametrize("stop", range(1, 40))
def test_any_cut_keeps_what_was_promised(stop: int) -> None:
    """A process promises one record after the other. Wherever it ends, the next one finds the last it promised or the
    one it was making, and so does the one after a second cut."""
    disk = disk_with_file()
    disk.stop_at(len(disk.calls) + stop)
    promised, made = [FIRST], next_record(FIRST)
    try:
        node_file = NodeFile.open(disk, PATH)
        while True:
            made = next_record(node_file.record)
            promised.append(node_file.replace(made))
    except StopHere:
        pass
    for first_cut in cuts(disk):
        found = NodeFile.open(first_cut, PATH)
        assert found.record.term in (promised[-1].term, made.term)
        first_cut.stop_at(lambda call: call.name == "write", moment="during")
        with pytest.raises(StopHere):
            found.replace(next_record(found.record))
        for second_cut in cuts(first_cut):
            again = NodeFile.open(second_cut, PATH)
            assert again.record.term in (found.record.term, found.record.term + 1)
            assert second_cut.durable_content(PATH) == again.record.encode() * 2


@pytest.mark.parametrize("seed", range(8))
def test_what_was_created_outlives_a_power_cut(seed: int) -> None:
    disk = FakeDisk(rng=Random(seed))
    disk.make_directory("/n1")
    disk.settle()
    create(disk, PATH, FIRST)
    disk.power_cut(Random(seed), tear=True)
    assert read(disk, PATH) == FIRST


@pytest.mark.parametrize("stop", range(1, 7))
def test_any_cut_of_create_leaves_no_file_or_a_whole_one(stop: int) -> None:
    disk = FakeDisk()
    disk.make_directory("/n1")
    disk.settle()
    disk.stop_at(len(disk.calls) + stop)
    try:
        create(disk, PATH, FIRST)
        disk.exists(PATH)  # the call after the last
    except StopHere:
        pass
    assert disk.stopped
    for cut in cuts(disk):
        if cut.exists(PATH):
            assert NodeFile.open(cut, PATH).record == FIRST
        else:
            assert create(cut, PATH, FIRST).record == FIRST
        assert cut.durable_content(PATH) == FIRST.encode() * 2


@pytest.mark.parametrize("seed", range(8))
def test_open_believes_the_medium_after_a_sync_that_failed(seed: int) -> None:
    """The page cache still shows what the failed sync lost, and calls it clean."""
    disk = FakeDisk(rng=Random(seed))
    disk.make_directory("/n1")
    create(disk, PATH, FIRST).close()
    disk.settle()
    node_file = NodeFile.open(disk, PATH)
    disk.fail_at(lambda call: call.name == "sync")
    with pytest.raises(LogFailed):
        node_file.replace(next_record(FIRST))
    disk.process_kill()
    found = NodeFile.open(disk, PATH).record
    assert disk.durable_content(PATH) == found.encode() * 2
    disk.power_cut(Random(seed))
    assert NodeFile.open(disk, PATH).record == found


def test_open_makes_the_name_of_a_file_that_it_found_durable() -> None:
    disk = FakeDisk()
    disk.make_directory("/n1")
    disk.settle()
    disk.stop_at(lambda call: call.name == "rename", moment="after")
    with pytest.raises(StopHere):
        create(disk, PATH, FIRST)
    disk.process_kill()
    assert NodeFile.open(disk, PATH).record == FIRST
    for cut in cuts(disk):
        assert NodeFile.open(cut, PATH).record == FIRST
