"""A record of a page file: messages of one destination, as columns, from the blocks of one window of the log.

    0     2     3 4      8     12     16    24   32          40        48        52          56          60  64
    |magic|flags|0|length|count|blocks|first|last|covers_from|covers_to|key_bytes|value_bytes|salt^offset|crc| payload …

``length`` is the length of the payload; a record is padded to 8 bytes. ``first`` and ``last`` are VLSNs of messages.
From ``covers_from`` to ``covers_to`` the destination has no other wanted message. The crc covers the payload, then
bytes 0–59. The salt is that of the page. The salt is mixed with the offset in the page, so that misplaced bytes are
detected.

The payload, each column at a multiple of 8:

    WHOLE    ends u32[blocks] | log blocks verbatim         every DATA entry of the blocks is an unacknowledged message
    else     vlsns u64[count] | txns u64[count] (TXNS) | rows u32[blocks] | terms u64[blocks] | clocks u64[blocks]
             key_ends u32[count] (KEYS) | value_ends u32[count] | keys | values

A transaction is one block. The messages of a block are never separated: a page has all of them or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody
from vlsn.format.block import BLOCK_BYTES, Entry, EntryKind
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.checksum import crc
from vlsn.format.columns import KEYS as BLOCK_KEYS
from vlsn.format.columns import TXNS as BLOCK_TXNS
from vlsn.format.frame import padded
from vlsn.format.rows import I64, EntryRows, Mask
from vlsn.ids import NUMBER_MAX, U32_MAX, Vlsn
from vlsn.limits import BATCH_ENTRIES_MAX, MIB
from vlsn.seams import Buffer

HEAD: Final = Struct("<HBBIIIQQQQIIII")
HEAD_BYTES: Final = 64
MAGIC: Final = 0x4750
WHOLE, KEYS, TXNS = 1, 2, 4
LENGTH_MAX: Final = 64 * MIB
"""The most bytes of a payload: a window of the log, or one larger block, and the columns."""
_DATA = int(EntryKind.DATA)
_PIECE_BYTES: Final = 64
"""If pieces are longer than this on average, they are cut out one by one; shorter pieces are gathered by a column of
offsets."""
_LENGTHS_MAX: Final = 16
"""If the pieces have at most this many different lengths, they are gathered one length at a time (20 ns for a piece of
100 bytes)."""
_LENGTHS_LOOK: Final = 256
"""The number of pieces whose lengths are looked at first, before the lengths of all pieces."""

assert HEAD.size == HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Record:
    """A record that has no offset yet. ``payload`` is a list of pieces."""

    flags: int
    count: int
    blocks: int
    first: Vlsn
    last: Vlsn
    covers_from: Vlsn
    covers_to: Vlsn
    key_bytes: int
    value_bytes: int
    length: int
    payload: Sequence[Buffer]
    payload_crc: int

    @property
    def size(self) -> int:
        """The number of bytes that the record occupies in a page."""
        return HEAD_BYTES + padded(self.length)

    def placed(self, offset: int, salt: int) -> list[Buffer]:
        """Returns the pieces of the record for ``offset`` in the page with ``salt``."""
        head = bytearray(HEAD_BYTES)
        HEAD.pack_into(
            head, 0, MAGIC, self.flags, 0, self.length, self.count, self.blocks, self.first, self.last,
            self.covers_from, self.covers_to, self.key_bytes, self.value_bytes, (salt ^ offset) & U32_MAX, 0,
        )  # fmt: skip
        head[60:] = crc(memoryview(head)[:60], self.payload_crc).to_bytes(4, "little")
        return [bytes(head), *self.payload, bytes(-self.length & 7)]


@dataclass(frozen=True, slots=True)
class RecordHead:
    """The head of the record at ``offset`` of its page."""

    offset: int
    flags: int
    length: int
    count: int
    blocks: int
    first: Vlsn
    last: Vlsn
    covers_from: Vlsn
    covers_to: Vlsn
    key_bytes: int
    value_bytes: int

    @property
    def end(self) -> int:
        return self.offset + HEAD_BYTES + padded(self.length)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as columns, in ascending order of VLSN. Keys and values are ranges of ``buf``."""

    buf: Buffer
    vlsns: I64
    terms: I64
    clocks: I64
    txns: I64
    key_starts: I64
    key_ends: I64
    value_starts: I64
    value_ends: I64

    def __len__(self) -> int:
        return len(self.vlsns)

    def sizes(self) -> I64:
        """Returns the bytes of key and value together for each message."""
        sizes: I64 = self.key_ends - self.key_starts + self.value_ends - self.value_starts
        return sizes

    def entries(self, chosen: slice | I64) -> list[Entry]:
        """Returns copies of the messages in ``chosen``."""
        keys = self._cut(self.key_starts[chosen], self.key_ends[chosen])
        values = self._cut(self.value_starts[chosen], self.value_ends[chosen])
        columns = (self.vlsns, self.terms, self.clocks)
        lists: list[Any] = [column[chosen].tolist() for column in columns]
        txns: list[int] = self.txns[chosen].tolist()
        return list(map(Entry, *lists, repeat(_DATA), txns, [key or None for key in keys], values))

    def _cut(self, starts: I64, ends: I64) -> list[bytes]:
        buf = memoryview(self.buf)
        return [bytes(buf[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


# Making a record.


def record_of(rows: EntryRows, wanted: Mask, *, covers_from: int, covers_to: int) -> Record | None:
    """Returns the record of the ``wanted`` DATA entries of ``rows``, or None if no entry is wanted. The payload of a
    WHOLE record has views into ``rows.buf``."""
    chosen = np.flatnonzero(wanted)
    if not len(chosen):
        return None
    stops = np.cumsum(rows.count)
    starts = stops - rows.count
    each = np.add.reduceat(wanted, starts, dtype=np.int64)
    having = np.flatnonzero(each)
    data = np.add.reduceat(rows.kinds() == _DATA, starts, dtype=np.int64)
    whole = bool((each[having] == data[having]).all())
    # VLSNs in ``rows`` are consecutive.
    first, last = rows.first_vlsn + int(chosen[0]), rows.first_vlsn + int(chosen[-1])
    sizes = rows.sizes()
    keyed = rows.has(BLOCK_KEYS)[having].any()
    key_bytes = 0
    if keyed:
        key_starts, key_ends = rows.key_cuts()
        key_bytes = int((key_ends - key_starts)[chosen].sum())
    value_bytes = int(sizes[chosen].sum()) - key_bytes
    if whole:
        flags, pieces = WHOLE, _whole(rows, having)
    else:
        flags, pieces = _selected(rows, chosen, having, each[having], keyed=bool(keyed))
    return _record(flags, pieces, len(chosen), len(having), first, last, covers_from, covers_to, key_bytes, value_bytes)


def _whole(rows: EntryRows, having: I64) -> list[Buffer]:
    at = rows.at[having]
    sizes = BLOCK_BYTES + rows.headers["body_bytes"][having].astype(np.int64)
    ends = np.cumsum((sizes + 7) & ~7) - ((-sizes) & 7)
    pieces: list[Buffer] = [_padded(ends.astype("<u4").tobytes())]
    buf = memoryview(rows.buf)
    for start, size in zip(at.tolist(), sizes.tolist(), strict=True):
        pieces.append(buf[start : start + size])
        if size & 7:
            pieces.append(bytes(-size & 7))
    if sizes[-1] & 7:
        pieces.pop()  # the padding of the record also pads its last block
    return pieces


def _selected(rows: EntryRows, chosen: I64, having: I64, each: I64, *, keyed: bool) -> tuple[int, list[Buffer]]:
    txns = rows.txns()[chosen] if rows.has(BLOCK_TXNS)[having].any() else None
    cuts = [rows.value_cuts()]
    if keyed:
        cuts.insert(0, rows.key_cuts())
    headers = rows.headers[having]
    return _columns(
        rows.buf, chosen + rows.first_vlsn, txns, each, headers["term"], headers["clock_us"],
        [(starts[chosen], ends[chosen]) for starts, ends in cuts],
    )  # fmt: skip


def record_of_messages(messages: Messages, chosen: slice, *, covers_from: int, covers_to: int) -> Record:
    """Makes a record of some messages (at least one) of another record."""
    vlsns, txns = messages.vlsns[chosen], messages.txns[chosen]
    terms, clocks = messages.terms[chosen], messages.clocks[chosen]
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(terms) != 0) | (np.diff(clocks) != 0))))
    each = np.diff(np.append(begins, len(vlsns)))
    cuts = [(messages.value_starts[chosen], messages.value_ends[chosen])]
    key_bytes = int((messages.key_ends[chosen] - messages.key_starts[chosen]).sum())
    if key_bytes:
        cuts.insert(0, (messages.key_starts[chosen], messages.key_ends[chosen]))
    value_bytes = int((cuts[-1][1] - cuts[-1][0]).sum())
    flags, pieces = _columns(messages.buf, vlsns, txns, each, terms[begins], clocks[begins], cuts)
    return _record(
        flags, pieces, len(vlsns), len(each), int(vlsns[0]), int(vlsns[-1]), covers_from, covers_to,
        key_bytes, value_bytes,
    )  # fmt: skip


