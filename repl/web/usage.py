"""The use that one token makes of a node, and its limits, so that no token takes what all clients share.

    bytes_per_s, appends_per_s    of a token's record; unlimited if not set         429 ``queue-full``, Retry-After
    STREAMS_A_TOKEN               WebSockets and tails at a time                    429 ``queue-full``
    STAGES_A_TOKEN                open transactions                                 429 ``queue-full``
    NAMES_A_TOKEN                 consumers, sinks and destinations under a prefix  413 ``too-large``

1. A rate allows what was not used in the last second. A larger body is accepted while nothing is owed, and later calls
   are refused until it is paid off. So a rate below the size of one body does not refuse that body for ever.
2. Each node counts for itself. Appends go to the master alone, so their rate is the group's; it starts anew with a new
   master.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vlsn.errors import QueueFull

STREAMS_A_TOKEN: Final = 2_048
STAGES_A_TOKEN: Final = 512
NAMES_A_TOKEN: Final = 64


class Rate:
    """A number of units in a second. ``per_s`` is 0 for no limit."""

    __slots__ = ("_left", "_seen_s", "per_s")

    def __init__(self) -> None:
        self.per_s = 0
        self._left = 0.0
        """The units that may be used now; negative while units are owed."""
        self._seen_s = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until a unit is left; 0.0 if one is left now."""
        if not self.per_s:
            return 0.0
        self._left = min(self._left + (now_s - self._seen_s) * self.per_s, float(self.per_s))
        self._seen_s = now_s
        return max(1.0 - self._left, 0.0) / self.per_s

    def use(self, units: int) -> None:
        self._left -= units


class Usage:
    """The use of one token on one node."""

    __slots__ = ("appends", "bytes", "streams", "who")

    def __init__(self, who: str) -> None:
        self.who = who
        self.appends, self.bytes = Rate(), Rate()
        self.streams = 0
        """The WebSockets and tails that are open."""

    def append(self, size: int, now_s: float) -> None:
        """Counts an append of ``size`` bytes. Raises ``QueueFull``, and counts nothing, beyond a rate."""
        wait_s = max(self.appends.wait_s(now_s), self.bytes.wait_s(now_s))
        if wait_s > 0:
            raise QueueFull(f"token {self.who} has used up its rate; try again in {wait_s:.2f} s")
        self.appends.use(1)
        self.bytes.use(size)

    def check_stream(self) -> None:
        """Raises ``QueueFull`` if the token has all its WebSockets and tails."""
        if self.streams >= STREAMS_A_TOKEN:
            raise QueueFull(f"token {self.who} has {self.streams} WebSockets and tails, which is its limit")

    def open_stream(self) -> Callable[[], None]:
        """Counts a WebSocket or a tail. Returns the call that notes its end; only the first one counts."""
        self.streams += 1
        left = 1

        def close() -> None:
            nonlocal left
            self.streams -= left
            left = 0

        return close
