"""Reads the parameters of a query and of a path: only known names, and numbers in plain ASCII digits and in range.

Everything else is a ``BadArgument`` that names the parameter. Nothing is guessed, and no number is moved into its
range.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import unquote

from vlsn.errors import BadArgument
from vlsn.format.key_filter import KeyFilter
from vlsn.ids import U64_MAX

VLSN_MAX = U64_MAX - 1
_WHOLE = re.compile(r"[0-9]{1,20}\Z")
_HEX16 = re.compile(r"[0-9a-f]{16}\Z")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?\Z")

T = TypeVar("T")


def only(query: Mapping[str, str], known: frozenset[str]) -> None:
    """Raises ``BadArgument`` for a parameter that is not in ``known``."""
    for name in query:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise BadArgument(f"unknown parameter {_shown(name)}; this call takes: {names}")


def named(part: str) -> str:
    """Decodes a part of a path that is a name or a number. Only such a part may be percent-encoded."""
    return unquote(part) if "%" in part else part


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
    """Reads a number from 1 on, written as 16 lower-case hex digits."""
    value = int(text, 16) if _HEX16.match(text) else 0
    if not value:
        raise BadArgument(f"{name}={_shown(text)} is not 16 hex digits, or is 0")
    return value


def key_filter(query: Mapping[str, str]) -> KeyFilter | None:
    """Reads ``key`` or ``key_prefix``, or ``key_b64`` or ``key_prefix_b64`` in base64. Returns None if there is none of
    them."""
    found = {}
    for name in ("key", "key_prefix"):
        plain, coded = query.get(name), query.get(f"{name}_b64")
        if plain is not None and coded is not None:
            raise BadArgument(f"{name} and {name}_b64: only one of them can be asked for")
        if plain is not None:
            found[name] = plain.encode("utf-8", "surrogateescape")
        elif coded is not None:
            found[name] = _base64(coded, f"{name}_b64")
    return KeyFilter.of(found.get("key"), found.get("key_prefix")) if found else None


def _base64(text: str, name: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:
        raise BadArgument(f"{name}={_shown(text)} is not base64: {error}") from None


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