def record_again(head: RecordHead, messages: Messages) -> Record:
    """Makes a copy of a record that is to be written elsewhere. ``messages`` are the record's messages."""
    return _record(
        head.flags, [messages.buf], head.count, head.blocks, head.first, head.last, head.covers_from, head.covers_to,
        head.key_bytes, head.value_bytes,
    )  # fmt: skip


def _record(
    flags: int, pieces: Sequence[Buffer], count: int, blocks: int, first: int, last: int,
    covers_from: int, covers_to: int, key_bytes: int, value_bytes: int,
) -> Record:  # fmt: skip
    length, payload_crc = 0, 0
    for piece in pieces:
        length += len(piece)
        payload_crc = crc(piece, payload_crc)
    return Record(
        flags, count, blocks, Vlsn(first), Vlsn(last), Vlsn(covers_from), Vlsn(covers_to), key_bytes, value_bytes,
        length, pieces, payload_crc,
    )  # fmt: skip


def _columns(
    buf: Buffer,
    vlsns: I64,
    txns: I64 | None,
    each: I64,
    terms: npt.NDArray[Any],
    clocks: npt.NDArray[Any],
    cuts: list[tuple[I64, I64]],
) -> tuple[int, list[Buffer]]:
    flags = KEYS if len(cuts) > 1 else 0
    pieces: list[Buffer] = [vlsns.astype("<u8").tobytes()]
    if txns is not None and txns.any():
        flags |= TXNS
        pieces.append(txns.astype("<u8").tobytes())
    pieces.append(_padded(each.astype("<u4").tobytes()))
    pieces.append(terms.astype("<u8").tobytes())
    pieces.append(clocks.astype("<u8").tobytes())
    pieces += [_padded(np.cumsum(ends - starts).astype("<u4").tobytes()) for starts, ends in cuts]
    for number, (starts, ends) in enumerate(cuts):
        data = gathered(buf, starts, ends)
        pieces.append(_padded(data) if number < len(cuts) - 1 else data)
    return flags, pieces


