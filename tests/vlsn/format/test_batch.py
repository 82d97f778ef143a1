"""A client's batch: what a producer encodes is taken whole, and a malformed one is refused by its own check."""

from __future__ import annotations

import struct
from struct import pack_into

import pytest
from hypothesis import given

from tests.vlsn.strategies import entry_lists, flips, with_batch_header
from vlsn.errors import BadBody, TooLarge
from vlsn.format import batch, block, producer_columns
from vlsn.format.batch import BATCH_BYTES
from vlsn.format.checksum import crc
from vlsn.format.columns import PRODUCERS, columns_of
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX

PLAIN = batch.encode([b"value"])
KEYED = batch.encode([b"v", b"w"], [b"key", None])
PRODUCED = batch.encode([b"v", b"w"], producer=(7, 3))


@given(entry_lists())
def test_batch_round_trip(drawn: tuple[list[bytes], list[bytes | None] | None]) -> None:
    values, keys = drawn
    data = batch.encode(values, keys)
    assert b"".join(batch.encode_parts(values, keys)) == data
    decoded = batch.decode(data)
    expected = list(zip(keys or [None] * len(values), values, strict=True))
    assert batch.decode_entries(decoded) == expected
    assert decoded.count == len(values)
    assert decoded.keyed == any(key for key, _ in expected)
    assert decoded.bytes >= len(decoded.body) - 3 * 8


@given(entry_lists())
def test_body_is_a_blocks_body(drawn: tuple[list[bytes], list[bytes | None] | None]) -> None:
    """Byte for byte and crc for crc: that is why a lone batch is sealed untouched."""
    values, keys = drawn
    decoded = batch.decode(batch.encode(values, keys))
    columns = columns_of(values, batch.key_column(keys))
    sealed = block.build(term=1, first_vlsn=1, dtvlsn=0, clock_us=0, kind=0, columns=columns, submissions=1)
    assert sealed[block.BLOCK_BYTES :] == decoded.body
    assert block.decode(sealed).body_crc == decoded.body_crc


def test_any_flipped_bit_is_found() -> None:
    for whole in (KEYED, PRODUCED):
        for data in flips(whole):
            with pytest.raises(BadBody):
                batch.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        with_batch_header(PLAIN + b"\0"),
        with_batch_header(PLAIN + b"\0", body_bytes=14),
        with_batch_header(PLAIN[:-1], body_bytes=12),
        with_batch_header(PLAIN[:BATCH_BYTES] + bytes(8), count=0, value_bytes=0, body_bytes=8),
    ],
    ids=["more than it says", "more than its columns", "less than its columns", "nothing"],
)
def test_lengths_that_do_not_agree_are_refused(data: bytes) -> None:
    """Every checksum is right."""
    with pytest.raises(BadBody, match="batch of"):
        batch.decode(data)


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (PLAIN, {"magic": b"VLB2"}),
        (PLAIN, {"flags": 8}),
        (PLAIN, {"flags": 4}),
        (PRODUCED, {"flags": 0}),
        (PRODUCED, {"count": 3}),
        (PLAIN, {"flags": 1}),
        (PLAIN, {"zero": 1}),
        (PLAIN, {"count": 0}),
        (PLAIN, {"count": 2}),
        (PLAIN, {"key_bytes": 1}),
        (PLAIN, {"value_bytes": 4}),
        (PLAIN, {"value_bytes": 2**32 - 1}),
        (PLAIN, {"body_bytes": 12}),
        (PLAIN, {"body_bytes": 14}),
        (PLAIN, {"body_crc": 0}),
        (KEYED, {"flags": 0}),
        (KEYED, {"key_bytes": 0}),
        (KEYED, {"key_bytes": 4}),
    ],
    ids=str,
)
def test_a_header_out_of_its_rules_is_refused(data: bytes, fields: dict[str, int | bytes]) -> None:
    batch.decode(with_batch_header(data))
    with pytest.raises(BadBody):
        batch.decode(with_batch_header(data, **fields))


