"""The result for one segment: the findings of its own checks, and the facts that the checks of a whole source need.

The size of the result does not grow with the segment's entries, because the result is sent from a task to the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repl.audit.digest import Place, Share
from repl.audit.findings import Finding
from repl.audit.members import GroupAt
from repl.audit.profile import Profile
from vlsn.format.records import RollbackEnd, RollbackStart
from vlsn.ids import Lsn, lsn
from vlsn.verify.facts import Facts


@dataclass(frozen=True, slots=True)
class Marks:
    """Consecutive BLOCK frames with the same rollback flag and no rollback record between them. The fields are the
    offsets of the first and the last frame, and the first and the last VLSN."""

    start: int
    last: int
    overmarked: bool
    vlsn: int
    last_vlsn: int


@dataclass(frozen=True, slots=True)
class Pointed:
    """A wrong mapping of the index. Either no block at ``offset`` begins with ``vlsn``, or the block there is
    ``overmarked`` (rolled back)."""

    offset: int
    vlsn: int
    overmarked: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAudit(Facts):
    """The result for one segment: its facts, and the digests by which copies are compared."""

    source: int
    dtvlsn: int
    blocks: int
    entries: int
    end: int
    torn: bool
    salt: int
    digests: tuple[Share, ...]
    compared: bytes
    """The digest of the visible blocks up to the last compared VLSN."""
    past: bytes
    """The digest of the visible blocks up to the last VLSN that an earlier audit compared."""
    past_ranges: tuple[Share, ...]
    places: tuple[Place, ...]
    marks: tuple[Marks, ...]
    pointed: tuple[Pointed, ...]
    groups: tuple[GroupAt, ...]
    others: tuple[Share, ...]
    """The shares of visible blocks above the compared VLSNs."""
    hidden: tuple[Place, ...]
    """The places of overmarked (rolled-back) blocks."""
    findings: tuple[Finding, ...]
    profile: Profile


def rollbacks_of(segments: Sequence[SegmentAudit]) -> tuple[dict[Lsn, RollbackStart], set[int], int]:
    """Returns three facts of one copy: its rollbacks by the LSN of their start, the start LSNs of the rollbacks that
    have ended, and the LSN of the last block."""
    records = [(lsn(segment.number, at), record) for segment in segments for at, record in segment.rollbacks]
    return (
        {at: record for at, record in records if isinstance(record, RollbackStart)},
        {int(record.start_lsn) for _, record in records if isinstance(record, RollbackEnd)},
        max((lsn(segment.number, marks.last) for segment in segments for marks in segment.marks), default=0),
    )