def gathered(buf: Buffer, starts: I64, ends: I64) -> bytes:
    """Joins the pieces of ``buf`` from each start to the end beside it. Adjacent pieces are copied as one. Many pieces
    of few lengths are gathered one length at a time, and many short pieces by a column of offsets. No case needs a step
    of Python for each piece."""
    apart = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    if not len(apart):
        return bytes(memoryview(buf)[int(starts[0]) : int(ends[-1])])
    starts = starts[np.concatenate(([0], apart))]
    ends = ends[np.concatenate((apart - 1, [len(ends) - 1]))]
    lengths = ends - starts
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    some = np.unique(lengths[:_LENGTHS_LOOK])
    if len(some) <= _LENGTHS_MAX and len(some := np.unique(lengths)) <= _LENGTHS_MAX and len(starts) > 2 * len(some):
        out = np.empty(total, np.uint8)
        for length in some[some > 0].tolist():
            chosen = np.flatnonzero(lengths == length)
            kind = f"V{length}"
            source = np.ndarray(len(buf) - length + 1, kind, buf, strides=(1,))
            np.ndarray(total - length + 1, kind, out, strides=(1,))[before[chosen]] = source[starts[chosen]]
        return out.tobytes()
    if total > _PIECE_BYTES * len(starts):
        view = memoryview(buf)
        return b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    places = np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)
    data: bytes = np.frombuffer(buf, np.uint8)[places].tobytes()
    return data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) & 7)


# Reading a record.


def head_at(buf: Buffer, at: int, *, offset: int, salt: int) -> RecordHead:
    """Reads the head of the record at ``buf[at]``, and checks everything except the crc. ``offset`` is the record's
    place in the page. Raises ``BadBody``."""
    if len(buf) - at < HEAD_BYTES:
        raise BadBody(f"{len(buf) - at} bytes are no record's head")
    magic, flags, zero, length, count, blocks, *rest = HEAD.unpack_from(buf, at)
    first, last, covers_from, covers_to, key_bytes, value_bytes, place, _ = rest
    if magic != MAGIC or zero or flags & ~(WHOLE | KEYS | TXNS) or place != (salt ^ offset) & U32_MAX:
        raise BadBody("no record of this page begins here")
    if not (0 < covers_from <= first <= last <= covers_to <= NUMBER_MAX and last - first >= count - 1 >= 0):
        raise BadBody(f"a record of VLSNs {first} to {last}, {count} of them, of {covers_from} to {covers_to}")
    if not (0 < blocks <= count and length <= LENGTH_MAX and key_bytes + value_bytes <= length):
        raise BadBody(f"a record of {blocks} blocks in {length} bytes")
    return RecordHead(offset, flags, length, count, blocks, first, last, covers_from, covers_to, key_bytes, value_bytes)


