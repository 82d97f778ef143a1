"""Old images of disks: what nodes have told of themselves, and whether one that starts has forgotten some of it.

A node rests promises on its disk: votes and terms in its node file, acknowledged blocks in its log.  Should an older
image of that disk come back, the node would promise once more, and otherwise.  Its own disk cannot tell; others, who
heard more of it, can.

    n3 told       node file 17, VLSN 90 synced in term 5
    n3 starts     node file 17, stored term 5, log to 90 or more       the same disk
                  node file 16, or log to 80 in term 5                 an old image: it becomes another incarnation
                  node file 18, stored term 6, log to 40               the same disk: it was rolled back in term 6

1. What is told never falls for one incarnation.  Every change of a node file raises its *sequence*.  Within one term a
   log that was matched with its master's, or is the master's, only grows; what a node has of a term whose master it has
   not met yet is therefore not told (``vlsn`` 0): that may still be rolled back.
2. A start *claims* more than it told before, or the same: all of its log, or its vote floor while that lies above it.
3. It is memory, not a log: each member keeps what it heard while it lives.  An image that no member which is up has
   heard more of is not found out.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vlsn.nodefile import NodeRecord
from vlsn.records import MEMBERS_MAX

HEARD_MAX = 4 * MEMBERS_MAX
"""Incarnations that are remembered at once; the ones heard of last."""


@dataclass(frozen=True, slots=True)
class Told:
    """``sequence`` of the node file; ``vlsn``: synced, in common with the log of the master of ``term``."""

    sequence: int = 0
    term: int = 0
    vlsn: int = 0


NOTHING = Told()


def both(one: Told, other: Told) -> Told:
    """What two messages of one incarnation have told."""
    term, vlsn = max((one.term, one.vlsn), (other.term, other.vlsn))
    return Told(max(one.sequence, other.sequence), term, vlsn)


def claim(record: NodeRecord, *, last_term: int, last_vlsn: int) -> Told:
    """What a node that starts can show: ``last_*`` is the end of its log, synced."""
    below_floor = (last_term, last_vlsn) < (record.floor_term, record.floor_vlsn)
    return Told(record.sequence, record.term, max(last_vlsn, record.floor_vlsn) if below_floor else last_vlsn)


def forgotten(claimed: Told, heard: Told) -> str:
    """What a start has forgotten of what was heard of its incarnation; "" for nothing."""
    if claimed.sequence < heard.sequence:
        return f"its node file is change {claimed.sequence}, but change {heard.sequence} was told of"
    if claimed.term < heard.term:
        return f"its stored term is {claimed.term}, but it was told to be {heard.term}"
    if claimed.term == heard.term and claimed.vlsn < heard.vlsn:
        return f"its log ends at VLSN {claimed.vlsn}, but {heard.vlsn} was acknowledged in term {heard.term}"
    return ""


class Heard:
    """What one node has heard of each incarnation, while it lives."""

    def __init__(self) -> None:
        self._told: dict[int, Told] = {}

    def note(self, incarnation: int, told: Told) -> None:
        before = self._told.pop(incarnation, NOTHING)
        self._told[incarnation] = both(before, told)
        while len(self._told) > HEARD_MAX:
            del self._told[next(iter(self._told))]

    def of(self, incarnation: int) -> Told:
        return self._told.get(incarnation, NOTHING)


def most(told: Iterable[Told]) -> Told:
    found = NOTHING
    for each in told:
        found = both(found, each)
    return found
