"""The paging store: the page files of one destination. A page has messages from segments that were cleaned away.

    pages/<uuid>/destination.json  000000004.page  000000005.page  000000003.page.damaged
    table   {paged_to 5200, done 3, missing []}    4 {end, first 41, last 3010 …}    5 {end, first 3017, last 5188 …}

1. Every message that the destination wanted up to ``paged_to`` is in these pages, is acknowledged, or is in
   ``missing``. This node fetches the missing messages from another member.
2. ``page`` assigns an offset to a record under the latch, and writes the record without the latch. So several writers
   can share one page. When a page is full, writers use the next page at once. The full page is synced when its last
   writer is done.
3. Written records are valid once they are in the page table (``table``). Pages and directory are synced before that.
4. The number of a page is never used twice. ``done`` is the highest number of a removed page. A page file without a row
   in the table was removed before if its number is at or below ``done``; otherwise it was never completed.

``page`` is called on any thread. ``sync`` and ``discard`` are called on the pager's thread, while no write is under
way. The other methods are called on the owner's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field

import msgspec

from vlsn.format.vlsn_set import Span, VlsnSet
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import PAGE_BYTES
from vlsn.pages.page import PageHeader, PageRow, PageWriter, Salts, page_name
from vlsn.pages.record import Record
from vlsn.pages.subscription import Subscription
from vlsn.seams import Disk

DIRECTORY = "pages"
ASIDE = ".damaged"
ABOUT_NAME = "destination.json"


class StoreRow(msgspec.Struct, frozen=True):
    """The row of a destination in the page table."""

    paged_to: int = NULL_VLSN
    done: int = 0
    missing: list[Span] = []
    since: int = NULL_VLSN
    """The value of ``Subscription.since`` when the pages were written."""
    prefix: bytes = b""
    """The key prefix of the destination when the pages were written."""


class About(msgspec.Struct, frozen=True):
    """The description of the destination in its directory of pages. The description is for a person, for tools, and for
    a node that has lost its page table."""

    uuid: str
    name: str
    prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class Change:
    """The changes that one transaction of the page table makes to one store."""

    uuid: str
    row: StoreRow | None
    """The new row of the store; None removes the store."""
    pages: dict[int, PageRow] = field(default_factory=dict)
    gone: Sequence[int] = ()
    anew: bool = False
    """True if all other rows of the store are removed."""


class PagingStore:
    """The pages of one destination, from the rows of the page table. Only this store uses ``directory``."""

    def __init__(
        self,
        disk: Disk,
        latch: AbstractContextManager[object],
        salts: Salts,
        directory: str,
        uuid: str,
        row: StoreRow | None = None,
        pages: dict[int, PageRow] | None = None,
        *,
        page_bytes: int = PAGE_BYTES,
        number: int = 0,
    ) -> None:
        """``number`` is the highest number that a page file in the directory ever had."""
        self.uuid = uuid
        self.directory = directory
        self.row = row
        """The destination's row in the page table, or None."""
        self.pages = dict(sorted((pages or {}).items()))
        self.bytes = sum(page.end for page in self.pages.values())
        """The bytes of the store's pages that are valid."""
        self.paged_messages = 0
        """The number of messages written to pages since the node's log was opened. ``paged_bytes`` and ``pages_done``
        are also counted since the log was opened."""
        self.paged_bytes = 0
        self.pages_done = 0
        self.made: About | None = None
        """The contents of ``destination.json`` if this process has written that file, else None."""
        self._disk = disk
        self._latch = latch
        self._salts = salts
        self._page_bytes = page_bytes
        self._number = max([number, row.done if row is not None else 0, *self.pages])
        self._open: PageWriter | None = None
        self._written: dict[int, PageWriter] = {}
        """The writers of the pages with records of the current pass, by page number."""
        self._since = NULL_VLSN
        """The value of ``Subscription.since`` for the records that are being written."""

    # Present contents.

    @property
    def paging(self) -> bool:
        """True if the destination is in page mode: some of its messages are in pages."""
        return bool(self.pages)

    @property
    def messages(self) -> int:
        """The number of messages in the pages, including messages that were acknowledged later."""
        return sum(row.count for row in self.pages.values() if not row.superseded)

    @property
    def paged_to(self) -> int:
        return self.row.paged_to if self.row is not None else NULL_VLSN

    @property
    def missing(self) -> list[Span]:
        return self.row.missing if self.row is not None else []

    def path(self, number: int) -> str:
        return f"{self.directory}/{page_name(number)}"

    def aside(self, number: int) -> str:
        """Returns the path under which a damaged page is kept."""
        return self.path(number) + ASIDE

    def next_page(self, from_vlsn: int) -> int | None:
        """Returns the number of the first page, by VLSN, that has a message at or after ``from_vlsn``."""
        having = [
            (row.first, number) for number, row in self.pages.items() if row.last >= from_vlsn and not row.superseded
        ]
        return min(having)[1] if having else None

    # Writing.

    def begin_pass(self, since: int) -> None:
        """Begins a pass, while no write is under way. ``since`` is the destination's ``Subscription.since``."""
        self._written.clear()
        if since != self._since:
            self.leave_page()
            self._since = Vlsn(since)
        if self._open is not None:
            self._open.begin_pass()

    def page(self, record: Record) -> None:
        """Writes ``record`` to the current page or to a new one. The record is not durable on return. Raises
        ``OSError``."""
        with self._latch:
            writer = self._open
            if writer is None or writer.broken or not writer.fits(record.size, self._page_bytes):
                writer = self._new_page()
            offset = writer.place(record)
            self._written[writer.header.number] = writer
        try:
            writer.write(record, offset)
        finally:
            with self._latch:
                writer.writers -= 1

    def _new_page(self) -> PageWriter:
        self._open = None
        self._number += 1
        header = PageHeader(self.uuid, self._number, self._salts(), self._since)
        self._open = PageWriter.create(self._disk, self.directory, header)
        return self._open

    def make(self, about: About) -> None:
        """Creates the store's directory, with a file that describes the destination. The directory and the file are
        durable on return. Raises ``OSError``."""
        disk, above = self._disk, self.directory.rpartition("/")[0]
        disk.make_directory(self.directory)
        path, new = f"{self.directory}/{ABOUT_NAME}", f"{self.directory}/{ABOUT_NAME}.new"
        if disk.exists(new):
            disk.remove(new)
        with closing(disk.open(new, create=True)) as file:
            file.write(0, [msgspec.json.encode(about)])
            file.sync()
        disk.rename(new, path)
        for directory in (self.directory, above, above.rpartition("/")[0]):
            disk.sync_directory(directory)
        self.made = about

    def full_pages(self) -> list[PageWriter]:
        """Returns the full pages of the pass that are not synced yet. Another thread may sync full pages while later
        pages are written."""
        return [writer for writer in self._written.values() if writer is not self._open and writer.unsynced]

    def sync(self) -> dict[int, PageRow]:
        """Syncs all records that the pass has written, and returns the rows of the pages with these records. Raises
        ``OSError``."""
        writers = list(self._written.values())
        for writer in writers:
            if writer.unsynced:
                writer.sync()
        if any(writer.made for writer in writers):
            self._disk.sync_directory(self.directory)
        for writer in writers:
            writer.made = False
            if writer is not self._open:
                writer.close()
        return {number: writer.row for number, writer in sorted(self._written.items())}

    def discard(self) -> None:
        """Discards the records of the pass that are not in the page table. Nothing more is written to pages with
        discarded records, and pages that were never in the table are removed. The next open removes files that cannot
        be removed now."""
        for number, writer in self._written.items():
            with suppress(OSError):
                writer.close()
            if number not in self.pages:
                with suppress(OSError):
                    self._disk.remove(self.path(number))
        if self._open is not None and self._open.header.number not in self._written:
            with suppress(OSError):
                self._open.close()
        self._written.clear()
        self._open = None

    def remove(self, numbers: Sequence[int]) -> None:
        """Removes the files of pages that are no longer in the table. The removal is durable on return, and may be
        repeated."""
        for number in numbers:
            with suppress(FileNotFoundError):
                self._disk.remove(self.path(number))
        if numbers:
            self._disk.sync_directory(self.directory)

    # Changes of the table, on the owner's thread.

    def reconciled(self, subscription: Subscription, first: int) -> Change | None:
        """Returns the change that is needed for a log that begins at ``first``, or None if no change is needed.

        Messages before ``first`` are missing if the destination wants them and no page here has them. A destination
        that was moved may want messages that were acknowledged when its pages were written. So the pages of a moved
        destination are superseded: wanted messages before ``first`` are missing, and later messages are paged again. A
        destination whose prefix was changed may want messages that its pages do not have, so its pages are removed.
        """
        wanted, row, gone, pages = subscription.acknowledged, self.row, list[int](), dict[int, PageRow]()
        if row is None:
            row = StoreRow(NULL_VLSN, 0, [], subscription.since, subscription.prefix)
        elif row.prefix != subscription.prefix:
            gone = list(self.pages)
            row = StoreRow(NULL_VLSN, self._number, [], subscription.since, subscription.prefix)
        paged_to = max(row.paged_to, first - 1)
        missing, asked = row.missing, [(row.paged_to + 1, first - 1)] if row.paged_to < first - 1 else []
        if row.since != subscription.since:
            paged_to, asked = first - 1, [(1, first - 1)] if first > 1 else []
            pages = {
                number: msgspec.structs.replace(page, superseded=True)
                for number, page in self.pages.items()
                if number not in gone
            }
        missing = wanted.left(VlsnSet.of_spans([*missing, *asked]).spans())
        if self.row is None and not missing:
            return None  # nothing was ever written to pages for this destination, and nothing has to be
        new = StoreRow(paged_to, row.done, missing, subscription.since, row.prefix)
        return Change(self.uuid, new, pages, gone) if new != self.row else None

    def paged(self, subscription: Subscription, pages: dict[int, PageRow], paged_to: int) -> Change:
        """Returns the change for a pass that has reached ``paged_to`` and has synced ``pages``."""
        row = self.row or StoreRow(NULL_VLSN, 0, [], subscription.since, subscription.prefix)
        return Change(self.uuid, msgspec.structs.replace(row, paged_to=max(row.paged_to, paged_to)), pages)

    def filled(self, pages: dict[int, PageRow], spans: Sequence[Span], acknowledged: VlsnSet) -> Change:
        """Returns the change after other members have sent all messages of ``spans``."""
        assert self.row is not None
        missing = VlsnSet.of_spans(spans).left(acknowledged.left(self.row.missing))
        return Change(self.uuid, msgspec.structs.replace(self.row, missing=missing), pages)

    def replaced(self, number: int, pages: dict[int, PageRow], lost: Sequence[Span]) -> Change:
        """Returns the change for a damaged page whose readable records were copied to ``pages``."""
        assert self.row is not None
        missing = sorted([*self.row.missing, *lost])
        row = msgspec.structs.replace(self.row, missing=missing, done=max(self.row.done, number))
        return Change(self.uuid, row, pages, gone=[number])

    def done(self, acknowledged: VlsnSet, read: dict[int, bool] | None = None) -> Change | None:
        """Returns the change that removes the pages whose messages are all acknowledged, or None if there are no such
        pages. ``read`` says, for pages that were read, whether all their messages are acknowledged."""
        looked = read or {}
        if self.row is None:
            return None
        missing = acknowledged.left(self.row.missing)
        gone = [
            number
            for number, row in self.pages.items()
            if looked.get(number)
            or acknowledged.covers(row.first, row.last)
            or (row.superseded and self._is_replaced(row, missing))
        ]
        if not gone:
            return None
        row = msgspec.structs.replace(self.row, done=max(self.row.done, *gone), missing=missing)
        return Change(self.uuid, row, gone=gone)

    def _is_replaced(self, row: PageRow, missing: list[Span]) -> bool:
        """Returns whether other pages have all wanted messages of a superseded page."""
        assert self.row is not None
        return row.covers_to <= self.row.paged_to and not any(
            low <= row.covers_to and row.covers_from <= high for low, high in missing
        )

    def to_look_into(self, acknowledged: VlsnSet) -> list[int]:
        """Returns the pages that may be finished although some VLSN between their messages is not acknowledged."""
        return [
            number
            for number, row in self.pages.items()
            if not row.superseded
            and acknowledged.count_in(row.first, row.last) >= row.count
            and not acknowledged.covers(row.first, row.last)
            and acknowledged.covers(row.first, row.first)
            and acknowledged.covers(row.last, row.last)
        ]

    def committed(self, change: Change) -> None:
        """Notes that ``change`` is in the page table."""
        assert change.row is not None
        for number, row in change.pages.items():
            before = self.pages.get(number)
            self.paged_messages += row.count - (before.count if before is not None else 0)
            self.paged_bytes += row.bytes - (before.bytes if before is not None else 0)
        self.row = change.row
        self.pages = {n: row for n, row in sorted({**self.pages, **change.pages}.items()) if n not in change.gone}
        self.bytes = sum(page.end for page in self.pages.values())
        self.pages_done += len(change.gone)

    def leave_page(self, numbers: Sequence[int] | None = None) -> None:
        """Stops using the current page if its number is one of ``numbers`` (the removed pages). If ``numbers`` is None,
        stops using any page."""
        writer = self._open
        if writer is not None and (numbers is None or writer.header.number in numbers):
            self._open = None
            with suppress(OSError):
                writer.close()

    def close(self) -> None:
        for writer in {id(each): each for each in (*self._written.values(), self._open) if each is not None}.values():
            with suppress(OSError):
                writer.close()
        self._written.clear()
        self._open = None
