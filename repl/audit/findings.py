"""The audit's findings. Each names a rule that does not hold, the place, and the facts that belong to this rule."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from vlsn.verify.facts import FAULTS_MAX
from vlsn.verify.inspection import Fault

FINDINGS_MAX: Final = FAULTS_MAX
"""The most findings of one rule for one segment. Further findings of the rule are only counted."""
VALUE_BYTES_SHOWN: Final = 200
_BYTES_BEFORE: Final = 40
_TIMES: Final = frozenset({"time", "modified_us", "modified_us_then"})
"""The names of facts that are times in µs since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that does not hold, and the place: ``offset`` in bytes of ``file``, and ``vlsn``, the first VLSN
    concerned (0 for none). ``owner`` is the node whose copy it is. ``mend`` is the command that mends the fault, or "".
    ``more`` has the facts that belong to this rule."""

    rule: str
    source: str
    file: str
    offset: int
    vlsn: int
    detail: str = ""
    owner: str = ""
    mend: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        place = {name: getattr(self, name) for name in ("rule", "source", "file", "offset", "vlsn")}
        said = {name: value for name in ("detail", "owner", "mend") if (value := getattr(self, name))}
        return place | said | dict(self.more)


def finding_of(source: str, file: str, fault: Fault) -> Finding:
    """Returns the finding for a fault. The finding's VLSN is the lower of two: the VLSN that is due, and the VLSN that
    is there."""
    vlsn = min(fault.vlsn, fault.there) if fault.there else fault.vlsn
    place = {"source": source, "file": fault.file or file}
    return Finding(rule=fault.rule, offset=fault.offset, vlsn=vlsn, detail=fault.detail, more=fault.more, **place)


def told(more: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Formats facts for a person: times in UTC; facts that are None are left out."""
    facts = [(name, value) for name, value in more.items() if value is not None]
    return [(name, _moment(value) if name in _TIMES else _text(value)) for name, value in facts]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _moment(us: int) -> str:
    """Formats a time in µs since the epoch; 0 is an unknown time."""
    try:
        at = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    except (ValueError, OverflowError, OSError):
        return f"{us} µs"
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z") if us else "not known"


def shown(name: str, data: bytes | None, at: int = 0) -> dict[str, Any]:
    """Returns at most 200 bytes of ``data`` as JSON has them: as text, or as base64 under ``name_b64``. The first 200
    bytes are returned if byte ``at`` is among them. Otherwise the returned bytes begin shortly before ``at``, and
    ``name_from`` is the index of the first one."""
    if data is None:
        return {name: None}
    start = 0 if at < VALUE_BYTES_SHOWN else at - _BYTES_BEFORE
    while start and at - start < _BYTES_BEFORE + 3 and data[start] & 0xC0 == 0x80:
        start -= 1  # goes back to the first byte of a UTF-8 character
    cut = data[start : start + VALUE_BYTES_SHOWN]
    more = {f"{name}_bytes": len(data)} if len(data) > len(cut) else {}
    more |= {f"{name}_from": start} if start else {}
    try:
        return {name: cut.decode()} | more
    except UnicodeDecodeError as error:
        # A character that is cut at the end does not make text binary.
        ends = len(data) > start + len(cut) and len(cut) - error.start < 4 and error.reason == "unexpected end of data"
        if ends:
            return {name: cut[: error.start].decode()} | more
    return {f"{name}_b64": b64encode(cut).decode()} | more
