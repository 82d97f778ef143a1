"""Parts of copies that could not be read, and the checks that are then skipped.  Pure.

    n2    1 … 40 │ 41 … 80 │ 81 … 120        the node was gone when 00000002.vlog was asked for:
              read      ✗       read         VLSN 41 to 80 of n2 are not audited

1. A finding in a segment that was read is valid.
2. Consecutive segments that were read form a run. Between two runs at least one segment is missing. Missing segments
   may contain rollback records that concern the segments before them. So overmarks (flags of rolled-back frames) are
   checked only after the last missing segment.
3. A range of VLSNs with missing parts in this copy is compared only between the other copies.
4. The audit does not check a copy's end, and does not compare a history with the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from repl.audit.digest import RANGE_BITS
from repl.audit.plan import Survey
from repl.audit.report import NotAudited, SourceReport, Span, known
from repl.audit.segment_audit import SegmentAudit


@dataclass(frozen=True, slots=True)
class Missed:
    """A segment of a source (by index) that could not be read, and the reason ``why``."""

    source: int
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Read:
    """The part of a copy that was read. ``segments`` were read; ``runs`` are groups of these segments without a missing
    one in between. ``spans`` are the VLSNs, ascending, that the ``missing`` segments may contain."""

    segments: list[SegmentAudit]
    runs: list[list[SegmentAudit]]
    missing: list[NotAudited] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def knows(self, at: int) -> bool:
        """Returns whether range ``at`` was read completely."""
        return known(self.spans, at)


def read_of(
    text: str,
    survey: Survey,
    segments: list[SegmentAudit],
    missed: Sequence[Missed],
    begins: int,
    alone: frozenset[int],
) -> Read:
    """Separates the segments of a copy that were read from those that were not. ``begins`` is the first VLSN of the
    part that is read. The neighbours of segments in ``alone`` are not read."""
    if not missed:
        return Read(segments, [[segment for segment in segments if segment.number not in alone]])
    why = {each.number: each.why for each in missed}
    there = {segment.number: segment for segment in segments}
    pieces = [(gone, list(parts)) for gone, parts in groupby(survey.parts, key=lambda part: part.number in why)]
    runs = [[there[part.number] for part in parts if part.number not in alone] for gone, parts in pieces if not gone]
    if pieces[-1][0]:
        runs.append([])  # the last run, after the missing segment, has no segment yet
    missing: list[NotAudited] = []
    for index, (gone, parts) in enumerate(pieces):
        if gone:
            before = [there[part.number] for _, piece in pieces[:index] for part in piece if part.number in there]
            behind = [there[part.number] for _, piece in pieces[index:] for part in piece if part.number in there]
            first = max([begins, *(each.last.vlsn + 1 for each in before if each.last is not None)])
            last = min((each.first.vlsn - 1 for each in behind if each.first is not None), default=survey.last)
            missing.append(
                NotAudited(
                    what="segments",
                    source=text,
                    file=parts[0].file,
                    segments=len(parts),
                    bytes=sum(part.end for part in parts),
                    first=first if first <= last else 0,
                    last=last if first <= last else 0,
                    why="; ".join(dict.fromkeys(why[part.number] for part in parts)),
                )
            )
    return Read(segments, runs, missing, [Span(first=each.first, last=each.last) for each in missing if each.last])


def blanked(report: SourceReport) -> SourceReport:
    """Returns a copy's report without the ranges that were not read completely, and without the chains after them."""
    if not report.unread:
        return report
    first = min(span.first for span in report.unread) >> RANGE_BITS
    rows = [row for row in report.ranges if report.knows(row.range)]
    chained = [row if row.range < first else msgspec.structs.replace(row, chain="") for row in rows]
    return msgspec.structs.replace(report, ranges=chained)
