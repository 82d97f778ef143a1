"""The audit: copies of one log, proven equal, or named the first VLSN where they are not.

    driver                                              Spark tasks
    1  survey of each source           ─────────────►   headers, bounds                    a task a source
    2  common bounds, packing          ─────────────►   every frame, every checksum:       a task per 512 MB
                                       ◄─────────────   findings, shares of digests, edges
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

from repl.audit import once, tasks
from repl.audit.causes import causes
from repl.audit.copies import source_reports
from repl.audit.derived import check_noted
from repl.audit.difference import RANGES_SHOWN, RangeTask
from repl.audit.digest import RANGE_BITS, Checksums, Place, differing, merged
from repl.audit.findings import Finding
from repl.audit.history import HistoryPart, parts_of
from repl.audit.history_order import check_spans
from repl.audit.joints import check_joints, pending_rollback
from repl.audit.majority import End, check_ends
from repl.audit.members import GroupAt
from repl.audit.mends import Mender
from repl.audit.names import places_of, ranges_of
from repl.audit.outputs import check_outputs, write_outputs
from repl.audit.plan import Bounds, Part, Survey, common_bounds, packed
from repl.audit.profile import samples_max
from repl.audit.proof import Extent, Prover, read_history
from repl.audit.report import AuditReport, HistoryReport, NotAudited, SourceReport
from repl.audit.rules import RANKS, AuditRule
from repl.audit.segment_audit import SegmentAudit
from repl.audit.session import Progress, SparkJobs, spark_context
from repl.audit.since import Reading, Since, check_past, joined, read_since, readings, told
from repl.audit.source import Failure, Source, source_of
from repl.audit.tasks import parted, succeeded
from repl.audit.unread import Missed, Read, blanked, read_of
from vlsn.errors import BadArgument
from vlsn.ids import lsn
from vlsn.verify.inspection import Rule
from vlsn.verify.joined import claimed

T = TypeVar("T")
R = TypeVar("R")
GROUPS_MAX: Final = 1024
"""Tasks that hold a history against the copies."""
HISTORY_FINDINGS_MAX: Final = 1000
"""Named in a report; all are counted."""
_OF_ORDER: Final = (Rule.GAP, Rule.OVERMARK, Rule.CONTIGUITY, Rule.TERM_ORDER)
"""Faults of such a kind make terms that are not those of ``state``."""
_OF_ROLLBACKS: Final = (Rule.OVERMARK, Rule.CONTIGUITY, Rule.TERM_ORDER, Rule.PRODUCER_SEQUENCE)


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
    checksums: str = Checksums.SHA256,
    progress: Progress | None = None,
) -> AuditReport:
    """Compares ``sources`` (directories of nodes, or URLs) and writes the report to each file of ``out``.
    ``history``: a file of what a client was acknowledged (``repl.audit.history``), which the copies must hold.
    ``since_last``: the JSON report of an earlier audit; what that one compared is not read again, but with ``deep``.
    ``checksums``: what blocks are compared by, ``sha256``, or ``crc``: faster, and no proof against a forger.

    Blocks for as long as it takes: some ten seconds of Spark's start, then hundreds of MB a second.  Uses the
    active Spark context if there is one.  Raises ``BadArgument`` for sources or files that make no sense, and
    ``Unreadable`` when a source cannot be read or Spark does not start: nothing was proven then.
    """
    copies = _checked(sources, out)
    recorded = None if history is None else _recorded(history)
    kind = _kind(checksums)
    since = _since(since_last, deep=deep, history=history, checksums=kind)
    with spark_context(spark_master) as context:
        written = next((path for path in out if path.lower().endswith(".json")), "")
        report = audit(copies, SparkJobs(context, progress), recorded, since, kind, written)
    write_outputs(report, out)
    return report


def _checked(texts: Sequence[str], out: Sequence[str]) -> list[Source]:
    if len(texts) < 2:
        raise BadArgument("an audit compares at least two sources: name directories of nodes, or their URLs")
    if twice := next((text for index, text in enumerate(texts) if _same(text) in map(_same, texts[:index])), None):
        raise BadArgument(f"{twice} is named twice: a copy is always equal to itself")
    check_outputs(out, texts)
    return [source_of(text) for text in texts]


def _kind(checksums: str) -> Checksums:
    try:
        return Checksums(checksums)
    except ValueError:
        raise BadArgument(f"checksums: {checksums!r} is none of {', '.join(Checksums)}") from None


def _since(path: str | None, *, deep: bool, history: str | None, checksums: Checksums) -> Since | None:
    if path is None:
        if deep:
            raise BadArgument("--deep reads again what an earlier audit compared: name its report with --since-last")
        return None
    if history is not None and not deep:
        raise BadArgument("a history is held against all of the copies: leave --since-last out, or say --deep")
    return read_since(path, deep=deep, checksums=checksums)


def _recorded(path: str) -> list[HistoryPart]:
    parts = parts_of(path)
    if not parts:
        raise BadArgument(f"{path} is empty: a history has a line for each acknowledged entry")
    return parts


def _same(text: str) -> str:
    return text.rstrip("/") if "://" in text else os.path.realpath(text)


def audit(
    sources: list[Source],
    jobs: Jobs,
    history: Sequence[HistoryPart] | None = None,
    since: Since | None = None,
    checksums: Checksums = Checksums.SHA256,
    report: str = "",
) -> AuditReport:
    """Audits the sources, wherever the jobs run; ``report`` is the JSON file that the caller writes it to, if any.
    Raises ``BadArgument`` and ``Unreadable``."""
    texts = [source.text for source in sources]
    begun = monotonic()
    surveys = succeeded(jobs.run("survey", tasks.survey, list(enumerate(sources))))
    if len({survey.group for survey in surveys}) > 1:
        groups = ", ".join(f"{source.text}: {survey.group}" for source, survey in zip(sources, surveys, strict=True))
        raise BadArgument(f"the sources are of different groups ({groups})")
    bounds = common_bounds(surveys)
    reading = [Reading(survey) for survey in surveys]
    if since is not None:
        reading = readings(since, surveys, texts)
        surveys = [each.survey for each in reading]
        bounds = replace(bounds, after=0 if since.deep else since.upto, past=since.upto)
    parts = packed(surveys, cores=jobs.cores)
    samples = samples_max(sum(len(survey.parts) for survey in surveys))
    results = succeeded(jobs.run("read", partial(tasks.read, sources, bounds, samples, checksums), parts))
    audited = _by_source(results, reading, texts)
    missing = [each for read in audited for each in read.missing]
    findings = [finding for survey in surveys for finding in survey.findings]
    for source, survey, read in zip(sources, surveys, audited, strict=True):
        found = [finding for segment in read.segments for finding in segment.findings]
        found += check_joints(source.text, read.runs)
        stated = replace(survey.stated, terms=()) if read.missing else survey.stated
        ordered = not any(finding.rule in _OF_ORDER for finding in (*survey.findings, *found))
        findings += check_noted(source.text, stated, [segment for run in read.runs for segment in run], ordered=ordered)
        judged, left = _judged(source, read, survey, found, jobs)
        findings, missing = findings + judged, missing + left
    shares = [merged(share for segment in read.segments for share in segment.digests) for read in audited]
    digests = [{at: share.sum for at, share in each.items()} for each in shares]
    copies = source_reports(sources, surveys, audited, shares)
    if since is not None:
        copies = [joined(since, *each) for each in zip(copies, reading, shares, strict=True)]
        findings += check_past(since, reading, audited, texts)
    copies = [blanked(copy) for copy in copies]
    members = _groups(surveys, audited)
    findings += check_ends(list(_ends(copies, surveys, audited, bounds.past)), members)
    found, left = _reused(sources, surveys, audited, bounds, checksums, jobs)
    findings, missing = findings + found, missing + left
    proof = None
    if history is not None:
        if any(read.missing for read in audited):
            missing.append(NotAudited(what="history", file=history[0].path, why="not all of the copies could be read"))
        else:
            proof, found, left = _proven(history, sources, surveys, copies, _places(surveys, audited), jobs)
            findings, missing = findings + found, missing + left
    ranges = differing(digests, [read.knows for read in audited]) if bounds else []
    found, left = _differences(sources, surveys, audited, ranges, bounds, checksums, jobs)
    findings, missing = findings + found, missing + left
    if ranges and not findings:
        findings.append(_unexplained(ranges[0], bounds, sources))
    changed = any(finding.rule == AuditRule.CHANGED_PAST for finding in findings)
    compared = (
        bounds.first if since is None else max(bounds.first, since.report.compared_from),
        max(bounds.last, bounds.past),
    )
    mender = Mender(
        {copy.source: copy for copy in copies},
        frozenset(text for text, survey in zip(texts, surveys, strict=True) if survey.configured),
        max(members, key=lambda each: each.vlsn, default=GroupAt(0, ())),
        surveys[0].group,
        compared,
        report,
    )
    segments = {text: read.segments for text, read in zip(texts, audited, strict=True)}
    return AuditReport(
        equal=(bool(bounds) or since is not None) and not (ranges or changed or missing),
        compared_from=compared[0],
        compared_to=compared[1],
        sources=copies,
        findings=sorted(mender.mended(causes(findings, segments)), key=_told),
        ranges_differing=len(ranges),
        tasks=jobs.tasks,
        seconds=monotonic() - begun,
        history=proof,
        checksums=checksums,
        tool=version("vlsnlog"),
        group=surveys[0].group,
        made_us=time_ns() // 1000,
        since=None if since is None else told(since, reading),
        not_audited=missing,
    )


def _by_source(results: list[list[SegmentAudit | Missed]], reading: list[Reading], texts: list[str]) -> list[Read]:
    """Sorts what was read of each source, and what was not."""
    segments: list[list[SegmentAudit]] = [[] for _ in reading]
    missed: list[list[Missed]] = [[] for _ in reading]
    for each in (each for result in results for each in result):
        if isinstance(each, Missed):
            missed[each.source].append(each)
        else:
            segments[each.source].append(each)
    return [
        read_of(
            text,
            each.survey,
            sorted(segments[index], key=lambda segment: segment.number),
            missed[index],
            max((row.last + 1 for row in each.kept), default=each.survey.first),
            each.alone,
        )
        for index, (each, text) in enumerate(zip(reading, texts, strict=True))
    ]


def _judged(
    source: Source, read: Read, survey: Survey, findings: list[Finding], jobs: Jobs
) -> tuple[list[Finding], list[NotAudited]]:
    """Drops findings that a rollback explains whose flags are not all set: one that a crash cut short, or that a
    running node began after the survey. It sets flags above the DTVLSN, and its record lies behind them."""
    segments = read.segments
    at, matchpoint = pending_rollback(segments)
    if at:
        findings = [finding for finding in findings if finding.rule not in _OF_ROLLBACKS or finding.vlsn <= matchpoint]
    if not survey.live or not segments or not any(finding.rule in _OF_ROLLBACKS for finding in findings):
        return findings, []
    known = {lsn(segment.number, at) for segment in segments for at, _ in segment.rollbacks}
    answers, failures = parted(jobs.run("rollbacks", tasks.rollbacks, [(source, segments[-1].number)]))
    began = [each for answer in answers for each in answer]
    lowest = min((record.matchpoint for at, record in began if at not in known), default=None)
    if failures:  # any of them may be explained
        lowest = 0
    if lowest is None:
        return findings, []
    left = [finding for finding in findings if finding.rule not in _OF_ROLLBACKS or finding.vlsn <= lowest]
    return left, [NotAudited(what="rollbacks", source=source.text, why=why) for why in failures]


def _differences(
    sources: list[Source],
    surveys: list[Survey],
    audited: list[Read],
    ranges: list[int],
    bounds: Bounds,
    checksums: Checksums,
    jobs: Jobs,
) -> tuple[list[Finding], list[NotAudited]]:
    places = _places(surveys, audited) if ranges else {}
    looked = [RangeTask(at, bounds, checksums, tuple(places[at])) for at in ranges[:RANGES_SHOWN] if at in places]
    results = jobs.run("differences", partial(tasks.compare, sources), looked)
    return _found(results, "differences", [each.range for each in looked])


def _reused(
    sources: list[Source],
    surveys: list[Survey],
    audited: list[Read],
    bounds: Bounds,
    checksums: Checksums,
    jobs: Jobs,
) -> tuple[list[Finding], list[NotAudited]]:
    """Names blocks that have another's name, where digests and what was rolled back say that there may be some."""
    segments = [each.segments for each in audited]
    others = [[digest for segment in each for digest in segment.others] for each in segments]
    hidden = [[place for segment in each for place in segment.hidden] for each in segments]
    ranges = ranges_of(others, hidden)
    looked = [RangeTask(at, bounds, checksums, places_of(at, surveys, segments)) for at in ranges]
    return _found(jobs.run("names", partial(tasks.look_for_names, sources), looked), "names", ranges)


