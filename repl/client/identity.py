"""A client's name as a producer, by which the log takes each of its groups once.

A group gets its sequence when it is sent for the first time. It keeps that for as long as the group may be in the log:
every group that was sent and not answered, and all before it. The groups behind it get new sequences.

    sent 4 5 6 7, 4 acknowledged, 5 refused, then the connection is lost     5 6 7 go out again as 5 6 7
    sent 4 5 6 7, 4 acknowledged, 5 6 7 refused                              5 6 7 are free for whatever goes out

Once a group that may be in the log is given up, no later one can follow on it for sure: those begin again under another
name, from 0 on.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl.client.group import Group, Identity
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Random


class Identities:
    """Gives groups their names."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: Identity | None = None

    def name(self, group: Group, born: int) -> None:
        """Names ``group``, which goes out now."""
        if group.identity is not None:
            return
        current = self._current
        if current is None or current.broken:
            current = self._current = Identity(self._random.u64() or 1, born)
        group.identity, group.sequence = current, current.next
        current.next += 1

    def acknowledged(self, group: Group) -> None:
        assert group.identity is not None
        group.identity.taken = max(group.identity.taken, group.sequence + 1)

    def settle(self, groups: Sequence[Group]) -> None:
        """Settles what went out: nothing is on its way any more, and ``groups`` go out first."""
        for group in groups:
            if group.uncertain and group.identity is not None:
                group.identity.taken = max(group.identity.taken, group.sequence + 1)
        for group in groups:
            identity = group.identity
            if identity is not None and not identity.fixed and group.sequence >= identity.taken:
                group.identity = None
        if self._current is not None:
            self._current.next = self._current.taken


class HandleNames:
    """A client's names for its transactions: the first one is drawn, the others are counted up from it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._last = 0

    def next(self) -> int:
        self._last = (self._last or self._random.u64()) + 1 & NUMBER_MAX or 1
        return self._last
