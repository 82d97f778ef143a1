"""Times as a person or a program gives them, in µs since the epoch as entries bear them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import index

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_us(at: datetime | int) -> int:
    """Returns µs since the epoch of a ``datetime``, which is UTC where it has no zone, or of such µs. Times before the
    epoch are 0. Raises ``BadArgument`` for a number out of range."""
    if isinstance(at, datetime):
        aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max((aware - _EPOCH) // _MICROSECOND, 0)
    if not 0 <= index(at) <= NUMBER_MAX:
        raise BadArgument(f"{at} is no time in µs since the epoch: 0 to {NUMBER_MAX}")
    return index(at)


def text_of(time_us: int) -> str:
    """Returns ISO 8601 of µs since the epoch, in whole seconds of UTC."""
    return f"{_EPOCH + timedelta(seconds=time_us // 1_000_000):%Y-%m-%dT%H:%M:%SZ}"


def time_of(text: str) -> int:
    """Returns µs since the epoch of ISO 8601, UTC without an offset. Raises ``BadArgument``."""
    try:
        return time_us(datetime.fromisoformat(text))
    except ValueError:
        shown = ascii(text if len(text) <= 40 else text[:40] + "…")
        raise BadArgument(f"{shown} is no time such as 2026-01-31T12:00:00Z") from None
