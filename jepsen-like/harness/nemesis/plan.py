"""The plan of a run's faults, from a seed.

Each requested kind strikes again and again, independently of other kinds, so that kinds overlap; the first strike is
within the first interval. The nodes are drawn at the strike, from its own number, since they depend on the leader then.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

INTERVAL_S: Final = 10.0
"""Seconds on average between two strikes of one kind, in runs that are long enough."""
SHORT_PARTS: Final = 3
"""In a shorter run the interval is its duration divided by this number."""
LASTS_S_MIN: Final = 0.4

WAYS: Final[Mapping[str, Sequence[str]]] = {
    "kill": ("master", "master", "one", "minority", "majority", "all"),
    "pause": ("master", "master", "one", "minority", "all"),
    "partition": ("master", "master", "one", "halves", "ring", "one-way", "master-deaf", "master-mute"),
    "clock": ("one", "master", "minority", "all"),
    "disk": ("wipe", "flip", "eio", "eio-for-good"),
    "transfer": ("furthest", "named"),
    "cleaning": ("master", "one"),
    "members": ("add", "remove", "secondary", "promote", "readmit"),
}
KINDS: Final = tuple(WAYS)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: from ``at_s`` for ``lasts_s``; ``way`` is its variant, ``draw`` its own random number."""

    at_s: float
    lasts_s: float
    kind: str
    way: str
    draw: int


def plan(
    seed: int,
    kinds: Sequence[str],
    *,
    seconds: float,
    interval_s: float | None = None,
    ways: Mapping[str, Sequence[str]] = WAYS,
) -> list[Strike]:
    """Plans strikes in the order of their beginnings; all end before ``seconds``.  ``interval_s`` is the average time
    between two of a kind; by default ``INTERVAL_S``, less in short runs."""
    strikes = []
    interval = interval_s or min(INTERVAL_S, seconds / SHORT_PARTS)
    for kind in kinds:
        chance = Random(f"{seed} {kind}")
        at = chance.uniform(0.1, 0.9) * interval
        left: list[str] = []
        while at + LASTS_S_MIN < seconds:
            lasts = max(LASTS_S_MIN, interval * chance.uniform(0.1, 0.7))
            if not left:  # every way occurs once before any repeats
                left = chance.sample(list(ways[kind]), len(ways[kind]))
            strikes.append(Strike(at, min(lasts, seconds - at), kind, left.pop(), chance.getrandbits(32)))
            at += lasts + interval * chance.uniform(0.2, 1.0)
    return sorted(strikes, key=lambda strike: strike.at_s)
