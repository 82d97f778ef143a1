"""Places for connections: all together are bounded, half a head ends, and silence gives way.

    a new one ─► room among the strangers' places ─► served
              └► none ─► the longest idle is closed ─► served
                      └► nobody is idle ─► one of ``KEPT``: serves members, operators, health checks

1. Those that never sent a whole request are closed first, then those between two requests and WebSockets on which
nothing is under way, the longest idle first.  2. A connection has ``head_s`` to send its first head, and each later
head from its first byte on.  3. ``KEPT`` places are never a stranger's: other members and health checks get through
when all others are busy, and have ``KEPT_HEAD_S`` to say what they want.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

OTHERS_MAX = 4_096
"""Connections beside those of waiting readers: appends, producers, reads."""
KEPT = 128
CONNECTIONS_MAX = OTHERS_MAX + KEPT
KEPT_HEAD_S = 2.0
HEAD_S = 10.0
IDLE_S = 120.0
SWEEP_S = 1.0
"""Seconds between two looks at heads, at most."""
LOOK_S = 0.1
"""Seconds from a look that found nobody idle to the next."""
_KEPT_PATHS = ("/v1/peer/", "/v1/feed", "/v1/admin/", "/healthz", "/readyz", "/metrics")


def is_kept(target: str) -> bool:
    """Says whether a request is a member's, an operator's, or a health check."""
    return target.startswith(_KEPT_PATHS)


class Guest(Protocol):
    """One connection."""

    kept: bool
    """A place of those that are kept."""
    head_since: float
    """The time since which the end of a head is waited for; 0.0 while it is not."""

    @property
    def silent(self) -> bool:
        """True while it has never sent a whole request."""
        ...

    @property
    def idle_since(self) -> float | None:
        """The time since which it has nothing under way; ``None`` while it has."""
        ...

    def swept(self, now: float) -> None: ...

    def give_way(self) -> None:
        """Closes it, because others need its place or it is silent."""
        ...


class Places:
    """The places of one listener."""

    def __init__(self, *, head_s: float, connections_max: int = CONNECTIONS_MAX, kept: int = KEPT) -> None:
        """``kept`` of ``connections_max`` places are kept, half of them at most."""
        self._loop = asyncio.get_running_loop()
        self._head_s = head_s
        kept = min(kept, connections_max // 2)
        self._strangers_max = connections_max - kept
        self._kept_max = kept
        self._strangers: dict[Guest, None] = {}
        self._kept: dict[Guest, None] = {}
        self._silent: dict[Guest, None] = {}
        """Strangers that were, when somebody last looked; as they came."""
        self._idle: deque[tuple[Guest, float]] = deque()
        """All others that were idle at the last look, the longest first."""
        self._looked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, guest: Guest) -> None:
        """Enters a new connection; it, or another one, may be closed."""
        if self._timer is None:
            self._sweep_later()
        if len(self._strangers) < self._strangers_max or self._evict():
            self._strangers[guest] = self._silent[guest] = None
            return
        guest.kept = True
        if len(self._kept) >= self._kept_max:
            silent = next((each for each in self._kept if each.idle_since is not None), None)
            if silent is None:
                guest.give_way()
                return
            self._close(silent)
        self._kept[guest] = None

    def replace(self, guest: Guest, successor: Guest) -> None:
        """Gives ``successor`` the place of ``guest``, and as long for its head."""
        successor.kept, successor.head_since = guest.kept, guest.head_since
        if guest in self._kept:
            del self._kept[guest]
            self._kept[successor] = None
        else:
            self._strangers.pop(guest, None)
            self._silent.pop(guest, None)
            self._strangers[successor] = self._silent[successor] = None

    def serves(self, guest: Guest, target: str) -> bool:
        """Says whether a request of ``guest`` for ``target`` is served."""
        if not guest.kept:
            return True
        if len(self._strangers) < self._strangers_max:
            self._kept.pop(guest, None)
            self._strangers[guest] = None
            guest.kept = False
            return True
        return is_kept(target)

    def leave(self, guest: Guest) -> None:
        self._strangers.pop(guest, None)
        self._silent.pop(guest, None)
        self._kept.pop(guest, None)

    def close(self) -> None:
        """Closes connections that have never sent a whole request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for guest in [each for each in (*self._strangers, *self._kept) if each.silent]:
            self._close(guest)

    def _evict(self) -> bool:
        """Closes an idle stranger, and says whether there was one."""
        while self._silent:
            guest = next(iter(self._silent))
            del self._silent[guest]
            if guest.silent:
                self._close(guest)
                return True
        now = self._loop.time()
        while True:
            while self._idle:
                guest, since = self._idle.popleft()
                if guest in self._strangers and guest.idle_since == since:
                    self._close(guest)
                    return True
            if now - self._looked_s < LOOK_S:
                return False
            self._looked_s = now
            found = [(each, idle) for each in self._strangers if (idle := each.idle_since) is not None]
            if not found:
                return False
            self._idle.extend(sorted(found, key=lambda each: each[1]))

    def _close(self, guest: Guest) -> None:
        self.leave(guest)
        guest.give_way()

    def _sweep_later(self) -> None:
        self._timer = self._loop.call_later(min(SWEEP_S, self._head_s / 4), self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        for guests, head_s in ((self._strangers, self._head_s), (self._kept, min(KEPT_HEAD_S, self._head_s))):
            for guest in list(guests):
                guest.swept(now)
                if guest.head_since and now - guest.head_since > head_s:
                    self._close(guest)
        self._timer = None
        if self._strangers or self._kept:
            self._sweep_later()
