"""Sealing turns submissions into blocks, in order. There is no Python step for each entry.

Small submissions are merged into one block, up to ``block_bytes_max`` bytes and 65 536 entries. A submission of 32 KiB
or more gets a block of its own, since copying it would cost more than a block. A submission is never split. If a batch
is alone in its block, the batch's body and crc are used unchanged, and only the 64 bytes of the header are new. If any
submission of a block has a producer, the block has the producer columns, with a row for each submission. A transaction
is one submission, so all of it is in one block. The entries of a transaction have the VLSN of its first entry as their
id, and its last entry is a COMMIT.

    [Values(2), Values(1), Batch(3)] from VLSN 10  ->  one block, 10 … 15, submissions 3
    [Values(1), Transaction(2 entries)] from VLSN 10  ->  one block, 10 … 13: txns 0 11 11 11, the last one a COMMIT
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import attrgetter, sub

import numpy as np
from msgspec import Struct as Record
from msgspec.structs import replace

from vlsn.format.batch import ENTRY_OVERHEAD_BYTES, Batch
from vlsn.format.block import BLOCK_BYTES, EntryKind, build, seal_body
from vlsn.format.columns import PRODUCERS, SMALL_COLUMN, Columns, columns_of, i32, producer_bytes, u64
from vlsn.format.producer_columns import PRODUCER_BYTES
from vlsn.format.producer_columns import columns as producer_columns
from vlsn.format.submission import TRANSACTION_OVERHEAD_BYTES, Submission, Transaction, Values
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import BATCH_ENTRIES_MAX, BLOCK_BYTES_MAX, KIB
from vlsn.seams import Buffer

ALONE_BYTES = 32 * KIB
"""Submissions of at least this size are not merged, since the copy (0.1 ms for 100 KiB) costs more than a block."""

MIXED_ENTRIES_MAX = 64
"""Plain submissions of at most this many entries share a block with transactions. In a block with transactions, plain
submissions have the columns for transactions, too."""

_PRODUCER, _KEYED = attrgetter("producer"), attrgetter("keyed")
_DATA = int(EntryKind.DATA)
_COMMIT = int(EntryKind.COMMIT)
_PADDING_BYTES_MAX = BLOCK_BYTES + 5 * 8
"""The most bytes that a block needs besides its entries: the header, one more offset in two columns, and padding."""


class Sealed(Record, frozen=True, gc=False):
    """A complete block with its VLSNs. The block contains the next ``submissions`` submissions, in order."""

    data: bytes
    first_vlsn: Vlsn
    last_vlsn: Vlsn
    submissions: int
    txn_end: Vlsn = NULL_VLSN
    """The last COMMIT of a transaction in the block; 0 for none."""
    says: bool = False
    """True if the COMMIT of some transaction in the block has a value."""


def seal(
    submissions: Sequence[Submission],
    *,
    term: int,
    first_vlsn: int,
    dtvlsn: int,
    clock_us: int,
    block_bytes_max: int = BLOCK_BYTES_MAX,
) -> list[Sealed]:
    """Seals all ``submissions`` as blocks of DATA, at least one block, with VLSNs from ``first_vlsn`` on. There must be
    at least one submission, and ``dtvlsn`` must be below ``first_vlsn``. Sealing 64 single values costs 10 µs."""
    if len(submissions) == 1 and isinstance(submissions[0], Batch):
        return [_seal_alone(submissions[0], term, first_vlsn, dtvlsn, clock_us)]
    bytes_max = block_bytes_max - _PADDING_BYTES_MAX
    columns = _gather(submissions, bytes_max)
    if columns is not None:
        return [_seal_columns(columns, len(submissions), term, first_vlsn, dtvlsn, clock_us)]
    named = any(map(_PRODUCER, submissions))
    mixed = Transaction in map(type, submissions)
    blocks = []
    for run in _runs(submissions, bytes_max, named, mixed):
        sealed = _seal_run(run, named, mixed, term, first_vlsn, dtvlsn, clock_us)
        first_vlsn = sealed.last_vlsn + 1
        blocks.append(sealed)
    return blocks


def seal_local(
    kinds: Sequence[int], values: Sequence[bytes], *, term: int, first_vlsn: int, dtvlsn: int, clock_us: int
) -> Sealed:
    """Seals one block of entries of the log's own (TERM, GROUP), which are not part of a submission."""
    return _seal_columns(columns_of(values), 0, term, first_vlsn, dtvlsn, clock_us, kinds)


