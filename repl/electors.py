"""Who elects: the members that the newest GROUP entry of a log lists, and how one of them counts and waits by them.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repl.founding import parse_hex
from vlsn.ids import Incarnation, NodeName
from vlsn.records import PRIORITY_MAX, GroupEntry

PRIORITY_DELAY_S = 0.05
"""How much longer a node waits for each step below the highest priority."""


@dataclass(frozen=True, slots=True)
class Elector:
    """A member as the log's newest GROUP entry lists it."""

    name: NodeName
    incarnation: Incarnation
    electable: bool = True
    priority: int = 1


def electors(group: GroupEntry | None) -> list[Elector]:
    """The members that the group lists."""
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
    """Whose votes count."""
    return {elector.name for elector in listed if elector.electable}


class Listed:
    """The electors of a group as one of them, ``name``, counts and waits by them."""

    __slots__ = ("delay_s", "electable", "electors")

    def __init__(self, electors: Sequence[Elector], name: NodeName) -> None:
        self.electors = electors
        self.electable = voters(electors)
        highest = max((elector.priority for elector in electors), default=0)
        own = next((elector.priority for elector in electors if elector.name == name), highest)
        self.delay_s = PRIORITY_DELAY_S * min(PRIORITY_MAX, max(0, highest - own))
