"""Continues an earlier audit: unchanged segments that the earlier audit compared are not read again.

    earlier report     segments 1 2 3 │4      compared up to VLSN 900, which is in segment 4
    now                segments   2 3 │4 5    1 was cleaned; 2 and 3 are kept, 4 and 5 are read; compared are blocks
                                              that end behind 900; their digests join the earlier report's

1. A segment is *kept*, and not read again, if all its visible blocks were compared and its file is unchanged. Unchanged
   means the number, salt, end, size and time of change in the earlier report. All segments from the first that is not
   kept are read. A changed segment among kept ones is read alone.
2. In every segment that is read again, the blocks up to the earlier end must have the earlier digest. If a segment has
   a new salt, but other segments of the log have their earlier salts, the segment's number was reused.
3. With ``deep`` every segment is read, so whole ranges are compared, too. Reading whole ranges finds a change that was
   made to all copies alike.

An audit does not continue a report with findings, because these findings would be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from repl.audit.digest import RANGE_BITS, Checksums, RangeDigest, Share, merged, summed
from repl.audit.findings import Finding
from repl.audit.plan import Part, Survey
from repl.audit.report import AuditReport, SegmentRow, SinceReport, SourceReport, Span, range_rows, read_report
from repl.audit.rules import AuditRule
from repl.audit.segment_audit import SegmentAudit
from repl.audit.unread import Read
from vlsn.errors import BadArgument
from vlsn.format.segment import segment_name
from vlsn.verify.inspection import Rule


@dataclass(frozen=True, slots=True)
class Since:
    """The earlier audit. ``upto`` is the last VLSN that it compared."""

    file: str
    report: AuditReport
    deep: bool

    @property
    def upto(self) -> int:
        return self.report.compared_to

    @property
    def ranges(self) -> dict[int, RangeDigest]:
        return self.report.sources[0].digests

    def rows(self, node: str) -> dict[int, SegmentRow]:
        """Returns the segments of a node's copy in the earlier report, by number."""
        source = next((source for source in self.report.sources if source.node == node), None)
        return {} if source is None else {row.number: row for row in source.segments}


@dataclass(frozen=True, slots=True)
class Reading:
    """The segments of one copy that are read again: ``survey`` lists only these. The neighbours of the segments in
    ``alone`` are not read."""

    survey: Survey
    kept: tuple[SegmentRow, ...] = ()
    alone: frozenset[int] = frozenset()
    findings: tuple[Finding, ...] = field(default=())


def read_since(path: str, *, deep: bool, checksums: Checksums = Checksums.SHA256) -> Since:
    """Reads the earlier report. Raises ``BadArgument``, which names the remedy, for a report that no audit can
    continue."""
    report = read_report(path)
    if report.partial:
        raise BadArgument(f"{path}: that audit was partial; run an audit without --since-last")
    if not report.equal or report.findings or not report.compared_to:
        what = "found something" if report.findings else "did not find the copies equal"
        raise BadArgument(f"{path}: that audit {what}; mend that, and run an audit without --since-last")
    if report.checksums is not checksums:
        raise BadArgument(
            f"{path}: it compared blocks by {report.checksums}, and this audit would by {checksums}: "
            f"say --checksums {report.checksums}, or run an audit without --since-last"
        )
    first = report.sources[0]
    if first.ranges != range_rows([row.sum for row in first.ranges]):
        raise BadArgument(f"{path}: its chain does not match its digests: the file was changed since it was written")
    if first.open is None or first.open.sum != first.ranges[-1].sum:
        raise BadArgument(
            f"{path}: its last range does not match its digests: the file was changed since it was written"
        )
    if any(source.digests != first.digests for source in report.sources):
        raise BadArgument(f"{path}: it says that the copies are equal, and has other digests of each")
    if any(not row.digest for source in report.sources for row in source.segments):
        raise BadArgument(f"{path}: it has no digests of segments: run an audit without --since-last")
    return Since(path, report, deep)


