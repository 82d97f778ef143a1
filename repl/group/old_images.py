"""Old images of disks: the promises that nodes have made, and whether a starting node has forgotten some of its own.

A node rests promises on its disk: votes and terms in its node file, acknowledged blocks in its log.  Should an older
image of that disk come back, the node would promise once more, and otherwise.  Its own disk cannot tell; others, who
heard more of it, can.

    n3 told       node file 17, stored term 5; VLSN 90, of term 4, synced
    n3 starts     node file 17, VLSN 90 of term 4 in its log         the same disk
                  node file 18, stored term 6, log to 40             the same disk: it was rolled back in term 6
                  node file 16, or log to 80                         an old image: it becomes another incarnation
                  node file 17, VLSN 90 of term 3 in its log         one too: that tail was rolled back, and VLSN 90 of
                                                                     term 4 acknowledged in its place

1. A report of one incarnation never falls below its earlier ones. Every change of a node file raises its *sequence*.
   Within one term a log that was matched with its master's, or is the master's, only grows; a node that has not met its
   term's master yet reports no VLSN (``vlsn`` 0): its tail may still be rolled back.
2. A report names a VLSN and the term of its block: two logs with the same pair are equal up to there. A start *shows*
   its log, and its vote floor while that lies above it.
3. It is memory, not a log: each member keeps what it heard while it lives. An old image stays unnoticed where no
   running member has a newer report.
4. A damaged image may be restored before it can ask. Its acknowledged end is then compared with the restored log: the
   log holds it, or a later term has replaced it. A restore copies durable blocks alone and stores their terms alone. A
   durable block of a later term proves that all earlier durable entries lie below it. Its votes do not come back: a
   restore does not raise the sequence.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from vlsn.format.records import MEMBERS_MAX
from vlsn.ids import Vlsn
from vlsn.state.node_file import NodeRecord

HEARD_MAX = 4 * MEMBERS_MAX
"""Incarnations that are remembered at once; the ones heard of last."""


@dataclass(frozen=True, slots=True)
class Told:
    """The words of an incarnation: its node file's ``sequence``, stored ``term``, and place. ``vlsn`` is synced, in
    common with the log of the master of ``term``, and ``block_term`` the term of its block; 0 where that is not
    known."""

    sequence: int = 0
    term: int = 0
    vlsn: int = 0
    block_term: int = 0


NOTHING = Told()


@dataclass(frozen=True, slots=True)
class Shown:
    """The evidence of a node that starts: its node file, and its log from ``first`` to ``last``, synced."""

    sequence: int
    term: int
    first: int
    last: int
    floor: tuple[int, int]
    """(term, VLSN) of its vote floor while its log ends below that; else (0, 0)."""
    term_of: Callable[[Vlsn], int] = field(repr=False)

    def holds(self, vlsn: int, block_term: int) -> bool:
        """Says whether its log has, or below its floor may have had, that block's end."""
        if (block_term, vlsn) <= self.floor:
            return True
        if vlsn > self.last:
            return False
        return not block_term or vlsn < self.first or self.term_of(Vlsn(vlsn)) == block_term


def both(one: Told, other: Told) -> Told:
    """Merges two reports of one incarnation."""
    most = max(one, other, key=lambda told: (told.term, told.block_term, told.vlsn))
    return replace(most, sequence=max(one.sequence, other.sequence))


def show(record: NodeRecord, *, first: int, last: int, term_of: Callable[[Vlsn], int]) -> Shown:
    """Returns ``first``, ``last``: of its log, synced; 0 where that is empty."""
    floor = (record.floor_term, record.floor_vlsn)
    below_floor = (term_of(Vlsn(last)), last) < floor
    return Shown(record.sequence, record.term, first, last, floor if below_floor else (0, 0), term_of)


def forgotten(shown: Shown, heard: Told) -> str:
    """Describes the reports of its incarnation that a starting node has forgotten; "" for none."""
    if shown.sequence < heard.sequence:
        return f"its node file is change {shown.sequence}, but change {heard.sequence} was told of"
    if shown.term < heard.term:
        return f"its stored term is {shown.term}, but it was told to be {heard.term}"
    if shown.term > heard.term or not heard.vlsn or shown.holds(heard.vlsn, heard.block_term):
        return ""
    said = f"VLSN {heard.vlsn} of term {heard.block_term} was acknowledged in term {heard.term}"
    if shown.last < heard.vlsn:
        return f"its log ends at VLSN {shown.last}, but {said}"
    return f"its log has term {shown.term_of(Vlsn(heard.vlsn))} there, but {said}"


class Heard:
    """The words that one node has heard of each incarnation, while it lives."""

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