def check_crc(buf: Buffer, at: int, head: RecordHead) -> None:
    """Checks the crc of the record at ``buf[at]``. Raises ``BadBody``."""
    view, end = memoryview(buf), at + HEAD_BYTES + head.length
    if len(buf) < end or any(view[end : at + head.end - head.offset]):
        raise BadBody("a record that ends early")
    stored = int.from_bytes(view[at + 60 : at + 64], "little")
    if crc(view[at : at + 60], crc(view[at + HEAD_BYTES : end])) != stored:
        raise BadBody("record crc")


def messages_of(buf: Buffer, at: int, head: RecordHead) -> Messages:
    """Returns the messages of a record, whose crc must be right. Raises ``BadBody`` if the record's columns are
    inconsistent."""
    try:
        found = _of_whole(buf, at, head) if head.flags & WHOLE else _of_selected(buf, at, head)
    except (ValueError, IndexError) as error:
        raise BadBody(f"a record's columns: {error}") from None
    vlsns = found.vlsns
    if len(vlsns) != head.count or (vlsns[0], vlsns[-1]) != (head.first, head.last) or (np.diff(vlsns) <= 0).any():
        raise BadBody("a record's VLSNs do not match its head")
    return found


def _of_whole(buf: Buffer, at: int, head: RecordHead) -> Messages:
    payload = memoryview(buf)[at + HEAD_BYTES : at + HEAD_BYTES + head.length]
    ends = np.frombuffer(payload, "<u4", head.blocks).astype(np.int64)
    origin = padded(4 * head.blocks)
    starts = origin + np.concatenate(([0], (ends[:-1] + 7) & ~7))
    sizes = ends + origin - starts
    if (sizes < BLOCK_BYTES).any() or int(ends[-1]) + origin != len(payload):
        raise BadBody("a record's blocks do not fill it")
    raw = np.frombuffer(payload, np.uint8)
    headers = raw[starts[:, None] + np.arange(BLOCK_BYTES)].view(BLOCK_DTYPE).reshape(-1)
    rows = EntryRows(payload, starts, headers)
    if (rows.layouts.end != sizes).any() or rows.rows > head.blocks * BATCH_ENTRIES_MAX:
        raise BadBody("a record's blocks do not match their heads")
    if not rows.rising().all():
        raise BadBody("offsets of a record's blocks")
    chosen = np.flatnonzero(rows.kinds() == _DATA)
    key_starts, key_ends = rows.key_cuts() if rows.has(BLOCK_KEYS).any() else (np.zeros(rows.rows, np.int64),) * 2
    value_starts, value_ends = rows.value_cuts()
    columns = (rows.vlsns(), rows.column("term"), rows.column("clock_us"), rows.txns())
    cuts = (key_starts, key_ends, value_starts, value_ends)
    return Messages(payload, *(each[chosen] for each in columns), *(each[chosen] for each in cuts))


def _of_selected(buf: Buffer, at: int, head: RecordHead) -> Messages:
    payload = memoryview(buf)[at + HEAD_BYTES : at + HEAD_BYTES + head.length]
    place = 0

    def column(dtype: str, count: int) -> npt.NDArray[Any]:
        nonlocal place
        found = np.frombuffer(payload, dtype, count, place)
        place = padded(place + found.nbytes)
        return found.astype(np.int64)

    count, blocks = head.count, head.blocks
    vlsns = column("<u8", count)
    txns = column("<u8", count) if head.flags & TXNS else np.zeros(count, np.int64)
    rows = column("<u4", blocks)
    if int(rows.sum()) != count:
        raise BadBody("rows of blocks that are not those of the record")
    terms, clocks = np.repeat(column("<u8", blocks), rows), np.repeat(column("<u8", blocks), rows)
    key_ends = column("<u4", count) if head.flags & KEYS else np.zeros(count, np.int64)
    value_ends = column("<u4", count)
    for ends, size in ((key_ends, head.key_bytes), (value_ends, head.value_bytes)):
        if int(ends[-1]) != size or (np.diff(ends) < 0).any():
            raise BadBody("ends do not rise to the length")
    keys_at = place
    values_at = padded(keys_at + head.key_bytes) if head.flags & KEYS else keys_at
    if values_at + head.value_bytes != head.length:
        raise BadBody(f"{head.length} bytes for columns of {values_at + head.value_bytes}")
    key_ends, value_ends = key_ends + keys_at, value_ends + values_at
    key_starts = np.concatenate(([keys_at], key_ends[:-1]))
    value_starts = np.concatenate(([values_at], value_ends[:-1]))
    return Messages(payload, vlsns, terms, clocks, txns, key_starts, key_ends, value_starts, value_ends)