def readings(since: Since, surveys: Sequence[Survey], texts: Sequence[str]) -> list[Reading]:
    """Decides which segments are read. Raises ``BadArgument`` if a copy does not continue the copy in the earlier
    report."""
    for survey, text in zip(surveys, texts, strict=True):
        if survey.group != since.report.group:
            raise BadArgument(f"{since.file} is of group {since.report.group}, {text} of group {survey.group}")
        if survey.first > since.upto + 1:
            raise BadArgument(
                f"{text} begins with VLSN {survey.first}, and {since.file} compared up to {since.upto}: what lies "
                "between was cleaned away since; run an audit without --since-last"
            )
    return [_reading(since, survey, text) for survey, text in zip(surveys, texts, strict=True)]


def _reading(since: Since, survey: Survey, text: str) -> Reading:
    rows = since.rows(survey.node)
    kept: list[SegmentRow] = []
    changed: list[Part] = []
    parts = list(survey.parts)
    begins = parts[0].number
    goes_on = begins in rows and rows[begins].salt == parts[0].salt
    """True if this is the same log as before, not another log that was restored in its place."""
    while parts and (row := rows.get(parts[0].number)) is not None and row.last <= since.upto and _is_closed(parts):
        part = parts.pop(0)
        if since.deep or not _is_same(part, row):
            changed.append(part)
        else:
            kept.append(row)
    there = {part.number for part in survey.parts}
    findings = [
        Finding(
            rule=Rule.GAP,
            source=text,
            file=segment_name(number),
            offset=0,
            vlsn=row.first,
            detail=f"the segment was there at the earlier audit, {since.file}, and those before it still are",
        )
        for number, row in rows.items()
        if goes_on and number > begins and number not in there and row.blocks
    ]
    if not kept:  # every segment is read, so each is compared with the segment before it
        return Reading(survey, findings=tuple(findings))
    read = replace(survey, parts=(*changed, *parts))
    return Reading(read, tuple(kept), frozenset(part.number for part in changed), tuple(findings))


def _is_closed(parts: Sequence[Part]) -> bool:
    """Returns whether another segment follows the first of ``parts``. If one follows, the first segment does not grow
    any more."""
    return len(parts) > 1


def _is_same(part: Part, row: SegmentRow) -> bool:
    """Returns whether the segment's file looks unchanged. Over HTTP the file's time of change is unknown, and not
    compared."""
    now, then = (part.salt, part.end, part.modified_us), (row.salt, row.bytes, row.modified_us)
    return part.readable and not row.damaged and now == then


def check_past(
    since: Since, readings: Sequence[Reading], audited: Sequence[Read], texts: Sequence[str]
) -> Iterator[Finding]:
    """Compares the segments that were read again with the earlier audit's digests."""
    for reading, read, text in zip(readings, audited, texts, strict=True):
        segments = read.segments
        yield from reading.findings
        rows = since.rows(reading.survey.node)
        salts = {part.number: part.salt for part in reading.survey.parts} | {
            row.number: row.salt for row in reading.kept
        }
        is_same_log = any(number in rows and rows[number].salt == salt for number, salt in salts.items())
        changed = [
            _segment_finding(text, segment, row, reading)
            for segment in segments
            if (row := rows.get(segment.number)) is not None
            and (row.salt == segment.salt or (is_same_log and row.blocks))
            and segment.past.hex() != row.digest
            and not segment.damaged
        ]
        yield from changed
        if read.missing:
            continue  # the check below needs copies that were read completely
        if not changed and not reading.kept and not any(segment.damaged for segment in segments):
            yield from _ranges_changed(since, reading.survey, segments, text)
        yield from _not_joined(reading, segments, text)


