"""Makes the report on each copy from the results of the copy's segments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from repl.audit.digest import Share
from repl.audit.plan import Survey
from repl.audit.profile import block_histogram, entry_histogram, series_of
from repl.audit.report import OvermarkRow, SegmentRow, Series, SourceReport, Span, range_rows
from repl.audit.segment_audit import SegmentAudit
from repl.audit.source import Source
from repl.audit.unread import Read


def source_reports(
    sources: Sequence[Source],
    surveys: Sequence[Survey],
    audited: Sequence[Read],
    shares: Sequence[Mapping[int, Share]],
) -> list[SourceReport]:
    """Returns a report for each source; ``shares`` are the digests of the compared blocks, by range."""
    series = series_of([[segment.profile for segment in each.segments] for each in audited])
    return [_report(*each) for each in zip(sources, surveys, audited, shares, series, strict=True)]


def _report(
    source: Source,
    survey: Survey,
    read: Read,
    shares: Mapping[int, Share],
    series: Series,
) -> SourceReport:
    segments = read.segments
    profiles = [segment.profile for segment in segments]
    modified = {part.number: part.modified_us for part in survey.parts}
    firsts = [segment.first.vlsn for segment in segments if segment.first]
    lasts = [segment.last.vlsn for segment in segments if segment.last]
    if read.missing:  # a segment that was not read may contain the copy's first or last block
        firsts, lasts = [survey.first] * bool(survey.first), [max([survey.last, *lasts])]
    return SourceReport(
        source=source.text,
        path=source.path,
        node=survey.node,
        incarnation=survey.incarnation,
        first=firsts[0] if firsts else 0,
        last=lasts[-1] if lasts else 0,
        dtvlsn=max([survey.dtvlsn, *(segment.dtvlsn for segment in segments)]),
        bytes=sum(segment.end for segment in segments),
        blocks=sum(segment.blocks for segment in segments),
        entries=sum(segment.entries for segment in segments),
        live=survey.live,
        torn_tail=any(segment.torn for segment in segments),
        ranges=range_rows([shares[at].sum for at in sorted(shares)]),
        open=shares[max(shares)] if shares else None,
        segments=[_row(segment, modified.get(segment.number, 0)) for segment in segments],
        overmarks=[row for segment in segments for row in _overmarks(segment)],
        holes=list(_holes(read)),
        unread=read.spans,
        series=series,
        sizes=survey.sizes,
        entry_sizes=entry_histogram(profiles),
        block_sizes=block_histogram(profiles),
    )


def _row(segment: SegmentAudit, modified_us: int) -> SegmentRow:
    first, last, profile = segment.first, segment.last, segment.profile
    return SegmentRow(
        number=segment.number,
        file=segment.file,
        bytes=segment.end,
        first=first.vlsn if first else 0,
        last=last.vlsn if last else 0,
        first_term=first.term if first else 0,
        last_term=last.term if last else 0,
        begun_us=profile.begun_us,
        ended_us=profile.ended_us,
        blocks=segment.blocks,
        entries=segment.entries,
        damaged=segment.damaged,
        overmarked=profile.overmarked,
        sidecar_bytes=profile.sidecar_bytes,
        salt=segment.salt,
        modified_us=modified_us,
        digest=segment.compared.hex(),
    )


def _overmarks(segment: SegmentAudit) -> Iterator[OvermarkRow]:
    for offset, last_offset, first, last in segment.profile.overmarks:
        yield OvermarkRow(file=segment.file, offset=offset, last_offset=last_offset, first=first, last=last)


def _holes(read: Read) -> Iterator[Span]:
    """Yields the VLSNs that are missing in a copy: inside a segment, or between two segments with visible blocks."""
    segments = read.segments
    for segment in segments:
        for first, last in segment.profile.holes:
            yield Span(first=first, last=last)
    seen = [(segment.first.vlsn, segment.last.vlsn) for segment in segments if segment.first and segment.last]
    for (_, before), (after, _) in pairwise(seen):
        if after > before + 1 and not any(span.first < after and before < span.last for span in read.spans):
            yield Span(first=before + 1, last=after - 1)