def _found(
    results: list[list[Finding] | Failure], what: str, ranges: list[int]
) -> tuple[list[Finding], list[NotAudited]]:
    """Returns the findings of tasks of a range each, and what could not be looked into."""
    parted(results)  # a failure that is fatal ends it
    findings: list[Finding] = []
    missing: list[NotAudited] = []
    for result, at in zip(results, ranges, strict=True):
        if isinstance(result, Failure):
            first, last = max(at << RANGE_BITS, 1), ((at + 1) << RANGE_BITS) - 1
            missing.append(NotAudited(what=what, why=result.reason, first=first, last=last))
        else:
            findings += result
    return findings, missing


def _ends(copies: list[SourceReport], surveys: list[Survey], audited: list[Read], compared: int) -> Iterator[End]:
    for copy, survey, read in zip(copies, surveys, audited, strict=True):
        segments = read.segments
        said, _ = claimed(segments)
        yield End(
            source=copy.source,
            node=copy.node,
            file=segments[-1].file if segments else "",
            last=copy.last,
            said=max(said, survey.stated.dtvlsn, compared),
            live=copy.live,
            damaged=bool(read.missing) or (bool(segments) and segments[-1].damaged) or _is_cut(survey, copy.last),
            owes=survey.stated.floor > copy.last,
        )


