"""A page: one file with messages of a destination from segments that were cleaned away. The messages are in records,
and several writers may write records in parallel.

    0        8       10 12   16   24     32    40  60  64
    |VLSNPAGE|version|0 |salt|uuid|number|since|0 …|crc| record | record | 0 … | record …

1. A writer gets an offset under the store's latch, and writes without the latch. So the records of a page are not
   ordered by VLSN; a reader sorts them.
2. The first record of each pass of the pager is at a multiple of 4096. So no write touches a 4 KiB page of the system's
   cache that has synced bytes, and a power cut cannot damage synced bytes. The bytes before the first record are zeros.
3. Only the page table says up to which offset a page is valid (``PageRow.end``). Everything before ``end`` is synced
   before the table says so. Nothing more is written to a page that has bytes after ``end``.
4. Nothing more is written to a page after a failed write or sync.

For example, records of 200 and 96 bytes are at offsets 64 and 264, and ``end`` is 360. The next pass begins at 4096.
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
"""The first record of each pass of the pager is at a multiple of this offset."""

assert HEADER.size == HEADER_BYTES


class PageRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row of a page in the page table."""

    end: int
    """The offset before which all records of the page are valid and synced."""
    first: int
    """The lowest VLSN of a message in the page."""
    last: int
    """The highest VLSN of a message in the page."""
    count: int
    """The number of messages in the page."""
    bytes: int
    """The bytes of keys and values of all messages in the page."""
    covers_from: int
    """When the page was written, the destination wanted no other messages from this VLSN to ``covers_to``."""
    covers_to: int
    """When the page was written, the destination wanted no other messages from ``covers_from`` to this VLSN."""
    superseded: bool = False
    """True if the destination was moved after the page was written, so that the page may miss messages that are wanted
    now. Other pages have such messages, or will have them, and then the superseded page is removed. A superseded page
    is not read."""

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
    """The header at the beginning of a page file."""

    uuid: str
    number: int
    salt: int
    since: int = 0
    """The value of ``Subscription.since`` when the page was written."""

    def encode(self) -> bytes:
        raw = bytearray(HEADER_BYTES)
        uuid = bytes.fromhex(self.uuid)
        HEADER.pack_into(raw, 0, MAGIC, VERSION, 0, self.salt, uuid, self.number, self.since, b"", 0)
        raw[60:] = crc(raw[:60]).to_bytes(4, "little")
        return bytes(raw)

    @classmethod
    def decode(cls, raw: Buffer) -> PageHeader:
        """Decodes the header of a page. Raises ``BadBody``, or ``WrongVersion`` for a page of a later version."""
        if len(raw) < HEADER_BYTES or bytes(raw[:8]) != MAGIC:
            raise BadBody("no page's header")
        _, version, _, salt, uuid, number, since, _, stored = HEADER.unpack_from(raw)
        if crc(memoryview(raw)[:60]) != stored:
            raise BadBody("page header crc")
        if version != VERSION:
            raise unread("a page", version, VERSION)
        return cls(uuid.hex(), number, salt, since)


class PageWriter:
    """A page that is being written. ``place`` is called under the store's latch, and ``write`` on any thread. The other
    methods may be called only while no write is under way."""

    def __init__(self, file: File, header: PageHeader, row: PageRow = NO_ROW, *, made: bool) -> None:
        self.header = header
        self.row = row
        """The page's row, which includes all placed records, synced or not."""
        self.made = made
        """True while the name of the page file is not durable yet."""
        self.writers = 0
        """The number of writes to the page that are under way."""
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
        """Begins a pass: the first record of the pass shares no 4 KiB page of the cache with records that were synced
        before."""
        self._aligned = self.row is NO_ROW

    def fits(self, size: int, page_bytes: int) -> bool:
        """Returns whether a record of ``size`` bytes fits this page. The first record of a page always fits."""
        return not self.row.count or self._next() + size <= page_bytes

    def place(self, record: Record) -> int:
        """Returns the offset for ``record``, and notes that one more write is under way."""
        offset = self._next()
        self._aligned = True
        self.row = self.row.with_record(record, offset + record.size)
        self.writers += 1
        self.unsynced = True
        return offset

    def _next(self) -> int:
        return self.row.end if self._aligned else (self.row.end + STRIDE - 1) // STRIDE * STRIDE

    def write(self, record: Record, offset: int) -> None:
        """Writes ``record`` at ``offset``. The record is not durable on return. After an ``OSError`` nothing more may
        be written to the page."""
        try:
            self._file.write(offset, record.placed(offset, self.header.salt))
        except BaseException:
            self.broken = True
            raise

    def sync(self) -> None:
        """Syncs the written records. Raises ``OSError``. After an error the page is not used any more, and none of its
        unsynced records is valid, because a second sync may succeed although the first one has lost data."""
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
    """One complete record of a page."""

    head: RecordHead
    messages: Messages


@dataclass(frozen=True, slots=True)
class PageContents:
    """The contents of a page: its records up to the first damaged one, in ascending order of VLSN."""

    header: PageHeader
    pieces: list[Piece]
    fault: str = ""
    """The description of the damage at offset ``fault_at``; empty if the page is not damaged."""
    fault_at: int = 0
    vlsns: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def bytes(self) -> int:
        """The approximate memory, in bytes, that the contents of the page occupy."""
        return sum(piece.head.end - piece.head.offset + 64 * piece.head.count for piece in self.pieces)

    def entries(self, chosen: I64) -> list[Entry]:
        """Returns the messages whose indices in ``vlsns`` are ``chosen`` (ascending)."""
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
        """Returns the bytes of key and value together for each message."""
        if not self.pieces:
            return np.zeros(0, np.int64)
        return np.concatenate([piece.messages.sizes() for piece in self.pieces])


def walk(buf: Buffer, header: PageHeader, end: int) -> Iterator[RecordHead]:
    """Yields the heads of the complete records before ``end``, in the order of their offsets. If there are other bytes
    than records before ``end``, raises ``BadBody`` after the last complete record."""
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
    """Reads a page file up to ``end`` (None: all complete records). ``fault`` describes the first damage, after the
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
"""The type of a function that draws the salt of a page, a random u32."""
