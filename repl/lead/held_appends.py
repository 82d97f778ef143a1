"""Appends that a lead holds back for a moment instead of refusing them at once.

It does so while it hands over, and while the replicas of a new lead have yet to come.

A refusal is right where the wait has no known end. Here it is known: a hand-over ends within ``HAND_OVER_S``, and after
an election replicas come within milliseconds or are down. A refused client tries again too early or too late. A client
that obeys ``Retry-After`` waits a second where a few milliseconds were enough.

They keep their order: while one is held, later appends are held behind it. The same holds while a queued append may
still be refused (``Pending.doubt``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from repl.lead.append_book import Append
from vlsn.errors import NotMaster, QueueFull, VlsnLogError

HELD_MAX = 65_536
"""Appends; their bytes are bounded where they came in."""


class Gate:
    """``put`` queues an append in the log, or raises; its second argument is the producer's ``born``, None where it was
    not sent. ``again`` is called when the doubt that stopped a release is settled."""

    def __init__(self, put: Callable[[Append, int | None], None], again: Callable[[], None]) -> None:
        self._put = put
        self._again = again
        self.held: deque[tuple[Append, int | None]] = deque()
        self.doubt: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Says whether a new append must wait behind others."""
        return bool(self.held) or self.in_doubt

    @property
    def in_doubt(self) -> bool:
        return self.doubt is not None and not self.doubt.done()

    def hold(self, append: Append, born: int | None, why: str) -> None:
        """Holds an append, unlogged; ``why`` is the text of its ``NotMaster`` if its time runs out first. Raises
        ``QueueFull``."""
        if len(self.held) >= HELD_MAX:
            raise QueueFull(f"{HELD_MAX} appends already wait for this node to settle")
        append.held = why
        self.held.append((append, born))

    def release(self, may_pass: Callable[[Append], bool]) -> None:
        """Queues appends from the head on, while ``may_pass`` holds for them. Once one is refused, all behind it are
        refused too: their senders rely on the order."""
        while self.held and not self.in_doubt and may_pass(self.held[0][0]):
            append, born = self.held.popleft()
            append.held = ""
            if append.settled:
                continue  # its time was over
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
        """Refuses all that are held."""
        held, self.held = self.held, deque()
        for append, _ in held:
            append.settle(error())
