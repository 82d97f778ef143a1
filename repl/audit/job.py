"""The audit: proves copies of one log equal, or names the first VLSN at which they differ.

    driver                                              Spark tasks
    1  survey of each source           ─────────────►   headers, bounds                    a task a source
    2  common bounds, packing          ─────────────►   every frame, every checksum:       a task per 512 MB
                                       ◄─────────────   findings, shares of digests, edges
    3  joints, digests compared
    4  for ranges that differ          ─────────────►   the first VLSN, both values        a task a range
    5  a client's history              ─────────────►   its lines, joined with entries     a task 16 MB, then ranges
       its lines that say ``once``     ─────────────►   by digest, with a whole copy       a task a segment, and again

No entry passes through the driver, except the two that a finding of a divergence shows. The audit compares complete
visible blocks (those not rolled back), from the highest first VLSN of the sources to the lowest of their durable ends
(DTVLSNs). Blocks above the lowest durable end are checked but not compared.
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
from repl.audit.derived import check_notes
from repl.audit.difference import RANGES_SHOWN, RangeTask
from repl.audit.digest import RANGE_BITS, Checksums, Place, RangeDigest, differing, merged
from repl.audit.findings import Finding
from repl.audit.history import HistoryPart, parts_of
from repl.audit.history_order import check_spans
from repl.audit.joints import check_joints, pending_rollback
from repl.audit.majority import End, check_ends
from repl.audit.members import GroupAt
from repl.audit.mends import Mender
from repl.audit.names import places_of, ranges_of
from repl.audit.outputs import check_outputs, write_outputs
from repl.audit.plan import Part, Survey, common_bounds, packed
from repl.audit.profile import samples_max
from repl.audit.proof import Extent, Prover, read_history
from repl.audit.report import AuditReport, HistoryReport, NotAudited, SourceReport
from repl.audit.rules import RANKS, AuditRule
from repl.audit.segment_audit import SegmentAudit
from repl.audit.session import Progress, SparkJobs, spark_context
from repl.audit.since import Reading, Since, check_past, joined, read_since, readings, told
from repl.audit.source import Failure, Source
from repl.audit.sources import source_of
from repl.audit.tasks import parted, succeeded
from repl.audit.unread import Missed, Read, blanked, read_of
from vlsn.errors import BadArgument
from vlsn.ids import lsn
from vlsn.verify.inspection import Rule
from vlsn.verify.joined import claimed

T = TypeVar("T")
R = TypeVar("R")
GROUPS_MAX: Final = 1024
"""The most tasks that compare a history with the copies."""
HISTORY_FINDINGS_MAX: Final = 1000
"""The most findings about the history that a report lists; all findings are counted."""
_COUNTED: Final = ("appends", "everywhere", "cleaned", "once", "reads")
_OF_ORDER: Final = (Rule.GAP, Rule.OVERMARK, Rule.CONTIGUITY, Rule.TERM_ORDER)
"""Rules about the order of the log. If one of these rules fails, the log's terms must differ from those in ``state``,
so that difference is not reported as well."""
_OF_ROLLBACKS: Final = (Rule.OVERMARK, Rule.CONTIGUITY, Rule.TERM_ORDER, Rule.PRODUCER_SEQUENCE)


class Jobs(Protocol):
    """Runs tasks, on Spark or in tests."""

    @property
    def cores(self) -> int: ...

    @property
    def tasks(self) -> int:
        """Returns the number of tasks that ran so far."""
        ...

    def run(self, what: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Calls ``work`` on each item, in a separate task for each item. Returns the results in the order of the items.
        ``work`` and the items are sent pickled."""
        ...

    def grouped(
        self,
        what: str,
        read: Callable[[T], Iterator[tuple[int, Any]]],
        items: Sequence[T],
        work: Callable[[tuple[int, list[Any]]], R],
        groups: int,
    ) -> list[R]:
        """Calls ``read`` on each item, in a separate task for each item. Then calls ``work`` on each key and the values
        that were read under this key. The second step takes ``groups`` tasks; values are sent from task to task."""
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
    """Compares ``sources`` (directories of nodes, or URLs) and writes the report to each file of ``out``. ``history``
    is a file of a client's acknowledged entries (``repl.audit.history``), which the copies must contain. ``since_last``
    is the JSON report of an earlier audit; blocks that the earlier audit compared are read again only with ``deep``.
    ``checksums`` names the checksum that compares blocks: ``sha256``, or ``crc``, which is faster but no proof against
    a forger.

    Returns when the audit is done: Spark takes about ten seconds to start, then the audit reads hundreds of MB a
    second. Uses the active Spark context if there is one. Raises ``BadArgument`` for unusable sources or files. Raises
    ``Unreadable`` if a source cannot be read or Spark does not start; then nothing is proven.
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
    """Audits the sources, with tasks run by ``jobs``. ``report`` is the JSON file to which the caller writes the
    report, if any. Raises ``BadArgument`` and ``Unreadable``."""
    begun = monotonic()
    run = _Audit(sources, jobs, since, checksums)
    run.judge_each()
    run.make_copies()
    members = run.members()
    run.findings += check_ends(list(run.ends()), members)
    run.look_for_names()
    proof = run.prove(history) if history is not None else None
    ranges = run.compare()
    since_first = run.bounds.first if since is None else max(run.bounds.first, since.report.compared_from)
    compared = since_first, max(run.bounds.last, run.bounds.past)
    mender = Mender(
        {copy.source: copy for copy in run.copies},
        frozenset(text for text, survey in zip(run.texts, run.surveys, strict=True) if survey.configured),
        max(members, key=lambda each: each.vlsn, default=GroupAt(0, ())),
        run.surveys[0].group,
        compared,
        report,
    )
    changed = any(finding.rule == AuditRule.CHANGED_PAST for finding in run.findings)
    segments = {text: read.segments for text, read in zip(run.texts, run.audited, strict=True)}
    return AuditReport(
        equal=(bool(run.bounds) or since is not None) and not (ranges or changed or run.missing),
        compared_from=compared[0],
        compared_to=compared[1],
        sources=run.copies,
        findings=sorted(mender.mended(causes(run.findings, segments)), key=_told),
        ranges_differing=len(ranges),
        tasks=jobs.tasks,
        seconds=monotonic() - begun,
        history=proof,
        checksums=checksums,
        tool=version("vlsnlog"),
        group=run.surveys[0].group,
        made_us=time_ns() // 1000,
        since=None if since is None else told(since, run.reading),
        not_audited=run.missing,
    )


class _Audit:
    """One audit, with its findings and the parts of each copy that were read, in the order of ``sources``."""

    def __init__(self, sources: list[Source], jobs: Jobs, since: Since | None, checksums: Checksums) -> None:
        """Surveys the sources and reads them."""
        self.sources, self.texts = sources, [source.text for source in sources]
        self._jobs, self._since, self._checksums = jobs, since, checksums
        surveys = succeeded(jobs.run("survey", tasks.survey, list(enumerate(sources))))
        if len({survey.group for survey in surveys}) > 1:
            groups = ", ".join(f"{text}: {survey.group}" for text, survey in zip(self.texts, surveys, strict=True))
            raise BadArgument(f"the sources are of different groups ({groups})")
        self.bounds = common_bounds(surveys)
        self.reading = [Reading(survey) for survey in surveys]
        if since is not None:
            self.reading = readings(since, surveys, self.texts)
            self.bounds = replace(self.bounds, after=0 if since.deep else since.upto, past=since.upto)
        self.surveys = [each.survey for each in self.reading]
        parts = packed(self.surveys, cores=jobs.cores)
        samples = samples_max(sum(len(survey.parts) for survey in self.surveys))
        work = partial(tasks.read, sources, self.bounds, samples, checksums)
        self.audited = _by_source(succeeded(jobs.run("read", work, parts)), self.reading, self.texts)
        self.missing = [each for read in self.audited for each in read.missing]
        self.findings = [finding for survey in self.surveys for finding in survey.findings]
        self.copies: list[SourceReport] = []
        self._digests: list[dict[int, RangeDigest]] = []

    def judge_each(self) -> None:
        """Checks the joints between the segments, for each copy alone."""
        for source, survey, read in zip(self.sources, self.surveys, self.audited, strict=True):
            found = [finding for segment in read.segments for finding in segment.findings]
            found += check_joints(source.text, read.runs)
            stated = replace(survey.stated, terms=()) if read.missing else survey.stated
            ordered = not any(finding.rule in _OF_ORDER for finding in (*survey.findings, *found))
            segments = [segment for run in read.runs for segment in run]
            self.findings += check_notes(source.text, stated, segments, ordered=ordered)
            self._take(_judged(source, read, survey, found, self._jobs))

    def make_copies(self) -> None:
        """Makes the report of each copy, and compares each copy with the results of an earlier audit."""
        since = self._since
        shares = [merged(share for segment in read.segments for share in segment.digests) for read in self.audited]
        self._digests = [{at: share.sum for at, share in each.items()} for each in shares]
        copies = source_reports(self.sources, self.surveys, self.audited, shares)
        if since is not None:
            copies = [joined(since, *each) for each in zip(copies, self.reading, shares, strict=True)]
            self.findings += check_past(since, self.reading, self.audited, self.texts)
        self.copies = [blanked(copy) for copy in copies]

    def members(self) -> list[GroupAt]:
        noted = [survey.stated.group for survey in self.surveys if survey.stated.group is not None]
        return noted + [group for read in self.audited for segment in read.segments for group in segment.groups]

    def ends(self) -> Iterator[End]:
        for copy, survey, read in zip(self.copies, self.surveys, self.audited, strict=True):
            segments = read.segments
            said, _ = claimed(segments)
            cut = any(finding.rule == Rule.GAP and finding.vlsn > copy.last for finding in survey.findings)
            yield End(
                source=copy.source,
                node=copy.node,
                file=segments[-1].file if segments else "",
                last=copy.last,
                said=max(said, survey.stated.dtvlsn, self.bounds.past),
                live=copy.live,
                damaged=bool(read.missing) or (bool(segments) and segments[-1].damaged) or cut,
                owes=survey.stated.floor > copy.last,
            )

    def look_for_names(self) -> None:
        """Reports different blocks with the same name (term and first VLSN). Searches only where digests differ or
        blocks were rolled back, because a name can be reused only there."""
        segments = [each.segments for each in self.audited]
        others = [[digest for segment in each for digest in segment.others] for each in segments]
        hidden = [[place for segment in each for place in segment.hidden] for each in segments]
        ranges = ranges_of(others, hidden)
        self._look(tasks.look_for_names, "names", {at: places_of(at, self.surveys, segments) for at in ranges})

    def compare(self) -> list[int]:
        """Searches the ranges that differ for the first difference. Returns all ranges that differ."""
        ranges = differing(self._digests, [read.knows for read in self.audited]) if self.bounds else []
        places = self._places() if ranges else {}
        looked = {at: tuple(places[at]) for at in ranges[:RANGES_SHOWN] if at in places}
        self._look(tasks.compare, "differences", looked)
        if ranges and not self.findings:
            self.findings.append(self._unexplained(ranges[0]))
        return ranges

    def _look(
        self,
        work: Callable[[list[Source], RangeTask], list[Finding] | Failure],
        what: str,
        places: Mapping[int, tuple[tuple[Part, Place], ...]],
    ) -> None:
        """Searches ranges, with one task for each range."""
        looked = [RangeTask(at, self.bounds, self._checksums, each) for at, each in places.items()]
        results = self._jobs.run(what, partial(work, self.sources), looked)
        parted(results)  # a fatal failure ends the audit
        for result, at in zip(results, places, strict=True):
            if isinstance(result, Failure):
                first, last = max(at << RANGE_BITS, 1), ((at + 1) << RANGE_BITS) - 1
                self.missing.append(NotAudited(what=what, why=result.reason, first=first, last=last))
            else:
                self.findings += result

    def _take(self, found: tuple[list[Finding], list[NotAudited]]) -> None:
        self.findings += found[0]
        self.missing += found[1]

    def _unexplained(self, at: int) -> Finding:
        """Returns a finding for a range whose digests differ although no single block differs. The cause is a copy that
        begins or ends inside a block."""
        bounds = self.bounds
        detail = f"the copies do not hold the same blocks from VLSN {bounds.first} to {bounds.last}"
        place = {"source": self.texts[0], "file": "", "vlsn": max(at << RANGE_BITS, bounds.first)}
        return Finding(rule=AuditRule.DIVERGENCE, offset=0, detail=detail, **place)  # type: ignore[arg-type]

    def _places(self) -> dict[int, list[tuple[Part, Place]]]:
        """Finds the places of each range of VLSNs, in all sources in which the range was read."""
        places: dict[int, list[tuple[Part, Place]]] = defaultdict(list)
        for survey, read in zip(self.surveys, self.audited, strict=True):
            parts = {part.number: part for part in survey.parts}
            for segment in read.segments:
                for place in (place for place in segment.places if read.knows(place.range)):
                    places[place.range].append((parts[segment.number], place))
        return dict(places)

    def prove(self, history: Sequence[HistoryPart]) -> HistoryReport | None:
        """Compares a client's history with the copies; returns None if some part of a copy could not be read."""
        file, copies = history[0].path, self.copies
        if any(read.missing for read in self.audited):
            self.missing.append(NotAudited(what="history", file=file, why="not all of the copies could be read"))
            return None
        places = self._places()
        extents = [Extent(copy.first, min(copy.dtvlsn, copy.last), copy.last) for copy in copies]
        prover = Prover(self.sources, extents, places, file)
        groups = min(GROUPS_MAX, max(1, len(places)))
        proofs, failures = parted(self._jobs.grouped("history", read_history, history, prover, groups))
        if any(proof.once for proof in proofs):
            most = max(range(len(copies)), key=lambda index: copies[index].entries)
            survey, source = self.surveys[most], self.sources[most]
            items = once.items(history, source, survey.parts, extents[most])
            groups = min(once.BUCKETS, max(1, survey.bytes // once.BUCKET_BYTES))
            results = self._jobs.grouped("once", once.read_digests, items, once.OnceProver(source.text), groups)
            found, without = parted(results)
            proofs, failures = proofs + found, failures + without
        apart = list(check_spans([proof.span for proof in proofs if proof.span is not None], file))
        report = HistoryReport(
            file=file,
            **{name: sum(getattr(proof, name) for proof in proofs) for name in _COUNTED},
            findings=sum(proof.broken for proof in proofs) + len(apart),
        )
        if not failures and not report.appends and not report.once and not report.reads:
            raise BadArgument(f"{file} has no line: a history has one for each acknowledged entry")
        findings = [*apart, *(finding for proof in proofs for finding in proof.findings)]
        missing = [NotAudited(what="history", file=file, why=why) for why in failures]
        self._take((findings[:HISTORY_FINDINGS_MAX], missing))
        return report


def _by_source(results: list[list[SegmentAudit | Missed]], reading: list[Reading], texts: list[str]) -> list[Read]:
    """Groups the tasks' results by source: the segments that were read, and the segments that were not."""
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
    """Drops findings that are explained by an unfinished rollback, which has not marked all its blocks yet. A rollback
    is unfinished if a crash has interrupted it, or if a running node has begun it after the survey. A rollback marks
    blocks only above the durable end (DTVLSN), and its record comes after the marked blocks."""
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
    if failures:  # a rollback that could not be read may explain any of the findings
        lowest = 0
    if lowest is None:
        return findings, []
    left = [finding for finding in findings if finding.rule not in _OF_ROLLBACKS or finding.vlsn <= lowest]
    return left, [NotAudited(what="rollbacks", source=source.text, why=why) for why in failures]


def _told(finding: Finding) -> tuple[bool, int, int, str, str, int]:
    """Returns the sort key of a finding. Findings are sorted by VLSN. At one VLSN the finding that explains the others
    comes first. Findings without a VLSN come last."""
    return not finding.vlsn, finding.vlsn, RANKS[finding.rule], finding.source, finding.file, finding.offset
