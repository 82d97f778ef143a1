"""Checks a client's claims that a digest occurs only once, or not at all, against every entry of one copy.

    lines that say ``once`` ─┐
                             ├─► by the first bits of the digest ─► shuffle ─► a task's digests: where else are they?
    entries of a copy ───────┘

One copy is enough, because the copies were compared with each other. Entries above the copy's durable end (DTVLSN) are
ignored, because they may still be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.history import APPEND, HistoryPart, grouped, read_lines
from repl.audit.plan import Part
from repl.audit.proof import FAILED, THERE, Extent, Proof, data_entries
from repl.audit.rules import AuditRule
from repl.audit.source import Failure, Source, Unreadable
from vlsn.format.segment import segment_name

BUCKET_BITS: Final = 8
BUCKETS: Final = 1 << BUCKET_BITS
BUCKET_BYTES: Final = 128_000_000
"""The bytes of log whose digests one task joins."""
TWICE: Final = AuditRule.HISTORY_TWICE
REFUSED: Final = AuditRule.HISTORY_REFUSED


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A segment of the copy that is searched, up to the VLSN ``durable``."""

    source: Source
    part: Part
    durable: int


def items(history: Sequence[HistoryPart], source: Source, parts: Sequence[Part], extent: Extent) -> list[Any]:
    """Lists the parts of the history and of the copy that the tasks read, one item for each task."""
    return [*history, *(CopyPart(source, part, extent.durable) for part in parts)]


def read_digests(item: HistoryPart | CopyPart) -> Iterator[tuple[int, Any]]:
    """The first half of a task: yields rows, grouped by the bucket of their digests."""
    try:
        rows = read_lines(item).once if isinstance(item, HistoryPart) else _entries(item)
    except Unreadable as error:
        yield FAILED, Failure(str(error), fatal=isinstance(item, HistoryPart))
        return
    rows = rows[np.argsort(rows["digest"], kind="stable")]
    for bucket, some in grouped(rows, rows["digest"] >> np.uint64(64 - BUCKET_BITS)):
        yield bucket, (isinstance(item, HistoryPart), some)


def _entries(item: CopyPart) -> Any:
    rows = data_entries(item.source, item.part, 0, item.part.end)
    return rows[rows["vlsn"] <= item.durable]


@dataclass(frozen=True, slots=True)
class OnceProver:
    """The second half of a task. ``source`` is the copy's name."""

    source: str

    def __call__(self, item: tuple[int, list[Any]]) -> Proof | Failure:
        bucket, pieces = item
        if bucket == FAILED:
            failure: Failure = pieces[0]
            return failure
        said = np.unique(np.concatenate([np.empty(0, APPEND), *(np.frombuffer(d, APPEND) for of, d in pieces if of)]))
        there = np.concatenate([np.empty(0, THERE), *(np.frombuffer(d, THERE) for of, d in pieces if not of)])
        there = np.sort(there[np.isin(there["digest"], said["digest"])], order="vlsn")
        strays = there[~np.isin(_pairs(there), said)]
        findings = [self._finding(entry, said) for entry in strays[:FINDINGS_MAX]]
        return Proof(broken=len(strays), findings=findings)

    def _finding(self, entry: Any, said: Any) -> Finding:
        places = sorted(int(vlsn) for vlsn in said["vlsn"][said["digest"] == entry["digest"]])
        acknowledged = [vlsn for vlsn in places if vlsn]
        detail = f"it was acknowledged at VLSN {acknowledged[0]}, once" if acknowledged else "its append was refused"
        return Finding(
            rule=TWICE if acknowledged else REFUSED,
            source=self.source,
            file=segment_name(int(entry["number"])),
            offset=int(entry["offset"]),
            vlsn=int(entry["vlsn"]),
            detail=f"{detail}, and is here",
            more={"digest": f"{int(entry['digest']):016x}"},
        )


def _pairs(there: Any) -> Any:
    rows = np.empty(len(there), APPEND)
    rows["vlsn"], rows["digest"] = there["vlsn"], there["digest"]
    return rows
