"""The audit: copies of one log, proven equal, or named the first VLSN where they are not.

    driver                                              Spark tasks
    1  survey of each source           ─────────────►   headers, bounds                    a task a source
    2  common bounds, packing          ─────────────►   every frame, every checksum:       a task per 128 MB
                                       ◄─────────────   findings, digests by range, edges
    3  joints, digests compared
    4  for ranges that differ          ─────────────►   the first VLSN, both values        a task a range
    5  a client's history              ─────────────►   its lines, joined with entries     a task 16 MB, then ranges
       what it says is there once      ─────────────►   by digest, with a whole copy       a task a segment, and again

No entry passes through the driver but the two that a divergence shows.  What is compared: visible blocks, whole,
from the highest first VLSN of the sources to the lowest of their DTVLSNs; what one of them alone has above
is checked, and not compared.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from time import monotonic, time_ns
from typing import Any, Final, Protocol, TypeVar

from repl.audit import once
from repl.audit.check import check_segment
from repl.audit.claims import check_claims
from repl.audit.copies import source_reports
from repl.audit.derived import Indexed, check_noted
from repl.audit.difference import RANGES_SHOWN, RangeTask, first_differences
from repl.audit.digest import RANGE_BITS, Place, differing, merged
from repl.audit.findings import Finding
from repl.audit.history import HistoryPart, parts_of
from repl.audit.history_order import check_spans
from repl.audit.joints import check_joints, pending_rollback
from repl.audit.majority import End, check_ends
from repl.audit.members import GroupAt
from repl.audit.names import NameTask, places_of, ranges_of, reused
from repl.audit.outputs import check_outputs, write_outputs
from repl.audit.plan import PARTITION_BYTES, Bounds, Part, Survey, common_bounds, packed
from repl.audit.profile import samples_max
from repl.audit.proof import Extent, Prover, read_history
from repl.audit.report import AuditReport, HistoryReport, SourceReport
from repl.audit.rules import RANKS, AuditRule
from repl.audit.segment_audit import SegmentAudit
from repl.audit.segment_buffer import segment_buffer
from repl.audit.session import Progress, SparkJobs, spark_context
from repl.audit.since import Reading, Since, check_past, joined, read_since, readings, told
from repl.audit.source import Failure, Source, Unreadable, source_of
from vlsn.errors import BadArgument, WrongVersion
from vlsn.format.records import RollbackStart
from vlsn.ids import Lsn, lsn
from vlsn.levels import named
from vlsn.verify.inspection import Rule

T = TypeVar("T")
R = TypeVar("R")
GROUPS_MAX: Final = 1024
"""Tasks that hold a history against the copies."""
HISTORY_FINDINGS_MAX: Final = 1000
"""Named in a report; all are counted."""
_OF_ROLLBACKS: Final = (Rule.OVERMARK, Rule.CONTIGUITY, Rule.TERM_ORDER, AuditRule.PRODUCER_SEQUENCE)


class Jobs(Protocol):
    """The place where tasks run."""

    @property
    def cores(self) -> int: ...

    @property
    def tasks(self) -> int:
        """Tasks that ran so far."""
        ...

    def run(self, what: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Returns ``work`` of each item in a task of its own, in their order; both travel pickled."""
        ...

    def grouped(
        self,
        what: str,
        read: Callable[[T], Iterator[tuple[int, Any]]],
        items: Sequence[T],
        work: Callable[[tuple[int, list[Any]]], R],
        groups: int,
    ) -> list[R]:
        """Runs ``read`` of each item in a task of its own, then ``work`` of each key and what was read. That takes
        ``groups`` tasks; what is read goes from task to task."""
        ...


def run_audit(
    sources: Sequence[str],
    *,
    spark_master: str = "local[2]",
    out: Sequence[str] = (),
    history: str | None = None,
    since_last: str | None = None,
    deep: bool = False,
    progress: Progress | None = None,
) -> AuditReport:
    """Compares ``sources`` (directories of nodes, or URLs) and writes the report to each file of ``out``.
    ``history``: a file of what a client was acknowledged (``repl.audit.history``), which the copies must hold.
    ``since_last``: the JSON report of an earlier audit; what that one compared is not read again, but with ``deep``.

    Blocks for as long as it takes: some ten seconds of Spark's start, then hundreds of MB a second.  Uses the
    active Spark context if there is one.  Raises ``BadArgument`` for sources or files that make no sense, and
    ``Unreadable`` when a source cannot be read or Spark does not start: nothing was proven then.
    """
    copies = _checked(sources, out)
    recorded = None if history is None else _recorded(history)
    since = _since(since_last, deep=deep, history=history)
    with spark_context(spark_master) as context:
        report = audit(copies, SparkJobs(context, progress), recorded, since)
    write_outputs(report, out)
    return report


