"""Sealing: submissions become blocks, in their order, by the block and never by the entry.

Small submissions are merged greedily while the block stays within ``block_bytes_max`` and 65 536 entries; one of
32 KiB or more is a block of its own, for copying it costs more than a block does.  None is ever split.  A batch
alone in its block keeps its body bytes and their crc; only the 64 bytes before them are new.  A block in which any
submission has a producer has the producer columns, and in them a row for each submission.

    [Values(2), Values(1), Batch(3)] from VLSN 10  ->  one block, 10 … 15, submissions 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import TypeAlias

import numpy as np
from msgspec import Struct as Record
from msgspec.structs import replace

from vlsn.errors import BadBody, TooLarge
from vlsn.format.batch import ENTRY_OVERHEAD_BYTES, Batch, key_column
from vlsn.format.block import BLOCK_BYTES, EntryKind, build, seal_body
from vlsn.format.columns import KEYS, PRODUCERS, SMALL_COLUMN, Columns, columns_of, i32, layout, producer_bytes
from vlsn.format.producer_columns import PRODUCER_BYTES
from vlsn.format.producer_columns import columns as producer_columns
from vlsn.ids import Vlsn
from vlsn.limits import (
    BATCH_ENTRIES_MAX,
    BLOCK_BYTES_MAX,
    BODY_BYTES_MAX,
    ENTRY_BYTES_MAX,
    KEY_BYTES_MAX,
    KIB,
)
from vlsn.seams import Buffer

ALONE_BYTES = 32 * KIB
"""Submissions from this size on are not merged: the copy (0.1 ms for 100 KiB) costs more than a block."""

_DATA = int(EntryKind.DATA)
_PADDING_BYTES_MAX = BLOCK_BYTES + 4 * 8
"""The most that a block takes beside its entries: header, one more offset in two columns, padding."""


class Values:
    """A submission of plain values. ``keys`` (empty: none) is as long as ``values``, or None for no key at all;
    ``producer`` is an id and this submission's sequence."""

    __slots__ = ("bytes", "count", "keys", "plain", "producer", "sequence", "values")

    def __init__(
        self,
        values: list[bytes],
        keys: Sequence[bytes | None] | None = None,
        producer: tuple[int, int] = (0, 0),
    ) -> None:
        assert values and (keys is None or len(keys) == len(values))
        self.values = values
        self.keys = None if keys is None else key_column(keys)
        self.count = len(values)
        self.bytes = sum(map(len, values)) + ENTRY_OVERHEAD_BYTES * self.count
        """The most bytes that it takes of a block and of the queue."""
        if self.keys is not None:
            self.bytes += sum(map(len, self.keys))
        self.producer, self.sequence = producer
        self.plain = self.keys is None and not self.producer
        """Nothing but values."""
        if self.producer:
            self.bytes += PRODUCER_BYTES

    @property
    def keyed(self) -> bool:
        return self.keys is not None


Submission: TypeAlias = Values | Batch


class Sealed(Record, frozen=True, gc=False):
    """A whole block with its name's VLSNs; ``submissions`` of those given went into it, the next ones in order."""

    data: bytes
    first_vlsn: Vlsn
    last_vlsn: Vlsn
    submissions: int


def check_values(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    *,
    named: bool = False,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    key_bytes_max: int = KEY_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
    entries_max: int = BATCH_ENTRIES_MAX,
) -> None:
    """Checks the limits of one submission, ``named`` when it has a producer. Raises ``TooLarge``, or ``BadBody`` when
    there is nothing, or keys of another number than values."""
    if not values or (keys is not None and len(keys) != len(values)):
        raise BadBody(f"{len(values)} values and {len(keys or ())} keys")
    if len(values) > entries_max:
        raise TooLarge(f"{len(values)} entries; at most {entries_max}")
    longest = max(map(len, values))
    if longest > entry_bytes_max:
        raise TooLarge(f"an entry of {longest} bytes; at most {entry_bytes_max}")
    key_bytes = 0
    column = key_column(keys)
    if column is not None:
        longest = max(map(len, column))
        if longest > key_bytes_max:
            raise TooLarge(f"a key of {longest} bytes; at most {key_bytes_max}")
        key_bytes = sum(map(len, column))
    flags = (KEYS if key_bytes else 0) | (PRODUCERS if named else 0)
    size = layout(flags, len(values), key_bytes, sum(map(len, values)), 1).end - BLOCK_BYTES
    if size > body_bytes_max:
        raise TooLarge(f"a body of {size} bytes; at most {body_bytes_max}")


