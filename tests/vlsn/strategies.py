"""Hypothesis strategies for the formats, and the one thing that their tests do to bytes: break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hypothesis import strategies as st
from msgspec.structs import replace

from vlsn.format import block, submission
from vlsn.format.batch import BATCH, Batch, decode, encode
from vlsn.format.block import BLOCK, EntryKind
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.checksum import crc
from vlsn.format.columns import Columns, columns_of, cut, producer_bytes
from vlsn.format.producer_columns import SEQUENCE_MAX
from vlsn.format.producer_columns import columns as producer_columns

names = st.from_regex(r"[A-Za-z0-9._-]{1,32}", fullmatch=True)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
positive = st.integers(1, 2**40)
keys = st.none() | st.binary(min_size=1, max_size=20)
values = st.binary(max_size=40)
producers = st.none() | st.none() | st.tuples(st.integers(1, 2**64 - 1), st.integers(0, SEQUENCE_MAX))
"""Id and sequence of a submission, where it has them."""
few_pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=6)
# Column lengths on both sides of where NumPy takes over, and of every padding; the long ones are the few repeated.
pairs = few_pairs | st.tuples(few_pairs, st.integers(62, 67)).map(lambda drawn: (drawn[0] * 67)[: drawn[1]])


@st.composite
def entry_lists(draw: st.DrawFn) -> tuple[list[bytes], list[bytes | None] | None]:
    """Values, and keys for some of them, for none of them, or not even a list of keys."""
    drawn = draw(pairs)
    shape = draw(st.sampled_from(["keys", "no keys", "no list"]))
    given_keys = None if shape == "no list" else [key if shape == "keys" else None for key, _ in drawn]
    return [value for _, value in drawn], given_keys


@st.composite
def submissions(draw: st.DrawFn) -> submission.Submission:
    some_values, some_keys = draw(entry_lists())
    producer = draw(producers)
    if draw(st.booleans()):
        return submission.Values(some_values, some_keys, producer or (0, 0))
    return decode(encode(some_values, some_keys, producer=producer))


@st.composite
def transactions(draw: st.DrawFn) -> submission.Transaction:
    parts: list[submission.Values | Batch] = []
    for some_values, some_keys in draw(st.lists(entry_lists(), max_size=3)):
        as_values = draw(st.booleans())
        parts.append(submission.Values(some_values, some_keys) if as_values else decode(encode(some_values, some_keys)))
    return submission.Transaction(parts, draw(values), draw(producers) or (0, 0))


def content(given: submission.Submission) -> list[tuple[bytes | None, bytes]]:
    """Returns what a submission says, in the plainest form."""
    if isinstance(given, Batch):
        body, lay = given.body, given.layout
        cut_values = cut(body, lay.value_offsets - 64, lay.values - 64, given.count)
        if lay.keys < 0:
            return [(None, value) for value in cut_values]
        cut_keys = cut(body, lay.key_offsets - 64, lay.keys - 64, given.count)
        return [(key or None, value) for key, value in zip(cut_keys, cut_values, strict=True)]
    if isinstance(given, submission.Transaction):
        return [*(pair for part in given.parts for pair in content(part)), (None, given.commit)]
    some_keys: list[bytes] = given.keys or [b""] * given.count
    return [(key or None, value) for key, value in zip(some_keys, given.values, strict=True)]


@st.composite
def blocks(draw: st.DrawFn) -> bytes:
    """Any block that this version can hold, every column drawn."""
    some_values, some_keys = draw(entry_lists())
    count = len(some_values)
    first = draw(positive)
    columns = columns_of(some_values, None if not any(some_keys or ()) else [key or b"" for key in some_keys or ()])
    kinds = (draw(st.lists(st.sampled_from(list(EntryKind)), min_size=1, max_size=5)) * count)[:count]
    if draw(st.booleans()):
        kinds = kinds[:1] * count
    if draw(st.booleans()):
        txns = [0] * count
        for begin, end in zip(*[iter(sorted(draw(st.sets(st.integers(0, count), max_size=6))))] * 2, strict=False):
            txns[begin:end] = [first + begin] * (end - begin)
            kinds[begin:end] = [EntryKind.DATA] * (end - begin - 1) + [EntryKind.COMMIT]
        column = b"".join(txn.to_bytes(8, "little") for txn in txns) if any(txns) else b""
        columns = Columns(
            columns.count, columns.value_offsets, columns.values, columns.key_offsets, columns.keys, column
        )
    submitted = draw(st.integers(0, count))
    rows = draw(st.lists(producers, min_size=submitted, max_size=submitted))
    if any(rows):
        names = [row or (0, 0) for row in rows]
        counts = [1] * (submitted - 1) + [count - submitted + 1]
        columns = replace(
            columns, producers=producer_columns([row[0] for row in names], [row[1] for row in names], counts)
        )
    return block.build(
        term=draw(positive),
        first_vlsn=first,
        dtvlsn=draw(st.integers(0, first - 1)),
        clock_us=draw(st.integers(0, 2**63 - 1)),
        kind=kinds,
        columns=columns,
        submissions=submitted,
    )


def flips(data: bytes) -> Iterator[bytes]:
    """Yields the bytes with one bit wrong, once for each bit."""
    changed = bytearray(data)
    for at in range(len(data)):
        for bit in range(8):
            changed[at] ^= 1 << bit
            yield bytes(changed)
            changed[at] ^= 1 << bit


def rebuilt(data: bytes) -> bytes:
    """The block made anew from what a reader sees of it: the same bytes, for one content has one encoding."""
    header = block.decode(data)
    entries = block.entries(data, header)
    some_keys = [entry.key or b"" for entry in entries]
    columns = columns_of([entry.value for entry in entries], some_keys if any(some_keys) else None)
    txns = b"".join(entry.txn.to_bytes(8, "little") for entry in entries)
    at, size = header.layout.producers, producer_bytes(header.submissions)
    return block.build(
        term=header.term,
        first_vlsn=header.first_vlsn,
        dtvlsn=header.dtvlsn,
        clock_us=header.clock_us,
        kind=[entry.kind for entry in entries],
        columns=Columns(
            columns.count,
            columns.value_offsets,
            columns.values,
            columns.key_offsets,
            columns.keys,
            txns if any(txns) else b"",
            data[at : at + size] if at >= 0 else b"",
        ),
        submissions=header.submissions,
    )


def with_block_header(data: bytes, **fields: int) -> bytes:
    """Returns the block with these fields of its header changed and every checksum right again."""
    return _with_header(data, BLOCK.size, BLOCK_DTYPE.names or (), BLOCK.unpack, BLOCK.pack, fields)


_BATCH_FIELDS = (
    "magic",
    "version",
    "flags",
    "zero",
    "count",
    "key_bytes",
    "value_bytes",
    "body_bytes",
    "body_crc",
    "header_crc",
)


def with_batch_header(data: bytes, **fields: int | bytes) -> bytes:
    """The same for a batch."""
    return _with_header(data, BATCH.size, _BATCH_FIELDS, BATCH.unpack, BATCH.pack, fields)


def _with_header(
    data: bytes,
    size: int,
    field_names: tuple[str, ...],
    unpack: Callable[..., tuple[int | bytes, ...]],
    pack: Callable[..., bytes],
    fields: dict[str, int] | dict[str, int | bytes],
) -> bytes:
    body = data[size:]
    header = dict(zip(field_names, unpack(data[:size]), strict=True))
    header["body_crc"] = crc(body)
    header.update(fields)
    head = pack(*header.values())[:-4]
    return head + crc(head).to_bytes(4, "little") + body
