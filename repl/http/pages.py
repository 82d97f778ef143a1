"""Pages of events, made once for all the tails that stand at one place.

    tails at VLSN 101 ─► one read, one encoding ─► the same bytes to each of them

Where 250 tails follow the log, an append wakes all of them in one turn of the event loop, and all read the same.  Few
pages are made at once, so that tails that stand at as many places hold nobody up either.
A page is shared while it is made or waited for, and never kept: the next one reads the log again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from repl.api import EntryPage
from repl.http import ndjson
from repl.http.limits import (
    TAIL_PAGE_ENTRIES_MAX,
    TAIL_PAGES_AT_ONCE_MAX,
    TAIL_UNCOUNTED_BYTES,
    TAILS_IN_FLIGHT_BYTES_MAX,
    WAITED_BYTES_MAX,
    Budget,
)
from repl.http.services import Reads
from vlsn.format.key_filter import KeyFilter
from vlsn.together import failure_of

_COMMENT = b": still here\n\n"
_Wanted = tuple[int | None, bool, bool, bool, KeyFilter | None]


class Events:
    """One page, and how many tails have it on its way; counted once, however many those are."""

    __slots__ = ("_budget", "_holders", "data", "next_vlsn")

    def __init__(self, data: bytes, next_vlsn: int, budget: Budget) -> None:
        self.data = data
        self.next_vlsn = next_vlsn
        self._budget = budget
        self._holders = 0

    def hold(self) -> None:
        """Raises ``QueueFull``."""
        if not self._holders:
            self._budget.take(self._counted)
        self._holders += 1

    def let_go(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._budget.give(self._counted)

    @property
    def _counted(self) -> int:
        return len(self.data) if len(self.data) > TAIL_UNCOUNTED_BYTES else 0


class Pages:
    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._in_flight = Budget("bytes of events on their way to tails", TAILS_IN_FLIGHT_BYTES_MAX)
        self._at_once = asyncio.Semaphore(TAIL_PAGES_AT_ONCE_MAX)
        self._making: dict[_Wanted, tuple[asyncio.Task[Events], list[int]]] = {}
        """Pages in the making, with the number of those who wait for each."""

    async def get(
        self, from_vlsn: int | None, *, wait_s: float, all_kinds: bool, with_term: bool, keys: KeyFilter | None = None
    ) -> Events:
        """Events from ``from_vlsn`` on; a comment where none came within ``wait_s``, or somebody else's wait."""
        wanted = (from_vlsn, wait_s > 0, all_kinds, with_term, keys)
        found = self._making.get(wanted)
        if found is None:
            making = asyncio.create_task(self._make(wait_s, wanted), name="page of events")
            making.add_done_callback(partial(self._made, wanted))
            found = self._making[wanted] = making, [0]
        making, waiting = found
        waiting[0] += 1
        try:
            return await asyncio.shield(making)
        finally:
            waiting[0] -= 1
            if not waiting[0] and not making.done():
                self._made(wanted, making)
                making.cancel()

    def _made(self, wanted: _Wanted, making: asyncio.Task[Events]) -> None:
        """Forgets a page that was made: whoever comes now has another one made."""
        found = self._making.get(wanted)
        if found is not None and found[0] is making:
            del self._making[wanted]
        if making.done():
            failure_of(making)  # told to each of those who waited

    async def _make(self, wait_s: float, wanted: _Wanted) -> Events:
        from_vlsn, _, all_kinds, _, keys = wanted
        page, data = await self._page(from_vlsn, wanted)
        if not page.entries and wait_s and page.next_vlsn > page.durable:
            page = await self._reads.read(
                page.next_vlsn, limit=1, bytes_max=1, wait_s=wait_s, all_kinds=all_kinds, keys=keys
            )
            at = page.entries[0].vlsn if page.entries else page.next_vlsn
            page, data = await self._page(at, wanted)
        return Events(data, page.next_vlsn, self._in_flight)

    async def _page(self, from_vlsn: int | None, wanted: _Wanted) -> tuple[EntryPage, bytes]:
        _, _, all_kinds, with_term, keys = wanted
        async with self._at_once:
            page = await self._reads.read(
                from_vlsn,
                limit=TAIL_PAGE_ENTRIES_MAX,
                bytes_max=WAITED_BYTES_MAX,
                wait_s=0.0,
                all_kinds=all_kinds,
                keys=keys,
            )
            return page, _encoded(page, all_kinds, with_term)


def _encoded(page: EntryPage, all_kinds: bool, with_term: bool) -> bytes:
    if not page.entries:
        return _COMMENT
    rows = zip(page.entries, ndjson.encode_each(page.entries, kinds=all_kinds), strict=True)
    if with_term:
        return b"".join([b"id: %d@%d\ndata: %b\n\n" % (entry.vlsn, entry.term, row) for entry, row in rows])
    return b"".join([b"id: %d\ndata: %b\n\n" % (entry.vlsn, row) for entry, row in rows])