def _checked(texts: Sequence[str], out: Sequence[str]) -> list[Source]:
    if len(texts) < 2:
        raise BadArgument("an audit compares at least two sources: name directories of nodes, or their URLs")
    if twice := next((text for index, text in enumerate(texts) if _same(text) in map(_same, texts[:index])), None):
        raise BadArgument(f"{twice} is named twice: a copy is always equal to itself")
    check_outputs(out, texts)
    return [source_of(text) for text in texts]


def _since(path: str | None, *, deep: bool, history: str | None) -> Since | None:
    if path is None:
        if deep:
            raise BadArgument("--deep reads again what an earlier audit compared: name its report with --since-last")
        return None
    if history is not None and not deep:
        raise BadArgument("a history is held against all of the copies: leave --since-last out, or say --deep")
    return read_since(path, deep=deep)


def _recorded(path: str) -> list[HistoryPart]:
    parts = parts_of(path)
    if not parts:
        raise BadArgument(f"{path} is empty: a history has a line for each acknowledged entry")
    return parts


def _same(text: str) -> str:
    return text.rstrip("/") if "://" in text else os.path.realpath(text)


def audit(
    sources: list[Source], jobs: Jobs, history: Sequence[HistoryPart] | None = None, since: Since | None = None
) -> AuditReport:
    """Audits the sources, wherever the jobs run. Raises ``BadArgument`` and ``Unreadable``."""
    texts = [source.text for source in sources]
    begun = monotonic()
    surveys = _succeeded(jobs.run("survey", _surveyed, list(enumerate(sources))))
    if len({survey.group for survey in surveys}) > 1:
        groups = ", ".join(f"{source.text}: {survey.group}" for source, survey in zip(sources, surveys, strict=True))
        raise BadArgument(f"the sources are of different groups ({groups})")
    bounds = common_bounds(surveys)
    reading = [Reading(survey) for survey in surveys]
    if since is not None:
        reading = readings(since, surveys, texts)
        surveys = [each.survey for each in reading]
        bounds = replace(bounds, after=0 if since.deep else since.upto, past=since.upto)
    tasks = packed(surveys, cores=jobs.cores)
    samples = samples_max(sum(len(survey.parts) for survey in surveys))
    audited = _by_source(_succeeded(jobs.run("read", partial(_read, sources, bounds, samples), tasks)), len(sources))
    findings = [finding for survey in surveys for finding in survey.findings]
    for source, each, segments in zip(sources, reading, audited, strict=True):
        found = [finding for segment in segments for finding in segment.findings]
        together = [segment for segment in segments if segment.number not in each.alone]
        found += check_joints(source.text, together)
        findings += check_noted(source.text, each.survey.stated, together)
        findings += _judged(source, each.survey, segments, found, jobs)
    digests = [merged([digest for segment in segments for digest in segment.digests]) for segments in audited]
    copies = source_reports(sources, surveys, audited, digests)
    if since is not None:
        copies = [joined(since, copy, each) for copy, each in zip(copies, reading, strict=True)]
        findings += check_past(since, reading, audited, texts)
    findings += check_ends(list(_ends(copies, surveys, audited, bounds.past)), _groups(surveys, audited))
    findings += _reused(sources, surveys, audited, bounds, jobs)
    proof = None
    if history is not None:
        proof, found = _proven(history, sources, surveys, copies, _places(surveys, audited), jobs)
        findings += found
    ranges = differing(digests) if bounds else []
    findings += _differences(sources, surveys, audited, ranges, bounds, jobs)
    if ranges and not findings:
        findings.append(_unexplained(ranges[0], bounds, sources))
    changed = any(finding.rule == AuditRule.CHANGED_PAST for finding in findings)
    return AuditReport(
        equal=(bool(bounds) or since is not None) and not ranges and not changed,
        compared_from=bounds.first if since is None else max(bounds.first, since.report.compared_from),
        compared_to=max(bounds.last, bounds.past),
        sources=copies,
        findings=sorted(findings, key=_told),
        ranges_differing=len(ranges),
        tasks=jobs.tasks,
        seconds=monotonic() - begun,
        history=proof,
        tool=version("vlsnlog"),
        group=surveys[0].group,
        made_us=time_ns() // 1000,
        since=None if since is None else told(since, reading),
    )


