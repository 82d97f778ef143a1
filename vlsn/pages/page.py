"""The page: one file of a destination, of records that several writers put in side by side.

    0        8       10 12   16   24     32    40  60  64
    |VLSNPAGE|version|0 |salt|uuid|number|since|0 …|crc| record | record | 0 … | record …

1. A writer gets its place under the store's latch and writes outside of it. So records lie in the order of their
   places, not of their VLSNs: a reader sorts them.
2. The first record of each pass lies at a multiple of 4096: no write touches a page of the cache that holds what was
   synced before, so a power cut takes none of that with it.  Between the two there are zeros.
3. How far a page counts is said by the page table alone (``PageRow.end``), once all before that is synced.  A page with
   bytes past that is never written to again.
4. A page that has failed a write or a sync takes no more either.

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
"""The first record of each pass lies at a multiple of it."""

assert HEADER.size == HEADER_BYTES


class PageRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page as the page table has it."""

    end: int
    """The records before it count: they were synced."""
    first: int
    """The lowest VLSN of a message in it."""
    last: int
    """The highest one."""
    count: int
    """Its messages …"""
    bytes: int
    """… and the bytes of their keys and values."""
    covers_from: int
    """No other message from here …"""
    covers_to: int
    """… to here was wanted when it was written."""
    superseded: bool = False
    """The destination was moved since, so it may lack what is wanted now: others hold all of it, or will, and it goes
    then. It is not read any more."""

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
    """The first bytes of a page."""

    uuid: str
    number: int
    salt: int
    since: int = 0
    """``Subscription.since`` of the destination when it was written."""

    def encode(self) -> bytes:
        raw = bytearray(HEADER_BYTES)
        uuid = bytes.fromhex(self.uuid)
        HEADER.pack_into(raw, 0, MAGIC, VERSION, 0, self.salt, uuid, self.number, self.since, b"", 0)
        raw[60:] = crc(raw[:60]).to_bytes(4, "little")
        return bytes(raw)

    @classmethod
    def decode(cls, raw: Buffer) -> PageHeader:
        """Raises ``BadBody``, and ``WrongVersion`` for a page of a later version."""
        if len(raw) < HEADER_BYTES or bytes(raw[:8]) != MAGIC:
            raise BadBody("no page's header")
        _, version, _, salt, uuid, number, since, _, stored = HEADER.unpack_from(raw)
        if crc(memoryview(raw)[:60]) != stored:
            raise BadBody("page header crc")
        if version != VERSION:
            raise unread("a page", version, VERSION)
        return cls(uuid.hex(), number, salt, since)


class PageWriter:
    """A page that is written to. ``place`` under the store's latch, ``write`` by any thread, the rest where no write is
    under way."""

    def __init__(self, file: File, header: PageHeader, row: PageRow = NO_ROW, *, made: bool) -> None:
        self.header = header
        self.row = row
        """With all that has its place here, synced or not."""
        self.made = made
        """Its name is not durable yet."""
        self.writers = 0
        """Writes under way."""
        self.broken = False
        self.unsynced = made
        self._file = file
        self._aligned = made

    @classmethod
    def create(cls, disk: Disk, directory: str, header: PageHeader) -> PageWriter:
        """Makes the file, with its header. Raises ``OSError``."""
        file = disk.open(f"{directory}/{page_name(header.number)}", create=True)
        try:
            file.write(0, [header.encode()])
        except BaseException:
            file.close()
            raise
        return cls(file, header, made=True)

    def begin_pass(self) -> None:
        """Begins a pass: its first record shares no page of the cache with records synced before."""
        self._aligned = self.row is NO_ROW

    def fits(self, size: int, page_bytes: int) -> bool:
        """Says whether a record of ``size`` has its place here; the first one always has."""
        return not self.row.count or self._next() + size <= page_bytes

    def place(self, record: Record) -> int:
        """Gives ``record`` its place, and counts one more writer."""
        offset = self._next()
        self._aligned = True
        self.row = self.row.with_record(record, offset + record.size)
        self.writers += 1
        self.unsynced = True
        return offset

    def _next(self) -> int:
        return self.row.end if self._aligned else (self.row.end + STRIDE - 1) // STRIDE * STRIDE

    def write(self, record: Record, offset: int) -> None:
        """Writes the record at its place; not durable. Raises ``OSError``: the page takes no more then."""
        try:
            self._file.write(offset, record.placed(offset, self.header.salt))
        except BaseException:
            self.broken = True
            raise

    def sync(self) -> None:
        """Syncs what was written. Raises ``OSError``: the page takes no more then, and none of it counts. A second sync
        may succeed although the first one has lost data."""
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
    """One record of a page, whole."""

    head: RecordHead
    messages: Messages


@dataclass(frozen=True, slots=True)
class PageContents:
    """The contents of a page: its records up to the first that does not read back, ascending by VLSN."""

    header: PageHeader
    pieces: list[Piece]
    fault: str = ""
    """The fault at ``fault_at``; empty for a page that reads back whole."""
    fault_at: int = 0
    vlsns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def bytes(self) -> int:
        """The memory that it takes, about."""
        return sum(piece.head.end - piece.head.offset + 64 * piece.head.count for piece in self.pieces)

    def entries(self, chosen: I64) -> list[Entry]:
        """Returns the messages of these numbers (ascending) in ``vlsns``."""
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
    """Yields the heads of the whole records before ``end``, in the order of their places. Raises ``BadBody`` behind the
    last one where the rest up to ``end`` is none."""
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
    """Reads a page whole, up to ``end`` (None: as far as there are whole records). The first fault is its ``fault``,
    behind the records that read back. Raises ``WrongVersion``, and ``OSError`` for an error that is no damage."""
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
