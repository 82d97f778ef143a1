"""Checks that a source's segments join, and that every block marked as rolled back belongs to a rollback. Pure.

    00000001 … 41 512 │ 41 513 …  00000002        last + 1 == first, terms do not fall, prev_number == 1

An overmark is the flag that a rollback sets on a frame. The overmarks are checked against the rollback records, which
are authoritative. A frame may be overmarked only if it is within [first_lsn, end_lsn) of a ROLLBACK_START. Once the log
has the ROLLBACK_END or a later block, every block within that span must be overmarked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from repl.audit.derived import check_pointed
from repl.audit.findings import Finding, finding_of
from repl.audit.segment_audit import SegmentAudit, rollbacks_of
from vlsn.format.records import RollbackStart
from vlsn.format.rollback_periods import end_of
from vlsn.format.segment import segment_name
from vlsn.ids import Lsn, lsn, lsn_offset
from vlsn.verify.inspection import Fault, Rule
from vlsn.verify.joined import Joined, claimed


def check_joints(source: str, runs: Sequence[Sequence[SegmentAudit]]) -> Iterator[Finding]:
    """Checks the joints of one source's segments, in the order of their numbers. Between two of the ``runs`` something
    could not be read; everything after the last gap was read."""
    files = {segment_name(each.number): each.file for segments in runs for each in segments}
    faults: list[Fault] = []
    for segments in runs:
        joined = Joined(over_loss=True)
        for each in reversed(segments):
            faults += joined.take(each)
    faults += claimed(each for segments in runs for each in segments)[1]
    for fault in faults:
        yield finding_of(source, files.get(fault.file, fault.file), replace(fault, file=""))
    yield from _overmarks(source, runs[-1])
    yield from check_pointed(source, runs[-1])


def pending_rollback(segments: Sequence[SegmentAudit]) -> tuple[int, int]:
    """Returns the LSN and the matchpoint of an unfinished rollback: a ROLLBACK_START after which nothing was logged,
    not even its ROLLBACK_END. Returns 0 and 0 if there is none; a log has at most one."""
    starts, ended, last = rollbacks_of(segments)
    pending = ((at, record.matchpoint) for at, record in starts.items() if at > last and at not in ended)
    return max(pending, default=(0, 0))


def _overmarks(source: str, segments: Sequence[SegmentAudit]) -> Iterator[Finding]:
    starts, ended, last = rollbacks_of(segments)
    for segment in segments:
        for marks in segment.marks:
            begin, end = lsn(segment.number, marks.start), lsn(segment.number, marks.last)
            start, vlsn = marks.start, marks.vlsn
            more = {"last": marks.last_vlsn}
            if marks.overmarked:
                wrong = not _covered(begin, end, starts)
                detail = "overmarked, and no rollback record says so"
            else:
                done = [(at, record) for at, record in starts.items() if at in ended or at < last]
                lowest = min(
                    (record for at, record in done if begin < end_of(at, record) and end >= record.first_lsn),
                    key=lambda record: record.first_lsn,
                    default=None,
                )
                wrong = lowest is not None
                if lowest is not None:
                    more = {"last": max(marks.last_vlsn, lowest.last_vlsn), "matchpoint": lowest.matchpoint}
                    if lowest.first_lsn > begin:  # a rollback does not touch the blocks before its matchpoint
                        start, vlsn = lsn_offset(Lsn(lowest.first_lsn)), lowest.matchpoint + 1
                detail = "visible, and a finished rollback abandoned it"
            if wrong:
                yield Finding(
                    rule=Rule.OVERMARK,
                    source=source,
                    file=segment.file,
                    offset=start,
                    vlsn=vlsn,
                    detail=detail,
                    more=more,
                )


def _covered(first: Lsn, last: Lsn, starts: Mapping[Lsn, RollbackStart]) -> bool:
    """Returns whether rollbacks, one after another without a gap, cover all frames that begin from ``first`` to
    ``last``."""
    at: int = first
    for begun, record in sorted(starts.items(), key=lambda one: one[1].first_lsn):
        if record.first_lsn <= at < (end := end_of(begun, record)):
            at = end
    return at > last
