"""Places for connections. The number of connections is bounded; slow heads end their connection, and idle connections
are closed for new ones.

    a new one ─► room among the strangers' places ─► served
              └► none ─► the longest idle is closed ─► served
                      └► nobody is idle ─► one of ``KEPT``: serves members, operators, health checks

1. Connections that never sent a whole request are closed first. Then follow those that are idle between two requests
   and WebSockets on which nothing is under way, the longest idle first.
2. A connection has ``head_s`` seconds to send its first head, and as long for each later head, from its first byte on.
3. ``KEPT`` places are never given to strangers, so other members and health checks are served even if all other places
   are busy. A connection in such a place has ``KEPT_HEAD_S`` to send its request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

OTHERS_MAX = 4_096
"""The places of connections other than waiting readers: appends, producers, reads."""
KEPT = 128
CONNECTIONS_MAX = OTHERS_MAX + KEPT
KEPT_HEAD_S = 2.0
HEAD_S = 10.0
IDLE_S = 120.0
SWEEP_S = 1.0
"""The most seconds between two looks for late heads."""
LOOK_S = 0.1
"""The seconds until the next look, after a look that found no idle connection."""
_KEPT_PATHS = ("/v1/peer/", "/v1/feed", "/v1/admin/", "/healthz", "/readyz", "/metrics")


def is_kept(target: str) -> bool:
    """Says whether a request is of the kind that members, operators and health checks send. Anybody can send one."""
    return target.startswith(_KEPT_PATHS)


class Guest(Protocol):
    """One connection, as ``Places`` sees it."""

    kept: bool
    """True if the connection has one of the ``KEPT`` places."""
    head_since: float
    """The time since when the rest of a head is awaited; 0.0 if no head has begun."""

    @property
    def silent(self) -> bool:
        """True while the connection has never sent a whole request."""
        ...

    @property
    def idle_since(self) -> float | None:
        """The time since when nothing is under way on the connection; ``None`` while something is."""
        ...

    def swept(self, now: float) -> None: ...

    @property
    def context(self) -> object:
        """The TLS context in which the connection was made; ``None`` without TLS."""
        ...

    def end(self) -> None:
        """Ends the connection, behind the answers that are due, because its TLS context is trusted no more."""
        ...

    def give_way(self) -> None:
        """Closes the connection, because it is silent or other connections need its place."""
        ...


class Places:
    """The places of one listener."""

    def __init__(self, *, head_s: float, connections_max: int = CONNECTIONS_MAX, kept: int = KEPT) -> None:
        """Sets up the places. ``kept`` of the ``connections_max`` places are kept from strangers, at most half of
        them."""
        self._loop = asyncio.get_running_loop()
        self._head_s = head_s
        kept = min(kept, connections_max // 2)
        self._strangers_max = connections_max - kept
        self._kept_max = kept
        self._strangers: dict[Guest, None] = {}
        self._kept: dict[Guest, None] = {}
        self._silent: dict[Guest, None] = {}
        """Strangers that had sent no whole request at the last look, in the order in which they connected."""
        self._idle: deque[tuple[Guest, float]] = deque()
        """All other connections that were idle at the last look, the longest idle first."""
        self._looked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, guest: Guest) -> None:
        """Adds a new connection. To make a place, this connection or another one may be closed."""
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
        """Gives ``successor`` the place of ``guest``, and the same deadline for its head."""
        successor.kept, successor.head_since = guest.kept, guest.head_since
        if guest in self._kept:
            del self._kept[guest]
            self._kept[successor] = None
        else:
            self._strangers.pop(guest, None)
            self._silent.pop(guest, None)
            self._strangers[successor] = self._silent[successor] = None

    def serves(self, guest: Guest, keeps: Callable[[], bool]) -> bool:
        """Says whether a request of ``guest`` is served. ``keeps`` says whether the request is one for the kept places,
        and is called only if all others are busy."""
        if not guest.kept:
            return True
        if len(self._strangers) < self._strangers_max:
            self._kept.pop(guest, None)
            self._strangers[guest] = None
            guest.kept = False
            return True
        return keeps()

    def leave(self, guest: Guest) -> None:
        self._strangers.pop(guest, None)
        self._silent.pop(guest, None)
        self._kept.pop(guest, None)

    def close(self) -> None:
        """Closes the connections that have never sent a whole request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for guest in [each for each in (*self._strangers, *self._kept) if each.silent]:
            self._close(guest)

    def of_other_contexts(self, contexts: Collection[object]) -> list[Guest]:
        """Returns the connections that have TLS in none of ``contexts``."""
        return [each for each in (*self._strangers, *self._kept) if each.context not in (None, *contexts)]

    def _evict(self) -> bool:
        """Closes one idle stranger. Says whether there was one."""
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
