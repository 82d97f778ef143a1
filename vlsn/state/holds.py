"""Holds: each owner's claim that cleaning leaves the log in place from a VLSN on.

1. A hold has an owner and a name, and keeps every VLSN from its own on.  The block that ends at a hold's VLSN stays
   whole: a replica that has acknowledged VLSN 40 needs that block to find its matchpoint.
2. Where cleaning has begun to take VLSNs away no hold is placed any more (``Trimmed``).
3. A hold that lies too far behind may be dropped for the others' sake; its owner is notified once.

    feeder n2      at VLSN 4 000   for 3 s     what ends below VLSN 4 000 may go
    backup night   at VLSN 1       for 900 s   nothing may

On the owner's thread only, under the log latch, like the log's own methods; ``LogHold`` alone is for any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import index
from types import TracebackType

from vlsn.errors import BadArgument, LogClosed, Trimmed
from vlsn.ids import NULL_VLSN, Vlsn

HOLDS_MAX = 1_000
"""A log has at most so many at once: each is looked at whenever something is to go."""
NAME_MAX = 64


class Owner(StrEnum):
    """The owner of a hold."""

    FEEDER = "feeder"
    """A replica of the group, fed or to be fed; its name is the member's."""
    CONSUMER = "consumer"
    """A reader that keeps its place: a named consumer of a group (``consumers``), or ``Log.hold``."""
    DESTINATION = "destination"
    """A destination, whose unacknowledged messages lie in the log (``destinations``)."""
    BACKUP = "backup"
    """A copier of an embedded log's segments: ``Log.hold(name, 0, owner=Owner.BACKUP)`` while it copies."""
    RESTORE = "restore"
    """A peer that is restored from here."""
    CHECKPOINT = "checkpoint"
    """The log's own hold on the part that the next open reads. Never dropped."""


@dataclass(slots=True, eq=False)
class Hold:
    """One hold; made by ``Holds.place``."""

    owner: Owner
    name: str
    vlsn: Vlsn
    since_s: float
    """The time since which it stands there, by the monotonic clock."""
    clock: Callable[[], float] = field(repr=False)
    on_dropped: Callable[[Vlsn], None] = field(repr=False)
    """A call that gets the first VLSN that will remain."""
    live: bool = True
    """False once it was released, replaced or dropped: it holds nothing any more."""

    def __str__(self) -> str:
        return f"{self.owner} {self.name}"

    def advance(self, vlsn: Vlsn) -> None:
        """Lets go of VLSNs below ``vlsn``; it never goes back."""
        if vlsn > self.vlsn:
            self.vlsn = vlsn
            self.since_s = self.clock()

    @property
    def age_s(self) -> float:
        """The seconds that it has stood at its VLSN."""
        return max(0.0, self.clock() - self.since_s)


class Holds:
    """The holds of one log.  ``floor`` is the last VLSN that cleaning has decided to take away."""

    def __init__(self, *, clock: Callable[[], float], floor: Vlsn = NULL_VLSN) -> None:
        self.floor = floor
        self._clock = clock
        self._held: dict[tuple[Owner, str], Hold] = {}

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def place(
        self, owner: Owner, name: str, vlsn: Vlsn, *, on_dropped: Callable[[Vlsn], None] = lambda _: None
    ) -> Hold:
        """Places a hold from ``vlsn`` on (0: all there is), in place of an older one of that name. Raises ``Trimmed``
        when some of that is gone or about to go, ``BadArgument`` for a bad name or one too many."""
        if not 1 <= len(name) <= NAME_MAX or not name.isprintable():
            raise BadArgument(f"{name[:NAME_MAX]!r} is no name of a hold; use 1 to {NAME_MAX} printable characters")
        first = Vlsn(self.floor + 1)
        if NULL_VLSN < vlsn < first:
            raise Trimmed(f"VLSN {vlsn} cannot be held: the log begins at {first}", first=first)
        if len(self._held) >= HOLDS_MAX and (owner, name) not in self._held:
            raise BadArgument(f"{HOLDS_MAX} holds are placed already; release one first")
        self._end(owner, name)
        hold = self._held[owner, name] = Hold(owner, name, vlsn or first, self._clock(), self._clock, on_dropped)
        return hold

    def release(self, hold: Hold) -> None:
        """Releases a hold; harmless when it holds nothing."""
        if hold.live:
            self._end(hold.owner, hold.name)

    def drop(self, hold: Hold, first: Vlsn) -> None:
        """Drops a hold, and notifies its owner that the log will begin at ``first``."""
        if hold.live:
            self._end(hold.owner, hold.name)
            hold.on_dropped(first)

    def _end(self, owner: Owner, name: str) -> None:
        before = self._held.pop((owner, name), None)
        if before is not None:
            before.live = False


class FollowingHolds:
    """The holds of one owner by name, kept equal to the wanted ones. On the owner's thread only, under the latch.
    ``dropped`` gets the name of a hold that lay too far behind, with the first VLSN that will remain."""

    def __init__(self, holds: Holds, owner: Owner) -> None:
        self.dropped: Callable[[str, Vlsn], None] = lambda name, first: None
        self._holds = holds
        self._owner = owner
        self._held: dict[str, Hold] = {}

    def follow(self, wanted: Mapping[str, Vlsn]) -> None:
        """Holds what is ``wanted`` and nothing else. A name whose VLSN was cleaned away holds nothing."""
        for name in [name for name in self._held if name not in wanted]:
            self._holds.release(self._held.pop(name))
        for name, vlsn in wanted.items():
            hold = self._held.get(name)
            if hold is not None and hold.live and vlsn >= hold.vlsn:
                hold.advance(vlsn)
                continue
            try:
                told = partial(self.dropped, name)
                self._held[name] = self._holds.place(self._owner, name, vlsn, on_dropped=told)
            except (Trimmed, BadArgument):
                if hold is not None:
                    self._holds.release(self._held.pop(name))


class LogHold:
    """A hold on an embedded log, from any thread; a context that releases it."""

    def __init__(
        self, holds: Holds, latch: AbstractContextManager[object], hold: Hold, check: Callable[[], None]
    ) -> None:
        """Wraps a hold; ``check`` raises ``LogClosed`` in a forked child, whose latch may be held for ever."""
        self._holds = holds
        self._check = check
        self._latch = latch
        self._hold = hold

    @property
    def vlsn(self) -> Vlsn:
        return self._hold.vlsn

    @property
    def live(self) -> bool:
        """False once it was released, replaced or dropped."""
        return self._hold.live

    def advance(self, vlsn: int) -> None:
        """Lets go of VLSNs below ``vlsn``; it never goes back."""
        first = Vlsn(index(vlsn))
        self._check()
        with self._latch:
            self._hold.advance(first)

    def release(self) -> None:
        try:
            self._check()
        except LogClosed:
            return
        with self._latch:
            self._holds.release(self._hold)

    def __enter__(self) -> LogHold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
