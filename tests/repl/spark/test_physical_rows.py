"""Entries as Arrow columns, against the same log decoded entry by entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl.audit.directory import DirectorySource
from repl.spark.physical import BATCH_BYTES, SCHEMA, log_batches, segment_batches
from tests.repl.audit.logs import CLOCK_US, Copy, blocks, numbered
from vlsn.format.block import Columns, EntryKind, build, columns_of, decode, decode_header, entries
from vlsn.ids import lsn

Row = dict[str, Any]


def table(path: Path, batch_bytes: int = BATCH_BYTES) -> list[Row]:
    """Proven by sidecars where that is possible, and frame by frame: the same rows."""
    source = DirectorySource(str(path), str(path))
    survey = source.survey(0)
    batches = [
        batch
        for part in survey.parts
        for batch in segment_batches(
            source.read(part, 0, part.end), part, "n1", durable=survey.dtvlsn, batch_bytes=batch_bytes
        )
    ]
    rows: list[Row] = pa.Table.from_batches(batches, schema=SCHEMA).to_pylist()
    assert pa.Table.from_batches(log_batches(source), schema=SCHEMA).to_pylist() == rows
    return rows


def model(copy: Copy, story: list[bytes]) -> list[Row]:
    durable = max(decode_header(block).dtvlsn for block in story)
    return [
        {
            "node": "n1",
            "segment": copy.places[header.first_vlsn] >> 32,
            "lsn": copy.places[header.first_vlsn],
            "vlsn": entry.vlsn,
            "term": entry.term,
            "time": entry.time,
            "kind": EntryKind(entry.kind).name,
            "txn": entry.txn,
            "key": entry.key,
            "value": entry.value,
            "overmarked": False,
            "damaged": False,
            "durable": entry.vlsn <= durable,
        }
        for block in story
        for header in [decode(block)]
        for entry in entries(block, header)
    ]


def mixed(first_vlsn: int, kinds: list[int], values: list[bytes], keys: list[bytes] | None, txns: list[int]) -> bytes:
    """Returns a block with every column that these ask for."""
    plain = columns_of(values, keys)
    made = Columns(
        count=plain.count,
        value_offsets=plain.value_offsets,
        values=plain.values,
        key_offsets=plain.key_offsets,
        keys=plain.keys,
        txns=b"".join(txn.to_bytes(8, "little") for txn in txns) if any(txns) else b"",
    )
    block = build(
        term=3,
        first_vlsn=first_vlsn,
        dtvlsn=first_vlsn - 1,
        clock_us=CLOCK_US,
        kind=kinds,
        columns=made,
        submissions=1,
    )
    decode(block)
    return block


entry = st.tuples(
    st.integers(0, 4), st.binary(max_size=40), st.sampled_from([b"", b"k", b"key of entry"]), st.sampled_from([0, 0, 7])
)
shapes = st.lists(
    st.tuples(st.lists(entry, min_size=1, max_size=80), st.booleans(), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes, st.sampled_from([1, 2000, BATCH_BYTES]))
def test_rows_are_the_entries_whatever_columns_their_blocks_have(tmp_path: Path, shape: Any, batch_bytes: int) -> None:
    story, first = [], 1
    for some, keyed, one_kind in shape:
        kinds, values, keys, txns = (list(column) for column in zip(*some, strict=True))
        kinds = [kinds[0]] * len(kinds) if one_kind else kinds
        if any(txns):  # from the first row with one on: a transaction, whole in its block
            begin = next(row for row, txn in enumerate(txns) if txn)
            txns = [0] * begin + [first + begin] * (len(txns) - begin)
            kinds[begin:] = [EntryKind.DATA] * (len(kinds) - begin - 1) + [EntryKind.COMMIT]
        story.append(mixed(first, kinds, values, keys if keyed and any(keys) else None, txns))
        first += len(some)
    copy = Copy(tmp_path / "n1", "n1", segment_bytes=64 << 10).add(*story).checkpoint(0).write()
    assert table(copy.path, batch_bytes) == model(copy, story)


def test_long_blocks_and_one_entry_blocks_in_several_segments(tmp_path: Path) -> None:
    story = numbered(5, 3000, 20) + numbered(2000, first_vlsn=15_001)
    copy = Copy(tmp_path / "n1", "n1", segment_bytes=256 << 10).add(*story).write()
    assert len({at >> 32 for at in copy.places.values()}) > 2
    assert table(copy.path) == model(copy, story)


def test_overmarked_blocks_are_rows_that_say_so(tmp_path: Path) -> None:
    old, new = numbered(10), numbered(6, first_vlsn=6, term=2)
    copy = Copy(tmp_path / "n1", "n1").add(*old).rollback(5).add(*new).write()
    rows = table(copy.path)
    assert [row["vlsn"] for row in rows if row["overmarked"]] == [6, 7, 8, 9, 10]
    assert [(row["vlsn"], row["term"]) for row in rows if not row["overmarked"]] == [
        *((vlsn, 1) for vlsn in range(1, 6)),
        *((vlsn, 2) for vlsn in range(6, 12)),
    ]


def test_a_damaged_frame_is_one_row_without_a_value(tmp_path: Path) -> None:
    story = numbered(300, 5, 60)
    copy = Copy(tmp_path / "n1", "n1").add(*story).write()
    places = [copy.flip(101, 150)[1], copy.flip(201, 30)[1]]  # in a value, and in the block's header
    rows = table(copy.path)
    damaged = [row for row in rows if row["damaged"]]
    assert [(row["lsn"], row["vlsn"], row["value"]) for row in damaged] == [
        (lsn(1, places[0]), 101, None),
        (lsn(1, places[1]), None, None),
    ]
    assert len(rows) == 300 * 5 - 2 * 5 + 2


def test_a_block_whose_offsets_lie_is_damaged_though_its_checksums_are_right(tmp_path: Path) -> None:
    good = blocks(["aa", "bb", "cc"], first_vlsn=1)[0]
    header = decode_header(good)
    for offsets in ((0, 4, 2, 6), (1, 2, 4, 6), (0, 2, 4, 5), (0, -1, 2**31 - 1, 6)):
        lying = build(
            term=1,
            first_vlsn=1,
            dtvlsn=0,
            clock_us=CLOCK_US,
            kind=0,
            columns=Columns(
                count=3,
                value_offsets=b"".join(offset.to_bytes(4, "little", signed=True) for offset in offsets),
                values=b"aabbcc",
            ),
            submissions=1,
        )
        assert len(lying) == header.size
        copy = Copy(tmp_path / "n1", "n1").add(lying, *numbered(3, first_vlsn=4)).write()
        rows = table(copy.path)
        assert [(row["vlsn"], row["damaged"]) for row in rows] == [(4, False), (5, False), (6, False), (1, True)]


def test_durable_is_what_a_majority_is_known_to_have_synced(tmp_path: Path) -> None:
    """Seven entries are durable. Later ones, and both lives of the rolled-back ones, are not."""
    old, new = blocks(["a", "b", "c", "d", "e"], ["f", "g", "h", "i"]), blocks(["x", "y", "z"], first_vlsn=6, term=2)
    copy = Copy(tmp_path / "n1", "n1").add(*old).rollback(5).add(*new).checkpoint(7).write()
    rows = table(copy.path)
    assert [(row["vlsn"], row["term"]) for row in rows if row["durable"]] == [
        *((vlsn, 1) for vlsn in range(1, 6)),
        *((vlsn, 2) for vlsn in (6, 7)),
    ]
    assert [(row["vlsn"], row["overmarked"]) for row in rows if not row["durable"]] == [
        *((vlsn, True) for vlsn in range(6, 10)),
        (8, False),
    ]


def test_a_damaged_block_below_the_durable_end_is_no_durable_row(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(20, 5, 60)).checkpoint(100).write()
    copy.flip(51, 150)
    (damaged,) = (row for row in table(copy.path) if row["damaged"])
    assert (damaged["vlsn"], damaged["durable"]) == (51, False)
