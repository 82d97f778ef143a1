"""The scrub: a slow check of every sealed segment and every page. The scrub finds damaged bytes before a reader needs
them.

At most ``scrub_bytes_per_s`` are read, one window at a time. A pass begins ``scrub_period_s`` after the end of the
preceding one. The operating system's cache is dropped first, so that the disk itself is read. Every frame's checksum is
checked, which covers every byte of every block and record. Damage is reported to the mending.

A pass begins with the ``state`` store, as the operating system's cache has it. A value that does not match its checksum
is written again from memory. Pages (files of destinations' messages) come last. An unreadable page is set aside, and
its lost messages are fetched.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from repl.group.member import OpenMember
from vlsn.errors import Damaged, LogClosed, VlsnLogError
from vlsn.format.segment import FIRST_FRAME
from vlsn.limits import KIB
from vlsn.repair.mending import check_window, drop_from_cache

START_S = 60.0
"""The first pass begins this many seconds after the log was opened, or after the period if that is shorter, so that a
node first catches up."""
WINDOW_BYTES = 256 * KIB
"""The bytes of the log that are checked at once; a single frame may be larger. The interpreter's lock is held for less
than a millisecond."""


class Pages(Protocol):
    """The pages of a node's destinations, as the scrub uses them (``repl.destinations.page_scrub``)."""

    def listed(self) -> list[tuple[str, int]]:
        """Returns the valid pages, each as the uuid of its destination and the page's number."""
        ...

    async def look(self, uuid: str, number: int) -> tuple[int, bool]:
        """Reads a page from the disk, and sets a damaged page aside. Returns the page's bytes, and whether it was
        intact. Raises ``OSError`` or ``VlsnLogError`` if it cannot be read now."""
        ...


class Scrub:
    """Scrubs one node's log while it is open. ``run`` never returns."""

    def __init__(self, opened: OpenMember, pages: Pages | None = None) -> None:
        self.bytes = 0
        """The bytes checked since the log was opened. ``passes`` counts complete passes, and ``found`` counts damaged
        places."""
        self.passes = 0
        self.found = 0
        self.number = 0
        """The number of the segment that is being scrubbed; 0 between passes."""
        self.pages = 0
        """The number of pages checked."""
        self._pages = pages
        self._member = opened.member
        self._log = opened.log
        self._offload = opened.member.workers.offload("scrub")

    async def run(self) -> None:
        config = self._member.config
        if not config.scrub_bytes_per_s:
            return
        await asyncio.sleep(min(START_S, config.scrub_period_s))
        while True:
            await self._pass()
            self.passes += 1
            await asyncio.sleep(config.scrub_period_s)

    def status(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "passes": self.passes,
            "found": self.found,
            "segment": self.number,
            "pages": self.pages,
        }

    async def _pass(self) -> None:
        await self._state()
        done = 0
        while sealed := [number for number in self._sealed() if number > done]:
            done = self.number = sealed[0]
            try:
                await self._segment(done)
            except Damaged:
                self.found += 1  # the worker thread has reported the damage already
            except OSError as error:
                if done in self._log.view.segments():
                    self._member.event("scrub.unreadable", segment=done, why=str(error))
        self.number = 0
        for uuid, number in self._pages.listed() if self._pages is not None else ():
            await self._page(uuid, number)

    async def _page(self, uuid: str, number: int) -> None:
        assert self._pages is not None
        before = self._member.seams.clock.monotonic_s()
        try:
            size, whole = await self._pages.look(uuid, number)
        except (OSError, VlsnLogError) as error:
            self._member.event("scrub.unreadable", destination=uuid, page=number, why=str(error))
            return
        self.pages += 1
        self.bytes += size
        self.found += not whole
        spent = self._member.seams.clock.monotonic_s() - before
        await asyncio.sleep(max(0.0, size / self._member.config.scrub_bytes_per_s - spent))

    async def _state(self) -> None:
        """Checks the ``state`` store. Without this check damage would show only at the next open of the log, when the
        values would be lost. While the log is open, memory has all values, and a checkpoint writes them again."""
        try:
            await self._member.workers.on_keeper(self._log.care.state.check)
        except LogClosed:
            return
        except Damaged as damaged:
            self.found += 1
            self._member.event("state.rotten", why=str(damaged))
            self._log.care.rewrite_state()

    def _sealed(self) -> list[int]:
        current = self._log.placement.active_files()
        return [number for number in self._log.view.segments() if number not in current]

    async def _segment(self, number: int) -> None:
        log, rate = self._log, self._member.config.scrub_bytes_per_s
        disk, directory, end = log.seams.disk, log.directory, log.view.synced_end(number)
        await self._offload(lambda: drop_from_cache(disk, directory, number))
        at = FIRST_FRAME
        while at < end:
            before, start = self._member.seams.clock.monotonic_s(), at
            size = min(WINDOW_BYTES, rate)
            at = await self._offload(lambda: check_window(disk, directory, number, start, end, size))  # noqa: B023
            self.bytes += at - start
            spent = self._member.seams.clock.monotonic_s() - before
            await asyncio.sleep(max(0.0, (at - start) / rate - spent))