def _gather(submissions: Sequence[Submission], bytes_max: int) -> Columns | None:
    """Gathers the columns of small submissions in one pass. Small submissions are values, or batches of one entry
    without a key, as in most groups. Returns None if some submission is not small, or the submissions do not fit one
    block."""
    values: list[Buffer] = []
    plain = True
    for one in submissions:
        if isinstance(one, Values):
            values += one.values
            if not one.plain:
                plain = False
        elif isinstance(one, Transaction):
            return None
        elif one.count == 1 and not one.flags:
            values.append(one.body[8:])  # the value begins after the two offsets
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
    if not any(map(_PRODUCER, submissions)):
        return columns
    rows = zip(*[(one.producer, one.sequence, one.count) for one in submissions], strict=True)
    return replace(columns, producers=producer_columns(*rows))


def _keys_of(submissions: Sequence[Submission]) -> list[bytes]:
    keys: list[bytes] = []
    for one in submissions:
        keys += one.keys if isinstance(one, Values) and one.keys is not None else [b""] * one.count
    return keys


def _runs(
    submissions: Sequence[Submission], bytes_max: int, named: bool, mixed: bool
) -> Iterator[Sequence[Submission]]:
    """Divides the submissions into runs, each for one block. ``named`` says that some submissions have a producer.
    ``mixed`` says that some are transactions."""
    row = producer_bytes(1) if named else 0
    start, size, count = 0, 0, 0
    for at, one in enumerate(submissions):
        cost, alone = one.bytes + row, one.bytes >= ALONE_BYTES
        if mixed and not isinstance(one, Transaction):
            cost += TRANSACTION_OVERHEAD_BYTES * one.count
            alone |= one.count > MIXED_ENTRIES_MAX
        size += cost
        count += one.count
        if at > start and (alone or size > bytes_max or count > BATCH_ENTRIES_MAX):
            yield submissions[start:at]
            start, size, count = at, cost, one.count
        if alone:
            yield submissions[at : at + 1]
            start, size, count = at + 1, 0, 0
    if start < len(submissions):
        yield submissions[start:]


def _seal_run(
    run: Sequence[Submission], named: bool, mixed: bool, term: int, first_vlsn: int, dtvlsn: int, clock_us: int
) -> Sealed:
    if len(run) == 1 and isinstance(run[0], Batch):
        return _seal_alone(run[0], term, first_vlsn, dtvlsn, clock_us)
    columns = merge(run)
    if named:
        columns = _with_producers(columns, run)
    if mixed and Transaction in map(type, run):
        return _seal_transactions(columns, run, term, first_vlsn, dtvlsn, clock_us)
    return _seal_columns(columns, len(run), term, first_vlsn, dtvlsn, clock_us)


def _seal_columns(
    columns: Columns,
    submissions: int,
    term: int,
    first_vlsn: int,
    dtvlsn: int,
    clock_us: int,
    kind: int | Sequence[int] = _DATA,
    txn_end: Vlsn = NULL_VLSN,
    says: bool = False,
) -> Sealed:
    data = build(
        term=term,
        first_vlsn=first_vlsn,
        dtvlsn=dtvlsn,
        clock_us=clock_us,
        kind=kind,
        columns=columns,
        submissions=submissions,
    )
    return Sealed(data, Vlsn(first_vlsn), Vlsn(first_vlsn + columns.count - 1), submissions, txn_end, says)


