"""The check of rollbacks in a verification. Rollback records say which blocks were abandoned. The frames of these
blocks, and no other frames, must be overmarked (have the flag of a rollback).

Segments are processed from the last to the first, so that the record which abandoned a block is read before the block:

    00000003.vlog   … START(4) END …     read: one rollback, ended
    00000002.vlog   7 8 ✗5 ✗6            hidden 5, 6; both must be overmarked
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vlsn.format import rollback_periods
from vlsn.format.records import RollbackEnd, RollbackStart
from vlsn.format.rollback_periods import Ended, Started
from vlsn.format.scan import Offsets
from vlsn.format.segment import segment_name
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.seams import Disk
from vlsn.verify.durable_claims import Placed
from vlsn.verify.inspection import Inspected, Mask, Rule
from vlsn.verify.segment_chain import Link, rollback_starts

Add = Callable[[Rule, str, int, int, str], None]
"""The type of a function that adds a finding: rule, file, offset, VLSN, detail."""


class Rollbacks:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._read: list[Started] = []
        self._ended: list[Ended] = []
        self._unmatched: list[Started] = []
        """The rollbacks whose matchpoint was not found in the segments read so far."""
        self._first_number = 0
        self._lost = False
        """True if blocks may be missing in the segments read so far."""
        self._last_block_lsn = 0
        self._unexplained: list[tuple[Link, Offsets, Offsets]] = []
        """The offsets and first VLSNs of overmarked blocks that no rollback record read so far explains."""

    def read(self, link: Link, found: Inspected, records: Sequence[Placed]) -> None:
        """Reads the rollback records of one segment."""
        self._first_number = link.number
        self._lost |= len(found.lost) > 0
        if len(found.block_offsets):
            self._last_block_lsn = max(self._last_block_lsn, lsn(link.number, int(found.block_offsets[-1])))
        for offset, record in records:
            if isinstance(record, RollbackStart):
                self._read.append((lsn(link.number, offset), record))
                if record.matchpoint:
                    self._unmatched.append(self._read[-1])
            elif isinstance(record, RollbackEnd):
                self._ended.append((lsn(link.number, offset), record))

    def hidden(self, link: Link, found: Inspected) -> Mask:
        """Marks the blocks that rollback records abandon, and compares them with the flags of the frames."""
        hidden = np.zeros(len(found.block_offsets), dtype=np.bool_)
        certain = hidden.copy()
        if self._read:
            ended = {record.start_lsn for _, record in self._ended}
            lsns = found.block_offsets + lsn(link.number, 0)
            for at, record in self._read:
                inside = rollback_periods.inside(lsns, at, record)
                hidden |= inside
                if at in ended or at < self._last_block_lsn:  # every flag of a finished rollback must be set
                    certain |= inside
            self._match(found, lsns)
        strange = found.marked & ~hidden
        if strange.any():
            self._unexplained.append((link, found.block_offsets[strange], found.firsts[strange]))
        for index in np.flatnonzero(certain & ~found.marked).tolist():
            detail = "a rollback record abandons it, but it is not overmarked"
            self._add(Rule.OVERMARK, link.name, int(found.block_offsets[index]), int(found.firsts[index]), detail)
        return hidden

    def _match(self, found: Inspected, lsns: Offsets) -> None:
        """Finds the matchpoints of rollbacks in this segment. A matchpoint is the end of a block that was visible when
        the rollback began."""

        def is_here(at: Lsn, record: RollbackStart) -> bool:
            here = (found.lasts == record.matchpoint) & (lsns < at) & ~rollback_periods.inside(lsns, at, record)
            if not here.any():
                return False
            for before, other in self._read:
                if before < at:
                    here &= ~rollback_periods.inside(lsns, before, other)
            return bool(here.any())

        self._unmatched = [each for each in self._unmatched if not is_here(*each)]

    def truncation_due(self, lsns: Offsets) -> Mask:
        """Marks the blocks of a rollback after which nothing was logged. The index may still have mappings of the
        marked blocks."""
        due = np.zeros(len(lsns), dtype=np.bool_)
        for at, record in self._read:
            if at > self._last_block_lsn:
                due |= rollback_periods.inside(lsns, at, record)
        return due

    def check_records(self, *, gaps: bool) -> None:
        """Checks, at the end, whether the rollback records are consistent with one another. Each rollback must have
        gone back to an existing, visible block. With ``gaps`` (damaged blocks, or a log that begins later), a missing
        matchpoint is no fault."""
        for at, detail in rollback_periods.contradictions(self._read):
            self._strange(at, detail)
        if not gaps and not self._lost:
            for at, detail in rollback_periods.unstarted(self._read, self._ended, lsn(self._first_number, 0)):
                self._strange(at, detail)
        for at, record in self._unmatched:
            if not gaps and not self._lost and lsn_file(Lsn(record.matchpoint_lsn)) >= self._first_number:
                self._strange(at, f"no block that was visible then ends at its matchpoint, VLSN {record.matchpoint}")

    def _strange(self, at: Lsn, detail: str) -> None:
        vlsn = next((record.matchpoint + 1 for place, record in self._read if place == at), 0)
        self._add(Rule.RECORD, segment_name(lsn_file(at)), lsn_offset(at), vlsn, f"the rollback's record: {detail}")

    def check_unexplained(self, disk: Disk, directory: str, last_number: int, *, live: bool) -> None:
        """Reports, at the end, the flags that no rollback record explains. A node sets flags after their ROLLBACK_START
        is synced. So the record of a running node (``live``) is in segment ``last_number``, where reading began, or in
        a later segment."""
        late: list[Started] = []
        if live and self._unexplained:
            late = list(rollback_starts(disk, directory, last_number))
        for link, offsets, vlsns in self._unexplained:
            lsns = offsets + lsn(link.number, 0)
            strange = np.ones(len(lsns), dtype=np.bool_)
            for start, record in late:
                strange &= ~rollback_periods.inside(lsns, start, record)
            for index in np.flatnonzero(strange).tolist():
                detail = "overmarked, but no rollback record says so"
                self._add(Rule.OVERMARK, link.name, int(offsets[index]), int(vlsns[index]), detail)
