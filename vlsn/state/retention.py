"""Retention: which segments of a log should be removed, and which of them may be removed. These functions have no side
effects.

    bytes   the oldest segments are removed while all segment files together have more bytes
    age     a segment is removed if its last entry was sealed longer ago
    limits  keep segments that the next open, a rollback or the group still needs
    holds   keep segments that others still need (``holds``)

1. Segments are removed as a whole, oldest first, without a gap. The *wanted* segments, which should be removed, are
   those before the first segment that should stay. The removed segments are those before the first one that must stay.
2. A segment may be removed if its last VLSN is below every limit and hold, and its number is below that of the
   checkpoint's segment.
3. A hold is dropped if three conditions are met: it blocks a wanted segment, it is more than ``hold_bytes_max`` behind
   the log's end, and dropping it allows to remove a segment.

    retention 192 MiB    | 1: 1–90 | 2: 91–200 | 3: 201–310 | 4: 311–… |     64 MiB each
    wanted 1; a feeder at VLSN 80 keeps it; limits at 305                  going: none, 1 is blocked by feeder n2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from vlsn.format.segment import segment_name
from vlsn.ids import Vlsn
from vlsn.state.holds import Hold, Owner

SEGMENTS_AT_ONCE_MAX = 100
"""The most segments that one pass of cleaning removes, since their index entries are counted in memory. To remove more
takes several passes."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits on a log's size and age. 0 means no limit."""

    bytes: int = 0
    age_s: float = 0.0
    hold_bytes_max: int = 0

    def __bool__(self) -> bool:
        return bool(self.bytes or self.age_s)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the log that is followed by another segment."""

    number: int
    bytes: int
    """The bytes of the segment's file."""
    last: Vlsn
    """The last VLSN in this segment and all segments before it, or 0 if they contain none."""


class Fate(msgspec.Struct, frozen=True):
    """The decision about a segment that should be removed: the reason (``bytes`` or ``age``), and the owners whose
    holds or limits keep the segment. If no owner keeps the segment, it is removed."""

    number: int
    file: str
    bytes: int
    last: int
    reason: str
    blocked_by: list[str] = []


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on removal: everything at or after ``vlsn`` is kept, and every segment from ``number`` on (0: no limit on
    numbers)."""

    name: str
    vlsn: Vlsn | None = None
    number: int = 0

    def keeps(self, segment: Segment) -> bool:
        return (self.vlsn is not None and segment.last >= self.vlsn) or 0 < self.number <= segment.number


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of ``plan``. ``going`` are the segments to remove, oldest first. ``blocked`` are the wanted segments
    that are kept. ``drops`` are the holds to drop before the segments are removed."""

    going: list[Fate]
    blocked: list[Fate]
    drops: list[Hold]


def wanted(
    segments: Sequence[Segment],
    retention: Retention,
    *,
    total_bytes: int,
    sealed_us: Callable[[Segment], int],
    now_us: int,
) -> list[tuple[Segment, str]]:
    """Returns the segments that should be removed, oldest first, each with the reason. ``segments`` are ascending, and
    ``total_bytes`` is the size of all files. ``sealed_us`` returns the time at which a segment's last entry was sealed
    (0: not known, so the segment is not removed for age). ``sealed_us`` is called for as few segments as possible."""
    found: list[tuple[Segment, str]] = []
    left = total_bytes
    for segment in segments[:SEGMENTS_AT_ONCE_MAX]:
        if retention.bytes and left > retention.bytes:
            found.append((segment, "bytes"))
        elif retention.age_s and 0 < sealed_us(segment) < now_us - retention.age_s * 1e6:
            found.append((segment, "age"))
        else:
            break
        left -= segment.bytes
    return found


def plan(
    wanted: Sequence[tuple[Segment, str]],
    limits: Sequence[Limit],
    holds: Iterable[Hold],
    *,
    hold_bytes_max: int = 0,
    bytes_from: Callable[[Vlsn], int] = lambda _: 0,
) -> Plan:
    """Decides which of the wanted segments are removed. ``bytes_from`` returns the bytes of log from the segment with a
    VLSN to the log's end."""
    held = {str(hold): hold for hold in holds}

    def behind(hold: Hold) -> int:
        """Returns how many bytes a hold is behind the log's end. For a restore's hold, returns the bytes of the wanted
        segments that the hold blocks."""
        if hold.owner is Owner.RESTORE:
            return sum(segment.bytes for segment, _ in wanted if segment.last >= hold.vlsn)
        return bytes_from(hold.vlsn)

    keepers = [*limits, *(Limit(name, hold.vlsn) for name, hold in held.items())]
    late = {
        name
        for name, hold in held.items()
        if hold_bytes_max and hold.owner is not Owner.CHECKPOINT and behind(hold) > hold_bytes_max
    }
    going = _going(wanted, keepers)
    if late:
        without = _going(wanted, [keeper for keeper in keepers if keeper.name not in late])
        dropped = {
            keeper.name for keeper in keepers if keeper.name in late and any(keeper.keeps(each) for each, _ in without)
        }
        going, keepers = without, [keeper for keeper in keepers if keeper.name not in dropped]
    else:
        dropped = set()
    fates = [
        Fate(
            segment.number, segment_name(segment.number), segment.bytes, segment.last, reason,
            list(dict.fromkeys(keeper.name for keeper in keepers if keeper.keeps(segment))),
        )
        for segment, reason in wanted
    ]  # fmt: skip
    return Plan(fates[: len(going)], fates[len(going) :], [held[name] for name in sorted(dropped)])


def _going(wanted: Sequence[tuple[Segment, str]], keepers: Sequence[Limit]) -> Sequence[tuple[Segment, str]]:
    for index, (segment, _) in enumerate(wanted):
        if any(keeper.keeps(segment) for keeper in keepers):
            return wanted[:index]
    return wanted
