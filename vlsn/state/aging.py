"""Age, as far as it is believed: a clock that leaps must not empty a log.

A segment is old where its last entry's clock lies further back than ``retention_age_s``. This node's clock may be
wrong, though, and so may be the clock that sealed. A clock that has leapt by a year cannot tell an hour's age from a
year's. So a segment goes only where one of these four confirms its age:

1. *members*: a majority's clocks agree with this node's (``repl/cleaning``).
2. *this process*: it has seen them for ``retention_age_s`` by the monotonic clock.
3. *entries*: the clocks of later segments, one after the other, have gone on by ``retention_age_s``. From one to the
   next at most an eighth of it counts, so a leap counts as an eighth. A clock that lies behind an earlier one adds
   nothing.
4. *allowance*: an eighth of the segments, one at least, when the log is opened, and as many again with every sixteenth
   of ``retention_age_s`` that passes by the monotonic clock.

    retention 8 days   | 1: day 0 | 2: day 2 | … | 6: day 10 | 7: day 375 | 8: …     today is day 376, or day 11
    old by the clock: 1–6;  by the entries behind them: 5 × 1 day + 1 day for the leap, of 8: none;  allowance: 1

So a log that stays open is cleaned as its clock says. So is a log whose setting of the age was lowered, and at once. A
log that is opened now and then is cleaned by its entries, or an eighth at a time. Source of 4: a token bucket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlsn.state.retention import Limit, Segment

SHARE = 8
ALLOWANCE = "age allowance"
"""The name of the limit on segments that are old by this log's clock alone."""
SAMPLES_MAX = 64
"""Segments whose clocks are read for rule 3, evenly apart: fewer make a log look younger."""
SEEN_MAX = 64
"""Notes that rule 2 takes in ``retention_age_s``."""


class Seen:
    """Rule 2, for one open log. On the owner's thread only."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, number: int, age_s: float, now_s: float) -> None:
        """Notes that all segments up to ``number`` are complete, as of the monotonic ``now_s``."""
        seen = self._seen
        while len(seen) > 1 and seen[1][0] <= now_s - age_s:
            seen.popleft()
        if not seen or now_s - seen[-1][0] >= age_s / SEEN_MAX:
            seen.append((now_s, number))

    def upto(self, age_s: float, now_s: float) -> int:
        """Returns the last segment that was there so long ago; 0 for none."""
        return max((number for at_s, number in self._seen if at_s <= now_s - age_s), default=0)


class Allowance:
    """Rule 4, for one open log. On the owner's thread only."""

    def __init__(self) -> None:
        self._left = 0.0
        self._as_of_s: float | None = None

    def left(self, segments: int, age_s: float, now_s: float) -> int:
        """Counts how many of so many ``segments`` may go now, by the monotonic clock."""
        full = max(1.0, segments / SHARE)
        if self._as_of_s is None:
            self._left = full
        else:
            self._left += 2 * segments * (now_s - self._as_of_s) / age_s
        self._as_of_s = now_s
        self._left = min(self._left, full)
        return int(self._left)

    def took(self, segments: int) -> None:
        self._left -= segments


@dataclass(frozen=True, slots=True)
class Belief:
    """The belief in the clock: segments up to ``seen`` are old. So are ``allowed`` more on its word alone."""

    seen: int
    allowed: int


@dataclass(slots=True)
class Aged:
    """Segments that are wanted gone for their age, oldest first. The first ``shown`` are old by more than the clock,
    and the first ``believed`` may go."""

    segments: list[Segment]
    shown: int
    believed: int

    def limits(self) -> list[Limit]:
        left = self.segments[self.believed :]
        return [Limit(ALLOWANCE, number=left[0].number)] if left else []


def believed(
    segments: list[Segment],
    wanted: list[tuple[Segment, str]],
    sealed: Callable[[Segment], int],
    age_s: float,
    belief: Belief | None,
) -> Aged:
    """Bounds the segments ``wanted`` for their age by ``belief``; without one all of them may go."""
    aged = [segment for segment, reason in wanted if reason == "age"]
    if belief is None:
        return Aged(aged, len(aged), len(aged))
    shown = sum(segment.number <= belief.seen for segment in aged)
    if len(aged) > shown + belief.allowed:
        shown = min(max(shown, shown_old(segments[segments.index(aged[0]) :], sealed, age_s)), len(aged))
    return Aged(aged, shown, shown + belief.allowed)


def shown_old(segments: Sequence[Segment], sealed_us: Callable[[Segment], int], age_s: float) -> int:
    """Counts the first of ``segments`` that are old by the clocks of those behind them (rule 3)."""
    count = len(segments)
    apart = max(1, -(-count // SAMPLES_MAX))
    at = list(range(0, count, apart))
    age_us = int(age_s * 1e6)
    passed = latest = 0
    steps: list[int] = []
    for index in at:
        clock_us = sealed_us(segments[index])
        steps.append(min(max(clock_us - latest, 0), age_us // SHARE) if latest else 0)
        latest = max(latest, clock_us)
    for index, step in zip(reversed(at), reversed(steps), strict=True):
        if passed >= age_us:
            return index + 1
        passed += step
    return 0
