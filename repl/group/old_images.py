"""Old images of disks: detects that a starting node has lost promises that it made.

A node's promises depend on its disk: votes and terms are in its node file, acknowledged blocks in its log. If an older
image of the disk comes back, the node could make contradicting promises. The node's own disk cannot show that it is
old. Other members can, because they have received later reports.

    n3 reported   node file 17, stored term 5; VLSN 90, of term 4, synced
    n3 starts     node file 17, VLSN 90 of term 4 in its log         the same disk
                  node file 18, stored term 6, log to 40             the same disk: it was rolled back in term 6
                  node file 16, or log to 80                         an old image: it becomes another incarnation
                  node file 17, VLSN 90 of term 3 in its log         an old image: that tail was rolled back, and VLSN
                  90
                                                                     of term 4 was acknowledged in its place

1. A report of one incarnation (store) is never below its earlier reports. Every change of a node file raises its
   *sequence*. Within one term a log only grows if it agrees with its master's log, or is the master's. If a node has
   not met its term's master yet, its tail may still be rolled back, so it reports no VLSN (``vlsn`` 0).
2. A report names a VLSN and the term of its block. Two logs with the same pair are equal up to that VLSN. A starting
   node *shows* its log, and its vote floor (the log's former end) if that is above the log's end.
3. Reports are kept in memory only: each member keeps them while it runs. An old image is not detected if no running
   member has a newer report.
4. A damaged image may be restored before the node can ask. In that case the image's acknowledged end is compared with
   the restored log: the log contains it, or a later term has replaced it. A restore copies only durable blocks, and
   stores only their terms. A durable block of a later term proves that all earlier durable entries are before it. Lost
   votes do not come back: a restore does not raise the sequence.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from vlsn.format.records import MEMBERS_MAX
from vlsn.ids import Vlsn
from vlsn.state.node_file import NodeRecord

HEARD_MAX = 4 * MEMBERS_MAX
"""The most incarnations whose reports are remembered; the latest reports are kept."""


@dataclass(frozen=True, slots=True)
class Told:
    """The report of an incarnation: its node file's ``sequence``, its stored ``term``, and its position. The log up to
    ``vlsn`` is synced, and equal to the log of the master of ``term``. ``block_term`` is the term of the block at
    ``vlsn``. ``vlsn`` and ``block_term`` are 0 if they are not known."""

    sequence: int = 0
    term: int = 0
    vlsn: int = 0
    block_term: int = 0


NOTHING = Told()


@dataclass(frozen=True, slots=True)
class Shown:
    """The evidence that a starting node shows: its node file, and its synced log from ``first`` to ``last``."""

    sequence: int
    term: int
    first: int
    last: int
    floor: tuple[int, int]
    """(term, VLSN) of the node's vote floor while its log ends before the floor; otherwise (0, 0)."""
    term_of: Callable[[Vlsn], int] = field(repr=False)

    def holds(self, vlsn: int, block_term: int) -> bool:
        """Returns whether the log contains the end of that block, or may have contained it below the vote floor."""
        if (block_term, vlsn) <= self.floor:
            return True
        if vlsn > self.last:
            return False
        return not block_term or vlsn < self.first or self.term_of(Vlsn(vlsn)) == block_term


def both(one: Told, other: Told) -> Told:
    """Merges two reports of one incarnation into the newer values of both."""
    most = max(one, other, key=lambda told: (told.term, told.block_term, told.vlsn))
    return replace(most, sequence=max(one.sequence, other.sequence))


def show(record: NodeRecord, *, first: int, last: int, term_of: Callable[[Vlsn], int]) -> Shown:
    """Makes the evidence of a starting node. ``first`` and ``last`` are the ends of the synced log, 0 if it is
    empty."""
    floor = (record.floor_term, record.floor_vlsn)
    below_floor = (term_of(Vlsn(last)), last) < floor
    return Shown(record.sequence, record.term, first, last, floor if below_floor else (0, 0), term_of)


def forgotten(shown: Shown, heard: Told) -> str:
    """Describes which of its reported promises a starting node has lost; "" if it has lost none."""
    if shown.sequence < heard.sequence:
        return f"its node file is change {shown.sequence}, but change {heard.sequence} was reported"
    if shown.term < heard.term:
        return f"its stored term is {shown.term}, but term {heard.term} was reported"
    if shown.term > heard.term or not heard.vlsn or shown.holds(heard.vlsn, heard.block_term):
        return ""
    said = f"VLSN {heard.vlsn} of term {heard.block_term} was acknowledged in term {heard.term}"
    if shown.last < heard.vlsn:
        return f"its log ends at VLSN {shown.last}, but {said}"
    return f"its log has term {shown.term_of(Vlsn(heard.vlsn))} there, but {said}"


class Heard:
    """The reports that this node has received from other incarnations since it started."""

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
