"""The messages of destinations that have left the log, for delivery.

    log      first 301 …              messages from VLSN 301 on are read there
    pages    41, 57, 203, 298         below, here: next_vlsn 301 says that the log goes on

A dispatcher reads pages while its next VLSN lies below the log's first one, and again where the log says ``Trimmed``.
Pages hold the messages that were not acknowledged when the log was cleaned. A dispatcher passes over those acknowledged
since, as it does in the log.
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
    """Messages in VLSN order.  ``next_vlsn`` is the first VLSN not looked at, to go on from; at or past the log's first
    one, the log has it."""

    entries: list[Entry]
    next_vlsn: Vlsn
    lacks: Span | None = None
    """The VLSNs from ``next_vlsn`` on that lie neither in this node's log nor in its pages, until another member has
    given them: nothing behind them may be delivered before. None where there are none at ``next_vlsn``."""


@dataclass(frozen=True, slots=True)
class PagedSizes:
    """The VLSNs of messages, and the bytes of key and value of each; ``next_vlsn`` as in ``PagedRun``."""

    vlsns: I64
    sizes: I64
    next_vlsn: Vlsn


class PageSource(Protocol):
    """Messages of destinations, read from pages.  On the event loop's thread; files are read on another one."""

    @property
    def pressed(self) -> bool:
        """True while no more may be paged than has to be: the disk is nearly full, or the pages of all destinations are
        at a limit of the node."""
        ...

    def why_full(self, uuid: str, limit_bytes: int, limit_messages: int) -> str:
        """Returns why this destination is to have no more messages: its pages are at their limit, or it has some while
        the node is ``pressed``. Empty while it may."""
        ...

    async def sizes(self, uuid: str, from_vlsn: int) -> PagedSizes:
        """Reads VLSNs and sizes of one page, the first with a message from ``from_vlsn`` on; missing messages are
        passed over. Raises ``Damaged`` where it cannot be read for now."""
        ...

    async def messages(self, uuid: str, from_vlsn: int, *, since: int, limit: int, bytes_max: int) -> PagedRun:
        """Reads at most ``limit`` messages of the destination from ``from_vlsn`` on, with about ``bytes_max`` bytes of
        keys and values, but never less than one that is there. ``since`` is the ``Subscription``'s: pages of before a
        move need not have what is wanted. Keeps no resource after its return: a slow reader costs the others
        nothing."""
        ...
