"""The audit's words: its findings, its sources, its report.

    {"equal": false, "compared_from": 1, "compared_to": 40000, "tasks": 9,
     "sources": [{"source": "DIR/n1", "node": "n1", "first": 1, "last": 40012, "dtvlsn": 40000, "bytes": …}, …],
     "findings": [{"rule": "divergence", "source": "DIR/n3", "file": "00000002.vlog", "offset": 8192, "vlsn": 31337,
                   "value": "paid 10", "other": {"source": "DIR/n1", …, "value": "paid 11"}}]}

``equal`` is about the compared range alone: every block in it is there, whole, and the same on every source.
A finding may lie outside of it (a damaged block above the common DTVLSN), so the exit status asks for both.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

FINDINGS_MAX: Final = 100
"""A rule that fails everywhere in one segment is named this many times there, then counted."""
VALUE_BYTES_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that does not hold, and where: ``offset`` in bytes of ``file``, ``vlsn`` the first concerned
    (0 where none is).  ``more`` is what only this rule can say."""

    rule: str
    source: str
    file: str
    offset: int
    vlsn: int
    detail: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        place = {name: getattr(self, name) for name in ("rule", "source", "file", "offset", "vlsn")}
        return place | ({"detail": self.detail} if self.detail else {}) | dict(self.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One copy as it was read: ``first`` and ``last`` visible VLSN, and what it is known to hold durable."""

    source: str
    node: str
    first: int
    last: int
    dtvlsn: int
    bytes: int
    blocks: int
    entries: int
    live: bool
    torn_tail: bool

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReport:
    """The result for a client's acknowledged ``appends`` (lines that say the same are one)."""

    file: str
    appends: int
    everywhere: int
    """Appends that are in every copy at their VLSNs, with their digests."""
    cleaned: int
    """Below the first VLSN of some copy."""
    once: int
    """Lines that say so: no other entry has the digest, and where there is no VLSN, none at all."""
    findings: int
    """Appends that are missing or other than they were, in each copy, or there more than once. Findings name some."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The outcome; VLSNs from ``compared_from`` to ``compared_to`` (inclusive; 0 and 0: none) were compared."""

    equal: bool
    compared_from: int
    compared_to: int
    sources: list[SourceReport]
    findings: list[Finding]
    ranges_differing: int
    """Ranges of 65 536 VLSNs that are not the same everywhere; findings name the first VLSN of some."""
    tasks: int
    """Spark tasks that ran, each counted once by its attempt's id."""
    seconds: float
    """Seconds of reading and comparing, Spark's own start left out."""
    history: HistoryReport | None = None

    @property
    def exit_code(self) -> int:
        """0 equal and nothing found; 1 a finding; 2 there was nothing to compare."""
        if self.findings:
            return 1
        if self.compared_to == 0:
            return 2
        return 0 if self.equal else 1

    @property
    def bytes(self) -> int:
        return sum(source.bytes for source in self.sources)

    def as_dict(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "compared_from": self.compared_from,
            "compared_to": self.compared_to,
            "sources": [source.as_dict() for source in self.sources],
            "findings": [finding.as_dict() for finding in self.findings],
            "ranges_differing": self.ranges_differing,
            **({"history": self.history.as_dict()} if self.history else {}),
            "tasks": self.tasks,
            "seconds": round(self.seconds, 3),
            "mb_per_s": round(self.bytes / 1e6 / self.seconds, 1) if self.seconds else 0.0,
        }

    def to_json(self) -> str:
        return msgspec.json.encode(self.as_dict()).decode()


def shown(name: str, data: bytes | None) -> dict[str, Any]:
    """Returns ``data`` as JSON has it: text, or base64 under ``name_b64``; at most its first 200 bytes."""
    if data is None:
        return {name: None}
    cut = data[:VALUE_BYTES_SHOWN]
    more = {f"{name}_bytes": len(data)} if len(data) > len(cut) else {}
    try:
        return {name: cut.decode()} | more
    except UnicodeDecodeError as error:
        # A character that the cut went through does not make text binary.
        if len(data) > len(cut) and len(cut) - error.start < 4 and error.reason == "unexpected end of data":
            return {name: cut[: error.start].decode()} | more
    return {f"{name}_b64": b64encode(cut).decode()} | more
