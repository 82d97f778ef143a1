"""The rules by which the age of a segment is believed. A clock that leaps forward must not empty a log.

A segment is old if the time in its last entry is more than ``retention_age_s`` before the time of this node's clock.
However, this node's clock may be wrong, and so may the clock of the node that sealed the entry. If a clock has leapt by
a year, a segment of one hour looks a year old. So an old segment is removed only if one of four rules confirms its age:

1. *members*: the clocks of a majority of members agree with this node's clock (``repl/cleaning``).
2. *this process*: this process has had the segment for ``retention_age_s`` by the monotonic clock.
3. *entries*: from segment to later segment, the times in the entries have advanced by ``retention_age_s`` in all. One
   step to the next segment adds at most an eighth of ``retention_age_s``, so a leap adds an eighth. A time that is
   earlier than that of the segment before adds nothing.
4. *allowance*: when the log is opened, an eighth of the segments may be removed, and at least one. The same number may
   be removed again after every sixteenth of ``retention_age_s``, by the monotonic clock.

    retention 8 days   | 1: day 0 | 2: day 2 | … | 6: day 10 | 7: day 375 | 8: …     today is day 376, or day 11
    old by the clock: 1–6;  by the later entries: 5 × 1 day + 1 day for the leap, of 8: none;  allowance: 1

So a log that stays open is cleaned by this node's clock, and at once if ``retention_age_s`` is lowered. A log that is
opened only now and then is cleaned by the times in its entries, or an eighth at a time. Rule 4, the allowance, is a
token bucket.
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
"""The most segments whose times rule 3 reads, evenly spaced. Reading fewer times makes a log look younger."""
SEEN_MAX = 64
"""The most observations that rule 2 records in a period of ``retention_age_s``."""


class Seen:
    """Rule 2 (how long this process has had the segments) for one open log. The class is used on the owner's thread
    only."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, number: int, age_s: float, now_s: float) -> None:
        """Records that at the monotonic time ``now_s`` all segments up to ``number`` are complete."""
        seen = self._seen
        while len(seen) > 1 and seen[1][0] <= now_s - age_s:
            seen.popleft()
        if not seen or now_s - seen[-1][0] >= age_s / SEEN_MAX:
            seen.append((now_s, number))

    def upto(self, age_s: float, now_s: float) -> int:
        """Returns the last segment that was complete at the time ``now_s`` − ``age_s``, or 0 if there was none."""
        return max((number for at_s, number in self._seen if at_s <= now_s - age_s), default=0)


class Allowance:
    """Rule 4 (the allowance) for one open log. The class is used on the owner's thread only."""

    def __init__(self) -> None:
        self._left = 0.0
        self._as_of_s: float | None = None

    def left(self, segments: int, age_s: float, now_s: float) -> int:
        """Returns how many of a log's ``segments`` segments may be removed now by the allowance."""
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
    """The limits on removal by age. Segments up to ``seen`` are confirmed as old. ``allowed`` further segments may be
    removed by this node's clock alone."""

    seen: int
    allowed: int


@dataclass(slots=True)
class Aged:
    """The segments that retention would remove for their age, oldest first. The age of the first ``shown`` segments is
    confirmed by more than this node's clock. The first ``believed`` segments may be removed."""

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
    """Limits, by ``belief``, the ``wanted`` segments that are to be removed for their age. If ``belief`` is None, all
    segments that are wanted removed for their age may be removed."""
    aged = [segment for segment, reason in wanted if reason == "age"]
    if belief is None:
        return Aged(aged, len(aged), len(aged))
    shown = sum(segment.number <= belief.seen for segment in aged)
    if len(aged) > shown + belief.allowed:
        shown = min(max(shown, shown_old(segments[segments.index(aged[0]) :], sealed, age_s)), len(aged))
    return Aged(aged, shown, shown + belief.allowed)


def shown_old(segments: Sequence[Segment], sealed_us: Callable[[Segment], int], age_s: float) -> int:
    """Returns how many of the first ``segments`` are old by the times in the segments after them (rule 3)."""
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
