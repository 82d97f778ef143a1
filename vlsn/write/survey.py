"""The survey before a cleaning: it finds the sizes and ages of the segments, and which segments retention wants to
remove."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from vlsn.errors import Damaged
from vlsn.format.block import decode_header
from vlsn.format.segment import SegmentHeader
from vlsn.ids import Lsn, Vlsn
from vlsn.limits import STATE_FREE_BYTES_MIN
from vlsn.seams import Clock, Disk
from vlsn.segments.reader import LogReader, SegmentFile
from vlsn.state.aging import Aged, Allowance, Belief, Seen, believed
from vlsn.state.retention import Plan, Retention, Segment, wanted
from vlsn.write.free_space import FreeSpace
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement

_EMPTY_SINCE_US = 1
"""The time used for a segment without an entry, so that the segment counts as older than any other."""


@dataclass(slots=True)
class Surveyed:
    segments: list[Segment]
    wanted: list[tuple[Segment, str]]
    aged: Aged
    total_bytes: int
    cramped: bool


class Survey:
    """Surveys the segments of one open log again and again. A ``Survey`` remembers the header pages of segments that it
    has read, and how far it may believe this node's clock."""

    def __init__(
        self, view: LogView, placement: Placement, space: FreeSpace, clock: Clock, *, segment_bytes: int
    ) -> None:
        self._view = view
        self._placement = placement
        self._space = space
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._catalogue = Catalogue(view.disk, view.directory)
        self._seen = Seen()
        self._allowance = Allowance()

    def job(self, retention: Retention, *, clocks_agree: bool) -> Callable[[], Surveyed]:
        """Returns the survey as a function, which must run on the keeper's thread (the log's background thread). The
        function raises ``Damaged`` or ``OSError``."""
        numbers = list(self._view.segments())
        ahead = sum(self._segment_bytes for number in self._placement.active_files() if number not in numbers)
        belief = self._belief(retention.age_s, numbers, clocks_agree)
        return partial(self._look, retention, numbers, ahead, belief)

    def took(self, surveyed: Surveyed, chosen: Plan) -> None:
        """Reduces the number of segments that may still be removed by this node's clock alone. ``chosen`` is the plan
        of a cleaning, and may remove such segments."""
        self._allowance.took(max(0, sum(fate.reason == "age" for fate in chosen.going) - surveyed.aged.shown))

    def forget_before(self, number: int) -> None:
        self._catalogue.forget_before(number)

    def _belief(self, age_s: float, numbers: list[int], clocks_agree: bool) -> Belief | None:
        """Returns how far this node's clock is believed. Returns None if the clock is believed entirely, or if age is
        not used."""
        now_s = self._clock.monotonic_s()
        if not age_s:
            return None
        self._seen.note(max(numbers[:-1], default=0), age_s, now_s)
        if clocks_agree:
            return None
        return Belief(self._seen.upto(age_s, now_s), self._allowance.left(len(numbers) - 1, age_s, now_s))

    def _look(self, retention: Retention, numbers: list[int], ahead: int, belief: Belief | None) -> Surveyed:
        segments, last_bytes = self._catalogue.segments(numbers)
        total = sum(segment.bytes for segment in segments) + last_bytes + ahead
        reader = self._view.reader()
        sealed = partial(self._sealed_us, reader)
        try:
            found = wanted(segments, retention, total_bytes=total, sealed_us=sealed, now_us=self._clock.wall_us())
            aged = believed(segments, found, sealed, retention.age_s, belief)
        finally:
            reader.close()
        try:
            cramped = self._view.disk.free_bytes(self._view.directory) < STATE_FREE_BYTES_MIN
        except OSError:  # ``FreeSpace`` reports this error
            cramped = self._space.cramped
        return Surveyed(segments, found, aged, total, cramped)

    def _sealed_us(self, reader: LogReader, segment: Segment) -> int:
        """Returns the time at which the last entry up to this segment's end was sealed, by the master's clock. Returns
        0 if that time is unknown."""
        view = self._view
        if segment.last < view.range.first:
            return _EMPTY_SINCE_US
        mapping = view.index.at_or_before(segment.last)
        if mapping is None:
            return 0
        return sealed_us(reader, segment.last, mapping[1], view.range.last_sync)


class Catalogue:
    """The header pages of a log's segments. Each header page is read once, because that of an ACTIVE segment never
    changes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._headers: dict[int, SegmentHeader] = {}

    def segments(self, numbers: Iterable[int]) -> tuple[list[Segment], int]:
        """Returns all segments of ``numbers`` (ascending) except the last segment, and the bytes of the last segment.
        Raises ``Damaged``."""
        headers = [self._header(number) for number in numbers]
        found = []
        for header, following in pairwise(headers):
            if following.prev_number != header.number:
                raise Damaged(f"segment {following.number} follows on {following.prev_number}, not on {header.number}")
            found.append(Segment(header.number, header.size, Vlsn(following.prev_last_vlsn)))
        return found, headers[-1].size if headers else 0

    def forget_before(self, number: int) -> None:
        for each in [each for each in self._headers if each < number]:
            del self._headers[each]

    def _header(self, number: int) -> SegmentHeader:
        header = self._headers.get(number)
        if header is None:
            file = SegmentFile(self._disk, self._directory, number)
            file.close()
            header = self._headers[number] = file.header
        return header


def bytes_from(segments: list[Segment], total_bytes: int, vlsn: Vlsn) -> int:
    """Returns how many of ``total_bytes`` are in the segment that contains ``vlsn``, and in the segments after it."""
    return total_bytes - sum(segment.bytes for segment in segments if segment.last < vlsn)


def sealed_us(reader: LogReader, vlsn: Vlsn, start: Lsn, upto: Vlsn) -> int:
    """Returns the time at which the block that contains ``vlsn`` was sealed, in µs since the epoch. Returns 0 if the
    block cannot be read."""
    try:
        run = reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=1)
    except Damaged:
        return 0
    return decode_header(run.data[0]).clock_us if run.data else 0