def _segment_finding(text: str, segment: SegmentAudit, row: SegmentRow, reading: Reading) -> Finding:
    """Returns a finding for a changed segment of a log that is still the same log. Segment numbers are never reused, so
    a file with another salt has replaced the file that the earlier audit read."""
    rule: Rule | AuditRule = AuditRule.CHANGED_PAST
    detail = f"VLSN {row.first} to {row.last} are not what the earlier audit has read there"
    more: dict[str, Any] = {"segment": segment.number, "digest": segment.past.hex(), "digest_then": row.digest}
    if row.salt != segment.salt:
        part = next(part for part in reading.survey.parts if part.number == segment.number)
        rule = Rule.NAME_REUSED
        detail = f"another segment has the name of the one that had VLSN {row.first} to {row.last} at the earlier audit"
        more |= {"salt": segment.salt, "salt_then": row.salt}
        more |= {"modified_us": part.modified_us, "modified_us_then": row.modified_us}
    return Finding(rule=rule, source=text, file=segment.file, offset=0, vlsn=row.first, detail=detail, more=more)


def _ranges_changed(since: Since, survey: Survey, segments: Sequence[SegmentAudit], text: str) -> Iterator[Finding]:
    """Compares the ranges of a copy that was read completely and begins no later than at the earlier audit."""
    now = summed(share for segment in segments for share in segment.past_ranges)
    for at, then in since.ranges.items():
        begins = max(at << RANGE_BITS, since.report.compared_from)
        found = now.get(at)
        if begins >= survey.first and found != then:
            yield Finding(
                rule=AuditRule.CHANGED_PAST,
                source=text,
                file="",
                offset=0,
                vlsn=max(begins, 1),
                detail=f"the range from VLSN {max(begins, 1)} on is not what the earlier audit has read",
                more={
                    "range": at,
                    "digest": found.digest.hex() if found else "",
                    "digest_then": then.digest.hex(),
                },
            )


def _not_joined(reading: Reading, segments: Sequence[SegmentAudit], text: str) -> Iterator[Finding]:
    """Checks that the segments that are read continue the kept segments."""
    last = max((row.last for row in reading.kept), default=0)
    first = next((each for each in segments if each.number not in reading.alone and each.first is not None), None)
    below = [segment.last.vlsn for segment in segments if segment.number in reading.alone and segment.last is not None]
    last = max([last, *below])
    if reading.kept and first is not None and first.first is not None and first.first.vlsn != last + 1:
        yield Finding(
            rule=Rule.CONTIGUITY,
            source=text,
            file=first.file,
            offset=first.first.offset,
            vlsn=min(first.first.vlsn, last + 1),
            detail=f"VLSN {first.first.vlsn} follows on {last}",
        )


def joined(since: Since, report: SourceReport, reading: Reading, shares: Mapping[int, Share]) -> SourceReport:
    """Returns a copy's report, completed by the earlier report of the same copy. The ``shares`` continue the earlier
    digests. The series covers only the segments that were read."""
    if since.deep:
        return report
    kept, then = reading.kept, since.report.sources[0].open
    assert then is not None
    end = merged([then, *(shares[at] for at in sorted(shares))])
    ranges = since.ranges | {at: share.sum for at, share in end.items()}
    rows = {row.number: row for row in (*kept, *report.segments)}
    segments = [rows[number] for number in sorted(rows)]
    shown = [row for row in segments if row.last]
    return msgspec.structs.replace(
        report,
        first=shown[0].first if shown else 0,
        last=max(report.last, shown[-1].last if shown else 0),
        bytes=sum(row.bytes for row in segments),
        blocks=sum(row.blocks for row in segments),
        entries=sum(row.entries for row in segments),
        segments=segments,
        holes=[hole for hole in report.holes if not any(_overlap(hole, row) for row in kept)],
        ranges=range_rows([ranges[at] for at in sorted(ranges)]),
        open=end[max(end)],
    )


def _overlap(hole: Span, row: SegmentRow) -> bool:
    return row.first <= hole.last and hole.first <= row.last


def told(since: Since, readings: Sequence[Reading]) -> SinceReport:
    """Returns the part of the new report that describes the earlier audit."""
    kept = [row for reading in readings for row in reading.kept]
    return SinceReport(
        file=since.file,
        made_us=since.report.made_us,
        compared_to=since.upto,
        deep=since.deep,
        segments_kept=len(kept),
        bytes_kept=sum(row.bytes for row in kept),
    )
