"""Appends that a master holds back for a moment instead of refusing them at once.

Appends are held while the master hands over, and while a new master's replicas are not connected yet.

A refusal is right if the wait has no known end. These waits have a known end: a hand-over ends within ``HAND_OVER_S``,
and after an election replicas connect within milliseconds or are down. A refused client would try again too early or
too late. A client that obeys ``Retry-After`` waits a second where a few milliseconds were enough.

Appends keep their order: while one is held, later appends are held after it. The same applies while a queued append may
still be refused (``Pending.doubt``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from repl.lead.append_book import Append
from vlsn.errors import NotMaster, QueueFull, VlsnLogError

HELD_MAX = 65_536
"""The most appends that may be held. Their bytes are limited where requests are read."""


class Gate:
    """The queue of held appends. ``put`` queues an append in the log, or raises; its second argument is the producer's
    ``born``, None if it was not sent. ``again`` is called when the doubt that stopped a release is settled."""

    def __init__(self, put: Callable[[Append, int | None], None], again: Callable[[], None]) -> None:
        self._put = put
        self._again = again
        self.held: deque[tuple[Append, int | None]] = deque()
        self.doubt: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Returns whether a new append must wait for earlier appends."""
        return bool(self.held) or self.in_doubt

    @property
    def in_doubt(self) -> bool:
        return self.doubt is not None and not self.doubt.done()

    def hold(self, append: Append, born: int | None, why: str) -> None:
        """Holds an append before it is logged. ``why`` is the text of its ``NotMaster`` if it times out first. Raises
        ``QueueFull``."""
        if len(self.held) >= HELD_MAX:
            raise QueueFull(f"{HELD_MAX} appends already wait for this node to settle")
        append.held = why
        self.held.append((append, born))

    def release(self, may_pass: Callable[[Append], bool]) -> None:
        """Queues held appends in order while ``may_pass`` allows them. If one is refused, all later ones are refused
        too, because their senders rely on the order."""
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
