"""The audit's findings: one rule that does not hold, where, and the facts that only this rule can say."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
