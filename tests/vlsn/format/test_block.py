"""Blocks: one content has one encoding, and every other byte string is refused."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack_into

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.golden.hex import golden
from tests.vlsn.strategies import blocks, flips, rebuilt, with_block_header
from vlsn.errors import BadBody
from vlsn.format import block
from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, BlockFlag, EntryKind
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.columns import Columns, columns_of, layout
from vlsn.format.producer_columns import columns as producer_columns
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX


def build(values: list[bytes], keys: list[bytes] | None = None, **fields: int) -> bytes:
    named = {"term": 2, "first_vlsn": 10, "dtvlsn": 9, "clock_us": 5, "kind": 0, "submissions": 1} | fields
    return block.build(columns=columns_of(values, keys), **named)


def resealed(data: bytes, change: Callable[[bytearray], None]) -> bytes:
    """Returns the block with its body changed and both checksums right again."""
    changed = bytearray(data)
    change(changed)
    return with_block_header(bytes(changed))


@given(blocks())
def test_block_round_trip(data: bytes) -> None:
    header = block.decode(data)
    entries = block.entries(data, header)
    assert [entry.vlsn for entry in entries] == list(range(header.first_vlsn, header.last_vlsn + 1))
    assert {(entry.term, entry.time) for entry in entries} == {(header.term, header.clock_us)}
    assert rebuilt(data) == data


@given(blocks(), st.integers(0, 100), st.frozensets(st.sampled_from(list(EntryKind))))
def test_entries_from_a_vlsn_and_of_some_kinds_are_a_part_of_all(data: bytes, skip: int, kinds: frozenset[int]) -> None:
    header = block.decode(data)
    start = header.first_vlsn + skip
    expected = [entry for entry in block.entries(data, header) if entry.vlsn >= start and entry.kind in kinds]
    assert block.entries(memoryview(data), header, from_vlsn=start, kinds=kinds) == expected


@given(blocks())
def test_dtype_reads_what_the_struct_wrote(data: bytes) -> None:
    header = block.decode_header(data)
    row = np.frombuffer(data, BLOCK_DTYPE, 1)[0]
    assert row["zero"] == 0
    for field in BLOCK_DTYPE.names or ():
        assert field == "zero" or row[field] == getattr(header, field)


@pytest.mark.parametrize("name", ["block_plain.hex", "block_columns.hex", "block_producers.hex"])
def test_any_flipped_bit_is_found(name: str) -> None:
    for data in flips(golden(name)):
        with pytest.raises(BadBody):
            block.decode(data)


@given(blocks(), st.integers(1, 80))
def test_too_short_and_too_long_are_refused(data: bytes, by: int) -> None:
    for other in (data[:-by], data + bytes(by)):
        with pytest.raises(BadBody):
            block.decode(other)


def test_name_and_last_vlsn() -> None:
    header = block.decode(build([b"a", b"bc", b""], first_vlsn=7, dtvlsn=0))
    assert (header.name, header.last_vlsn, header.size, header.body_bytes) == ((2, 7), 9, 83, 19)


@pytest.mark.parametrize(
    ("flags", "count", "key_bytes", "expected"),
    [
        (0, 1, 0, (-1, -1, -1, -1, 64, -1, 72, 74)),
        (0, 2, 0, (-1, -1, -1, -1, 64, -1, 80, 82)),
        (8, 2, 3, (-1, -1, -1, 64, 80, 96, 104, 106)),
        (1 | 2 | 8, 3, 8, (64, 72, -1, 96, 112, 128, 136, 138)),
        (1 | 2 | 4 | 8, 3, 8, (64, 72, 96, 160, 176, 192, 200, 202)),
    ],
)
def test_layout(flags: int, count: int, key_bytes: int, expected: tuple[int, ...]) -> None:
    assert layout(flags, count, key_bytes, 2, 3) == expected


ONE = build([b"value"])
KEYED = build([b"v", b"w"], [b"key", b""])
MANY = build([b"v"] * 100)


@pytest.mark.parametrize(
    "fields",
    [
        {"zero": 1},
        {"flags": BlockFlag.PRODUCERS},
        {"flags": BlockFlag.PRODUCERS, "submissions": 0},
        {"flags": 16},
        {"flags": BlockFlag.KINDS},
        {"flags": BlockFlag.KEYS},
        {"kind": KIND_COLUMN},
        {"kind": 5},
        {"count": 0, "submissions": 0},
        {"count": 2},
        {"count": BATCH_ENTRIES_MAX + 1},
        {"count": 2**32 - 1},
        {"submissions": 2},
        {"term": 0},
        {"term": 2**63},
        {"first_vlsn": 0, "dtvlsn": 0},
        {"first_vlsn": 2**63 - 1},
        {"first_vlsn": 2**64 - 1},
        {"dtvlsn": 10},
        {"clock_us": 2**63},
        {"key_bytes": 1},
        {"value_bytes": 4},
        {"value_bytes": 2**32 - 1},
        {"body_bytes": 12},
        {"body_bytes": BODY_BYTES_MAX + 1, "value_bytes": BODY_BYTES_MAX + 1 - 8},
    ],
    ids=str,
)
def test_a_header_out_of_its_rules_is_refused(fields: dict[str, int]) -> None:
    block.decode_header(with_block_header(ONE))
    with pytest.raises(BadBody):
        block.decode_header(with_block_header(ONE, **fields))


def test_the_largest_header_is_read_in_its_64_bytes() -> None:
    """The limits themselves are inside, and no body is needed to say so."""
    value_bytes = BODY_BYTES_MAX - 4 * BATCH_ENTRIES_MAX - 8
    head = with_block_header(
        ONE[:BLOCK_BYTES],
        count=BATCH_ENTRIES_MAX,
        value_bytes=value_bytes,
        body_bytes=BODY_BYTES_MAX,
        first_vlsn=2**63 - 1 - BATCH_ENTRIES_MAX,
    )
    assert block.decode_header(head).size == BLOCK_BYTES + BODY_BYTES_MAX


def offsets(*values: int, at: int = BLOCK_BYTES) -> Callable[[bytearray], None]:
    return lambda data: pack_into(f"<{len(values)}i", data, at, *values)


def byte(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        assert data[at] == 0
        data[at] = 1

    return change


def test_a_block_of_nothing_is_refused() -> None:
    """Its lengths and checksums agree: one offset of 0, and no value."""
    nothing = with_block_header(ONE[:BLOCK_BYTES] + bytes(8), count=0, submissions=0, value_bytes=0, body_bytes=8)
    with pytest.raises(BadBody, match="0 entries"):
        block.decode(nothing)


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (ONE, offsets(1, 5)),
        (ONE, offsets(0, 4)),
        (ONE, offsets(0, 6)),
        (ONE, offsets(0, -1)),
        (KEYED, offsets(0, 4, 3)),
        (KEYED, offsets(0, -1, 3)),
        (KEYED, byte(BLOCK_BYTES + 12)),  # padding after the key offsets
        (KEYED, byte(BLOCK_BYTES + 28)),  # after the value offsets
        (KEYED, byte(BLOCK_BYTES + 32 + 3)),  # after the keys
        (MANY, offsets(1)),
        (MANY, offsets(5, at=BLOCK_BYTES + 40)),
        (MANY, offsets(99, at=BLOCK_BYTES + 400)),
        # Each difference, taken in 32 bits, is not negative: 0 … 2^31-1, then round to -2^31, then up again.
        (MANY, offsets(0, 2**31 - 1, -(2**31), -1)),
        (MANY, byte(BLOCK_BYTES + 404)),
    ],
)
def test_a_body_out_of_its_rules_is_refused(data: bytes, change: Callable[[bytearray], None]) -> None:
    header = block.decode(data)
    broken = resealed(data, change)
    assert block.decode_header(broken).name == header.name
    with pytest.raises(BadBody):
        block.decode(broken)


def with_columns(kinds: list[int], txns: list[int]) -> bytes:
    count = len(kinds)
    values = columns_of([b"v"] * count)
    column = b"".join(txn.to_bytes(8, "little") for txn in txns)
    columns = Columns(count, values.value_offsets, values.values, txns=column)
    return block.build(term=1, first_vlsn=1, dtvlsn=0, clock_us=0, kind=kinds, columns=columns, submissions=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.__setitem__(BLOCK_BYTES, 5),
        lambda data: data.__setitem__(BLOCK_BYTES, 2),
        lambda data: data.__setitem__(BLOCK_BYTES + 2, 1),
        lambda data: data.__setitem__(slice(BLOCK_BYTES + 8, BLOCK_BYTES + 24), bytes(16)),
        lambda data: data.__setitem__(BLOCK_BYTES + 15, 0x80),
    ],
    ids=["unknown kind", "column of one kind", "padding", "column of zeros", "past 63 bits"],
)
def test_kinds_and_transactions_out_of_their_rules_are_refused(change: Callable[[bytearray], None]) -> None:
    good = with_columns([EntryKind.COMMIT, EntryKind.GROUP], [1, 0])
    assert [(entry.kind, entry.txn) for entry in block.entries(good, block.decode(good))] == [(3, 1), (2, 0)]
    with pytest.raises(BadBody):
        block.decode(resealed(good, change))


PRODUCED = golden("block_producers.hex")
MANY_PRODUCED = block.build(
    term=1,
    first_vlsn=1,
    dtvlsn=0,
    clock_us=0,
    kind=0,
    columns=replace(columns_of([b""] * 71), producers=producer_columns([3, 0] * 35 + [3], [0] * 71, [1] * 71)),
    submissions=71,
)


@pytest.mark.parametrize(
    ("data", "at", "field"),
    [
        (PRODUCED, BLOCK_BYTES, bytes(24)),
        (PRODUCED, BLOCK_BYTES + 32, b"\1"),
        (PRODUCED, BLOCK_BYTES + 31, b"\x80"),
        (PRODUCED, BLOCK_BYTES + 24, b"\xff" * 7 + b"\x7f"),
        (PRODUCED, BLOCK_BYTES + 48, b"\2"),
        (PRODUCED, BLOCK_BYTES + 48, b"\0\0\0\0\2"),
        (PRODUCED, BLOCK_BYTES + 60, b"\1"),
        (MANY_PRODUCED, BLOCK_BYTES + 71 * 8 + 8, b"\1"),
        (MANY_PRODUCED, BLOCK_BYTES + 71 * 16, b"\2"),
        (MANY_PRODUCED, BLOCK_BYTES + 71 * 20 + 1, b"\1"),
    ],
    ids=[
        "nobody",
        "a sequence of nobody's",
        "past 63 bits",
        "the last number",
        "counts too many",
        "a count of 0",
        "padding",
        "of many: a sequence of nobody's",
        "of many: counts too many",
        "of many: padding",
    ],
)
def test_producers_out_of_their_rules_are_refused(data: bytes, at: int, field: bytes) -> None:
    def change(body: bytearray) -> None:
        body[at : at + len(field)] = field

    block.decode(data)
    with pytest.raises(BadBody):
        block.decode(resealed(data, change))


def test_one_kind_for_all_is_no_column() -> None:
    data = with_columns([EntryKind.TERM, EntryKind.TERM], [])
    header = block.decode(data)
    assert (header.kind, header.flags) == (EntryKind.TERM, 0)
    assert block.entries(data, header, kinds=frozenset({EntryKind.DATA})) == []


def test_check_body_reads_a_block_that_goes_on() -> None:
    """A reader's window holds a block, its padding, and what follows."""
    block.check_body(ONE + b"next", block.decode_header(ONE + b"next"))
    with pytest.raises(BadBody):
        block.check_body(ONE[:-1], block.decode_header(ONE))


def test_header_anywhere_in_a_buffer() -> None:
    assert block.decode_header(b"12345" + ONE, 5) == block.decode_header(ONE)
    for at in (-1, 1, len(ONE)):
        with pytest.raises(BadBody):
            block.decode_header(ONE, at)
