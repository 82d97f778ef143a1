"""Compares a client's history with the copies: each acknowledged append must be at its VLSN in every copy.

    history file ─► (VLSN, digest) by range of VLSNs ─► shuffle ─► a task's ranges: the frames of each copy that hold
    the ranges are read again, the digests of their entries are computed, and both sides are joined by VLSN

A copy must have every append between its first VLSN and its durable end (DTVLSN). An append above the durable end may
not have reached the copy yet, or may be about to be rolled back, but some copy must have it. No row of this join passes
through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_, or_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.blocks import blocks_at
from repl.audit.digest import U64, Place, entry_digests
from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.history import Appends, HistoryPart, by_range, merged_appends, read_lines
from repl.audit.history_order import Span, check_order
from repl.audit.plan import Part
from repl.audit.rules import AuditRule
from repl.audit.source import Failure, Source, Unreadable
from vlsn.format.block import BlockFlag, EntryKind
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.rows import Rows
from vlsn.format.segment import segment_name
from vlsn.verify.frames import Bools

FAILED: Final = -1
"""A key in place of a range, for the reason why a part of the history could not be read."""
ONCE: Final = -2
"""A key in place of a range, for the number of lines that say ``once``."""
READS: Final = 1 << 60
TIMES: Final = 1 << 61
"""Offsets that are added to a range's key: one for the range's reads, one for the times of its appends."""
MISSING: Final = AuditRule.HISTORY_MISSING
DIFFERS: Final = AuditRule.HISTORY_DIFFERS
READ: Final = AuditRule.HISTORY_READ
THERE: Final = np.dtype([("vlsn", "<u8"), ("digest", "<u8"), ("number", "<u4"), ("offset", "<u8")])


@dataclass(frozen=True, slots=True)
class Extent:
    """The contents of one copy: every VLSN from ``first`` to ``durable``, and perhaps VLSNs up to ``last``."""

    first: int
    durable: int
    last: int


@dataclass(frozen=True, slots=True)
class Proof:
    """The result for one range of VLSNs."""

    appends: int = 0
    everywhere: int = 0
    cleaned: int = 0
    broken: int = 0
    once: int = 0
    reads: int = 0
    span: Span | None = None
    findings: list[Finding] = field(default_factory=list)


def read_history(part: HistoryPart) -> Iterator[tuple[int, bytes | int | Failure]]:
    """The first half of a task: reads one part of the history."""
    try:
        lines = read_lines(part)
    except Unreadable as error:
        yield FAILED, Failure(str(error), fatal=True)
        return
    yield ONCE, len(lines.once)
    yield from by_range(lines.appends)
    yield from ((at + READS, rows) for at, rows in by_range(lines.reads))
    times = np.sort(lines.times, order="vlsn")
    yield from ((at + TIMES, rows) for at, rows in by_range(times))


@dataclass(frozen=True, slots=True)
class Prover:
    """The second half of a task, for the ranges that the shuffle sends to it. ``places`` lists for each range the
    places of its blocks, each with the segment that contains it."""

    sources: Sequence[Source]
    extents: Sequence[Extent]
    places: Mapping[int, Sequence[tuple[Part, Place]]]
    history: str = ""

    def __call__(self, item: tuple[int, list[Any]]) -> Proof | Failure:
        at, pieces = item
        if at == FAILED:
            failure: Failure = pieces[0]
            return failure
        if at == ONCE:
            return Proof(once=sum(pieces))
        if at >= TIMES:
            span, broken, findings = check_order(at - TIMES, pieces, self.history)
            return Proof(broken=broken, findings=findings, span=span)
        is_read = at >= READS
        appends = merged_appends(pieces)
        try:
            there = [self._there(index, at - READS * is_read, appends) for index in range(len(self.sources))]
        except Unreadable as error:
            return Failure(str(error))
        proof = _judged(appends, there, self.sources, self.extents)
        if not is_read:
            return proof
        findings = [_as_read(finding) for finding in proof.findings]
        return Proof(reads=proof.appends, broken=proof.broken, findings=findings)

    def _there(self, index: int, at: int, appends: Appends) -> NDArray[np.void]:
        """Finds the copy's entries at the VLSNs of ``appends``. One place at a time is in memory."""
        source = self.sources[index]
        found = [np.empty(0, THERE)]
        for part, place in self.places.get(at, ()):
            if part.source == index:
                found.append(data_entries(source, part, place.start, place.end, appends["vlsn"]))
        return np.sort(np.concatenate(found), order="vlsn")


