"""The electors: the members that a log's newest GROUP entry lists, and how one counts and waits by them.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from repl.group.founding import parse_hex
from vlsn.format.records import PRIORITY_MAX, GroupEntry
from vlsn.ids import Incarnation, NodeName

PRIORITY_DELAY_S = 0.05
"""The delay with which a node waits out a master's silence, for each step below the highest priority."""

# How long nobody stands once the master's process has ended, as fractions of an election timeout.
SEVERAL = (0.0, 0.3)
"""Delays of several with one priority: drawn, so that they do not ask for the same votes at once."""
LONE = (0.05, 0.1)
"""Delays of the only one with its priority. The others have noticed the end too by then, and do not refuse it."""
NEXT = 0.1
"""The delay from the last of one priority to the first of the next: an election fits in between."""


@dataclass(frozen=True, slots=True)
class Elector:
    """A member as the log's newest GROUP entry lists it."""

    name: NodeName
    incarnation: Incarnation
    electable: bool = True
    priority: int = 1


def electors(group: GroupEntry | None) -> list[Elector]:
    """Returns the members that the group lists."""
    if group is None:
        return []
    return [
        Elector(
            NodeName(member.name),
            Incarnation(parse_hex(member.incarnation)),
            electable=member.electable,
            priority=member.priority,
        )
        for member in group.members
    ]


def voters(listed: Sequence[Elector]) -> set[NodeName]:
    """Returns the members with a vote."""
    return {elector.name for elector in listed if elector.electable}


class Listed:
    """The electors of a group as one of them, ``name``, counts and waits by them."""

    __slots__ = ("_name", "delay_s", "electable", "electors")

    def __init__(self, electors: Sequence[Elector], name: NodeName) -> None:
        self._name = name
        self.electors = electors
        self.electable = voters(electors)
        highest = max((elector.priority for elector in electors), default=0)
        own = next((elector.priority for elector in electors if elector.name == name), highest)
        self.delay_s = PRIORITY_DELAY_S * min(PRIORITY_MAX, max(0, highest - own))

    def turn(self, gone: NodeName) -> tuple[float, float]:
        """Returns between which fractions of an election timeout this node stands, once the process of ``gone`` has
        ended. It is in the order of priorities, the highest first."""
        left = Counter(each.priority for each in self.electors if each.electable and each.name != gone)
        own = next((each.priority for each in self.electors if each.name == self._name), 0)
        start = sum(_window(count)[1] + NEXT for priority, count in left.items() if priority > own)
        least, most = _window(left[own])
        return start + least, start + most


def _window(count: int) -> tuple[float, float]:
    return SEVERAL if count > 1 else LONE
