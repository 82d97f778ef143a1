"""Appends that a master holds back for a moment instead of refusing them at once.

Appends are held while the master hands over, and while a new master's replicas are not connected yet. Such waits are
short: a hand-over takes at most ``HAND_OVER_S``. After an election, a replica connects within milliseconds unless it is
down. A refused client would wait longer than needed: ``Retry-After`` makes it wait a second where a few milliseconds
are enough.

Appends keep their order: while one is held, later appends are held after it. Appends are also held while an earlier
append in the queue may still be refused (``Pending.doubt``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from repl.lead.append_book import Append
from vlsn.errors import NotMaster, QueueFull, VlsnLogError

HELD_MAX = 65_536
"""The most appends that may be held. The bytes of held appends are limited where requests are read."""


class Gate:
    """The queue of held appends. ``put`` queues an append in the log, or raises. The second argument of ``put`` is
    the producer's ``born``, or None. ``again`` is called when a queued append that might be refused is certain."""

    def __init__(self, put: Callable[[Append, int | None], None], again: Callable[[], None]) -> None:
        self._put = put
        self._again = again
        self.held: deque[tuple[Append, int | None]] = deque()
        self.doubt: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Returns whether a new append must wait because earlier appends wait."""
        return bool(self.held) or self.in_doubt

    @property
    def in_doubt(self) -> bool:
        return self.doubt is not None and not self.doubt.done()

    def hold(self, append: Append, born: int | None, why: str) -> None:
        """Holds an append before it is logged. If the append times out, it fails with ``NotMaster`` and the text
        ``why``. Raises ``QueueFull``."""
        if len(self.held) >= HELD_MAX:
            raise QueueFull(f"{HELD_MAX} appends already wait for this node to settle")
        append.held = why
        self.held.append((append, born))

    def release(self, may_pass: Callable[[Append], bool]) -> None:
        """Queues held appends in order while ``may_pass`` allows them. If one append is refused, all later ones are
        refused too, because their senders rely on the order."""
        while self.held and not self.in_doubt and may_pass(self.held[0][0]):
            append, born = self.held.popleft()
            append.held = ""
            if append.settled:
                continue  # the append has timed out
            try:
                self._put(append, born)
            except VlsnLogError as error:
                append.settle(error)
                self.refuse(lambda: NotMaster("an append before this one was refused; nothing was logged, try again"))
                continue
            self.doubt = append.doubt
            if self.doubt is not None:
                self.doubt.add_done_callback(lambda _: self._again())

    def refuse(self, error: Callable[[], VlsnLogError]) -> None:
        """Refuses all held appends."""
        held, self.held = self.held, deque()
        for append, _ in held:
            append.settle(error())
