"""Positions on the timeline: one axis of time, rows below each other."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10
from typing import ClassVar, Final

WIDTH: Final = 1240
LEFT: Final = 56
WIDE: Final = WIDTH - LEFT - 8
HEIGHTS: Final = {"appends": 130, "waits": 90, "state": 20, "mark": 6, "lane": 40, "partitions": 24}
GAP: Final = 34
_MARKS: Final = ("kill", "pause", "disk", "clock", "transfer", "members", "cleaning")
_TICKS_MAX: Final = 12


class Frame:
    """Converts seconds, rows and waits to pixels."""

    WAITS: ClassVar = ((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1.0, "1 s"), (10.0, "10 s"))

    def __init__(self, seconds: float, names: list[str]) -> None:
        self.names = names
        self._seconds = max(seconds, 0.001)
        self._tops = {"appends": 22}
        self._tops["waits"] = self._tops["appends"] + HEIGHTS["appends"] + GAP
        at = self._tops["waits"] + HEIGHTS["waits"] + GAP - 8
        for name in names:
            self._tops[name] = at
            at += HEIGHTS["lane"]
        self._tops["partitions"] = at
        self.bottom = at + HEIGHTS["partitions"]

    def x(self, seconds: float) -> float:
        return LEFT + seconds / self._seconds * WIDE

    def wide(self, seconds: float) -> float:
        return seconds / self._seconds * WIDE

    def top(self, row: str) -> int:
        return self._tops[row]

    def fault_y(self, lane: str, kind: str) -> int:
        """Places a fault below a node's state; kinds that overlap are side by side."""
        if lane == "partitions":
            return self._tops[lane]
        return self._tops[lane] + HEIGHTS["state"] + 1 + (_MARKS.index(kind) % 2) * HEIGHTS["mark"]

    def wait_share(self, seconds: float) -> float:
        """Scales a wait: 0 at 1 ms, 1 at 10 s."""
        low, high = log10(self.WAITS[0][0]), log10(self.WAITS[-1][0])
        return min(1.0, max(0.0, (log10(max(seconds, 1e-6)) - low) / (high - low)))

    def wait_y(self, seconds: float) -> float:
        return self._tops["waits"] + HEIGHTS["waits"] * (1 - self.wait_share(seconds))

    def title(self, row: str, text: str) -> Iterable[str]:
        yield f'<text class="name" x="{LEFT}" y="{self._tops[row] - 8}">{escape(text)}</text>'

    def scale(self, row: str, marks: Iterable[tuple[float, str]]) -> Iterable[str]:
        """Yields lines at shares of the row's height, from its bottom."""
        for share, label in marks:
            y = self._tops[row] + HEIGHTS[row] * (1 - share)
            yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'

    def axis(self) -> Iterable[str]:
        """Yields seconds below, and names of lanes at the side."""
        step = next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if self._seconds / step <= _TICKS_MAX)
        for tick in range(0, int(self._seconds) + 1, step):
            x = self.x(tick)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self._tops["appends"]}" y2="{self.bottom}"/>'
            yield f'<text x="{x:.1f}" y="{self.bottom + 16}" text-anchor="middle">{tick} s</text>'
        base = self._tops["appends"] + HEIGHTS["appends"]
        yield f'<line class="base" x1="{LEFT}" x2="{LEFT + WIDE}" y1="{base}" y2="{base}"/>'
        for name in self.names:
            yield f'<text class="name" x="{LEFT - 10}" y="{self._tops[name] + 15}" text-anchor="end">{name}</text>'
        y = self._tops["partitions"] + 14
        yield f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">links</text>'
