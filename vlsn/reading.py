"""The reading of a log at an open: every segment from a place on, examined, and what is none of it.  Changes nothing.

What is read was synced before, and dropped from the page cache: what a process before this one wrote and did not
live to sync, or failed to, is either on the medium or not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vlsn.directory import SegmentInfo, segment_numbers, survey
from vlsn.errors import Damaged, WrongDirectory
from vlsn.examine import Cut, Found, examine, sync_and_forget, untaken
from vlsn.ids import Lsn, lsn_file, lsn_offset
from vlsn.seams import Disk
from vlsn.segment import FIRST_FRAME, segment_name
from vlsn.visible import Blocks, gather


@dataclass(slots=True)
class LogRead:
    """What one reading of the segments has found."""

    segments: list[SegmentInfo]
    """All of them that are log, as their headers are on the medium."""
    found: list[Found]
    blocks: Blocks
    untaken: list[tuple[SegmentInfo, Cut]]
    """Segments whose first group was never synced."""
    unused: list[SegmentInfo]
    """Standbys that were never taken."""

    @property
    def active(self) -> list[SegmentInfo]:
        return [segment for segment in self.segments if segment.active]

    @property
    def cut(self) -> Cut | None:
        return self.found[-1].cut if self.found else None

    @property
    def cuts(self) -> list[Cut]:
        """In log order."""
        return ([self.cut] if self.cut is not None else []) + [cut for _, cut in self.untaken]


def read_log(disk: Disk, directory: str, *, scan_from: Lsn, first_segment: int, stated: Sequence[Lsn]) -> LogRead:
    """Reads from ``scan_from`` on (0: all).  Segments before ``first_segment`` are no log any more; ``stated`` are
    the ends that ``state`` says were synced.  Raises ``Damaged``."""
    first = max(lsn_file(scan_from), first_segment)
    sync_and_forget(disk, directory, [name for number, name in segment_numbers(disk, directory) if number >= first])
    segments = [segment for segment in survey(disk, directory) if segment.number >= first_segment]
    active = [segment for segment in segments if segment.active]
    check_chain(active)
    check_stated(active, stated)
    check_size(active)
    last = active[-1].number if active else 0
    unused: list[SegmentInfo] = []
    unsynced: list[tuple[SegmentInfo, Cut]] = []
    for segment in segments:
        if segment.active:
            continue
        if segment.header is None and segment.number < last:
            raise Damaged(f"{segment.name}: its header is damaged ({segment.fault})", file=segment.name, offset=0)
        cut = untaken(disk, segment, stated=stated)
        if cut is None:
            unused.append(segment)
        else:
            unsynced.append((segment, cut))
    found = []
    for segment in active:
        if segment.number >= first:
            start = lsn_offset(scan_from) if segment.number == lsn_file(scan_from) else FIRST_FRAME
            if segment.live_end is not None:
                start = min(start, segment.live_end)  # past it: what lay there was written again in the next one
            found.append(examine(disk, segment, start=start, last=segment.number == last, stated=stated))
    return LogRead(segments, found, gather(found), unsynced, unused)


def check_owner(segments: Sequence[SegmentInfo], directory: str, group: str, node: str) -> None:
    for segment in segments:
        header = segment.header
        if header is not None and (header.group != group or header.node != node):
            raise WrongDirectory(
                f"{segment.path} belongs to node {header.node} of group {header.group}, not to {node} of {group}"
            )


def check_chain(active: Sequence[SegmentInfo]) -> None:
    for before, after in pairwise(active):
        assert after.header is not None
        if after.header.prev_number != before.number:
            raise Damaged(
                f"{after.name} follows on segment {after.header.prev_number}, but the one before it is {before.name}",
                file=after.name,
            )


def check_size(active: Sequence[SegmentInfo]) -> None:
    """A segment has all its bytes before its first frame: no crash leaves the last one shorter, and what it has lost
    may have been acknowledged.  (Where an earlier one ends, the next one's header says.)"""
    for segment in active[-1:]:
        assert segment.header is not None
        if segment.size < segment.header.size:
            raise Damaged(
                f"{segment.name} has {segment.size} of its {segment.header.size} bytes: it was cut short",
                file=segment.name,
                offset=segment.size,
            )


def check_stated(active: Sequence[SegmentInfo], stated: Sequence[Lsn]) -> None:
    """What had been synced is there: the segments behind the last one too."""
    last = active[-1].number if active else 0
    for at in stated:
        if lsn_file(at) > last:
            name = segment_name(lsn_file(at))
            raise Damaged(
                f"{name} is gone, or its header is: the log had been synced up to {lsn_offset(at)} in it", file=name
            )
