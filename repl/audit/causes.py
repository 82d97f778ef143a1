"""Drops findings that another finding explains. The explaining finding lists the rules of dropped findings as ``also``.
Pure.

    cause                                        further findings that it causes in the same copy
    a file that is not the log's, or misplaced   order, claims, index, sidecar there, and where the next segment begins
    wrong overmarks of VLSN 88 to 91             order, claims, index, name of those
    a block that is wrong by itself              divergence there; of a term that stands out, node-file, too
    a block of another term than the others'     term-order, state, node-file that say that term
    a copy that is shorter than claimed          a past that is changed, or missing, behind its end
    a lost block                                 a producer's sequence that goes on behind it

A person begins with the first finding, and would be misled if its consequences were listed beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from repl.audit.digest import RANGE_BITS
from repl.audit.findings import Finding
from repl.audit.rules import DAMAGE, AuditRule
from repl.audit.segment_audit import SegmentAudit
from vlsn.verify.inspection import Rule

Segments = Sequence[SegmentAudit]
_OF_ORDER: Final = (Rule.CONTIGUITY, Rule.TERM_ORDER, Rule.DTVLSN, Rule.PRODUCER_SEQUENCE)


def causes(findings: Sequence[Finding], copies: Mapping[str, Segments]) -> list[Finding]:
    """Returns the findings that no other finding of the same copy explains; ``copies`` has the segments of each copy,
    by the copy's name."""
    told: list[Finding] = []
    by_source: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_source[finding.source].append(finding)
    for source, mine in by_source.items():
        told += _causes(mine, copies.get(source, ()))
    return told


def _causes(findings: Sequence[Finding], segments: Segments) -> list[Finding]:
    also: dict[int, list[Finding]] = defaultdict(list)
    left: list[tuple[int, Finding]] = list(enumerate(findings))
    for rule, explains in _CAUSES:
        for at, cause in [(at, each) for at, each in left if each.rule == rule]:
            if all(at != index for index, _ in left):
                continue  # an earlier finding explains this finding
            mine = [index for index, each in left if index != at and explains(cause, each, segments)]
            also[at] += [each for index in mine for each in (findings[index], *also.pop(index, ()))]
            left = [(index, each) for index, each in left if index not in mine]
    return [_with(finding, also[at]) if at in also else finding for at, finding in left]


def _with(cause: Finding, also: Sequence[Finding]) -> Finding:
    if not also:
        return cause
    vlsn = cause.vlsn
    if cause.rule == Rule.SEGMENT_HEADER:
        gaps = [each.vlsn for each in also if each.rule == Rule.GAP]
        vlsn = min(gaps or [vlsn, *(each.vlsn for each in also if each.rule in _OF_ORDER)])
    rules = sorted({str(each.rule) for each in also})
    both = next((each.more for each in also if each.rule == AuditRule.DIVERGENCE), {})
    return replace(cause, vlsn=vlsn, more={**both, **cause.more, "also": rules})


def _of_file(cause: Finding, found: Finding, segments: Segments) -> bool:
    """Returns whether ``found`` follows from ``cause``: a file of another node, or of another segment."""
    if not cause.more.keys() & {"of_node", "segment"}:
        return False
    if found.rule in (Rule.SIDECAR, Rule.INDEX):
        return cause.file in (found.file.replace(".vidx", ".vlog"), found.more.get("points_at"))
    if found.file == cause.file:
        return found.rule in (Rule.GAP, Rule.OVERMARK, *_OF_ORDER)
    at = next((index for index, each in enumerate(segments) if each.file == cause.file), len(segments))
    behind = [(each.file, each.first.offset) for each in segments[at + 1 :] if each.first is not None]
    if found.rule != Rule.DTVLSN:  # a segment's durable end (DTVLSN) is compared with all later segments
        behind = behind[:1]
    return found.rule in _OF_ORDER and (found.file, found.offset) in behind


def _lost_with(cause: Finding, found: Finding, _: Segments) -> bool:
    """Returns whether a producer's submission seems to be missing only because a block is lost between the submissions
    before and after it."""
    if found.rule != Rule.PRODUCER_SEQUENCE or found.more["sequence"] <= found.more["before"] + 1:
        return False
    return bool(found.more["before_vlsn"] < cause.vlsn <= found.vlsn)


def _of_marks(cause: Finding, found: Finding, _: Segments) -> bool:
    if found.rule == Rule.SIDECAR:
        return found.file == cause.file.replace(".vlog", ".vidx")
    low, high = cause.more.get("matchpoint", cause.vlsn - 1), cause.more["last"] + 1
    rules = (*_OF_ORDER, Rule.INDEX, Rule.NAME_REUSED, AuditRule.DIVERGENCE)
    return found.rule in rules and low < found.vlsn <= high


def _of_term(cause: Finding, found: Finding, _: Segments) -> bool:
    """Returns whether ``found`` follows from ``cause``: a block whose term differs from the other copies' term."""
    term, others = cause.more.get("term"), cause.more.get("other", {}).get("term")
    if term is None or term == others:
        return False
    if found.rule == Rule.STATE:
        return found.vlsn == cause.vlsn
    said = {name: found.more.get(name) for name in ("term", "before", "highest")}
    return (found.rule == Rule.TERM_ORDER and term in (said["term"], said["before"])) or (
        found.rule == Rule.NODE_FILE and term == said["highest"]
    )


def _of_block(cause: Finding, found: Finding, _: Segments) -> bool:
    """Returns whether ``found`` is a consequence of a damaged block: it reports a difference to the other copies'
    block, or the submission after the block's."""
    if found.rule == AuditRule.DIVERGENCE:
        return found.vlsn == cause.vlsn
    producers = found.rule == cause.rule == Rule.PRODUCER_SEQUENCE
    return producers and found.more["before_vlsn"] == cause.vlsn and found.more["producer"] == cause.more["producer"]


def _of_falling_term(cause: Finding, found: Finding, _: Segments) -> bool:
    if found.rule == AuditRule.DIVERGENCE:
        return found.vlsn == cause.vlsn and found.more.get("term") != found.more.get("other", {}).get("term")
    return found.rule == Rule.NODE_FILE and found.more.get("highest") in (cause.more["term"], cause.more["before"])


def _of_end(cause: Finding, found: Finding, segments: Segments) -> bool:
    """Returns whether ``found`` follows from ``cause``: the copy ends before VLSNs that an earlier audit has read."""
    if found.rule == AuditRule.CHANGED_PAST:
        ranges = found.more.get("range", -1) >= (cause.vlsn - 1) >> RANGE_BITS
        return ranges or (bool(segments) and found.file == segments[-1].file)
    return found.rule == Rule.GAP and found.vlsn >= cause.vlsn


_CAUSES: Final[Sequence[tuple[str, Callable[[Finding, Finding, Segments], bool]]]] = (
    (Rule.SEGMENT_HEADER, _of_file),
    (Rule.OVERMARK, _of_marks),
    (Rule.TERM_ORDER, _of_falling_term),
    (AuditRule.DIVERGENCE, _of_term),
    (Rule.SHORTER, _of_end),
    *((rule, _of_block) for rule in (Rule.TRANSACTION, Rule.DTVLSN, Rule.PRODUCER_SEQUENCE)),
    *((rule, _lost_with) for rule in (*DAMAGE, Rule.OVERMARK, Rule.CONTIGUITY)),
)
"""Which rule explains which others. A finding that is explained by another one explains nothing itself."""
