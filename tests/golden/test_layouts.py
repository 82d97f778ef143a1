"""Every layout against its golden bytes, built and read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repl.cdc.position_file import StoredPosition
from tests.golden.hex import GOLDEN, golden
from vlsn.format import batch, block, frame, records, seal, segment, sidecar, submission
from vlsn.format.block import EntryKind
from vlsn.format.columns import Columns, offsets_of
from vlsn.ids import Term, Vlsn
from vlsn.index import bucket, stored, time_index
from vlsn.index.range import VlsnRange
from vlsn.segments import restore_marker
from vlsn.state import node_file
from vlsnlog.testing.fakes.kv import FakeStores

CLOCK_US = 1_700_000_000_000_000
SALT = 0xDEADBEEF
PRODUCER = 0x8123456789ABCDEF
SEGMENT = segment.SegmentHeader(
    group="demo",
    node="n1",
    incarnation=0x0123456789ABCDEF,
    number=3,
    salt=SALT,
    state=segment.SegmentState.ACTIVE,
    size=64 << 20,
    created_us=CLOCK_US,
    prev_number=2,
    prev_end=8192,
    prev_last_vlsn=99,
)
STANDBY = segment.SegmentHeader(
    group="demo",
    node="n1",
    incarnation=5,
    number=4,
    salt=1,
    state=segment.SegmentState.PREPARED,
    size=1 << 16,
    created_us=CLOCK_US,
)
NODE = node_file.NodeRecord(
    group="demo",
    node="n1",
    incarnation=0xFEDCBA9876543210,
    term=5,
    voted_for="n2",
    vote_term=4,
    floor_term=3,
    floor_vlsn=1000,
    sequence=7,
)
GROUP = records.GroupEntry(
    "demo",
    [
        records.Member("n1", "http://127.0.0.1:7701", "0123456789abcdef"),
        records.Member("n2", "http://127.0.0.1:7702", "fedcba9876543210", electable=False, priority=3, joining=True),
    ],
    previous=2,
)
POSITION = StoredPosition(
    group="demo", name="orders", next=0x0123456789, term=7, sequence=9, number=0xFEDCBA9876543210, known=True
)
FIXED: dict[str, Any] = {
    "segment.hex": SEGMENT,
    "segment_standby.hex": STANDBY,
    "nodefile_slot.hex": NODE,
    "checkpoint_start.hex": records.CheckpointStart(4, 1, 9, 8, CLOCK_US),
    "checkpoint_end.hex": records.CheckpointEnd(4, 3 << 32 | 4096, 1, 1, 9, 8, CLOCK_US),
    "rollback_start.hex": records.RollbackStart(5, 3 << 32 | 4096, 3 << 32 | 4208, 3 << 32 | 4400, 9, CLOCK_US),
    "rollback_end.hex": records.RollbackEnd(3 << 32 | 4400, CLOCK_US),
    "position_slot_1.hex": POSITION,
    "position_slot.hex": replace(POSITION, paused_us=CLOCK_US, moved_us=CLOCK_US + 1),
    "term_entry.json": records.TermEntry(3, "n1", "0123456789abcdef"),
    "group_entry.json": GROUP,
}


@pytest.mark.parametrize("name", FIXED)
def test_record_is_its_golden_bytes(name: str) -> None:
    record = FIXED[name]
    assert record.encode() == golden(name)
    assert type(record).decode(golden(name)) == record


def test_a_group_entry_of_before_priorities_is_read() -> None:
    read = records.GroupEntry.decode(golden("group_entry_1.json"))
    second = records.Member("n2", "http://127.0.0.1:7702", "fedcba9876543210", electable=False)
    assert read == records.GroupEntry("demo", [GROUP.members[0], second], previous=2)


def test_plain_block_is_its_golden_bytes() -> None:
    submissions = [submission.Values([b"a", b"bc"]), submission.Values([b""])]
    [sealed] = seal.seal(submissions, term=2, first_vlsn=7, dtvlsn=6, clock_us=CLOCK_US)
    assert sealed == seal.Sealed(golden("block_plain.hex"), Vlsn(7), Vlsn(9), 2)
    header = block.decode(sealed.data)
    assert (header.name, header.last_vlsn, header.submissions) == ((2, 7), 9, 2)
    assert [entry.value for entry in block.entries(sealed.data, header)] == [b"a", b"bc", b""]


def test_block_of_every_column_is_its_golden_bytes() -> None:
    columns = Columns(
        2,
        offsets_of([b"", b"value"]),
        b"value",
        offsets_of([b"key", b""]),
        b"key",
        txns=(10).to_bytes(8, "little") * 2,
    )
    data = block.build(
        term=3,
        first_vlsn=10,
        dtvlsn=9,
        clock_us=CLOCK_US + 1,
        kind=[EntryKind.DATA, EntryKind.COMMIT],
        columns=columns,
        submissions=1,
    )
    assert data == golden("block_columns.hex")
    one, two = block.entries(data, block.decode(data))
    assert one == block.Entry(Vlsn(10), Term(3), CLOCK_US + 1, EntryKind.DATA, 10, b"key", b"")
    assert two == block.Entry(Vlsn(11), Term(3), CLOCK_US + 1, EntryKind.COMMIT, 10, None, b"value")


def test_block_with_producers_is_its_golden_bytes() -> None:
    submissions: list[submission.Submission] = [
        submission.Values([b"a"], None, (PRODUCER, 4)),
        submission.Values([b"b"]),
        batch.decode(golden("batch_producer.hex")),
    ]
    [sealed] = seal.seal(submissions, term=2, first_vlsn=10, dtvlsn=9, clock_us=CLOCK_US)
    assert sealed.data == golden("block_producers.hex")
    header = block.decode(sealed.data)
    assert [entry.value for entry in block.entries(sealed.data, header)] == [b"a", b"b", b"cd", b""]
    assert block.producers(sealed.data, header) == [(PRODUCER, 4, 10, 10, 2), (PRODUCER, 5, 12, 13, 2)]


def test_producers_batch_is_its_golden_bytes() -> None:
    data = golden("batch_producer.hex")
    assert batch.encode([b"cd", b""], producer=(PRODUCER, 5)) == data
    assert b"".join(batch.of_producer(batch.encode_parts([b"cd", b""]), (PRODUCER, 5))) == data
    read = batch.decode(data)
    assert (read.producer, read.sequence, read.keyed) == (PRODUCER, 5, False)
    assert batch.decode_entries(read) == [(None, b"cd"), (None, b"")]


def test_batch_is_its_golden_bytes() -> None:
    data = golden("batch.hex")
    assert batch.encode([b"hi", b"the"], [None, b"k"]) == data
    assert batch.decode_entries(batch.decode(data)) == [(None, b"hi"), (b"k", b"the")]


@pytest.mark.parametrize("name", ["frame.hex", "frame_overmarked.hex"])
def test_frame_is_its_golden_bytes(name: str) -> None:
    data, payload = bytearray(golden(name)), golden("block_plain.hex")
    header = frame.decode_header(data, 0, offset=4096, salt=SALT)
    assert header is not None
    assert (header.size, header.overmarked) == (len(data), name == "frame_overmarked.hex")
    assert frame.check_frame(data, 0, header)
    data[frame.FLAG_AT] = 0
    built = frame.build_header(frame.FrameKind.BLOCK, payload, offset=4096, prev=0, synced=4096, salt=SALT)
    assert built + payload + bytes(-len(payload) % 8) == data


def test_sidecar_is_its_golden_bytes() -> None:
    made = sidecar.Sidecar(
        number=3,
        salt=SALT,
        first_vlsn=7,
        last_vlsn=9,
        end=4296,
        entries=3,
        crc=0x11223344,
        offsets=np.array([4096, 4208], np.uint32),
    )
    assert made.encode() == golden("sidecar.hex")
    read = sidecar.Sidecar.decode(golden("sidecar.hex"))
    assert (read.end, read.crc, read.offsets.tolist()) == (4296, 0x11223344, [4096, 4208])


def test_index_bucket_is_its_golden_bytes() -> None:
    key, value = golden("index_bucket.hex")[:9], golden("index_bucket.hex")[9:]
    made = bucket.Bucket(3, Vlsn(7), Vlsn(30), [0, 10, 20], [4096, 0x2098, 0x3130])
    assert (bucket.bucket_key(made.first), made.encode()) == (key, value)
    read = bucket.decode(key, value)
    assert (read.file, read.first, read.last) == (3, 7, 30)
    assert list(read.mappings()) == [(7, 3 << 32 | 4096), (17, 3 << 32 | 0x2098), (27, 3 << 32 | 0x3130)]


def test_index_record_is_its_golden_bytes() -> None:
    key, value = golden("index_record.hex")[:1], golden("index_record.hex")[1:]
    made = stored.Record(4, VlsnRange(Vlsn(7), Vlsn(30), Vlsn(30), Vlsn(28)), 0x0123456789ABCDEF)
    assert (stored.RECORD_KEY, made.encode()) == (key, value)
    assert stored.decode_record(value) == made


def test_time_index_is_its_golden_bytes() -> None:
    flush, record = golden("index_times_flush.hex"), golden("index_times.hex")
    made = time_index.TimeIndex()
    made.extend(7, 19, (3 << 32 | 4096, 3 << 32 | 0x2098), 10)
    made.extend(20, 30, (4 << 32, 4 << 32), time_index.UNKNOWN)
    puts, _ = made.flush(4, 3 << 32 | 0x3130)
    assert puts == [(flush[:1], flush[1:]), (record[:9], record[9:])]
    store = FakeStores().open("index", map_bytes=1 << 20)
    store.write(puts)
    read = time_index.TimeIndex()
    read.load(store, 4, Vlsn(7), Vlsn(30), 3 << 32 | 0x3130)
    assert read.steps() == made.steps() == [(7, 19, 10), (20, 30, (1 << 63) - 1)]


def test_restore_marker_is_its_golden_bytes() -> None:
    made = restore_marker.Marker(first_segment=7, after=Vlsn(142), why="trimmed", begun_us=CLOCK_US)
    assert made.encode() == golden("restore_marker.hex")
    assert restore_marker.Marker.decode(golden("restore_marker.hex")) == made


def test_every_golden_file_is_compared() -> None:
    compared = {"block_plain.hex", "block_columns.hex", "batch.hex", "frame.hex", "frame_overmarked.hex", "sidecar.hex"}
    compared |= {
        "index_bucket.hex",
        "index_record.hex",
        "index_times.hex",
        "index_times_flush.hex",
        "restore_marker.hex",
        "block_producers.hex",
        "batch_producer.hex",
        "group_entry_1.json",
        "auth.json",  # by tests/repl/auth/test_signatures.py
    }
    assert {path.name for path in GOLDEN.iterdir() if path.suffix in {".hex", ".json"}} == compared | set(FIXED)
