"""Reading through any node that serves.

Pages are whole blocks as they lie in the log, decoded here.  A node that fails is left for the next one;
what it had answered is never asked again, so a change of node neither doubles nor skips an entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, stop_never, wait_random_exponential

from repl.client.endpoints import Endpoints
from repl.http import problem
from repl.http.types import Network
from vlsn import block
from vlsn.block import Entry, EntryKind
from vlsn.errors import BadArgument, BadBody, NotFound, Trimmed, UnsupportedType, VlsnLogError
from vlsn.ids import padded

BLOCKS_TYPE: Final = "application/x-vlsnlog-blocks"
ANSWER_TIMEOUT_S: Final = 10.0
FOLLOW_WAIT_S: Final = 5.0
DATA_ONLY: Final = frozenset({int(EntryKind.DATA)})


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in rising VLSNs.  ``next_vlsn`` is where the next page starts, past what was not shown;
    ``durable`` the node's durable end when it answered."""

    entries: list[Entry]
    next_vlsn: int
    durable: int


class Reader:
    """Pages from whichever node serves, beginning with the one that served last."""

    def __init__(self, endpoints: Endpoints, network: Network, *, give_up_s: float) -> None:
        self._endpoints = endpoints
        self._network = network
        self._give_up_s = give_up_s
        self._current = 0

    async def pages(
        self, from_vlsn: int | None, to_vlsn: int | None, *, at_least: int = 0, all_kinds: bool = False
    ) -> AsyncIterator[Page]:
        """Pages up to ``to_vlsn`` or what is durable at the first answer, whichever is less.  ``at_least``:
        a VLSN known to be durable, which a node that lags is given time to reach.

        Raises ``Trimmed``, ``Damaged``, and ``Unreachable`` when no node served for ``give_up_s``.
        """
        end: int | None = None
        position = _checked(from_vlsn)
        while end is None or (position is not None and position <= end):
            lacking = end is not None
            page = await self._page(position, wait_s=FOLLOW_WAIT_S if lacking else 0.0, all_kinds=all_kinds)
            if end is None:
                end = max(page.durable, at_least)
                end = end if to_vlsn is None else min(end, to_vlsn)
            position = page.next_vlsn
            yield _until(page, end)

    async def follow(self, from_vlsn: int | None, *, all_kinds: bool = False) -> AsyncIterator[Page]:
        """Pages for ever, some without entries to show; waits for what is not durable yet, through the loss
        of any node."""
        position = _checked(from_vlsn)
        while True:
            page = await self._page(position, wait_s=FOLLOW_WAIT_S, all_kinds=all_kinds, for_ever=True)
            moved = page.next_vlsn != position
            position = page.next_vlsn
            if moved:
                yield page

    async def _page(self, position: int | None, *, wait_s: float, all_kinds: bool, for_ever: bool = False) -> Page:
        retrying = AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            stop=stop_never if for_ever else stop_after_delay(self._give_up_s),
            retry=retry_if_exception(_may_pass),
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(self._page_of_any, position, wait_s, all_kinds)

    async def _page_of_any(self, position: int | None, wait_s: float, all_kinds: bool) -> Page:
        """One round over all nodes."""
        urls = self._endpoints.urls
        fault: VlsnLogError | None = None
        for turn in range(len(urls)):
            index = (self._current + turn) % len(urls)
            try:
                page = await self._page_of(urls[index], position, wait_s, all_kinds)
            except (Trimmed, BadArgument):
                raise
            except VlsnLogError as error:
                fault = fault or error
            else:
                self._current = index
                return page
        assert fault is not None
        raise fault

    async def _page_of(self, url: str, position: int | None, wait_s: float, all_kinds: bool) -> Page:
        wanted = f"from={position}&" if position is not None else ""
        response = await self._network.request(
            "GET",
            f"{url}/v1/entries?{wanted}wait={wait_s:g}",
            headers={"Accept": BLOCKS_TYPE},
            timeout_s=wait_s + ANSWER_TIMEOUT_S,
        )
        if response.status != 200:
            raise problem.error_of(bytes(response.body))
        try:
            durable, next_vlsn = int(response.headers["Vlsnlog-Durable"]), int(response.headers["Vlsnlog-Next"])
        except (KeyError, ValueError):
            raise BadBody(f"{url} answered a page without its position; is it a vlsnlog node?") from None
        kinds = None if all_kinds else DATA_ONLY
        entries = decode_blocks(memoryview(response.body), from_vlsn=position or 0, kinds=kinds)
        return Page(entries, next_vlsn, durable)


def decode_blocks(body: memoryview, *, from_vlsn: int, kinds: frozenset[int] | None) -> list[Entry]:
    """The entries of whole blocks, one after the other, each padded to 8 bytes; every checksum is
    checked.  Raises ``BadBody``."""
    found: list[Entry] = []
    at = 0
    while at < len(body):
        header = block.decode_header(body, at)
        whole = body[at : at + header.size]
        if len(whole) < header.size:
            raise BadBody(f"the block of VLSN {header.first_vlsn} is cut short")
        block.check_body(whole, header)
        found += block.entries(whole, header, from_vlsn=from_vlsn, kinds=kinds)
        at += padded(header.size)
    return found


def _until(page: Page, end: int) -> Page:
    entries = page.entries
    if not entries or entries[-1].vlsn <= end:
        return page
    return Page([entry for entry in entries if entry.vlsn <= end], page.next_vlsn, page.durable)


def _checked(from_vlsn: int | None) -> int | None:
    if from_vlsn is not None and from_vlsn < 1:
        raise BadArgument(f"from_vlsn is {from_vlsn}; the first VLSN is 1")
    return from_vlsn


def _may_pass(error: BaseException) -> bool:
    """Whether asking again later can help."""
    return isinstance(error, VlsnLogError) and not isinstance(
        error, Trimmed | BadArgument | BadBody | NotFound | UnsupportedType
    )
