"""Reads messages of destinations back from pages, a whole page at a time. A page is a file of messages.

    messages(uuid, 41)  ─►  the first page with a message from VLSN 41 on  ─►  the worker reads it whole; kept for a
    while
                            damaged: its readable records are written to another page, the rest is missing until fetched

A page is read without a lock, so no pass of the pager waits for the read. All destinations share one cache, the last
64 MiB that were read. A page whose messages are all acknowledged is removed from the page table, and is not read
again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import numpy as np

from repl.destinations.pager import Pager
from repl.shared import undisturbed
from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.limits import PAGES_CACHE_BYTES_MAX
from vlsn.pages.page import PageContents
from vlsn.pages.source import PagedRun, PagedSizes
from vlsn.pages.store import PagingStore

_Key = tuple[str, int, int]


class PageReading:
    """Reads the pages of one node, for deliveries (``vlsn.pages.source.PageSource``)."""

    def __init__(self, pager: Pager, *, cache_bytes_max: int = PAGES_CACHE_BYTES_MAX) -> None:
        self.reads = 0
        """The number of pages read from the disk since the log was opened."""
        self._pager = pager
        self._cache_bytes_max = cache_bytes_max
        self._cached: OrderedDict[_Key, PageContents] = OrderedDict()
        self._reading: dict[_Key, asyncio.Future[PageContents | None]] = {}

    @property
    def cached_bytes(self) -> int:
        return sum(contents.bytes for contents in self._cached.values())

    async def messages(self, uuid: str, from_vlsn: int, *, since: int, limit: int, bytes_max: int) -> PagedRun:
        at = from_vlsn
        while True:
            store = self._pager.manager.stores.get(uuid)
            if store is None:
                return PagedRun([], Vlsn(at))
            if store.row is not None and store.row.since != since:
                # the destination was moved, and the pager has not checked the destination's pages since
                return PagedRun([], Vlsn(at), (at, at))
            lacks = next((span for span in store.missing if span[1] >= at), None)
            number = store.next_page(at)
            row = store.pages[number] if number is not None else None
            if lacks is not None and (row is None or lacks[0] <= max(at, row.first)):
                return PagedRun([], Vlsn(max(at, lacks[0])), (max(at, lacks[0]), lacks[1]))
            if number is None or row is None:
                return PagedRun([], Vlsn(max(at, store.paged_to + 1)))
            contents = await self._whole(store, number)
            if contents is None:
                continue
            upto = min(row.last, lacks[0] - 1) if lacks is not None else row.last
            low, high = np.searchsorted(contents.vlsns, (at, upto + 1)).tolist()
            high = min(high, low + limit)
            if low < high:
                sizes = np.cumsum(contents.sizes()[low:high])
                high = low + max(1, int(np.searchsorted(sizes, bytes_max, side="right")))
                chosen = np.arange(low, min(high, low + len(sizes)))
                last = int(contents.vlsns[chosen[-1]])
                return PagedRun(contents.entries(chosen), Vlsn(upto + 1 if last == upto else last + 1))
            at = upto + 1

    @property
    def pressed(self) -> bool:
        return self._pager.pressed

    def why_full(self, uuid: str, limit_bytes: int, limit_messages: int) -> str:
        return self._pager.why_full(uuid, limit_bytes, limit_messages)

    async def sizes(self, uuid: str, from_vlsn: int) -> PagedSizes:
        while True:
            store = self._pager.manager.stores.get(uuid)
            number = store.next_page(from_vlsn) if store is not None else None
            if store is None or number is None:
                behind = store.paged_to + 1 if store is not None else 0
                return PagedSizes(np.zeros(0, np.int64), np.zeros(0, np.int64), Vlsn(max(from_vlsn, behind)))
            last = store.pages[number].last
            contents = await self._whole(store, number)
            if contents is None:
                continue
            low = int(np.searchsorted(contents.vlsns, from_vlsn))
            return PagedSizes(contents.vlsns[low:], contents.sizes()[low:], Vlsn(last + 1))

    async def _whole(self, store: PagingStore, number: int) -> PageContents | None:
        """Returns a page's contents. Returns None if the page was removed, or was damaged and set aside; then the
        caller must look for another page. Raises ``Damaged`` if the disk fails."""
        try:
            contents = await self._contents(store, number)
            if contents is None or not contents.fault:
                return contents
            await self._pager.salvage(store, number)
            return None
        except OSError as error:
            raise Damaged(f"{store.path(number)} cannot be read for now: {error}") from error

    async def contents_from(self, store: PagingStore, from_vlsn: int) -> PageContents | None:
        """Returns the first page with a message at or after ``from_vlsn``. Returns None if there is no such page or
        if the page is damaged."""
        number = store.next_page(from_vlsn)
        contents = await self._contents(store, number) if number is not None else None
        return contents if contents is not None and not contents.fault else None

    async def _contents(self, store: PagingStore, number: int) -> PageContents | None:
        row = store.pages[number]
        key = (store.uuid, number, row.end)
        if key in self._cached:
            self._cached.move_to_end(key)
            return self._cached[key]
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.ensure_future(self._pager.read(store, number, row))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._read(key, done))
        return await undisturbed(reading)

    def _read(self, key: _Key, done: asyncio.Future[PageContents | None]) -> None:
        self._reading.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        contents = done.result()
        self.reads += 1
        if contents is None or contents.fault:
            return
        self._cached[key] = contents
        while len(self._cached) > 1 and self.cached_bytes > self._cache_bytes_max:
            self._cached.popitem(last=False)
