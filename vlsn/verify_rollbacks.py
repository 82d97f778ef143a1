"""Rollbacks as a verification sees them: what the records abandon, against the flags that are set.

Segments come from the last to the first, so the records that judge a block were read before it:

    00000003.vlog   … START(4) END …     read: one rollback, ended
    00000002.vlog   7 8 ✗5 ✗6            hidden 5, 6; both must be overmarked
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vlsn.chain import Link, rollback_starts
from vlsn.errors import BadBody
from vlsn.ids import Lsn, lsn
from vlsn.inspection import Fault, Inspected, Mask, Rule
from vlsn.records import RollbackEnd, RollbackStart, decode_record
from vlsn.scan import Offsets
from vlsn.seams import Disk

Add = Callable[[Rule, str, int, int, str], None]
"""Rule, file, offset, VLSN, detail of a finding."""


class Rollbacks:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._read: list[tuple[Lsn, RollbackStart]] = []
        self._ended: set[int] = set()
        self._last_block_lsn = 0
        self._unexplained: list[tuple[Link, Offsets, Offsets]] = []
        """Offsets and first VLSNs of overmarked blocks that no rollback record read so far explains."""

    def read(self, link: Link, found: Inspected) -> None:
        """The records of one segment; one that cannot be read is a fault of it."""
        if len(found.block_offsets):
            self._last_block_lsn = max(self._last_block_lsn, lsn(link.number, int(found.block_offsets[-1])))
        for offset, kind, payload in found.records:
            try:
                record = decode_record(kind, payload)
            except BadBody as error:
                found.faults.append(Fault(Rule.RECORD, offset, str(error)))
                continue
            if isinstance(record, RollbackStart):
                self._read.append((lsn(link.number, offset), record))
            elif isinstance(record, RollbackEnd):
                self._ended.add(record.start_lsn)

    def hidden(self, link: Link, found: Inspected) -> Mask:
        """Which blocks the records abandon; their flags are held against that."""
        hidden = np.zeros(len(found.block_offsets), dtype=np.bool_)
        certain = hidden.copy()
        if self._read:
            lsns = found.block_offsets + lsn(link.number, 0)
            for at, record in self._read:
                inside = (lsns >= record.first_lsn) & (lsns < record.end_lsn) & (lsns < at)
                hidden |= inside
                if at in self._ended or at < self._last_block_lsn:  # by now every flag of it must be set
                    certain |= inside
        strange = found.marked & ~hidden
        if strange.any():
            self._unexplained.append((link, found.block_offsets[strange], found.firsts[strange]))
        for index in np.flatnonzero(certain & ~found.marked).tolist():
            detail = "a rollback record abandons it, but it is not overmarked"
            self._add(Rule.OVERMARK, link.name, int(found.block_offsets[index]), int(found.firsts[index]), detail)
        return hidden

    def truncation_due(self, lsns: Offsets) -> Mask:
        """Blocks of a rollback after which nothing was logged: the crash may have come before the index was cut."""
        due = np.zeros(len(lsns), dtype=np.bool_)
        for at, record in self._read:
            if at > self._last_block_lsn:
                due |= (lsns >= record.first_lsn) & (lsns < record.end_lsn)
        return due

    def check_unexplained(self, disk: Disk, directory: str, last_number: int, *, live: bool) -> None:
        """At the end.  Flags are set after their ROLLBACK_START was synced: a running node's (``live``) lies in segment
        ``last_number``, where reading began, or behind it, if it is not there at all."""
        late: list[tuple[Lsn, RollbackStart]] = []
        if live and self._unexplained:
            late = list(rollback_starts(disk, directory, last_number))
        for link, offsets, vlsns in self._unexplained:
            lsns = offsets + lsn(link.number, 0)
            strange = np.ones(len(lsns), dtype=np.bool_)
            for start, record in late:
                strange &= (lsns < record.first_lsn) | (lsns >= record.end_lsn) | (lsns >= start)
            for index in np.flatnonzero(strange).tolist():
                detail = "overmarked, but no rollback record says so"
                self._add(Rule.OVERMARK, link.name, int(offsets[index]), int(vlsns[index]), detail)
