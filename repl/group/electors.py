"""The electors: the members in the newest GROUP entry of a log, with their votes and their delays before an election.
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
"""For each step below the highest priority, a node waits this many seconds longer before it stands for election."""

# The constants below are delays before a node stands after the master's process has ended. They are fractions of an
# election timeout.
SEVERAL = (0.0, 0.3)
"""The range of delays if several nodes have the same priority. The delay is random, so that the nodes do not request
the same votes at once."""
LONE = (0.05, 0.1)
"""The range of delays of a node that is the only one with its priority. A delay above zero gives the other nodes time
to notice the master's end, so that they do not refuse their votes."""
NEXT = 0.1
"""The delay from the last node of one priority to the first node of the next. An election fits in between."""


@dataclass(frozen=True, slots=True)
class Elector:
    """A member as the log's newest GROUP entry lists it, with the attributes that elections use."""

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
    """The electors of a group, with the counts and delays of one of them: the elector ``name``."""

    __slots__ = ("_name", "delay_s", "electable", "electors")

    def __init__(self, electors: Sequence[Elector], name: NodeName) -> None:
        self._name = name
        self.electors = electors
        self.electable = voters(electors)
        highest = max((elector.priority for elector in electors), default=0)
        own = next((elector.priority for elector in electors if elector.name == name), highest)
        self.delay_s = PRIORITY_DELAY_S * min(PRIORITY_MAX, max(0, highest - own))

    def turn(self, gone: NodeName) -> tuple[float, float]:
        """Returns the range of delays, in fractions of an election timeout, before this node stands after the process
        of ``gone`` has ended. Nodes stand in the order of their priorities, the highest first."""
        left = Counter(each.priority for each in self.electors if each.electable and each.name != gone)
        own = next((each.priority for each in self.electors if each.name == self._name), 0)
        start = sum(_window(count)[1] + NEXT for priority, count in left.items() if priority > own)
        least, most = _window(left[own])
        return start + least, start + most


def _window(count: int) -> tuple[float, float]:
    return SEVERAL if count > 1 else LONE
