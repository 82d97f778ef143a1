"""Appends that a lead holds back for a moment instead of refusing them.

It does so while it hands over, and while the replicas of a new lead have yet to come.

A refusal is right where nobody knows how long it takes.  Here it is known: a hand-over ends within ``HAND_OVER_S``, and
after an election replicas come within milliseconds or are down.  A client that is told to try again tries too early or
too late, and one that takes ``Retry-After`` at its word waits a second for what took a few milliseconds.

They go in their order, and nothing overtakes them: while one is held, what comes later is held behind it.  So it is
while nobody knows yet whether one that was put is refused (``Pending.doubt``).
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
    """``put`` queues an append of a producer born at that VLSN (``None``: not said) in the log, or raises.  ``again``
    is called when what put a stop to a release is over."""

    def __init__(self, put: Callable[[Append, int | None], None], again: Callable[[], None]) -> None:
        self._put = put
        self._again = again
        self._held: deque[tuple[Append, int | None]] = deque()
        self._doubt: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Says whether what comes now has something to wait behind."""
        return bool(self._held) or self.in_doubt

    @property
    def in_doubt(self) -> bool:
        return self._doubt is not None and not self._doubt.done()

    def hold(self, append: Append, born: int | None, why: str) -> None:
        """Holds an append, unlogged; ``why`` is what it fails with as ``NotMaster`` if its time is over first. Raises
        ``QueueFull``."""
        if len(self._held) >= HELD_MAX:
            raise QueueFull(f"{HELD_MAX} appends already wait for this node to settle")
        append.held = why
        self._held.append((append, born))

    def release(self, may_pass: Callable[[Append], bool]) -> None:
        """Puts those at the head for which ``may_pass`` holds.  Once one is refused so are all behind it: who sent them
        counts on their order."""
        while self._held and not self.in_doubt and may_pass(self._held[0][0]):
            append, born = self._held.popleft()
            append.held = ""
            if append.settled:
                continue  # its time was over
            try:
                self._put(append, born)
            except VlsnLogError as error:
                append.settle(error)
                self.refuse(lambda: NotMaster("an append before this one was refused; nothing was logged, try again"))
                continue
            self._doubt = append.doubt
            if self._doubt is not None:
                self._doubt.add_done_callback(lambda _: self._again())

    def refuse(self, error: Callable[[], VlsnLogError]) -> None:
        """Refuses all that are held."""
        held, self._held = self._held, deque()
        for append, _ in held:
            append.settle(error())