def _surveyed(item: tuple[int, Source]) -> Survey | Failure:
    index, source = item
    return _tried(lambda: source.survey(index))


def _read(sources: list[Source], bounds: Bounds, samples: int, parts: tuple[Part, ...]) -> list[SegmentAudit] | Failure:
    """Reads a task's segments one after the other, one of them in memory at a time."""
    return _tried(lambda: list(_each_read(sources[parts[0].source], parts, bounds, samples)))


def _each_read(source: Source, parts: tuple[Part, ...], bounds: Bounds, samples: int) -> Iterator[SegmentAudit]:
    indexed = source.indexed([part.number for part in parts if part.indexed])
    for part in parts:
        yield _read_one(source, part, bounds, indexed.get(part.number), samples)


def _read_one(source: Source, part: Part, bounds: Bounds, indexed: Indexed | None, samples: int) -> SegmentAudit:
    try:
        buf, sidecar = source.read(part, 0, part.end, segment_buffer(part.end)), source.sidecar(part)
        return check_segment(buf, part, source.text, bounds, sidecar, indexed, samples)
    except WrongVersion as error:
        raise named(error, source.text) from None


def _tried(work: Callable[[], R]) -> R | Failure:
    try:
        return work()
    except (Unreadable, WrongVersion) as error:
        return Failure(str(error))


def _succeeded(results: list[R | Failure]) -> list[R]:
    for result in results:
        if isinstance(result, Failure):
            raise Unreadable(result.reason)
    return [result for result in results if not isinstance(result, Failure)]


def _by_source(results: list[list[SegmentAudit]], count: int) -> list[list[SegmentAudit]]:
    audited: list[list[SegmentAudit]] = [[] for _ in range(count)]
    for segments in results:
        for segment in segments:
            audited[segment.source].append(segment)
    return [sorted(segments, key=lambda segment: segment.number) for segments in audited]


def _judged(
    source: Source, survey: Survey, segments: list[SegmentAudit], findings: list[Finding], jobs: Jobs
) -> list[Finding]:
    """Drops findings that a rollback explains whose flags are not all set: one that a crash cut short, or that a
    running node began after the survey. It sets flags above the DTVLSN, and its record lies behind them."""
    at, matchpoint = pending_rollback(segments)
    if at:
        findings = [finding for finding in findings if finding.rule not in _OF_ROLLBACKS or finding.vlsn <= matchpoint]
    if not survey.live or not segments or not any(finding.rule in _OF_ROLLBACKS for finding in findings):
        return findings
    known = {lsn(segment.number, at) for segment in segments for at, _ in segment.rollbacks}
    (began,) = _succeeded(jobs.run("rollbacks", _rollbacks, [(source, segments[-1].number)]))
    lowest = min((record.matchpoint for at, record in began if at not in known), default=None)
    if lowest is None:
        return findings
    return [finding for finding in findings if finding.rule not in _OF_ROLLBACKS or finding.vlsn <= lowest]


def _rollbacks(item: tuple[Source, int]) -> list[tuple[Lsn, RollbackStart]] | Failure:
    source, number = item
    return _tried(lambda: source.rollbacks(number))


def _differences(
    sources: list[Source],
    surveys: list[Survey],
    audited: list[list[SegmentAudit]],
    ranges: list[int],
    bounds: Bounds,
    jobs: Jobs,
) -> list[Finding]:
    places = _places(surveys, audited) if ranges else {}
    tasks = [RangeTask(at, bounds, tuple(places[at])) for at in ranges[:RANGES_SHOWN] if at in places]
    found = _succeeded(jobs.run("differences", partial(_compared, sources), tasks))
    return [finding for findings in found for finding in findings]


def _reused(
    sources: list[Source], surveys: list[Survey], audited: list[list[SegmentAudit]], bounds: Bounds, jobs: Jobs
) -> list[Finding]:
    """Names blocks that have another's name, where digests and what was rolled back say that there may be some."""
    others = [[digest for segment in segments for digest in segment.others] for segments in audited]
    hidden = [[place for segment in segments for place in segment.hidden] for segments in audited]
    ranges = ranges_of(others, hidden)
    tasks = [NameTask(at, bounds, places_of(at, surveys, audited)) for at in ranges]
    found = _succeeded(jobs.run("names", partial(_looked_for_names, sources), tasks))
    return [finding for findings in found for finding in findings]