@pytest.mark.parametrize(
    ("data", "at", "values"),
    [
        (PLAIN, 0, (1, 5)),  # all other columns: as a block's
        (PRODUCED, 0, (0,)),
        (PRODUCED, 12, (-1,)),
        (PRODUCED, 16, (1,)),
        (PRODUCED, 16, (3,)),
        (PRODUCED, 20, (1,)),
    ],
)
def test_a_body_out_of_its_rules_is_refused(data: bytes, at: int, values: tuple[int, ...]) -> None:
    broken = bytearray(data)
    pack_into(f"<{len(values)}i", broken, BATCH_BYTES + at, *values)
    assert broken != data
    with pytest.raises(BadBody):
        batch.decode(with_batch_header(bytes(broken)))


@pytest.mark.parametrize(
    "limits",
    [
        {"entry_bytes_max": 4},
        {"body_bytes_max": 28},
        {"entries_max": 1},
        {"key_bytes_max": 2},
    ],
    ids=str,
)
def test_past_a_limit_is_too_large(limits: dict[str, int]) -> None:
    data = batch.encode([b"value", b""], [b"key", b""])
    just = {"entry_bytes_max": 5, "body_bytes_max": len(data) - BATCH_BYTES, "entries_max": 2, "key_bytes_max": 3}
    assert batch.decode(data, **just).count == 2
    with pytest.raises(TooLarge):
        batch.decode(data, **just | limits)


@pytest.mark.parametrize("where", [0, 50, 99])
def test_one_long_entry_of_many_is_too_large(where: int) -> None:
    values = [b"v"] * 100
    values[where] = b"long"
    data = batch.encode(values)
    assert batch.decode(data, entry_bytes_max=4).count == 100
    with pytest.raises(TooLarge):
        batch.decode(data, entry_bytes_max=3)


@pytest.mark.parametrize("fields", [{"count": BATCH_ENTRIES_MAX + 1}, {"body_bytes": BODY_BYTES_MAX + 1}], ids=str)
def test_a_header_that_announces_too_much_is_too_large(fields: dict[str, int]) -> None:
    """Its 32 bytes are enough to say so."""
    with pytest.raises(TooLarge):
        batch.decode(with_batch_header(PLAIN, **fields))


def test_the_largest_batch() -> None:
    values = [b""] * BATCH_ENTRIES_MAX
    assert batch.decode(batch.encode(values)).count == BATCH_ENTRIES_MAX
    with pytest.raises(TooLarge):
        batch.encode([*values, b""])
    with pytest.raises(TooLarge):
        batch.encode([bytes(BODY_BYTES_MAX - 7)])


@pytest.mark.parametrize(("values", "keys"), [([], None), ([], []), ([b"v"], []), ([b"v"], [b"k", b"k"])])
def test_nothing_and_an_uneven_number_of_keys_are_not_encoded(values: list[bytes], keys: list[bytes] | None) -> None:
    with pytest.raises(BadBody):
        batch.encode(values, keys)


def test_an_empty_key_is_no_key() -> None:
    assert batch.encode([b"v", b"w"], [b"", None]) == batch.encode([b"v", b"w"])


def test_the_sequence_that_stands_for_a_transactions_handle_is_no_clients() -> None:
    """It would be noted in the table of handles, and answer for a commit that never was."""
    columns = producer_columns.columns([7], [producer_columns.HANDLE_SEQUENCE], [1])
    body = columns + bytes(8)
    head = struct.pack("<4sBBHIIIII", batch.MAGIC, batch.VERSION, PRODUCERS, 0, 1, 0, 0, len(body), crc(body))
    with pytest.raises(BadBody, match="sequence"):
        batch.decode(head + crc(head).to_bytes(4, "little") + body)
    assert batch.decode(batch.encode([b""], producer=(7, producer_columns.SEQUENCE_MAX))).producer == 7
