"""Parameters of a query: known names only, numbers in plain ASCII digits and in range.

Everything else is a ``BadArgument`` that names the parameter; nothing is guessed or clipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from vlsn.errors import BadArgument
from vlsn.ids import U64_MAX

VLSN_MAX = U64_MAX - 1
_WHOLE = re.compile(r"[0-9]{1,20}\Z")
_HEX16 = re.compile(r"[0-9a-f]{16}\Z")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?\Z")

T = TypeVar("T")


def only(query: Mapping[str, str], known: frozenset[str]) -> None:
    """Raises for a parameter that is not in ``known``."""
    for name in query:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise BadArgument(f"unknown parameter {_shown(name)}; this call takes: {names}")


def whole(query: Mapping[str, str], name: str, default: T, low: int, high: int) -> int | T:
    text = query.get(name)
    if text is None:
        return default
    return whole_of(text, name, low, high)


def whole_of(text: str, name: str, low: int, high: int) -> int:
    value = int(text) if _WHOLE.match(text) else -1
    if not low <= value <= high:
        raise BadArgument(f"{name}={_shown(text)} is not a whole number in {low}–{high}")
    return value


def hex16(text: str, name: str) -> int:
    """Returns a number from 1 on, as 16 lower-case hex digits."""
    value = int(text, 16) if _HEX16.match(text) else 0
    if not value:
        raise BadArgument(f"{name}={_shown(text)} is not 16 hex digits, or is 0")
    return value


def seconds(query: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    value = float(text) if _SECONDS.match(text) else -1.0
    if not low <= value <= high:
        raise BadArgument(f"{name}={_shown(text)} is not a number of seconds in {low:g}–{high:g}")
    return value


def choice(query: Mapping[str, str], name: str, default: T, choices: Mapping[str, T]) -> T:
    text = query.get(name)
    if text is None:
        return default
    if text not in choices:
        raise BadArgument(f"{name}={_shown(text)} is none of: {', '.join(choices)}")
    return choices[text]


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")
