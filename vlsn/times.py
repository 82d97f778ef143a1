"""Conversions of times from people or programs to µs since the epoch (as in entries), and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import index

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_us(at: datetime | int) -> int:
    """Converts a ``datetime``, which is UTC if it has no zone, to µs since the epoch. A number of µs is returned
    unchanged. Times before the epoch become 0. Raises ``BadArgument`` for a number that is out of range."""
    if isinstance(at, datetime):
        aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max((aware - _EPOCH) // _MICROSECOND, 0)
    if not 0 <= index(at) <= NUMBER_MAX:
        raise BadArgument(f"{at} is no time in µs since the epoch: 0 to {NUMBER_MAX}")
    return index(at)


def text_of(time_us: int) -> str:
    """Formats µs since the epoch as ISO 8601, in UTC and whole seconds."""
    return f"{_EPOCH + timedelta(seconds=time_us // 1_000_000):%Y-%m-%dT%H:%M:%SZ}"


def time_of(text: str) -> int:
    """Converts ISO 8601 to µs since the epoch. A text without an offset is in UTC. Raises ``BadArgument`` for a text
    that is not ISO 8601."""
    try:
        return time_us(datetime.fromisoformat(text))
    except ValueError:
        shown = ascii(text if len(text) <= 40 else text[:40] + "…")
        raise BadArgument(f"{shown} is no time such as 2026-01-31T12:00:00Z") from None
