"""Medians over the rounds, and the ratios that the figures are wanted for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repl.bench.peers.peer import Figure

Key = tuple[str, str]
"""The system and its work."""


@dataclass(frozen=True, slots=True)
class Row:
    """One work of one system: medians of its rounds."""

    system: str
    work: str
    client: str
    rounds: tuple[float, ...]
    p50_ms: float | None
    p99_ms: float | None
    errors: int

    @property
    def per_s(self) -> float:
        return statistics.median(self.rounds)

    def json(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "work": self.work,
            "client": self.client,
            "appends_per_s": round(self.per_s, 1),
            "rounds": [round(rate, 1) for rate in self.rounds],
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "errors": self.errors,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of ours against one of a peer's.  ``at_least`` unless ``at_most``."""

    what: str
    ours: float
    theirs: float
    wanted: float
    at_most: bool = False

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def reached(self) -> bool:
        return self.ratio <= self.wanted if self.at_most else self.ratio >= self.wanted

    def json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "ours": round(self.ours, 4),
            "theirs": round(self.theirs, 4),
            "ratio": round(self.ratio, 3),
            "wanted": ("≤ " if self.at_most else "≥ ") + f"{self.wanted:g}",
            "reached": self.reached,
        }


def rows(figures: Mapping[Key, list[Figure]], clients: Mapping[Key, str]) -> list[Row]:
    """Makes one row a work, in the order of the first round."""
    return [
        Row(
            *(system, work, clients[system, work]),
            rounds=tuple(figure.per_s for figure in rounds),
            p50_ms=_median([figure.p50_ms for figure in rounds]),
            p99_ms=_median([figure.p99_ms for figure in rounds]),
            errors=sum(figure.errors for figure in rounds),
        )
        for (system, work), rounds in figures.items()
    ]


def ratios(measured: list[Row]) -> list[Ratio]:
    """Computes those of the wanted ratios that both sides were measured for."""
    found = {(row.system, row.work): row for row in measured}
    ours = {row.work: row for row in measured if row.system == "vlsnlog"}
    etcd = [row for row in measured if row.system == "etcd"]
    postgres_many = found.get(("PostgreSQL", "64 clients"))
    postgres_one = found.get(("PostgreSQL", "1 client"))
    gateway = found.get(("etcd", "64 connections, JSON"))
    best = max(etcd, key=lambda row: row.per_s, default=None)
    result = []
    if postgres_many is not None:
        result.append(_rate("64 writers / PostgreSQL, 64 clients", ours["64 writers"], postgres_many, 5))
    if best is not None:
        at_best = f"1024 writers / etcd at best ({best.work}; {best.client})"
        result.append(_rate(at_best, ours["1024 writers"], best, 25))
    if postgres_many is not None:
        result.append(_rate("64 connections, POST / PostgreSQL, 64 clients", ours[_POST], postgres_many, 1))
    if gateway is not None:
        result.append(_rate("64 connections, POST / etcd's JSON gateway", ours[_POST], gateway, 2))
    if postgres_one is not None and postgres_one.p50_ms and ours["1 writer"].p50_ms:
        times = ours["1 writer"].p50_ms, postgres_one.p50_ms
        result.append(Ratio("1 writer, p50 ms / PostgreSQL's", *times, wanted=1.3, at_most=True))
    return result


_POST = "64 connections, POST"


def _rate(what: str, ours: Row, theirs: Row, wanted: float) -> Ratio:
    return Ratio(what, ours.per_s, theirs.per_s, wanted)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None
