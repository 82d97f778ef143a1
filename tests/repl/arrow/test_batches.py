"""Blocks as record batches, against a plain model: rows one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.arrow import batches
from repl.arrow.batches import SCHEMA, WHOLE_BYTES, batches_of
from repl.client.block_rows import checked_rows
from vlsn.errors import BadBody
from vlsn.format.block import BLOCK_BYTES, EntryKind, build, columns_of, decode_header, seal_body
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import Rows

CLOCK_US = 1_700_000_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Written = tuple[int, bytes | None, bytes]
"""Kind, key and value."""

KINDS = st.sampled_from([EntryKind.DATA, EntryKind.DATA, EntryKind.DATA, EntryKind.TERM, EntryKind.COMMIT])
ENTRY = st.tuples(KINDS.map(int), st.none() | st.binary(min_size=1, max_size=9), st.binary(max_size=20))
DATA = st.tuples(st.just(0), st.none() | st.binary(min_size=1, max_size=9), st.binary(max_size=20))
BLOCKS = st.lists(st.lists(ENTRY, min_size=1, max_size=12) | st.lists(DATA, min_size=1, max_size=12), max_size=8)


def block(entries: list[Written], first: int, term: int = 3) -> bytes:
    keys = [key or b"" for _, key, _ in entries]
    return build(
        term=term,
        first_vlsn=first,
        dtvlsn=0,
        clock_us=CLOCK_US + first,
        kind=[kind for kind, _, _ in entries],
        columns=columns_of([value for _, _, value in entries], keys if any(keys) else None),
        submissions=1,
    )


def page(blocks: list[bytes]) -> bytes:
    return b"".join(each + bytes(-len(each) & 7) for each in blocks)


def log(written: list[list[Written]], first: int = 5) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Returns the blocks as a page, and the rows that readers see of them."""
    sealed, rows = [], []
    for entries in written:
        sealed.append(block(entries, first))
        time = EPOCH + timedelta(microseconds=CLOCK_US + first)
        for vlsn, (kind, key, value) in enumerate(entries, first):
            if kind == EntryKind.DATA:
                rows.append((vlsn, 3, time, key, value))
        first += len(entries)
    return page(sealed), rows


def shown(found: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


@given(
    BLOCKS,
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([1, 30, WHOLE_BYTES]),
    st.sampled_from([1, 200, 1 << 22]),
    st.none() | st.builds(KeyFilter, st.binary(max_size=2), prefix=st.booleans()),
)
def test_rows_are_those_of_the_model(
    written: list[list[Written]], first: int, last: int, whole_bytes: int, batch_bytes: int, keys: KeyFilter | None
) -> None:
    body, model = log(written)
    rows = checked_rows(memoryview(body))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "WHOLE_BYTES", whole_bytes)
        patch.setattr(batches, "BATCH_BYTES", batch_bytes)
        found = list(batches_of(rows, first, last, keys)) if rows is not None else []
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == SCHEMA
        assert batch.num_rows
    assert shown(found) == [row for row in model if first <= row[0] <= last and (keys is None or keys.has(row[3]))]


def test_a_large_block_is_not_copied() -> None:
    entries: list[Written] = [(0, b"k%d" % number if number % 3 else None, b"v" * 100) for number in range(1000)]
    body, model = log([entries[:2], entries, entries[:2]])
    rows = checked_rows(memoryview(body))
    assert rows is not None
    small, large, _ = found = list(batches_of(rows, 1, 10_000))
    assert shown(found) == model
    start = pa.py_buffer(body).address
    for column in ("key", "value"):
        for buffer in large.column(column).buffers()[1:]:
            assert start < buffer.address < start + len(body)
            assert not start < small.column(column).buffers()[2].address < start + len(body)


def test_small_blocks_make_one_batch() -> None:
    body, model = log([[(0, None, b"%d" % number)] for number in range(1000)])
    rows = checked_rows(memoryview(body))
    assert rows is not None
    (batch,) = batches_of(rows, 1, 10_000)
    assert shown([batch]) == model


def resealed(data: bytes, offsets: list[int]) -> bytes:
    """Returns the block with other offsets of its values, and right checksums."""
    header = decode_header(data)
    body = bytearray(data[BLOCK_BYTES:])
    at = header.layout.value_offsets - BLOCK_BYTES
    body[at : at + 4 * len(offsets)] = np.array(offsets, "<i4").tobytes()
    return seal_body(
        [bytes(body)],
        flags=header.flags,
        kind=header.kind,
        count=header.count,
        term=header.term,
        first_vlsn=header.first_vlsn,
        dtvlsn=header.dtvlsn,
        clock_us=header.clock_us,
        submissions=header.submissions,
        key_bytes=header.key_bytes,
        value_bytes=header.value_bytes,
    )


@pytest.mark.parametrize("offsets", [[1, 3, 6], [0, 7, 6], [0, 3, 5], [0, -1, 6], [0, 2**31 - 1, 6]])
def test_offsets_that_lead_elsewhere_are_refused(offsets: list[int]) -> None:
    bad = resealed(block([(0, None, b"abc"), (0, None, b"def")], 5), offsets)
    body = page([bad])
    with pytest.raises(BadBody, match="offsets"):
        checked_rows(memoryview(body))
    rows = Rows(body, np.array([0]), np.frombuffer(bad[:BLOCK_BYTES], BLOCK_DTYPE))
    with pytest.raises(BadBody, match="offsets"):
        list(batches_of(rows, 1, 10))


@given(BLOCKS.filter(bool), st.data())
def test_whatever_byte_is_wrong_a_page_is_refused(written: list[list[Written]], data: st.DataObject) -> None:
    body, _ = log(written)
    size = decode_header(body).size
    at = data.draw(st.integers(0, size - 1))
    changed = bytearray(body)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadBody):
        checked_rows(memoryview(bytes(changed)))
    with pytest.raises(BadBody):
        checked_rows(memoryview(body[: data.draw(st.integers(1, size - 1))]))


def test_blocks_follow_on_one_another() -> None:
    one, two = block([(0, None, b"a")], 5), block([(0, None, b"b")], 7)
    with pytest.raises(BadBody, match="does not follow"):
        checked_rows(memoryview(page([one, two])))
    lower = block([(0, None, b"b")], 6, term=2)
    with pytest.raises(BadBody, match="does not follow"):
        checked_rows(memoryview(page([one, lower])))
    assert checked_rows(memoryview(b"")) is None