def values_of(
    values: list[bytes],
    keys: Sequence[bytes | None] | None = None,
    producer: tuple[int, int] = (0, 0),
    *,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    key_bytes_max: int = KEY_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Values:
    """Makes a submission within these limits. Raises ``TooLarge`` and ``BadBody``."""
    check_values(
        values,
        keys,
        named=producer[0] != 0,
        entry_bytes_max=entry_bytes_max,
        key_bytes_max=key_bytes_max,
        body_bytes_max=body_bytes_max,
    )
    return Values(values, keys, producer)


def seal(
    submissions: Sequence[Submission],
    *,
    term: int,
    first_vlsn: int,
    dtvlsn: int,
    clock_us: int,
    block_bytes_max: int = BLOCK_BYTES_MAX,
) -> list[Sealed]:
    """Seals all of ``submissions`` as blocks of DATA with VLSNs from ``first_vlsn`` on, at least one block. There is at
    least one submission, and ``dtvlsn`` is below ``first_vlsn``. Cost: 10 µs for 64 single values."""
    bytes_max = block_bytes_max - _PADDING_BYTES_MAX
    columns = _gather(submissions, bytes_max)
    if columns is not None:
        return [_seal_columns(columns, len(submissions), term, first_vlsn, dtvlsn, clock_us)]
    blocks = []
    for run in _runs(submissions, bytes_max):
        sealed = _seal_run(run, term, first_vlsn, dtvlsn, clock_us)
        first_vlsn = sealed.last_vlsn + 1
        blocks.append(sealed)
    return blocks


def seal_local(
    kinds: Sequence[int], values: Sequence[bytes], *, term: int, first_vlsn: int, dtvlsn: int, clock_us: int
) -> Sealed:
    """Seals one block of the log's own entries (TERM, GROUP), which belong to no submission."""
    data = build(
        term=term,
        first_vlsn=first_vlsn,
        dtvlsn=dtvlsn,
        clock_us=clock_us,
        kind=kinds,
        columns=columns_of(values),
        submissions=0,
    )
    return Sealed(data, Vlsn(first_vlsn), Vlsn(first_vlsn + len(values) - 1), 0)


def _gather(submissions: Sequence[Submission], bytes_max: int) -> Columns | None:
    """Gathers the columns of small submissions in one pass, if they fit one block together, else None. Small are
    values, or batches of one without a key: what most groups are made of."""
    if len(submissions) == 1 and isinstance(submissions[0], Batch):
        return None
    values: list[Buffer] = []
    plain = True
    for one in submissions:
        if isinstance(one, Values):
            values += one.values
            if not one.plain:
                plain = False
        elif one.count == 1 and not one.flags:
            values.append(one.body[8:])  # past its two offsets
        elif one.count == 1 and one.flags == PRODUCERS:
            values.append(one.body[PRODUCER_BYTES + 8 :])
            plain = False
        else:
            return None
        if one.bytes >= ALONE_BYTES:
            return None
    if not values or len(values) > BATCH_ENTRIES_MAX:
        return None
    keyed = not plain and any(one.keyed for one in submissions)
    columns = columns_of(values, _keys_of(submissions) if keyed else None)
    if not plain:
        columns = _with_producers(columns, submissions)
    size = len(columns.values) + len(columns.keys) + len(columns.producers) + ENTRY_OVERHEAD_BYTES * columns.count
    return columns if size <= bytes_max else None


def _with_producers(columns: Columns, submissions: Sequence[Submission]) -> Columns:
    if not any(one.producer for one in submissions):
        return columns
    rows = zip(*[(one.producer, one.sequence, one.count) for one in submissions], strict=True)
    return replace(columns, producers=producer_columns(*rows))


def _keys_of(submissions: Sequence[Submission]) -> list[bytes]:
    keys: list[bytes] = []
    for one in submissions:
        keys += one.keys if isinstance(one, Values) and one.keys is not None else [b""] * one.count
    return keys


def _runs(submissions: Sequence[Submission], bytes_max: int) -> Iterator[Sequence[Submission]]:
    """Cuts the submissions into the runs that make one block each."""
    row = producer_bytes(1) if any(one.producer for one in submissions) else 0
    start, size, count = 0, 0, 0
    for at, one in enumerate(submissions):
        size += one.bytes + row
        count += one.count
        alone = one.bytes >= ALONE_BYTES
        if at > start and (alone or size > bytes_max or count > BATCH_ENTRIES_MAX):
            yield submissions[start:at]
            start, size, count = at, one.bytes + row, one.count
        if alone:
            yield submissions[at : at + 1]
            start, size, count = at + 1, 0, 0
    if start < len(submissions):
        yield submissions[start:]


def _seal_run(run: Sequence[Submission], term: int, first_vlsn: int, dtvlsn: int, clock_us: int) -> Sealed:
    if len(run) == 1 and isinstance(run[0], Batch):
        return _seal_alone(run[0], term, first_vlsn, dtvlsn, clock_us)
    columns = _with_producers(_merge(run), run)
    return _seal_columns(columns, len(run), term, first_vlsn, dtvlsn, clock_us)


def _seal_columns(columns: Columns, submissions: int, term: int, first_vlsn: int, dtvlsn: int, clock_us: int) -> Sealed:
    data = build(
        term=term,
        first_vlsn=first_vlsn,
        dtvlsn=dtvlsn,
        clock_us=clock_us,
        kind=_DATA,
        columns=columns,
        submissions=submissions,
    )
    return Sealed(data, Vlsn(first_vlsn), Vlsn(first_vlsn + columns.count - 1), submissions)


def _seal_alone(batch: Batch, term: int, first_vlsn: int, dtvlsn: int, clock_us: int) -> Sealed:
    data = seal_body(
        (batch.body,),
        batch.body_crc,
        flags=batch.flags,
        kind=_DATA,
        count=batch.count,
        term=term,
        first_vlsn=first_vlsn,
        dtvlsn=dtvlsn,
        clock_us=clock_us,
        submissions=1,
        key_bytes=batch.key_bytes,
        value_bytes=batch.value_bytes,
    )
    return Sealed(data, Vlsn(first_vlsn), Vlsn(first_vlsn + batch.count - 1), 1)


def _merge(run: Sequence[Submission]) -> Columns:
    """Merges many submissions into one set of columns, in order."""
    keyed = any(one.keyed for one in run)
    values, keys = _Column(), _Column()
    count = 0
    for one in run:
        count += one.count
        if isinstance(one, Values):
            values.add_pieces(one.values)
            if keyed:
                keys.add_pieces(one.keys if one.keys is not None else [b""] * one.count)
        else:
            lay, body = one.layout, one.body
            values.add_column(
                body, lay.value_offsets - BLOCK_BYTES, lay.values - BLOCK_BYTES, one.count, one.value_bytes
            )
            if lay.keys >= 0:
                keys.add_column(body, lay.key_offsets - BLOCK_BYTES, lay.keys - BLOCK_BYTES, one.count, one.key_bytes)
            elif keyed:
                keys.add_pieces([b""] * one.count)
    if not keyed:
        return Columns(count, values.offsets(), values.data())
    return Columns(count, values.offsets(), values.data(), keys.offsets(), keys.data())


class _Column:
    """One variable-length column being put together from loose pieces and whole columns."""

    __slots__ = ("_data", "_lengths", "_offsets", "_size")

    def __init__(self) -> None:
        self._offsets: list[Buffer] = [bytes(4)]
        self._lengths: list[int] = []
        """The lengths of the pieces that are in ``_data`` but not in ``_offsets`` yet."""
        self._data: list[Buffer] = []
        self._size = 0
        """Bytes that ``_offsets`` has counted."""

    def add_pieces(self, pieces: Sequence[bytes]) -> None:
        self._lengths += map(len, pieces)
        self._data += pieces

    def add_column(self, body: memoryview, offsets_at: int, data_at: int, count: int, size: int) -> None:
        """Adds a batch's column, which lies at these places of its body."""
        self._data.append(body[data_at : data_at + size])
        if count == 1:
            self._lengths.append(size)
        elif count <= SMALL_COLUMN:
            ends = i32(count + 1).unpack_from(body, offsets_at)
            self._lengths += map(sub, ends[1:], ends)
        else:
            self._count_pieces()
            shifted = np.frombuffer(body, "<i4", count, offsets_at + 4) + np.int32(self._size)
            self._offsets.append(shifted.tobytes())
            self._size += size

    def _count_pieces(self) -> None:
        if self._lengths:
            ends = list(accumulate(self._lengths, initial=self._size))
            self._offsets.append(np.array(ends[1:], "<i4").tobytes())
            self._size = ends[-1]
            self._lengths = []

    def offsets(self) -> bytes:
        self._count_pieces()
        return b"".join(self._offsets)

    def data(self) -> bytes:
        return b"".join(self._data)
