"""Holds. A hold is a claim of an owner that cleaning must keep the log from some VLSN on.

1. A hold has an owner, a name and a VLSN, and keeps that VLSN and all later ones. The block that ends at a hold's VLSN
   is kept as a whole: a replica that has acknowledged VLSN 40 needs that block to find its matchpoint.
2. Once a cleaning has begun to remove a VLSN, no hold can be placed at that VLSN (``Trimmed``).
3. A hold that is too far behind the log's end may be dropped so that the log can be cleaned. The hold's owner is
   notified once.

    feeder n2      at VLSN 4 000   for 3 s     segments that end below VLSN 4 000 may be removed
    backup night   at VLSN 1       for 900 s   nothing may be removed

Holds are used on the owner's thread only, under the log's latch, like the log itself. Only ``LogHold`` is for any
thread.
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
"""The most holds of a log at once. Each hold is checked whenever segments are to be removed."""
NAME_MAX = 64


class Owner(StrEnum):
    """The kind of owner of a hold."""

    FEEDER = "feeder"
    """A replica of the group. The name of the hold is the member's name."""
    CONSUMER = "consumer"
    """A reader that wants to continue later: a named consumer of a group (``consumers``), or a user of ``Log.hold``."""
    DESTINATION = "destination"
    """A destination whose unacknowledged messages are in the log (``destinations``)."""
    BACKUP = "backup"
    """A program that copies an embedded log's segments. The program calls ``Log.hold(name, 0, owner=Owner.BACKUP)`` for
    the time of the copy."""
    RESTORE = "restore"
    """Another node that restores its log from this node."""
    CHECKPOINT = "checkpoint"
    """The log's own hold on the part that its next opening reads. The log's own hold is never dropped."""


@dataclass(slots=True, eq=False)
class Hold:
    """One hold on the log. ``Holds.place`` makes it."""

    owner: Owner
    name: str
    vlsn: Vlsn
    since_s: float
    """The time at which the hold reached its present VLSN, by the monotonic clock."""
    clock: Callable[[], float] = field(repr=False)
    on_dropped: Callable[[Vlsn], None] = field(repr=False)
    """A function that is called when the hold is dropped, with the first VLSN that will remain."""
    live: bool = True
    """False once the hold was released, replaced or dropped. A hold that is not live keeps nothing."""

    def __str__(self) -> str:
        return f"{self.owner} {self.name}"

    def advance(self, vlsn: Vlsn) -> None:
        """Moves the hold forward to ``vlsn``. A lower ``vlsn`` is ignored."""
        if vlsn > self.vlsn:
            self.vlsn = vlsn
            self.since_s = self.clock()

    @property
    def age_s(self) -> float:
        """The seconds since the hold reached its present VLSN."""
        return max(0.0, self.clock() - self.since_s)


class Holds:
    """All holds on one log. ``floor`` is the last VLSN that a cleaning has decided to remove."""

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
        """Places a hold from ``vlsn`` on (0: the whole log). The new hold replaces an older hold of the same owner and
        name. Raises ``Trimmed`` if some VLSN from ``vlsn`` on was removed or is about to be removed. Raises
        ``BadArgument`` for a bad name or too many holds."""
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
        """Releases ``hold``. Does nothing if the hold was released, replaced or dropped before."""
        if hold.live:
            self._end(hold.owner, hold.name)

    def drop(self, hold: Hold, first: Vlsn) -> None:
        """Drops ``hold``, and notifies its owner that the log will begin at ``first``."""
        if hold.live:
            self._end(hold.owner, hold.name)
            hold.on_dropped(first)

    def _end(self, owner: Owner, name: str) -> None:
        before = self._held.pop((owner, name), None)
        if before is not None:
            before.live = False


class FollowingHolds:
    """The holds of one owner, by name. ``follow`` makes the holds equal to the wanted ones. The holds are used on the
    owner's thread only, under the latch. ``dropped`` is called when a hold was too far behind, with the hold's name and
    the first VLSN that will remain."""

    def __init__(self, holds: Holds, owner: Owner) -> None:
        self.dropped: Callable[[str, Vlsn], None] = lambda name, first: None
        self._holds = holds
        self._owner = owner
        self._held: dict[str, Hold] = {}

    def follow(self, wanted: Mapping[str, Vlsn]) -> None:
        """Places the ``wanted`` holds, and releases the owner's other holds. No hold is placed for a name whose VLSN
        was cleaned away."""
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
    """A hold on an embedded log, for any thread. As a context manager it releases the hold at the end of the block."""

    def __init__(
        self, holds: Holds, latch: AbstractContextManager[object], hold: Hold, check: Callable[[], None]
    ) -> None:
        """Wraps ``hold``. ``check`` raises ``LogClosed`` in a forked child process, in which the latch may never be
        released."""
        self._holds = holds
        self._check = check
        self._latch = latch
        self._hold = hold

    @property
    def vlsn(self) -> Vlsn:
        return self._hold.vlsn

    @property
    def live(self) -> bool:
        """False once the hold was released, replaced or dropped."""
        return self._hold.live

    def advance(self, vlsn: int) -> None:
        """Moves the hold forward to ``vlsn``. A lower ``vlsn`` is ignored."""
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
