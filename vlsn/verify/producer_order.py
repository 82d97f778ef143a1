"""Checks the order of producers' submissions, within a segment and from each segment to the later ones
(``submissions``).

Segments are taken from the last to the first. From the later segments, the first submissions of ``PRODUCERS_KEPT``
producers are kept, the earliest ones:

    00000001.vlog   A/0 B/0 A/1 │ known = A/2, B/1      A/2 follows on A/1, B/1 on B/0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from vlsn.format.segment import segment_name
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.verify.inspection import Fault, Rule
from vlsn.verify.submissions import (
    PRODUCERS_KEPT,
    ROW,
    Submissions,
    by_producer,
    ends_of,
    is_handle,
    said_of,
    wrong_pairs,
)


@dataclass(frozen=True, slots=True)
class Heard:
    """The producers of one segment, by ascending id, one ``ROW`` each: their ``first`` submissions in it, and their
    last. Of more than ``PRODUCERS_KEPT`` producers, only those with the newest submissions are kept."""

    first: bytes
    last: bytes


NOTHING_HEARD: Final = Heard(b"", b"")


def check_submissions(rows: Submissions) -> tuple[Heard, list[Fault]]:
    """Checks one segment's submissions, in log order. Returns the rows to be compared with other segments, and the
    faults. Handles are compared only within a segment."""
    if not len(rows):
        return NOTHING_HEARD, []
    handles = is_handle(rows)
    named = by_producer(rows[~handles])
    faults = [*_faults(by_producer(rows[handles]), anew=False), *_faults(named)]
    starts, lasts = ends_of(named)
    if len(starts) > PRODUCERS_KEPT:
        newest = np.sort(np.argsort(named["first"][lasts])[-PRODUCERS_KEPT:])
        starts, lasts = starts[newest], lasts[newest]
    return Heard(named[starts].tobytes(), named[lasts].tobytes()), faults


class ProducerOrder:
    def __init__(self) -> None:
        self._known: Submissions = np.empty(0, ROW)
        """The first submissions of producers after the segment at hand. Their offsets are LSNs."""

    def cut(self) -> None:
        """Forgets the later segments, since something before them may be missing."""
        self._known = self._known[:0]

    def check(self, heard: Heard, number: int) -> Iterator[Fault]:
        """Compares the producers of segment ``number`` with those of later segments."""
        if not heard.first:
            return
        firsts, lasts = _placed(heard.first, number), _placed(heard.last, number)
        yield from _faults(by_producer(np.concatenate((lasts, self._known))))
        known = np.concatenate((firsts, self._known[~np.isin(self._known["producer"], firsts["producer"])]))
        self._known = known[np.argsort(known["first"])[:PRODUCERS_KEPT]]


def _placed(rows: bytes, number: int) -> Submissions:
    placed = np.frombuffer(rows, ROW).copy()
    placed["offset"] += np.uint64(lsn(number, 0))
    return placed


def _faults(rows: Submissions, *, anew: bool = True) -> Iterator[Fault]:
    """Yields a fault for each pair of submissions that cannot follow one another. If their offsets are LSNs, the fault
    names its file."""
    for before, after in wrong_pairs(rows, anew=anew):
        at = Lsn(int(after["offset"]))
        detail, more = said_of(before, after)
        file = segment_name(lsn_file(at)) if lsn_file(at) else ""
        yield Fault(Rule.PRODUCER_SEQUENCE, lsn_offset(at), detail, int(after["first"]), more, file)
