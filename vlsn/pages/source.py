"""Delivery of messages from page files: messages of destinations whose segments were cleaned away.

    log      first 301 …              messages from VLSN 301 on are read there
    pages    41, 57, 203, 298         earlier messages are read here; next_vlsn 301 means: continue in the log

A dispatcher (the master's delivery of one destination) reads pages while its next VLSN is before the log's first VLSN.
If a read of the log raises ``Trimmed``, the dispatcher reads pages again. Pages have the messages that were not
acknowledged when the log was cleaned. A dispatcher skips messages that were acknowledged since then, as it does in the
log.
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
    """Messages in VLSN order. ``next_vlsn`` is the VLSN at which the next read continues. If ``next_vlsn`` is at or
    past the log's first VLSN, the next messages are in the log."""

    entries: list[Entry]
    next_vlsn: Vlsn
    lacks: Span | None = None
    """The VLSNs from ``next_vlsn`` on that are neither in this node's log nor in its pages, until another member has
    sent their messages. Until then, no later message may be delivered. None if nothing is missing at ``next_vlsn``."""


@dataclass(frozen=True, slots=True)
class PagedSizes:
    """The VLSNs of messages, and the bytes of key and value of each. ``next_vlsn`` has the same meaning as in
    ``PagedRun``."""

    vlsns: I64
    sizes: I64
    next_vlsn: Vlsn


class PageSource(Protocol):
    """Reads the messages of destinations from pages. The methods are used on the event loop's thread; the files are
    read on another thread."""

    @property
    def pressed(self) -> bool:
        """True while messages may be written to pages only if they must be: the disk is nearly full, or the pages of
        all destinations together have reached a limit of the node."""
        ...

    def why_full(self, uuid: str, limit_bytes: int, limit_messages: int) -> str:
        """Returns the reason why this destination must not receive more messages: its pages have reached their limit,
        or it has pages while the node is ``pressed``. Returns an empty string if the destination may receive more
        messages."""
        ...

    async def sizes(self, uuid: str, from_vlsn: int) -> PagedSizes:
        """Returns the VLSNs and sizes of the messages of one page, the first page with a message at or after
        ``from_vlsn``. Missing messages are skipped. Raises ``Damaged`` if the page cannot be read for now."""
        ...

    async def messages(self, uuid: str, from_vlsn: int, *, since: int, limit: int, bytes_max: int) -> PagedRun:
        """Returns at most ``limit`` messages of the destination from ``from_vlsn`` on, with about ``bytes_max`` bytes
        of keys and values, but at least one message if there is one. ``since`` is the destination's
        ``Subscription.since``: pages from before a move of the destination may miss wanted messages. No resource is
        kept after the return, so a slow reader costs other readers nothing."""
        ...
