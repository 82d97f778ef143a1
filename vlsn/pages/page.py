"""The page: one file of a destination, with records that several writers may write in parallel.

    0        8       10 12   16   24     32    40  60  64
    |VLSNPAGE|version|0 |salt|uuid|number|since|0 …|crc| record | record | 0 … | record …

1. A writer gets an offset under the store's latch, and writes without the latch. So records are in the order of their
   offsets, not of their VLSNs; a reader sorts them.
2. The first record of each pass is at a multiple of 4096. So no write touches a page of the cache with bytes that were
   synced before, and a power cut cannot damage these. The bytes before that record are zeros.
3. The page table alone says how far a page is valid (``PageRow.end``), once everything before ``end`` is synced.
   Nothing more is written to a page with bytes after ``end``.
4. Nothing more is written to a page after a failed write or sync.

Worked example: records of 200 and 96 bytes at 64 and 264, ``end`` 360; the next pass begins at 4096.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import msgspec
import numpy as np

from vlsn.errors import BadBody
from vlsn.format.block import Entry
from vlsn.format.checksum import crc
from vlsn.format.rows import I64
from vlsn.levels import unread
from vlsn.pages.record import HEAD_BYTES, Messages, Record, RecordHead, check_crc, head_at, messages_of
from vlsn.seams import Buffer, Disk, File
from vlsn.segments.bad_sectors import is_unread, read_around

HEADER: Final = Struct("<8sHHI8sQQ20sI")
HEADER_BYTES: Final = 64
MAGIC: Final = b"VLSNPAGE"
VERSION: Final = 1
STRIDE: Final = 4096
"""The first record of each pass is at a multiple of this offset."""

assert HEADER.size == HEADER_BYTES


class PageRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page's row in the page table."""

    end: int
    """The records before this offset are valid: they were synced."""
    first: int
    """The lowest VLSN of a message in the page."""
    last: int
    """The highest VLSN of a message in the page."""
    count: int
    """The number of messages …"""
    bytes: int
    """… and the bytes of their keys and values."""
    covers_from: int
    """When the page was written, the destination wanted no other message from this VLSN …"""
    covers_to: int
    """… to this one."""
    superseded: bool = False
    """True if the destination was moved since, so this page may be missing messages that are wanted now. Other pages
    have these messages, or will have them; then this page is removed. A superseded page is not read."""

    def with_record(self, record: Record | RecordHead, end: int) -> PageRow:
        return PageRow(
            max(self.end, end),
            min(self.first, record.first) if self.count else record.first,
            max(self.last, record.last),
            self.count + record.count,
            self.bytes + record.key_bytes + record.value_bytes,
            min(self.covers_from, record.covers_from) if self.count else record.covers_from,
            max(self.covers_to, record.covers_to),
        )


NO_ROW: Final = PageRow(HEADER_BYTES, 0, 0, 0, 0, 0, 0)


def page_name(number: int) -> str:
    return f"{number:09d}.page"


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The header of a page."""

    uuid: str
    number: int
    salt: int
    since: int = 0
    """``Subscription.since`` of the destination when the page was written."""

    def encode(self) -> bytes:
        raw = bytearray(HEADER_BYTES)
        uuid = bytes.fromhex(self.uuid)
        HEADER.pack_into(raw, 0, MAGIC, VERSION, 0, self.salt, uuid, self.number, self.since, b"", 0)
        raw[60:] = crc(raw[:60]).to_bytes(4, "little")
        return bytes(raw)

    @classmethod
    def decode(cls, raw: Buffer) -> PageHeader:
        """Decodes a header. Raises ``BadBody``, and ``WrongVersion`` for a page of a later version."""
        if len(raw) < HEADER_BYTES or bytes(raw[:8]) != MAGIC:
            raise BadBody("no page's header")
        _, version, _, salt, uuid, number, since, _, stored = HEADER.unpack_from(raw)
        if crc(memoryview(raw)[:60]) != stored:
            raise BadBody("page header crc")
        if version != VERSION:
            raise unread("a page", version, VERSION)
        return cls(uuid.hex(), number, salt, since)


class PageWriter:
    """A page that is being written. Call ``place`` under the store's latch, ``write`` on any thread, and the other
    methods while no write is under way."""

    def __init__(self, file: File, header: PageHeader, row: PageRow = NO_ROW, *, made: bool) -> None:
        self.header = header
        self.row = row
        """The page's row with all placed records, synced or not."""
        self.made = made
        """True while the file's name is not durable yet."""
        self.writers = 0
        """The number of writes under way."""
        self.broken = False
        self.unsynced = made
        self._file = file
        self._aligned = made

    @classmethod
    def create(cls, disk: Disk, directory: str, header: PageHeader) -> PageWriter:
        """Creates the file with its header. Raises ``OSError``."""
        file = disk.open(f"{directory}/{page_name(header.number)}", create=True)
        try:
            file.write(0, [header.encode()])
        except BaseException:
            file.close()
            raise
        return cls(file, header, made=True)

    def begin_pass(self) -> None:
        """Begins a pass: its first record shares no page of the cache with records that were synced before."""
        self._aligned = self.row is NO_ROW

    def fits(self, size: int, page_bytes: int) -> bool:
        """Returns whether a record of ``size`` bytes fits this page. The first record always fits."""
        return not self.row.count or self._next() + size <= page_bytes

    def place(self, record: Record) -> int:
        """Returns the offset for ``record``, and counts one more writer."""
        offset = self._next()
        self._aligned = True
        self.row = self.row.with_record(record, offset + record.size)
        self.writers += 1
        self.unsynced = True
        return offset

    def _next(self) -> int:
        return self.row.end if self._aligned else (self.row.end + STRIDE - 1) // STRIDE * STRIDE

    def write(self, record: Record, offset: int) -> None:
        """Writes the record at its offset; not durable. Raises ``OSError``; then nothing more is written to this
        page."""
        try:
            self._file.write(offset, record.placed(offset, self.header.salt))
        except BaseException:
            self.broken = True
            raise

    def sync(self) -> None:
        """Syncs the written records. Raises ``OSError``; then the page is not used any more, and none of these records
        is valid, because a second sync may succeed although the first one has lost data."""
        assert not self.writers
        if self.broken:
            raise OSError(errno.EIO, "a page that has failed a write or a sync")
        try:
            self._file.sync()
        except BaseException:
            self.broken = True
            raise
        self.unsynced = False

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Piece:
    """One whole record of a page."""

    head: RecordHead
    messages: Messages


