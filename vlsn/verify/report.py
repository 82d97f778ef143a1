"""The report of a verification: its findings, and counts of what was read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vlsn.recover.torn_tail import block_names
from vlsn.seams import Disk
from vlsn.segments.cut_bytes import cut_bytes
from vlsn.verify.inspection import Rule


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a verification. ``file`` is a name without its directory. ``vlsn`` is the damaged or missing VLSN,
    or 0 if there is none."""

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
    """A file with bytes that an opening of the log has cut off. ``last`` and ``term`` are the highest VLSN of a block
    that can be read in the file, and the block's term; 0 for none."""

    file: str
    bytes: int
    term: int
    last: int


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification. ``frames`` and ``bytes`` count everything that was read. ``blocks`` and ``entries``
    count only what is visible."""

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
    """Faults without consequences, since another copy of the data is whole."""

    @property
    def ok(self) -> bool:
        return not self.findings


def kept_aside(disk: Disk, directory: str) -> Iterator[KeptAside]:
    """Yields the files of cut bytes in ``directory``."""
    for name, data in cut_bytes(disk, directory):
        names = block_names(data)
        yield KeptAside(name, len(data), *((names[-1].term, names[-1].last) if names else (0, 0)))
