"""Checks the order of producers' submissions (``submissions``), within a segment and from each segment to the later
segments.

Segments are processed from the last to the first. For at most ``PRODUCERS_KEPT`` producers, the earliest submission in
the later segments is kept:

    00000001.vlog   A/0 B/0 A/1 │ known = A/2, B/1      A/2 continues A/1, B/1 continues B/0
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
    """The producers of one segment, ascending by id: the ``first`` submission of each in the segment, and the last one.
    At most ``PRODUCERS_KEPT`` producers are kept, those with the newest submissions."""

    first: bytes
    last: bytes


NOTHING_HEARD: Final = Heard(b"", b"")


def check_submissions(rows: Submissions) -> tuple[Heard, list[Fault]]:
    """Checks one segment's submissions, in log order. Returns the rows to compare with other segments, and the faults.
    Handles of transactions are compared only within a segment."""
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
        """The first submissions of producers after the segment that is checked. The offsets of these submissions are
        LSNs."""

    def cut(self) -> None:
        """Forgets the later segments' submissions, since earlier submissions may be missing."""
        self._known = self._known[:0]

    def check(self, heard: Heard, number: int) -> Iterator[Fault]:
        """Compares the producers of segment ``number`` with those of the later segments."""
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
    """Yields a fault for each pair of submissions that cannot follow one another. If offsets are LSNs, the fault names
    the file."""
    for before, after in wrong_pairs(rows, anew=anew):
        at = Lsn(int(after["offset"]))
        detail, more = said_of(before, after)
        file = segment_name(lsn_file(at)) if lsn_file(at) else ""
        yield Fault(Rule.PRODUCER_SEQUENCE, lsn_offset(at), detail, int(after["first"]), more, file)