@dataclass(frozen=True, slots=True)
class PageContents:
    """The contents of a page: its records up to the first damaged one, in ascending order of VLSN."""

    header: PageHeader
    pieces: list[Piece]
    fault: str = ""
    """The damage at ``fault_at``; empty for a whole page."""
    fault_at: int = 0
    vlsns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def bytes(self) -> int:
        """The approximate memory in bytes that the contents take."""
        return sum(piece.head.end - piece.head.offset + 64 * piece.head.count for piece in self.pieces)

    def entries(self, chosen: I64) -> list[Entry]:
        """Returns the messages with these indices (ascending) in ``vlsns``."""
        found: list[Entry] = []
        before = 0
        for piece in self.pieces:
            after = before + len(piece.messages)
            low, high = np.searchsorted(chosen, before), np.searchsorted(chosen, after)
            if low < high:
                found += piece.messages.entries(chosen[low:high] - before)
            before = after
        return found

    def sizes(self) -> I64:
        """Returns the bytes of key and value of each message."""
        if not self.pieces:
            return np.zeros(0, np.int64)
        return np.concatenate([piece.messages.sizes() for piece in self.pieces])


def walk(buf: Buffer, header: PageHeader, end: int) -> Iterator[RecordHead]:
    """Yields the heads of the whole records before ``end``, in the order of their offsets. Raises ``BadBody`` after the
    last whole record if the bytes up to ``end`` are not a record."""
    at, view = HEADER_BYTES, memoryview(buf)
    while at < end:
        head_end = min(at + HEAD_BYTES, len(buf))
        if at % STRIDE and not any(view[at:head_end][:2]):
            aligned = min(end, (at + STRIDE - 1) // STRIDE * STRIDE)
            if any(view[at:aligned]):
                raise BadBody("no record of this page begins here")
            at = aligned
            continue
        head = head_at(buf, at, offset=at, salt=header.salt)
        if head.end > end:
            raise BadBody(f"a record that ends at {head.end}, past {end}")
        check_crc(buf, at, head)
        yield head
        at = head.end


def read_page(disk: Disk, path: str, uuid: str, number: int, end: int | None) -> PageContents:
    """Reads a page up to ``end``; None reads all whole records. ``fault`` describes the first damage, after the
    readable records. Raises ``WrongVersion``, and ``OSError`` for an error that is no damage."""
    header, at, fault = PageHeader(uuid, number, 0), 0, ""
    pieces: list[Piece] = []
    try:
        buf = _bytes_of(disk, path, end)
        header = PageHeader.decode(buf)
        if (header.uuid, header.number) != (uuid, number):
            raise BadBody(f"it is page {header.number} of {header.uuid}")
        at = HEADER_BYTES
        for head in walk(buf, header, len(buf) if end is None else end):
            pieces.append(Piece(head, messages_of(buf, head.offset, head)))
            at = head.end
    except BadBody as error:
        fault = str(error)
    pieces.sort(key=lambda piece: piece.head.first)
    vlsns = np.concatenate([piece.messages.vlsns for piece in pieces]) if pieces else np.zeros(0, np.int64)
    return PageContents(header, pieces, fault, at if fault else 0, vlsns)


def _bytes_of(disk: Disk, path: str, end: int | None) -> bytes:
    with closing(disk.open(path)) as file:
        size = file.size() if end is None else min(file.size(), end)
        try:
            return file.read(0, size)
        except OSError as error:
            if not is_unread(error):
                raise
            return read_around(file, 0, size)


Salts = Callable[[], int]
"""Draws a page's salt, a u32."""
