"""Plans an audit: the sources' segments, their packing into tasks, and the VLSNs to compare. Pure.

    n1  |64|64|64|64|12|  MB     tasks  [64 64 64] [64 12]
    n2  |128|140|                       [128] [140]

A task reads consecutive segments of one source. The packing does not change the outcome: digests are summed by range of
VLSNs, and the driver checks the joints of segments from all tasks' results.
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
"""The bytes that one task reads. Spark's overhead is some 35 ms for each task; in this time 60 MB could be checked."""
WAVES: Final = 4
"""The number of tasks for each core if there is little to read. Several tasks let all cores end at about the same
time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The log in one segment of one source: its frames up to byte ``end`` (exclusive)."""

    source: int
    """The index of the source among the audit's sources."""
    number: int
    file: str
    salt: int
    end: int
    """The offset at which the segment's log ends. For the last segment of a stopped node it is the end of the file."""
    stated: int
    """The offset up to which a record outside this segment says that the segment was synced. An unreadable frame before
    this offset is damage, not a torn tail (a write cut by a crash)."""
    prev_number: int
    """The number of the preceding segment, from this segment's header; 0 for the first segment, or if the header is
    damaged."""
    prev_last_vlsn: int
    readable: bool = True
    """True if the header page is intact. If the header page is damaged, ``salt`` is found from the segment's frames."""
    indexed: bool = False
    """True if the index must be complete for this segment, because opening the log does not read the segment again."""
    buckets: tuple[int, int] = (0, 0)
    """The begins of the first and the last bucket of the index that point into this segment; (0, 0) for none."""
    newest: bool = False
    """True if no segment followed at the survey. Such a segment may be written, closed and get a sidecar (index file)
    while the audit reads it."""
    modified_us: int = 0
    """The time of the file's last write; 0 if unknown."""

    @property
    def closed(self) -> bool:
        return self.stated >= self.end


@dataclass(frozen=True, slots=True)
class Noted:
    """The facts in a directory's other files: the DTVLSN (durable end), the terms up to a VLSN, the voting members, and
    the node file's term."""

    dtvlsn: int = 0
    upto: int = 0
    terms: tuple[Run, ...] = ()
    group: GroupAt | None = None
    term: int | None = None
    floor: int = 0
    """The VLSN of a stopped node's vote floor (the former end of its log)."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index of one segment: the ``vlsns``, the ``offsets`` of their blocks, and the bounds of the time index."""

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
    """The first visible VLSN. ``first`` and ``last`` are 0 if no block is visible."""
    last: int
    dtvlsn: int
    findings: tuple[Finding, ...] = ()
    incarnation: str = ""
    """The log's incarnation (a random number of its store), 16 hex digits, from the newest segment's header."""
    sizes: Sizes = field(default_factory=Sizes)
    stated: Noted = Noted()
    configured: bool = False
    """True if a node's settings file is beside the log."""
    founding: str = ""
    """The identity of the log, as the node or its ``state`` reports it; "" if neither does."""

    @property
    def bytes(self) -> int:
        return sum(part.end for part in self.parts)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The VLSNs to compare, inclusive; 0 and 0 for none."""

    first: int
    last: int
    after: int = 0
    """Blocks that end at or before this VLSN are not compared again; see ``past``."""
    past: int = 0
    """The last VLSN that an earlier audit has compared."""

    def __bool__(self) -> bool:
        return self.last > 0


def common_bounds(surveys: Sequence[Survey]) -> Bounds:
    """Returns the VLSNs that are durable in every source: from the highest first VLSN to the lowest of all DTVLSNs and
    ends."""
    first = max((survey.first for survey in surveys), default=0)
    last = min((min(survey.dtvlsn, survey.last) for survey in surveys), default=0)
    empty = any(survey.first == 0 for survey in surveys) or len(surveys) < 2
    return Bounds(0, 0) if empty or last < first else Bounds(first, last)


def packed(surveys: Sequence[Survey], *, cores: int, partition_bytes: int = PARTITION_BYTES) -> list[tuple[Part, ...]]:
    """Packs segments into tasks of about ``partition_bytes`` each, or more. Tasks are smaller if there would be too few
    of them for ``cores``."""
    total = sum(survey.bytes for survey in surveys)
    target = max(1, min(partition_bytes, total // (WAVES * cores)))
    return [run for survey in surveys for run in _runs(survey.parts, target)]


def _runs(parts: Sequence[Part], target: int) -> Iterator[tuple[Part, ...]]:
    """Divides segments into runs of about ``target`` bytes each, as evenly as the sizes of the segments allow."""
    total = sum(part.end for part in parts)
    count = max(1, total // target)
    starts = accumulate((part.end for part in parts), initial=0)
    for _, run in groupby(zip(parts, starts, strict=False), key=lambda each: each[1] * count // total):
        yield tuple(part for part, _ in run)
