"""The order of producers' submissions in one directory: within a segment, and from each to those behind it.

Segments come from the last to the first; of what lies behind the one at hand the first submissions of
``PRODUCERS_KEPT`` producers are kept, those that come soonest:

    00000001.vlog   A/0 B/0 A/1 │ known = A/2, B/1      A/2 follows on A/1, B/1 on B/0
"""

from __future__ import annotations

import numpy as np

from vlsn.format.segment import segment_name
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.verify.inspection import Inspected, Rule
from vlsn.verify.order import Visible
from vlsn.verify.rollbacks import Add
from vlsn.verify.segment_chain import Link
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


class ProducerOrder:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._known: Submissions = np.empty(0, ROW)
        """First submissions of producers behind the segment at hand; their offsets are LSNs."""

    def check(self, link: Link, found: Inspected, visible: Visible, *, cut: bool) -> None:
        """Checks one segment. ``cut``: another one is missing behind it. Where a block is lost a submission may be, so
        nothing is said over that place."""
        if cut or len(found.lost):
            self._known = self._known[:0]
        if len(found.lost) or not len(found.submissions):
            return
        rows = found.submissions.copy()
        if len(visible) < len(found.block_offsets):
            rows = rows[np.isin(rows["offset"], visible.places)]
        rows["offset"] += lsn(link.number, 0)
        handles = is_handle(rows)
        named = by_producer(rows[~handles])
        self._name(by_producer(rows[handles]), anew=False)
        self._name(named)
        starts, lasts = ends_of(named)
        if not len(starts):
            return
        self._name(by_producer(np.concatenate((named[lasts], self._known))))
        known = np.concatenate((named[starts], self._known[~np.isin(self._known["producer"], named["producer"])]))
        self._known = known[np.argsort(known["first"])[:PRODUCERS_KEPT]]

    def _name(self, rows: Submissions, *, anew: bool = True) -> None:
        for before, after in wrong_pairs(rows, anew=anew):
            at = Lsn(int(after["offset"]))
            detail = said_of(before, after)[0]
            file = segment_name(lsn_file(at))
            self._add(Rule.PRODUCER_SEQUENCE, file, lsn_offset(at), int(after["first"]), detail)
