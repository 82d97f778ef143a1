"""The segment files of a directory, and which of their bytes are the log.

The header of each segment states where the log in the previous segment ends (``prev_number``, ``prev_end``). Frames of
the previous segment after ``prev_end`` are dead. Segment numbers rise but may be skipped, since the number of a
prepared segment that was never used is not used again.

    00000001.vlog  ACTIVE                                  live_end = 61440
    00000002.vlog  PREPARED, no frames                     (prepared but not used before a crash: not in the log)
    00000003.vlog  ACTIVE  prev_number 1, prev_end 61440   live_end = None: the last one

This module reads only header pages, except in ``stated_synced_end``, and writes no file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from vlsn.errors import BadBody, Damaged, WrongVersion
from vlsn.format import scan
from vlsn.format.segment import FIRST_FRAME, HEADER_PAGE, SegmentHeader, SegmentState, parse_segment_name
from vlsn.ids import NULL_LSN, Lsn, lsn, lsn_file, lsn_offset
from vlsn.levels import named
from vlsn.seams import Buffer, Disk
from vlsn.segments.bad_sectors import is_unread

LOCK_NAME = "LOCK"
"""The name of the lock file. The file is locked while the log in the directory is open, or is restored, mended or
truncated."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment file. The fields are from the segment's own header page and from the header page of the next
    segment."""

    number: int
    name: str
    path: str
    size: int
    """The size of the file, in bytes."""
    header: SegmentHeader | None
    """The segment's header; None if the header page cannot be decoded. If there is no header, ``fault`` has the
    reason."""
    fault: str
    live_end: int | None
    """The end of the log in this segment, as a later header states it. None if this is the last segment, or the later
    header is damaged."""
    other: SegmentHeader | None = None
    """The valid header in the file, if it belongs to a segment with another number."""

    @property
    def active(self) -> bool:
        return self.header is not None and self.header.state == SegmentState.ACTIVE

    @property
    def head(self) -> SegmentHeader:
        """The header of a segment that certainly has one, as every ACTIVE segment has."""
        assert self.header is not None, self.name
        return self.header


def survey(disk: Disk, directory: str, *, around: bool = False) -> list[SegmentInfo]:
    """Lists every segment file of ``directory`` by number, including files with damaged headers. With ``around``, for a
    reader outside the node, files that the disk cannot read are listed, too. Without ``around``, files that the disk
    cannot read raise ``OSError``. Raises ``WrongVersion``."""
    found: list[SegmentInfo] = []
    ends: dict[int, int] = {}
    for number, name in reversed(segment_numbers(disk, directory)):
        path = f"{directory}/{name}"
        try:
            header, size, fault = _read_header(disk, path)
        except FileNotFoundError:
            continue  # the file was removed after the directory was listed
        except OSError as error:
            if not around or not is_unread(error):
                raise
            header, size, fault = None, _size(disk, path), f"its header page cannot be read ({error})"
        other: SegmentHeader | None = None
        if header is not None and header.number != number:
            other, header = header, None
            fault = f"the header says that it is segment {other.number}"
        found.append(SegmentInfo(number, name, path, size, header, fault, ends.get(number), other))
        if header is not None and header.state == SegmentState.ACTIVE and header.prev_number:
            ends[header.prev_number] = header.prev_end
    found.reverse()
    return found


def segment_numbers(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """Returns the number and the name of every segment file, ascending."""
    named = [(parse_segment_name(name), name) for name in disk.list(directory)]
    return sorted((number, name) for number, name in named if number is not None)


def last_active(segments: Sequence[SegmentInfo]) -> SegmentInfo | None:
    """Returns the segment in which the log ends."""
    return next((each for each in reversed(segments) if each.active), None)


def check_size(active: Sequence[SegmentInfo]) -> None:
    """Checks the size of the last segment's file, which must reach at least to its first frame. No crash leaves the
    file shorter, and the lost bytes may have been acknowledged. (The end of an earlier segment is stated in the next
    segment's header.)"""
    for segment in active[-1:]:
        if segment.size < segment.head.size:
            raise Damaged(
                f"{segment.name} has {segment.size} of its {segment.head.size} bytes: it was cut short",
                file=segment.name,
                offset=segment.size,
            )


def make_directory(disk: Disk, directory: str) -> None:
    """Makes the directory with its parents, and syncs each name. Without that, files in the directory would not be
    durable. An existing directory is synced, too, since the process that made it may have died before syncing it."""
    missing = []
    at = directory.rstrip("/")
    while at and not disk.exists(at):
        missing.append(at)
        at = posixpath.dirname(at)
    try:
        disk.sync_directory(posixpath.dirname(at) or ("." if not at.startswith("/") else "/"))
    except PermissionError:  # this user cannot write to that directory, and so has not made it
        pass
    for path in reversed(missing):
        disk.make_directory(path)
        disk.sync_directory(posixpath.dirname(path) or ".")


def stated_synced_end(disk: Disk, segments: Sequence[SegmentInfo], *, stated: Iterable[Lsn] = ()) -> Lsn:
    """Finds the highest end up to which some valid statement says that the log was synced. The statements are the
    ``synced`` fields of frames, the header of the next segment, and ``stated`` (checkpoint and idle end). Other
    processes may read the log of a running node up to the returned end. The last segment is read once to find it."""
    last = last_active(segments)
    if last is None:
        return NULL_LSN
    best = FIRST_FRAME
    for at in stated:
        if lsn_file(at) == last.number:
            best = max(best, lsn_offset(at))
    with closing(disk.open(last.path)) as file:
        best = max(best, synced_in_frames(file.read(0, last.size), FIRST_FRAME, last.head.salt))
    return lsn(last.number, best)


def synced_in_frames(buf: Buffer, start: int, salt: int) -> int:
    """Finds the highest ``synced`` field of the valid frames in ``buf`` from ``start`` on, where a frame may begin.
    Frames after bad or missing frames are included. Returns 0 if there is no frame."""
    return max((int(found.headers["synced"].max()) for found in scan.islands(buf, 0, start, salt)), default=0)


def _size(disk: Disk, path: str) -> int:
    with closing(disk.open(path)) as file:
        return file.size()


def _read_header(disk: Disk, path: str) -> tuple[SegmentHeader | None, int, str]:
    with closing(disk.open(path)) as file:
        size = file.size()
        page = file.read(0, HEADER_PAGE)
    try:
        header = SegmentHeader.decode(page)
    except WrongVersion as error:
        raise named(error, path) from None
    except BadBody as error:
        return None, size, str(error)
    return header, size, ""
