"""The messages of destinations that have left the log, for delivery.

    log      first 301 …              messages from VLSN 301 on are read there
    pages    41, 57, 203, 298         earlier ones are read here: next_vlsn 301 says that the log continues

A dispatcher reads pages while its next VLSN is before the log's first one, and again if the log raises ``Trimmed``.
Pages have the messages that were not acknowledged when the log was cleaned. A dispatcher skips messages that were
acknowledged since, as it does in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vlsn.format.block import Entry
from vlsn.format.rows import I64
from vlsn.format.vlsn_set import Span
from vlsn.ids import Vlsn


@dataclass(frozen=True, slots=True)
class PagedRun:
    """Messages in VLSN order. ``next_vlsn`` is the VLSN where the next read continues. If it is at or past the log's
    first VLSN, the log has the next messages."""

    entries: list[Entry]
    next_vlsn: Vlsn
    lacks: Span | None = None
    """The VLSNs from ``next_vlsn`` on that are neither in this node's log nor in its pages, until another member has
    sent them. Nothing after them may be delivered before. None if nothing is missing at ``next_vlsn``."""


@dataclass(frozen=True, slots=True)
class PagedSizes:
    """The VLSNs of messages, and the bytes of key and value of each. ``next_vlsn`` is as in ``PagedRun``."""

    vlsns: I64
    sizes: I64
    next_vlsn: Vlsn


class PageSource(Protocol):
    """The messages of destinations, read from pages. Used on the event loop's thread; files are read on another
    thread."""

    @property
    def pressed(self) -> bool:
        """True while only messages that must be paged may be: the disk is nearly full, or the pages of all destinations
        are at a limit of the node."""
        ...

    def why_full(self, uuid: str, limit_bytes: int, limit_messages: int) -> str:
        """Returns why this destination must not receive more messages: its pages are at their limit, or it has pages
        while the node is ``pressed``. Empty if it may receive more."""
        ...

    async def sizes(self, uuid: str, from_vlsn: int) -> PagedSizes:
        """Returns VLSNs and sizes of one page, the first with a message from ``from_vlsn`` on. Missing messages are
        skipped. Raises ``Damaged`` if the page cannot be read for now."""
        ...

    async def messages(self, uuid: str, from_vlsn: int, *, since: int, limit: int, bytes_max: int) -> PagedRun:
        """Returns at most ``limit`` messages of the destination from ``from_vlsn`` on, with about ``bytes_max`` bytes
        of keys and values, but at least one if there is one. ``since`` is the ``Subscription``'s: pages from before a
        move may be missing wanted messages. Keeps no resource after its return, so a slow reader costs the others
        nothing."""
        ...