def _is_cut(survey: Survey, last: int) -> bool:
    """Says whether a segment is missing behind the last VLSN."""
    return any(finding.rule == Rule.GAP and finding.vlsn > last for finding in survey.findings)


def _groups(surveys: list[Survey], audited: list[Read]) -> list[GroupAt]:
    noted = [survey.stated.group for survey in surveys if survey.stated.group is not None]
    return noted + [group for read in audited for segment in read.segments for group in segment.groups]


def _told(finding: Finding) -> tuple[bool, int, int, str, str, int]:
    """The order of findings: by VLSN, and of one VLSN what explains the others first; those without a VLSN last."""
    return not finding.vlsn, finding.vlsn, RANKS[finding.rule], finding.source, finding.file, finding.offset


def _places(surveys: list[Survey], audited: list[Read]) -> dict[int, list[tuple[Part, Place]]]:
    """Finds where each range of VLSNs lies in every source that was read there."""
    places: dict[int, list[tuple[Part, Place]]] = defaultdict(list)
    for survey, read in zip(surveys, audited, strict=True):
        parts = {part.number: part for part in survey.parts}
        for segment in read.segments:
            for place in (place for place in segment.places if read.knows(place.range)):
                places[place.range].append((parts[segment.number], place))
    return dict(places)


def _proven(
    history: Sequence[HistoryPart],
    sources: list[Source],
    surveys: list[Survey],
    copies: list[SourceReport],
    places: Mapping[int, Sequence[tuple[Part, Place]]],
    jobs: Jobs,
) -> tuple[HistoryReport, list[Finding], list[NotAudited]]:
    extents = [Extent(copy.first, min(copy.dtvlsn, copy.last), copy.last) for copy in copies]
    prover = Prover(sources, extents, places, history[0].path)
    groups = min(GROUPS_MAX, max(1, len(places)))
    proofs, failures = parted(jobs.grouped("history", read_history, history, prover, groups))
    if any(proof.once for proof in proofs):
        most = max(range(len(copies)), key=lambda index: copies[index].entries)
        items = once.items(history, sources[most], surveys[most].parts, extents[most])
        groups = min(once.BUCKETS, max(1, surveys[most].bytes // once.BUCKET_BYTES))
        prover_once = once.OnceProver(sources[most].text)
        found, without = parted(jobs.grouped("once", once.read_digests, items, prover_once, groups))
        proofs, failures = proofs + found, failures + without
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
    if not failures and not report.appends and not report.once and not report.reads:
        raise BadArgument(f"{report.file} has no line: a history has one for each acknowledged entry")
    missing = [NotAudited(what="history", file=report.file, why=why) for why in failures]
    findings = [*apart, *(finding for proof in proofs for finding in proof.findings)]
    return report, findings[:HISTORY_FINDINGS_MAX], missing


def _unexplained(at: int, bounds: Bounds, sources: list[Source]) -> Finding:
    """Digests that differ say so even where no single block does: copies that begin or end inside a block."""
    detail = f"the copies do not hold the same blocks from VLSN {bounds.first} to {bounds.last}"
    vlsn = max(at << RANGE_BITS, bounds.first)
    return Finding(rule=AuditRule.DIVERGENCE, source=sources[0].text, file="", offset=0, vlsn=vlsn, detail=detail)
