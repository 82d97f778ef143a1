"""The plan of an audit: the sources' segments, their packing into tasks, and the VLSNs to compare. Pure.

    n1  |64|64|64|64|12|  MB     tasks  [64 64 64] [64 12]
    n2  |128|140|                       [128] [140]

A task reads consecutive segments of one source.  Packing has no say in the outcome: digests are summed by
range of VLSNs, and what joins two segments is checked where the tasks' results come together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.findings import Finding
from repl.audit.members import GroupAt
from repl.audit.report import Sizes
from vlsn.verify.index_mappings import Bounds as TimeBounds
from vlsn.verify.noted_terms import Run

PARTITION_BYTES: Final = 512_000_000
"""Bytes of a task: Spark takes some 35 ms for each, as long as it takes to check 60 MB."""
WAVES: Final = 4
"""Tasks a core, where there is little to read: then the cores end at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One segment of one source, as far as it is log: frames up to ``end`` (exclusive, in bytes)."""

    source: int
    """Index of the source among those of the audit."""
    number: int
    file: str
    salt: int
    end: int
    """The end of its log, or, for the last segment of a stopped node, of the file."""
    stated: int
    """The offset up to which something outside this segment says that it had been synced. A frame that cannot be read
    before that is damage, not a torn tail."""
    prev_number: int
    """The number of the segment before, by the header; 0 for the first one, or if the header is damaged."""
    prev_last_vlsn: int
    readable: bool = True
    """A right header page; ``salt`` is found from its frames when it is not."""
    indexed: bool = False
    """The index must hold here: no open reads the segment again first."""
    buckets: tuple[int, int] = (0, 0)
    """Where the first and the last bucket of the index begin that point into it; 0 and 0 where none was found."""
    newest: bool = False
    """No segment followed on it at the survey: it may be written, closed and get a sidecar while it is read."""
    modified_us: int = 0
    """When its file was written last; 0 where that is not to be had."""

    @property
    def closed(self) -> bool:
        return self.stated >= self.end


@dataclass(frozen=True, slots=True)
class Noted:
    """The notes of a directory beside its segments: DTVLSN, terms up to a VLSN, who elects, the node file's term."""

    dtvlsn: int = 0
    upto: int = 0
    terms: tuple[Run, ...] = ()
    group: GroupAt | None = None
    term: int | None = None
    floor: int = 0
    """The vote floor's VLSN, of a stopped node."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index of one segment: ``vlsns`` and the ``offsets`` of their blocks, and the time index's bounds."""

    vlsns: NDArray[np.int64]
    offsets: NDArray[np.int64]
    times: TimeBounds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A source before it is read: its segments, and the VLSNs that can be compared."""

    group: str
    node: str
    live: bool
    parts: tuple[Part, ...]
    first: int
    """First and last visible VLSN; 0 and 0 when there are none."""
    last: int
    dtvlsn: int
    findings: tuple[Finding, ...] = ()
    incarnation: str = ""
    """The log's, 16 hex digits, as its newest header has it."""
    sizes: Sizes = field(default_factory=Sizes)
    stated: Noted = Noted()
    configured: bool = False
    """It has a node's settings beside its log."""
    founding: str = ""
    """The log's name, which no other log has, as a node or its ``state`` says it; empty where neither does."""

    @property
    def bytes(self) -> int:
        return sum(part.end for part in self.parts)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The VLSNs to compare, inclusive; 0 and 0 for none."""

    first: int
    last: int
    after: int = 0
    """Blocks that end at or before this VLSN are not compared …"""
    past: int = 0
    """… for an earlier audit has compared what ends at or before this one."""

    def __bool__(self) -> bool:
        return self.last > 0


def common_bounds(surveys: Sequence[Survey]) -> Bounds:
    """Computes what every source has, durable: from the highest first VLSN to the lowest of DTVLSNs and ends."""
    first = max((survey.first for survey in surveys), default=0)
    last = min((min(survey.dtvlsn, survey.last) for survey in surveys), default=0)
    empty = any(survey.first == 0 for survey in surveys) or len(surveys) < 2
    return Bounds(0, 0) if empty or last < first else Bounds(first, last)


def packed(surveys: Sequence[Survey], *, cores: int, partition_bytes: int = PARTITION_BYTES) -> list[tuple[Part, ...]]:
    """Tasks of about ``partition_bytes`` or more each; of less where that would be too few for ``cores``."""
    total = sum(survey.bytes for survey in surveys)
    target = max(1, min(partition_bytes, total // (WAVES * cores)))
    return [run for survey in surveys for run in _runs(survey.parts, target)]


def _runs(parts: Sequence[Part], target: int) -> Iterator[tuple[Part, ...]]:
    """Cuts parts into as many runs as ``target`` goes into their bytes, as even as segments allow."""
    total = sum(part.end for part in parts)
    count = max(1, total // target)
    starts = accumulate((part.end for part in parts), initial=0)
    for _, run in groupby(zip(parts, starts, strict=False), key=lambda each: each[1] * count // total):
        yield tuple(part for part, _ in run)
