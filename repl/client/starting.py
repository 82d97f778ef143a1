"""Where a read or a tail begins, and how many entries it yields: ``from_vlsn=17``, ``"end"``, ``at=…``.

The begin is determined only once, before the first page. So if another node sends the next page, no entry that
became durable meanwhile is skipped. The begin ``"end"`` is linearizable: it is after every entry that was
acknowledged before the call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import datetime
from operator import index
from typing import Literal

from repl.api import LINEARIZABLE
from repl.client.page import Page
from repl.client.reader import Reader
from vlsn.embedded.owned_values import owned
from vlsn.errors import BadArgument
from vlsn.format.key_filter import KeyFilter
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Buffer
from vlsn.times import time_us

Begin = int | Literal["start", "end"] | None


def keys_of(key: Buffer | None, key_prefix: Buffer | None) -> KeyFilter | None:
    """Makes the key filter of a read. Raises ``BadArgument``, ``TypeError``."""
    return KeyFilter.of(None if key is None else owned(key), None if key_prefix is None else owned(key_prefix))


def check_begin(from_vlsn: Begin, at: datetime | int | None) -> None:
    """Raises ``BadArgument`` for a value that is no place in the log."""
    if at is not None:
        if from_vlsn is not None:
            raise BadArgument("from_vlsn and at: only one of them says where to begin")
        time_us(at)
    elif isinstance(from_vlsn, str):
        if from_vlsn not in ("start", "end"):
            raise BadArgument(f"from_vlsn: {from_vlsn!r:.60} is neither a VLSN nor one of start, end")
    elif from_vlsn is not None:
        vlsn_of(from_vlsn)


def vlsn_of(given: object, what: str = "from_vlsn") -> int:
    """Returns a VLSN as an int; NumPy integers are accepted. Raises ``BadArgument`` for any other value."""
    try:
        vlsn = index(given)  # type: ignore[arg-type]
    except TypeError:
        vlsn = 0
    if not 1 <= vlsn <= NUMBER_MAX:
        raise BadArgument(f"{what} is {given!r:.60}; a VLSN is 1 to {NUMBER_MAX}")
    return vlsn


async def first_of(reader: Reader, from_vlsn: Begin, at: datetime | int | None) -> int | None:
    """Finds the VLSN where a read begins. Returns None for the log's first VLSN."""
    if at is not None:
        return await reader.vlsn_at(time_us(at))
    if from_vlsn == "end":
        return await reader.durable_vlsn(LINEARIZABLE) + 1
    return None if from_vlsn is None or isinstance(from_vlsn, str) else index(from_vlsn)


def started(
    reader: Reader,
    from_vlsn: Begin,
    at: datetime | int | None,
    pages: Callable[[int | None], AsyncGenerator[Page, None]],
) -> AsyncGenerator[Page, None]:
    """Calls ``pages`` with the VLSN where the read begins. Raises ``BadArgument``."""
    check_begin(from_vlsn, at)
    if at is None and not isinstance(from_vlsn, str):
        return pages(from_vlsn)
    return _started(reader, from_vlsn, at, pages)


async def _started(
    reader: Reader,
    from_vlsn: Begin,
    at: datetime | int | None,
    pages: Callable[[int | None], AsyncGenerator[Page, None]],
) -> AsyncGenerator[Page, None]:
    async for page in pages(await first_of(reader, from_vlsn, at)):
        yield page


def limited(pages: AsyncGenerator[Page, None], limit: int | None) -> AsyncGenerator[Page, None]:
    """Yields pages until they have ``limit`` entries in total (None: all). Raises ``BadArgument``."""
    if limit is None:
        return pages
    if index(limit) < 1:
        raise BadArgument(f"limit is {limit}; it is 1 or more")
    return _limited(pages, index(limit))


async def _limited(pages: AsyncGenerator[Page, None], left: int) -> AsyncGenerator[Page, None]:
    async for page in pages:
        if len(page.entries) < left:
            left -= len(page.entries)
            yield page
            continue
        entries = page.entries[:left]
        after = page.next_vlsn if len(entries) == len(page.entries) else entries[-1].vlsn + 1
        yield replace(
            page,
            entries=entries,
            next_vlsn=after,
            term=entries[-1].term if after == entries[-1].vlsn + 1 else page.term,
        )
        return
