"""The start of a log that was cleaned: where the last cleaning lets the log begin, and the steps of that cleaning that
the opening still has to do.

    state record   trimmed_to 300, first_segment 2         segment 1 is not part of the log, even if it exists
    index          range 1–950, or 301–950                 is cut to 301–950 if that was not done
    files          1, 2, 3, or 2, 3                        file 1 is removed, and the cleaning is finished

A cleaning writes the state record before it cuts the index, and cuts the index before it removes a file. Files are
removed oldest first, and each removal is made durable before the next. So if a log begins later than its state record
says, segments are lost. Lost segments are damage, and are never taken for a cleaning. But if the state record is older
than the index, the index is believed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress

from vlsn.errors import Damaged
from vlsn.format import scan
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Lsn, Vlsn, lsn, lsn_file
from vlsn.index.index import VlsnIndex
from vlsn.seams import Disk
from vlsn.segments.directory import SegmentInfo
from vlsn.segments.reader import SegmentFile
from vlsn.segments.visible_blocks import is_block_at
from vlsn.segments.window import WINDOW_BYTES_MIN
from vlsn.state.state_store import StateRecord

_FILES = re.compile(r"([0-9]{8})\.(vlog|vlog\.mend|vidx|vidx\.new|(cut|damaged)-[0-9]+(\.[0-9]+)?)\Z")


def state_fits(
    disk: Disk,
    directory: str,
    segments: Sequence[SegmentInfo],
    index: VlsnIndex,
    record: StateRecord | None,
    *,
    restoring: bool,
) -> bool:
    """Returns whether the ACTIVE ``segments`` begin where the state record says. Returns False if the stored ``index``
    shows that the record is older than a cleaning. Raises ``Damaged`` if segments are missing. With ``restoring``, the
    record is that of the present restore. The restored log may begin in a later segment than the record says, since
    each opening uses up a segment number."""
    if record is None or not segments:
        return True
    first = segments[0]
    if first.number <= record.first_segment or (not first.head.prev_number and (restoring or not record.first_segment)):
        return True
    mapping = index.at_or_before(index.range.first)
    if mapping is not None and lsn_file(mapping[1]) == first.number and is_block_at(disk, directory, *mapping):
        return False
    lost = segment_name(first.head.prev_number or record.first_segment)
    raise Damaged(
        f"{lost} is missing: the log was cleaned up to VLSN {record.trimmed_to} only, and begins with {first.name}",
        file=lost,
        vlsn=record.trimmed_to + 1,
    )


def kept_segments(segments: Sequence[SegmentInfo], record: StateRecord | None) -> list[SegmentInfo]:
    """Returns the ``segments`` that still belong to the log by its state record."""
    first = record.first_segment if record is not None else 0
    return [segment for segment in segments if segment.number >= first]


def finish_cleaning(
    disk: Disk, directory: str, index: VlsnIndex, segments: Sequence[SegmentInfo], record: StateRecord | None
) -> bool:
    """Finishes the cleaning described in the state record, and returns whether anything was left to do. ``segments``
    are the segments that are kept. The function blocks, on the store's thread. The cleaning is durable on return."""
    if record is None or not record.first_segment:
        return False
    due = not index.range.empty and index.range.first <= record.trimmed_to
    if due:
        ends = {segment.number: segment.live_end or segment.size for segment in segments}
        index.truncate_head(*first_block(disk, directory, ends))
    groups = leftovers(disk, directory, record.first_segment)
    for names in groups:
        remove(disk, directory, names)
    return due or bool(groups)


def first_block(disk: Disk, directory: str, ends: Mapping[int, int]) -> tuple[Vlsn, Lsn]:
    """Finds the first VLSN and the LSN of the first visible block of the segments in ``ends``. Raises ``Damaged`` if
    there is no visible block, or it cannot be read."""
    for number, end in ends.items():
        with closing(SegmentFile(disk, directory, number)) as segment:
            at = FIRST_FRAME
            while at < end:
                buf, found = segment.window(at, end, WINDOW_BYTES_MIN)
                if not len(found):
                    raise Damaged(f"{segment.name} at {at}: no valid frame", file=segment.name, offset=at)
                visible = found.visible()
                first = scan.Walk(visible.offsets[:1], visible.headers[:1], found.end, found.reason)
                if scan.check_crcs(buf, at, first) is not None:
                    raise Damaged(f"{segment.name}: its first block is damaged", file=segment.name, offset=at)
                if len(first):
                    head = scan.block_headers(buf, at, first.offsets)[0]
                    return Vlsn(int(head["first_vlsn"])), lsn(number, int(first.offsets[0]))
                at = found.end
    raise Damaged("none of the segments that stay has a visible block")


def leftovers(disk: Disk, directory: str, first_number: int) -> list[list[str]]:
    """Returns the names of all files of segments before ``first_number``: one list for each segment, the oldest
    first."""
    found: dict[int, list[str]] = {}
    for name in disk.list(directory):
        match = _FILES.match(name)
        if match is not None and int(match[1]) < first_number:
            found.setdefault(int(match[1]), []).append(name)
    return [sorted(found[number], key=lambda name: name.endswith(".vlog")) for number in sorted(found)]


def remove(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Removes the files of one segment. The removal is durable on return, so that no later segment is removed before
    this one. Calling the function again does no harm."""
    for name in names:
        with suppress(FileNotFoundError):
            disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)


class Removal:
    """Removes the files of all segments before ``first_number``, one segment with each call. A call after a failure
    continues with the segment that failed. The calls are made on the keeper's thread (the log's background thread)."""

    def __init__(self, disk: Disk, directory: str, first_number: int) -> None:
        self._disk = disk
        self._directory = directory
        self._first_number = first_number
        self._groups: deque[list[str]] | None = None

    def __call__(self) -> bool:
        """Removes one segment's files, and returns whether no segment is left to remove."""
        if self._groups is None:
            self._groups = deque(leftovers(self._disk, self._directory, self._first_number))
        elif self._groups:
            remove(self._disk, self._directory, self._groups[0])
            self._groups.popleft()
        return not self._groups
