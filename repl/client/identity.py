"""The names under which a client sends its groups as a producer, so that the log takes each group once.

A group of appends gets its sequence (a number from 0 on) when it is sent for the first time. A group that was sent and
not answered may be in the log. So this group keeps its sequence, and so do all groups before it. The groups after it
get new sequences.

    sent 4 5 6 7, 4 acknowledged, 5 refused, then the connection is lost     5 6 7 go out again as 5 6 7
    sent 4 5 6 7, 4 acknowledged, 5 6 7 refused                              5 6 7 are free for whatever goes out

If the client gives up a group that may be in the log, it is not certain that later groups follow directly on it. So
the later groups start again under a new producer id, from sequence 0 on.
"""

from __future__ import annotations

from collections.abc import Sequence

from repl.client.group import Group, Identity
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Random


class Identities:
    """Assigns producer names and sequences to groups."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: Identity | None = None

    def name(self, group: Group, born: int) -> None:
        """Assigns a name to ``group``, which is sent next."""
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
        """Records that no group waits for an answer any more, and that ``groups`` are sent first."""
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
    """The names of a client's transactions: the first name is random, and each further name is one higher."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._last = 0

    def next(self) -> int:
        self._last = (self._last or self._random.u64()) + 1 & NUMBER_MAX or 1
        return self._last