def _looked_for_names(sources: list[Source], task: NameTask) -> list[Finding] | Failure:
    return _tried(lambda: reused(task, sources))


def _ends(
    copies: list[SourceReport], surveys: list[Survey], audited: list[list[SegmentAudit]], compared: int
) -> Iterator[End]:
    for copy, survey, segments in zip(copies, surveys, audited, strict=True):
        said, _ = check_claims(copy.source, segments)
        yield End(
            source=copy.source,
            node=copy.node,
            file=segments[-1].file if segments else "",
            last=copy.last,
            said=max(said, survey.stated.dtvlsn, compared),
            live=copy.live,
            damaged=bool(segments) and segments[-1].damaged,
            owes=survey.stated.floor > copy.last,
        )


def _groups(surveys: list[Survey], audited: list[list[SegmentAudit]]) -> list[GroupAt]:
    noted = [survey.stated.group for survey in surveys if survey.stated.group is not None]
    return noted + [group for segments in audited for segment in segments for group in segment.groups]


def _told(finding: Finding) -> tuple[int, int, str, str, int]:
    """The order of findings: by VLSN, and of one VLSN what explains the others first."""
    return finding.vlsn, RANKS[finding.rule], finding.source, finding.file, finding.offset


def _places(surveys: list[Survey], audited: list[list[SegmentAudit]]) -> dict[int, list[tuple[Part, Place]]]:
    """Finds where each range of VLSNs lies in every source."""
    places: dict[int, list[tuple[Part, Place]]] = defaultdict(list)
    for survey, segments in zip(surveys, audited, strict=True):
        parts = {part.number: part for part in survey.parts}
        for segment in segments:
            for place in segment.places:
                places[place.range].append((parts[segment.number], place))
    return dict(places)


def _proven(
    history: Sequence[HistoryPart],
    sources: list[Source],
    surveys: list[Survey],
    copies: list[SourceReport],
    places: Mapping[int, Sequence[tuple[Part, Place]]],
    jobs: Jobs,
) -> tuple[HistoryReport, list[Finding]]:
    extents = [Extent(copy.first, min(copy.dtvlsn, copy.last), copy.last) for copy in copies]
    prover = Prover(sources, extents, places, history[0].path)
    groups = min(GROUPS_MAX, max(1, len(places)))
    proofs = _succeeded(jobs.grouped("history", read_history, history, prover, groups))
    if any(proof.once for proof in proofs):
        most = max(range(len(copies)), key=lambda index: copies[index].entries)
        items = once.items(history, sources[most], surveys[most].parts, extents[most])
        groups = min(once.BUCKETS, max(1, surveys[most].bytes // PARTITION_BYTES))
        prover_once = once.OnceProver(sources[most].text)
        proofs += _succeeded(jobs.grouped("once", once.read_digests, items, prover_once, groups))
    apart = list(check_spans([proof.span for proof in proofs if proof.span is not None], history[0].path))
    report = HistoryReport(
        file=history[0].path,
        appends=sum(proof.appends for proof in proofs),
        everywhere=sum(proof.everywhere for proof in proofs),
        cleaned=sum(proof.cleaned for proof in proofs),
        once=sum(proof.once for proof in proofs),
        reads=sum(proof.reads for proof in proofs),
        findings=sum(proof.broken for proof in proofs) + len(apart),
    )
    if not report.appends and not report.once and not report.reads:
        raise BadArgument(f"{report.file} has no line: a history has one for each acknowledged entry")
    return report, [*apart, *(finding for proof in proofs for finding in proof.findings)][:HISTORY_FINDINGS_MAX]


def _unexplained(at: int, bounds: Bounds, sources: list[Source]) -> Finding:
    """Digests that differ say so even where no single block does: copies that begin or end inside a block."""
    detail = f"the copies do not hold the same blocks from VLSN {bounds.first} to {bounds.last}"
    vlsn = max(at << RANGE_BITS, bounds.first)
    return Finding(rule=AuditRule.DIVERGENCE, source=sources[0].text, file="", offset=0, vlsn=vlsn, detail=detail)


def _compared(sources: list[Source], task: RangeTask) -> list[Finding] | Failure:
    return _tried(lambda: first_differences(task, sources))