def data_entries(source: Source, part: Part, start: int, end: int, wanted: U64 | None = None) -> NDArray[np.void]:
    """Finds the DATA entries at the ``wanted`` VLSNs, or all DATA entries, as ``THERE`` rows. Reads only visible,
    intact blocks in the frames from ``start`` (0: the first) to ``end``."""
    buf, blocks = blocks_at(source, part, start, end)
    blocks = blocks.only(blocks.visible)
    rows = Rows(buf, blocks.offsets - start + FRAME_BYTES, blocks.headers)
    right = rows.kinds() == EntryKind.DATA
    if wanted is not None:
        right &= np.isin(rows.vlsns(), wanted)
    chosen = np.flatnonzero(right)
    found = np.empty(len(chosen), THERE)
    found["vlsn"] = rows.vlsns()[chosen]
    keyed = bool(rows.has(BlockFlag.KEYS).any())
    keys = _cut(buf, *rows.key_cuts(), chosen) if keyed else None
    found["digest"] = entry_digests(_cut(buf, *rows.value_cuts(), chosen), keys)
    found["number"] = part.number
    found["offset"] = rows.spread(blocks.offsets)[chosen]
    return found


def _cut(buf: Any, starts: NDArray[np.int64], ends: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[bytes]:
    view = memoryview(buf)
    cuts = zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
    return [bytes(view[start:end]) for start, end in cuts]


def _judged(
    appends: Appends, there: Sequence[NDArray[np.void]], sources: Sequence[Source], extents: Sequence[Extent]
) -> Proof:
    vlsns = appends["vlsn"]
    rights = [_right(appends, found) for found in there]
    below = [vlsns < extent.first for extent in extents]
    owed = [~under & (vlsns <= extent.durable) for under, extent in zip(below, extents, strict=True)]
    findings: list[Finding] = []
    broken = 0
    for source, found, right, due in zip(sources, there, rights, owed, strict=True):
        wrong = np.flatnonzero(due & ~right)
        broken += len(wrong)
        findings += [_finding(source, appends[row], found) for row in wrong[:FINDINGS_MAX].tolist()]
    nowhere = np.flatnonzero(~_any(rights) & ~_any(owed) & ~_all(below))
    furthest = max(range(len(sources)), key=lambda index: extents[index].last)
    for row in nowhere[:FINDINGS_MAX].tolist():
        finding = _finding(sources[furthest], appends[row], there[furthest])
        findings.append(replace(finding, detail=f"{finding.detail}; no copy has it"))
    return Proof(
        appends=len(appends),
        everywhere=int(_all(rights).sum()),
        cleaned=int(_any(below).sum()),
        broken=broken + len(nowhere),
        findings=findings,
    )


def _right(appends: Appends, found: NDArray[np.void]) -> Bools:
    """Marks the ``appends`` that are in ``found`` with the same digest. No VLSN is in ``found`` twice."""
    if not len(found):
        return np.zeros(len(appends), np.bool_)
    at = np.minimum(np.searchsorted(found["vlsn"], appends["vlsn"]), len(found) - 1)
    right: Bools = (found["vlsn"][at] == appends["vlsn"]) & (found["digest"][at] == appends["digest"])
    return right


def _finding(source: Source, append: Any, found: NDArray[np.void]) -> Finding:
    vlsn, digest = int(append["vlsn"]), f"{int(append['digest']):016x}"
    at = int(np.searchsorted(found["vlsn"], append["vlsn"]))
    place: dict[str, Any] = {"source": source.text, "vlsn": vlsn}
    if at == len(found) or int(found["vlsn"][at]) != vlsn:
        detail = "it was acknowledged, and no whole DATA entry is there"
        return Finding(rule=MISSING, file="", offset=0, detail=detail, more={"digest": digest}, **place)
    entry = found[at]
    return Finding(
        rule=DIFFERS,
        file=segment_name(int(entry["number"])),
        offset=int(entry["offset"]),
        detail="another entry is there than the one that was acknowledged",
        more={"digest": digest, "digest_there": f"{int(entry['digest']):016x}"},
        **place,
    )


def _as_read(finding: Finding) -> Finding:
    """Turns a finding about an append into a finding about a read, because readers see only durable entries."""
    return replace(finding, rule=READ, detail=finding.detail.replace("acknowledged", "read"))


def _any(masks: Sequence[Bools]) -> Bools:
    return reduce(or_, masks)


def _all(masks: Sequence[Bools]) -> Bools:
    return reduce(and_, masks)