def _seal_transactions(
    columns: Columns, run: Sequence[Submission], term: int, first_vlsn: int, dtvlsn: int, clock_us: int
) -> Sealed:
    kinds, ids, end, says = bytearray(columns.count), [], 0, False
    txn_end = NULL_VLSN
    for one in run:
        start, end = end, end + one.count
        if isinstance(one, Transaction):
            ids.append(first_vlsn + start)
            kinds[end - 1] = _COMMIT
            txn_end = Vlsn(first_vlsn + end - 1)
            says |= one.commit != b""
        else:
            ids.append(0)
    counts = [one.count for one in run]
    if columns.count <= SMALL_COLUMN:
        txns = u64(columns.count).pack(*chain.from_iterable(map(repeat, ids, counts)))
    else:
        txns = np.array(ids, "<u8").repeat(counts).tobytes()
    columns = replace(columns, txns=txns)
    return _seal_columns(columns, len(run), term, first_vlsn, dtvlsn, clock_us, kinds, txn_end, says)


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


def merge(run: Sequence[Submission]) -> Columns:
    """Merges many submissions into one set of columns, in order, but not the columns for producers and transactions."""
    keyed = any(map(_KEYED, run))
    values, keys = _Column(), _Column() if keyed else None
    count = 0
    for one in run:
        count += one.count
        if not isinstance(one, Transaction):
            _add(one, values, keys)
            continue
        for part in one.parts:
            _add(part, values, keys)
        values.add_piece(one.commit)
        if keys is not None:
            keys.add_piece(b"")
    if keys is None:
        return Columns(count, values.offsets(), values.data())
    return Columns(count, values.offsets(), values.data(), keys.offsets(), keys.data())


def _add(one: Values | Batch, values: _Column, keys: _Column | None) -> None:
    if isinstance(one, Values):
        values.add_pieces(one.values)
        if keys is not None:
            keys.add_pieces(one.keys if one.keys is not None else [b""] * one.count)
        return
    body = one.body
    if not one.flags:  # the body has only offsets and values
        values.add_column(body, 0, len(body) - one.value_bytes, one.count, one.value_bytes)
        if keys is not None:
            keys.add_pieces([b""] * one.count)
        return
    lay = one.layout
    values.add_column(body, lay.value_offsets - BLOCK_BYTES, lay.values - BLOCK_BYTES, one.count, one.value_bytes)
    if keys is None:
        return
    if lay.keys >= 0:
        keys.add_column(body, lay.key_offsets - BLOCK_BYTES, lay.keys - BLOCK_BYTES, one.count, one.key_bytes)
    else:
        keys.add_pieces([b""] * one.count)


class _Column:
    """A column of variable-length values that is built from single pieces and complete columns."""

    __slots__ = ("_data", "_lengths", "_offsets", "_size")

    def __init__(self) -> None:
        self._offsets: list[Buffer] = [bytes(4)]
        self._lengths: list[int] = []
        """The lengths of the pieces in ``_data`` whose offsets are not in ``_offsets`` yet."""
        self._data: list[Buffer] = []
        self._size = 0
        """The number of bytes that ``_offsets`` covers."""

    def add_pieces(self, pieces: Sequence[bytes]) -> None:
        self._lengths += map(len, pieces)
        self._data += pieces

    def add_piece(self, piece: bytes) -> None:
        self._lengths.append(len(piece))
        self._data.append(piece)

    def add_column(self, body: memoryview, offsets_at: int, data_at: int, count: int, size: int) -> None:
        """Adds a column of a batch. ``offsets_at`` and ``data_at`` are the column's places in the batch's ``body``."""
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
            ends = list(accumulate(self._lengths, initial=self._size))[1:]
            few = len(ends) <= SMALL_COLUMN
            self._offsets.append(i32(len(ends)).pack(*ends) if few else np.array(ends, "<i4").tobytes())
            self._size = ends[-1]
            self._lengths = []

    def offsets(self) -> bytes:
        self._count_pieces()
        return b"".join(self._offsets)

    def data(self) -> bytes:
        return b"".join(self._data)
