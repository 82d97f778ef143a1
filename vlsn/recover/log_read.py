"""Reads a log when it is opened: every segment is examined, from one LSN on. Reading changes nothing.

Before the log is read, all files are synced and dropped from the page cache. So a write that an earlier process did not
sync is either on the medium, or not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vlsn.errors import Damaged, WrongDirectory
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Lsn, Vlsn, lsn_file, lsn_offset
from vlsn.recover.read_blocks import Blocks, gather
from vlsn.recover.torn_tail import Cut, Found, examine, sync_and_forget, untaken
from vlsn.seams import Disk
from vlsn.segments.directory import SegmentInfo, check_size, segment_numbers, survey


@dataclass(slots=True)
class LogRead:
    """The results of one reading of the segments."""

    segments: list[SegmentInfo]
    """All segments that belong to the log. The fields of a segment are those of its header on the medium."""
    found: list[Found]
    blocks: Blocks
    untaken: list[tuple[SegmentInfo, Cut]]
    """The segments whose first group of blocks was never synced."""
    unused: list[SegmentInfo]
    """The standbys (prepared next segments) that were never used."""

    @property
    def active(self) -> list[SegmentInfo]:
        return [segment for segment in self.segments if segment.active]

    @property
    def cut(self) -> Cut | None:
        return self.found[-1].cut if self.found else None

    @property
    def cuts(self) -> list[Cut]:
        """All cuts (unsynced tails that are left out) in log order."""
        return ([self.cut] if self.cut is not None else []) + [cut for _, cut in self.untaken]


def last_before(log: LogRead, scan_from: Lsn, checkpoint_last: Vlsn) -> Vlsn:
    """Returns the last VLSN before ``scan_from``. The checkpoint at VLSN ``checkpoint_last`` says that reading begins
    at ``scan_from``.

    A replacement of a failed segment may have moved the frame at ``scan_from``. Reading then begins in the next
    segment, whose header states the last VLSN before it.
    """
    for segment, behind in pairwise(log.active):
        if segment.number == lsn_file(scan_from) and segment.live_end is not None and behind.header is not None:
            left = lsn_offset(scan_from) > segment.live_end
            return Vlsn(min(checkpoint_last, behind.header.prev_last_vlsn)) if left else checkpoint_last
    return checkpoint_last


def check_last(log: LogRead, before: Vlsn, stated_last: Vlsn) -> None:
    """Checks that the log reaches VLSN ``stated_last``, which was synced and durable.

    If blocks were written again after a failed write, there may be no later frame that says they were synced. So only
    this check detects the loss of blocks that were written again. Raises ``Damaged`` if the log ends before
    ``stated_last``.
    """
    last = max(before, log.blocks.highest_vlsn)
    if last < stated_last and log.active:
        end = log.found[-1].end if log.found else FIRST_FRAME
        name = log.active[-1].name
        raise Damaged(
            f"{name} is damaged at offset {end}: the log was synced up to VLSN {stated_last}, and ends at {last}",
            file=name,
            offset=end,
            vlsn=last + 1,
        )


def read_log(disk: Disk, directory: str, *, scan_from: Lsn, first_segment: int, stated: Sequence[Lsn]) -> LogRead:
    """Reads the log from ``scan_from`` on (0: the whole log). Segments before ``first_segment`` no longer belong to the
    log. ``stated`` are ends, stored in ``state``, up to which the log was synced. Raises ``Damaged``."""
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
                # ``start`` is past the segment's live end: the blocks there were written again in the next segment
                start = min(start, segment.live_end)
            found.append(examine(disk, segment, start=start, last=segment.number == last, stated=stated))
    return LogRead(segments, found, gather(found, scan_from), unsynced, unused)


def check_owner(segments: Sequence[SegmentInfo], directory: str, group: str, node: str) -> None:
    for segment in segments:
        header = segment.header
        if header is not None and (header.group != group or header.node != node):
            raise WrongDirectory(
                f"{segment.path} belongs to node {header.node} of group {header.group}, not to {node} of {group}"
            )


def check_chain(active: Sequence[SegmentInfo]) -> None:
    for before, after in pairwise(active):
        if after.head.prev_number != before.number:
            raise Damaged(
                f"{after.name} follows on segment {after.head.prev_number}, but the one before it is {before.name}",
                file=after.name,
            )


def check_stated(active: Sequence[SegmentInfo], stated: Sequence[Lsn]) -> None:
    """Checks that all synced segments exist, even those after the last segment that was found."""
    last = active[-1].number if active else 0
    for at in stated:
        if lsn_file(at) > last:
            name = segment_name(lsn_file(at))
            raise Damaged(
                f"{name} is missing, or its header is: the log was synced up to {lsn_offset(at)} in it", file=name
            )
