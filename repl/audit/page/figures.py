"""Formats numbers for people."""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor, log10


def count(number: float) -> str:
    """Formats a number as ``12,345``."""
    return f"{number:,.0f}"


def short(number: float) -> str:
    """Formats a number as ``1.2 k`` or ``34 M``, with three digits at most."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5 or unit == " T":
            return f"{number:.3g}{unit}" if abs(number) < 99.95 else f"{number:.0f}{unit}"
        number /= 1000
    raise AssertionError


def size(number: float) -> str:
    """Formats bytes as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1024 or unit == "TiB":
            return (
                f"{number:.0f} {unit}"
                if unit == "B"
                else f"{number:.3g} {unit}"
                if number < 999.5
                else f"{number:,.0f} {unit}"
            )
        number /= 1024
    raise AssertionError


def moment(us: int, span_us: int) -> str:
    """Formats a time in UTC. The shorter ``span_us``, the more digits are shown. A time outside the calendar is shown
    in µs."""
    try:
        at = datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)
    except (ValueError, OverflowError, OSError):
        return f"{us} µs"
    if span_us < 10_000_000:
        return at.strftime("%H:%M:%S.%f")[:-3]
    if span_us < 2 * 86_400_000_000:
        return at.strftime("%H:%M:%S")
    return at.strftime("%Y-%m-%d" if span_us > 30 * 86_400_000_000 else "%m-%d %H:%M")


def duration(us: int) -> str:
    """Formats a bucket's width as ``10 s`` or ``1 h``."""
    for unit, length in (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000)):
        if us >= length:
            return f"{us / length:g} {unit}"
    return f"{us / 1000:g} ms"


def size_ceiling(highest: float) -> float:
    """Returns the top of an axis of bytes: a round number in the unit that ``size`` uses."""
    unit = 1
    while highest >= 1024 * unit:
        unit *= 1024
    return min(ceiling(highest / unit), 1024) * unit


def ceiling(highest: float) -> float:
    """Returns the top of an axis for values up to ``highest``: 1, 2, 2.5 or 5 times a power of ten, or 1."""
    if highest < 1e-9:
        return 1.0
    power = 10.0 ** floor(log10(highest))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= highest * 0.999999)
