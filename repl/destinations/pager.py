"""The pager of a node: before the log is cleaned, it copies unacknowledged messages into files, called pages.

    cleaning wants to remove 1–9 000 ─► page(9 000) ─► strides: read, choose, write, sync, page table ─► done(9 000)
    acknowledgements are durable ─► the page table drops pages ─► their files are removed

1. Each node writes its own pages, when it wants to clean its log. An append never waits for pages.
2. The worker thread ``pages`` writes, reads and removes files, one window (group of blocks) of the log at a time. The
   keeper's thread writes the page table. The lock ``alone`` lets one change of a destination's pages run at a time. A
   pass over the log holds the lock only from one sync to the next (a stride).
3. Messages that cannot be written to pages stay in the log: the cleaning stops before them and reports the reason.
4. The page table drops a page only after acknowledgements that no rollback can undo. The page's file is removed after
   the page has left the table.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

from repl.group.member import OpenMember
from repl.offload import Offload
from vlsn.errors import Damaged, LogClosed, LogFailed, NoSpace, Trimmed
from vlsn.format.vlsn_set import Span
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import MENDED_KEPT_MAX, PAGES_FREE_BYTES_HIGH, PAGES_FREE_BYTES_LOW, PAGING_WINDOW_BYTES
from vlsn.pages.manager import PagingManager
from vlsn.pages.opening import open_pages
from vlsn.pages.page import PageContents, PageHeader, PageRow, PageWriter, read_page
from vlsn.pages.paging_pass import PagingPass
from vlsn.pages.record import Record, record_again
from vlsn.pages.store import About, Change, PagingStore
from vlsn.pages.subscription import Subscription
from vlsn.state.destinations import DestinationView

PERIOD_S = 1.0
"""Seconds between two checks of the acknowledgements, while this node has pages."""
RETRY_S = 5.0
"""Seconds until pages that could not be opened are opened again."""
NOT_OPEN = "the pages are not open yet"
PAGE_WINDOWS_MIN = 4
"""The least number of windows of the log that fit one page. The wanted messages of a window form one record, and a
large record may fill a page."""


class Pager:
    """Writes pages of one node's log (``vlsn.write.cleaner.Pager``). ``run`` never returns."""

    def __init__(self, opened: OpenMember) -> None:
        member, log = opened.member, opened.log
        seams, config = member.seams, member.config
        self.manager = PagingManager(
            seams.disk, seams.threads.latch, seams.random.u32, log.directory, page_bytes=config.page_bytes
        )
        self.on_pages = member.workers.offload("pages")
        self._on_syncs = member.workers.offload("page_syncs")
        self.alone = asyncio.Lock()
        self.paused = NOT_OPEN
        """Why no pages can be written now; empty if they can. The page store is opened once the group has, or had,
        destinations."""
        self._unopened = ""
        """Why the page store could not be opened; empty before the first try, and once it is open."""
        self.unfilled: dict[str, str] = {}
        """Why messages that are missing from pages could not be fetched from other members, by the destination's
        uuid."""
        self.passes = 0
        self.passed_bytes = 0
        """The bytes of the log that were read to write pages, since the log was opened."""
        self.damaged = 0
        """The number of damaged pages found since the log was opened."""
        self._member = member
        self._log = log
        self._keeper = Offload(member.workers["keeper"])
        self._table = log.care.state.pages()
        self._asked: deque[tuple[Vlsn, Callable[[Vlsn, str], None]]] = deque()
        self._woken = asyncio.Event()
        self._opened = False
        self._over = False
        self.low = False
        """True while the disk is too full for pages: it turns True below the low mark and False above the high mark."""
        self._bytes_max, self._messages_max = config.pages_bytes_max, config.pages_messages_max
        self._aside: list[tuple[str, int]] = []
        """Pages to rename out of use, because an earlier process left them or because they became unreadable."""
        self._looked: dict[tuple[str, int], int] = {}
        self._unsettled = ""
        """The reason last reported for not removing finished pages."""
        log.care.cleaner.pager = self

    def subscriptions(self) -> list[Subscription] | None:
        """Returns the destinations that are durable and synced here, or None if this node has not read them yet."""
        history = self._log.view.history
        if history.small.lacks_to or history.acks.lacks_to:
            return None
        return [_subscription(view) for view in self._log.care.destinations.views()]

    def told(self, uuid: str) -> dict[str, Any]:
        """Returns the document of a destination's pages on this node."""
        store = self.manager.stores.get(uuid)
        return {
            "mode": "paged" if store is not None and store.paging else "log",
            "paged_to": store.paged_to if store is not None else 0,
            "pages": len(store.pages) if store is not None else 0,
            "bytes": store.bytes if store is not None else 0,
            "messages": store.messages if store is not None else 0,
            "oldest": min((row.first for row in store.pages.values()), default=0) if store is not None else 0,
            "missing": [list(span) for span in store.missing] if store is not None else [],
            "blocked_by": self._blocked_by(store),
            "paged_messages": store.paged_messages if store is not None else 0,
            "paged_bytes": store.paged_bytes if store is not None else 0,
            "pages_done": store.pages_done if store is not None else 0,
        }

    def _blocked_by(self, store: PagingStore | None) -> str:
        """Returns why messages of a destination cannot be read from pages or written to pages; "" if they can."""
        if store is not None and store.missing:
            first, last = store.missing[0]
            why = self.unfilled.get(store.uuid, "")
            return f"VLSNs {first} to {last} are missing here" + (f"; {why}" if why else "")
        if self._unopened:
            return f"the pages of this node cannot be opened: {self._unopened}"
        return "the disk of this node is too full for pages" if self.low else ""

    # Cleaning.

    def page(self, upto: Vlsn, done: Callable[[Vlsn, str], None]) -> None:
        if self._over:
            done(NULL_VLSN, "the log is closing")
            return
        self._asked.append((upto, done))
        self._woken.set()

    def uncovered(self, first: Vlsn) -> str:
        subscriptions = self.subscriptions()
        if subscriptions is None:
            return "destinations are not known yet"
        if subscriptions and not self._opened:
            return self._unopened or NOT_OPEN
        return self.manager.uncovered(subscriptions, first, self._log.view.range.first)

    @property
    def pressed(self) -> bool:
        """True while pages cannot take more messages: the disk is nearly full, or all pages together are at a limit
        of this node."""
        return bool(self._why_pressed())

    def _why_pressed(self) -> str:
        if self.low:
            return "the disk of this node is too full for its pages"
        if self._bytes_max and (size := self.bytes) >= self._bytes_max:
            return f"the pages of all destinations take {size} of {self._bytes_max} bytes (pages_bytes_max)"
        if self._messages_max and (count := self.messages) >= self._messages_max:
            return f"the pages of all destinations have {count} of {self._messages_max} messages (pages_messages_max)"
        return ""

    @property
    def bytes(self) -> int:
        """The total bytes of all pages of this node."""
        return sum(store.bytes for store in self.manager.stores.values())

    @property
    def messages(self) -> int:
        """The number of messages in all pages of this node. Messages that were acknowledged since they were written are
        included."""
        return sum(store.messages for store in self.manager.stores.values())

    def why_full(self, uuid: str, limit_bytes: int, limit_messages: int) -> str:
        """Answers ``PageSource.why_full``."""
        store = self.manager.stores.get(uuid)
        size = store.bytes if store is not None else 0
        if limit_bytes and size >= limit_bytes:
            return f"its pages take {size} of {limit_bytes} bytes"
        if limit_messages and store is not None and store.messages >= limit_messages:
            return f"its pages have {store.messages} of {limit_messages} messages"
        return self._why_pressed() if size else ""

    def durable(self) -> Vlsn:
        """Returns the VLSN up to which this node's log is durable and synced."""
        return Vlsn(min(self._log.view.dtvlsn, self._log.view.range.last_sync))

    async def _block_end(self, vlsn: Vlsn) -> Vlsn:
        """Returns the last VLSN of the block that contains ``vlsn``. The end of a block is needed because after a
        rollback a segment may end inside a block."""
        log, durable = self._log, self.durable()

        def found() -> Vlsn:
            mapping = log.view.index.at_or_before(vlsn)
            if mapping is None:
                return vlsn
            reader = log.view.reader()
            try:
                return max(vlsn, reader.blocks(vlsn, start=mapping[1], upto_vlsn=durable, bytes_max=1).last)
            finally:
                reader.close()

        try:
            return await self.on_pages(found)
        except (OSError, Damaged, Trimmed):
            return vlsn  # the pass meets the same error, and reports the error

    # Background work.

    async def run(self) -> None:
        were = bool(self._table.read())
        try:
            while True:
                if not self._opened and (were or self.subscriptions()):
                    await self._open()
                    continue
                if self._asked:
                    upto, done = self._asked.popleft()
                    paged_to, self.paused = await self._page(upto)
                    done(paged_to, self.paused)
                    continue
                self._woken.clear()
                await self._look_around()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), PERIOD_S)
        finally:
            self._over = True
            while self._asked:
                self._asked.popleft()[1](NULL_VLSN, "the log is closing")

    async def _look_around(self) -> None:
        """Checks the disk's free space and the acknowledgements. After a disk error the pages stay, and the next
        check tries again."""
        try:
            if self.manager.stores:
                await self.look_at_disk()
            await self.settle()
            self._unsettled = ""
        except (OSError, NoSpace) as error:
            if self._unsettled != str(error):
                self._unsettled = str(error)
                self._member.event("pages.unread", why=self._unsettled)

    async def close(self) -> None:
        """Closes the files after running operations have ended."""
        self._over = True
        await self.on_pages(self.manager.close)

    async def _open(self) -> None:
        member, log = self._member, self._log
        seams, first = member.seams, max(1, log.view.range.first)
        try:
            found = await self.on_pages(
                lambda: open_pages(
                    seams.disk,
                    seams.threads.latch,
                    seams.random.u32,
                    log.directory,
                    self._table,
                    first=first,
                    page_bytes=member.config.page_bytes,
                )
            )
        except OSError as error:
            if self._unopened != str(error):
                self._unopened = str(error)
                member.event("pages.unread", why=self._unopened)
            await asyncio.sleep(RETRY_S)
            return
        await self._write(found.changes)
        self.manager.adopt(found)
        for note in found.notes:
            member.event("pages.note", note=note)
        self._aside = found.aside
        self._opened, self._unopened, self.paused = True, "", ""

    # Passes over the log.

    async def _page(self, upto: Vlsn) -> tuple[Vlsn, str]:
        """Writes the wanted messages up to VLSN ``upto`` to pages. Returns the VLSN that was reached, and the reason
        if that is less than ``upto``."""
        log, manager = self._log, self.manager
        subscriptions = self.subscriptions()
        if subscriptions is None:
            return NULL_VLSN, "destinations are not known yet"
        if not subscriptions and not manager.stores:
            return upto, ""
        async with self.alone:
            await self.commit(manager.reconciled(subscriptions, log.view.range.first))
        wants = manager.wants(subscriptions, upto)
        if not wants:
            return upto, ""
        upto = await self._block_end(upto)
        before = {store.uuid for _, store in wants if store.paging}
        reader = log.view.reader()
        window_bytes = min(PAGING_WINDOW_BYTES, self._member.config.page_bytes // PAGE_WINDOWS_MIN)
        run = PagingPass(wants, reader, log.view.index, upto, first=log.view.range.first, window_bytes=window_bytes)
        why = ""
        try:
            while not run.over:
                async with self.alone:
                    await self._stride(run)
            self.passes += 1
        except (OSError, Damaged, NoSpace, Trimmed) as error:
            why = str(error)
            async with self.alone:
                await self.on_pages(run.discard)
        finally:
            reader.close()
        for subscription, store in wants:
            if store.paging and store.uuid not in before:
                self._member.event("destination.paged", destination=subscription.name, pages=len(store.pages))
        return min((Vlsn(min(store.paged_to, upto)) for _, store in wants), default=upto), why

    async def _stride(self, run: PagingPass) -> None:
        """Runs a pass until its next sync is due. While one worker syncs full pages, another writes the next pages."""
        syncing: dict[PageWriter, asyncio.Future[None]] = {}
        try:
            while True:
                await self.check_room()
                await self.on_pages(run.step)
                for writer in run.full_pages():
                    if writer not in syncing:
                        syncing[writer] = self._on_syncs(writer.sync)
                if run.due:
                    break
        finally:
            ended = await asyncio.gather(*syncing.values(), return_exceptions=True)
        for failure in filter(None, ended):
            raise failure
        self.passed_bytes += run.looked_bytes
        changes = await self.on_pages(run.sync)
        await self._write(changes)
        run.committed(changes)

    async def look_at_disk(self) -> int:
        """Checks whether the disk is too full. Returns the free bytes. Raises ``OSError``."""
        disk, directory = self._member.seams.disk, self._log.directory
        free = await self.on_pages(lambda: disk.free_bytes(directory))
        low = free < (PAGES_FREE_BYTES_HIGH if self.low else PAGES_FREE_BYTES_LOW)
        if low != self.low:
            self.low = low
            self._member.event("pages.no_space" if low else "pages.has_space", free_bytes=free)
        return free

    async def check_room(self) -> None:
        """Raises ``NoSpace`` while the disk is too full for pages."""
        free = await self.look_at_disk()
        if self.low:
            raise NoSpace(
                f"the disk is too full for pages: {free} bytes free; below {PAGES_FREE_BYTES_LOW} nothing is "
                f"paged, nor cleaned that would have to be, until {PAGES_FREE_BYTES_HIGH} are free"
            )

    # Acknowledged pages.

    async def settle(self) -> None:
        """Removes pages whose messages are all acknowledged by durable entries, and pages of destinations that were
        dropped."""
        subscriptions = self.subscriptions()
        if subscriptions is None or not (self.manager.stores or subscriptions):
            return
        while self._aside:
            uuid, number = self._aside[-1]
            if uuid in self.manager.stores:
                await self.salvage(self.manager.stores[uuid], number)
            self._aside.pop()
        async with self.alone:
            before = {store.uuid for store in self.manager.stores.values() if store.paging}
            looked: dict[str, dict[int, bool]] = {}
            for subscription in subscriptions:
                looked[subscription.uuid] = await self._look_into(subscription)
            changes = self.manager.reconciled(subscriptions, self._log.view.range.first)
            if changes:
                await self.commit(changes)
            await self.commit(self.manager.done(subscriptions, looked))
        for subscription in subscriptions:
            store = self.manager.stores.get(subscription.uuid)
            if store is not None and store.uuid in before and not store.paging:
                self._member.event("destination.depaged", destination=subscription.name)

    async def _look_into(self, subscription: Subscription) -> dict[int, bool]:
        """Reads pages that may be finished: all their messages may be acknowledged although VLSNs between the
        messages are not."""
        store, found = self.manager.stores.get(subscription.uuid), dict[int, bool]()
        for number in store.to_look_into(subscription.acknowledged) if store is not None else ():
            assert store is not None
            row = store.pages[number]
            count = subscription.acknowledged.count_in(row.first, row.last)
            if self._looked.get((store.uuid, number)) == count:
                continue
            contents = await self.read(store, number, row)
            if contents is not None and contents.fault:
                self._aside.append((store.uuid, number))
            elif contents is not None:
                found[number] = bool(subscription.acknowledged.has(contents.vlsns).all())
                self._looked[store.uuid, number] = count
        return found

    # Shared operations.

    async def read(self, store: PagingStore, number: int, row: PageRow) -> PageContents | None:
        """Returns the contents of a page, or None if the page was removed meanwhile."""
        disk, path = self._member.seams.disk, store.path(number)
        try:
            return await self.on_pages(lambda: read_page(disk, path, store.uuid, number, row.end))
        except FileNotFoundError:
            if number in store.pages and not self._over:
                return PageContents(PageHeader(store.uuid, number, 0), [], "the file is gone")
            return None

    async def commit(self, changes: Iterable[Change]) -> None:
        """Writes the changes to the page table, then removes files that the table no longer lists. The caller holds
        the lock ``alone``."""
        changes = list(changes)
        if not changes:
            return
        await self._write(changes)
        for store, numbers in self.manager.committed(changes):
            for number in numbers:
                self._looked.pop((store.uuid, number), None)
            try:
                await self.on_pages(lambda: store.remove(numbers))  # noqa: B023
            except OSError as error:
                self._member.event("pages.unread", why=f"files of pages that are done are left: {error}")

    async def _write(self, changes: list[Change]) -> None:
        if not changes:
            return
        try:
            await self._keeper(lambda: self._table.write(changes))
        except (LogFailed, LogClosed) as error:
            self._log.life.fail(f"the page table: {error}", error)
            raise

    async def put(self, store: PagingStore, subscription: Subscription, records: list[Record]) -> dict[int, PageRow]:
        """Writes ``records`` to new pages, and syncs the pages. The caller must hold the lock ``alone``. Raises
        ``OSError``, ``NoSpace``."""
        await self.check_room()
        about = About(store.uuid, subscription.name, subscription.prefix)

        def written() -> dict[int, PageRow]:
            store.leave_page()
            store.begin_pass(store.row.since if store.row is not None else subscription.since)
            if store.made != about:
                store.make(about)
            try:
                for record in records:
                    store.page(record)
                rows = store.sync()
            except BaseException:
                store.discard()
                raise
            store.leave_page()
            return rows

        return await self.on_pages(written)

    async def salvage(self, store: PagingStore, number: int) -> None:
        """Takes a damaged page out of use. The page's readable messages are written to another page; its other messages
        count as missing."""
        async with self.alone:
            row = store.pages.get(number)
            subscription = next((each for each in self.subscriptions() or () if each.uuid == store.uuid), None)
            if row is None or row.superseded or subscription is None:
                return
            disk, plain, aside = self._member.seams.disk, store.path(number), store.aside(number)

            def put_aside() -> PageContents | None:
                if disk.exists(plain):
                    contents = read_page(disk, plain, store.uuid, number, row.end)
                    if not contents.fault:
                        return contents
                    disk.rename(plain, aside)
                    disk.sync_directory(store.directory)
                kept = sorted(name for name in disk.list(store.directory) if name.endswith(".damaged"))
                for name in kept[:-MENDED_KEPT_MAX]:
                    disk.remove(f"{store.directory}/{name}")
                return read_page(disk, aside, store.uuid, number, row.end) if disk.exists(aside) else None

            contents = await self.on_pages(put_aside)
            if contents is not None and not contents.fault and await self.on_pages(lambda: disk.exists(plain)):
                return  # only this read failed; the page itself may be intact
            kept, lost = readable(row, contents)
            pages = await self.put(store, subscription, kept) if kept else {}
            await self._write([change := store.replaced(number, pages, [lost] if lost[0] <= lost[1] else [])])
            self.manager.committed([change])
            self.damaged += 1
            self._member.event(
                "page.damaged", destination=subscription.name, file=aside, first=lost[0], last=lost[1],
                why=contents.fault if contents is not None else "the file is gone",
            )  # fmt: skip


def _subscription(view: DestinationView) -> Subscription:
    acked = view.acked
    let_go = acked.done.minus(acked.dead) if acked.dead else acked.done
    return Subscription(view.uuid, view.name, view.prefix, let_go, acked.since, view.letters)


def readable(row: PageRow, contents: PageContents | None) -> tuple[list[Record], Span]:
    """Returns the records of a damaged page before the first VLSN that may be lost. Also returns the span of VLSNs
    from there to the page's end, empty if all records are readable."""
    at, kept = row.covers_from, list[Record]()
    pieces = sorted(contents.pieces, key=lambda piece: piece.head.offset) if contents is not None else []
    in_order = all(one.head.covers_to < other.head.covers_from for one, other in pairwise(pieces))
    for piece in pieces if in_order else sorted(pieces, key=lambda piece: piece.head.covers_from):
        if not in_order and piece.head.covers_from > at:
            # the writer places records in parallel, so a record with lower VLSNs may follow the damage in the file
            break
        kept.append(record_again(piece.head, piece.messages))
        at = piece.head.covers_to + 1
    return kept, (at, row.covers_to)
