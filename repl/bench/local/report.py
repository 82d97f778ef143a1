"""Figures of the local log, each beside the machine's own ceiling for it, taken in the same run.  Pure.

A figure is the median of its rounds.  An aim is either a share of the ceiling, or a number of its own; for a
time (``open``) lower is better.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repl.aligned import aligned


@dataclass(frozen=True, slots=True)
class Figure:
    """One work on a log of ``entries`` a block; ``rounds`` and ``ceilings`` are in ``unit``."""

    work: str
    entries: int
    unit: str
    rounds: tuple[float, ...]
    ceiling_of: str
    ceilings: tuple[float, ...]
    aim: float | None = None
    """The aim in ``unit``; None for none, or for one that is a ratio."""
    aim_ratio: float | None = None
    lower: bool = False
    """Lower is better."""

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def ceiling(self) -> float:
        return statistics.median(self.ceilings)

    @property
    def ratio(self) -> float:
        """The share of the ceiling that is reached: 1 is all of it."""
        return self.ceiling / self.value if self.lower else self.value / self.ceiling

    @property
    def reached(self) -> bool | None:
        """None where nothing was aimed at."""
        if self.aim_ratio is not None:
            return self.ratio >= self.aim_ratio
        if self.aim is not None:
            return self.value <= self.aim if self.lower else self.value >= self.aim
        return None

    @property
    def aimed(self) -> str:
        if self.aim_ratio is not None:
            return f"≥ {self.aim_ratio:g} of it"
        if self.aim is not None:
            return f"{'≤' if self.lower else '≥'} {self.aim:,g} {self.unit}"
        return ""

    def json(self) -> dict[str, Any]:
        return {
            "work": self.work,
            "entries_a_block": self.entries,
            "unit": self.unit,
            "value": significant(self.value),
            "rounds": [significant(value) for value in self.rounds],
            "ceiling_of": self.ceiling_of,
            "ceiling": significant(self.ceiling),
            "ratio": significant(self.ratio),
            "aim": self.aimed,
            "reached": self.reached,
        }


def significant(value: float) -> float:
    """Rounds to four digits, as JSON has them."""
    return float(f"{value:.4g}")


def lines(figures: Sequence[Figure]) -> list[str]:
    """Formats a table for a person, one line a figure."""
    rows = [("work", "a block", "measured", "ceiling", "of it", "aim", "")]
    for each in figures:
        verdict = {True: "reached", False: "MISSED", None: ""}[each.reached]
        rows.append(
            (
                each.work,
                f"{each.entries:,}",
                f"{_shown(each.value)} {each.unit}",
                f"{_shown(each.ceiling)} ({each.ceiling_of})",
                f"{each.ratio:.3f}",
                each.aimed,
                verdict,
            )
        )
    return aligned(list(zip(*rows, strict=True)), right=("a block", "measured", "of it"))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
