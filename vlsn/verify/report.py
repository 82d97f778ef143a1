"""The report of a verification: findings and counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vlsn.recover.torn_tail import block_names
from vlsn.seams import Disk
from vlsn.segments.cut_bytes import cut_bytes
from vlsn.verify.inspection import Rule


@dataclass(frozen=True, slots=True)
class Finding:
    """``file`` is a bare name; ``vlsn`` the one that is damaged or missing, 0 where there is none."""

    rule: Rule
    file: str
    offset: int
    vlsn: int
    detail: str


@dataclass(frozen=True, slots=True)
class TermRun:
    term: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class KeptAside:
    """A file of bytes that an open cut off the log. ``last`` is the highest VLSN of a block that can be read in it, 0
    for none, and ``term`` that block's."""

    file: str
    bytes: int
    term: int
    last: int


@dataclass(slots=True)
class VerifyReport:
    """``frames`` and ``bytes`` count all that was read, ``blocks`` and ``entries`` the visible ones."""

    findings: list[Finding] = field(default_factory=list)
    torn_tail: bool = False
    frames: int = 0
    blocks: int = 0
    entries: int = 0
    bytes: int = 0
    segments: int = 0
    first: int = 0
    last: int = 0
    dtvlsn: int = 0
    term_runs: list[TermRun] = field(default_factory=list)
    kept_aside: list[KeptAside] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Faults that cost nothing: the other copy is whole."""

    @property
    def ok(self) -> bool:
        return not self.findings


def kept_aside(disk: Disk, directory: str) -> Iterator[KeptAside]:
    """Yields the cut bytes that opens have left in ``directory``."""
    for name, data in cut_bytes(disk, directory):
        names = block_names(data)
        yield KeptAside(name, len(data), *((names[-1].term, names[-1].last) if names else (0, 0)))
