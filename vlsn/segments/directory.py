"""The segments of a directory, and which bytes of them are the log.

A segment's log ends where the header of the segment after it says (``prev_number``, ``prev_end``); frames past that
are dead.  Numbers rise but may be skipped: a standby that was never taken burns its number.

    00000001.vlog  ACTIVE                                  live_end = 61440
    00000002.vlog  PREPARED, no frames                     (a standby left by a crash: not in the log)
    00000003.vlog  ACTIVE  prev_number 1, prev_end 61440   live_end = None: the last one

Nothing but header pages is read here, except by ``stated_synced_end``, and no file is written.
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
"""Locked while a log is open there, or restored, mended, truncated."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment file as its header page, and the next one's, describe it."""

    number: int
    name: str
    path: str
    size: int
    """The size of the file, in bytes."""
    header: SegmentHeader | None
    """None when the page cannot be read as a header; ``fault`` then says why."""
    fault: str
    live_end: int | None
    """The end of its log, as a later header names it; None for the last one. It is None, too, if that header is
    damaged."""
    other: SegmentHeader | None = None
    """A right header, and that of a segment of another number."""

    @property
    def active(self) -> bool:
        return self.header is not None and self.header.state == SegmentState.ACTIVE

    @property
    def head(self) -> SegmentHeader:
        """The header of a segment that is known to have one, as each ACTIVE one does."""
        assert self.header is not None, self.name
        return self.header


def survey(disk: Disk, directory: str, *, around: bool = False) -> list[SegmentInfo]:
    """Lists every segment file of ``directory``, by number, damaged headers included. For an outside reader
    (``around``) it lists those that the disk does not give, which are an ``OSError`` else. Raises ``WrongVersion``."""
    found: list[SegmentInfo] = []
    ends: dict[int, int] = {}
    for number, name in reversed(segment_numbers(disk, directory)):
        path = f"{directory}/{name}"
        try:
            header, size, fault = _read_header(disk, path)
        except FileNotFoundError:
            continue  # removed since it was listed
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
    """Returns number and name of every segment file, ascending."""
    named = [(parse_segment_name(name), name) for name in disk.list(directory)]
    return sorted((number, name) for number, name in named if number is not None)


def last_active(segments: Sequence[SegmentInfo]) -> SegmentInfo | None:
    """Returns the segment that the log's end lies in."""
    return next((each for each in reversed(segments) if each.active), None)


def check_size(active: Sequence[SegmentInfo]) -> None:
    """Checks the size of the last segment. It has all its bytes before its first frame: no crash leaves it shorter, and
    what it has lost may have been acknowledged. (Where an earlier one ends, the next one's header says.)"""
    for segment in active[-1:]:
        if segment.size < segment.head.size:
            raise Damaged(
                f"{segment.name} has {segment.size} of its {segment.head.size} bytes: it was cut short",
                file=segment.name,
                offset=segment.size,
            )


def make_directory(disk: Disk, directory: str) -> None:
    """Makes the directory with its parents, each name synced: else files in it are not durable either. An existing one
    may still be lost, too: its maker may have died before syncing it."""
    missing = []
    at = directory.rstrip("/")
    while at and not disk.exists(at):
        missing.append(at)
        at = posixpath.dirname(at)
    try:
        disk.sync_directory(posixpath.dirname(at) or ("." if not at.startswith("/") else "/"))
    except PermissionError:  # of a directory that this user can make nothing in, nor has
        pass
    for path in reversed(missing):
        disk.make_directory(path)
        disk.sync_directory(posixpath.dirname(path) or ".")


def stated_synced_end(disk: Disk, segments: Sequence[SegmentInfo], *, stated: Iterable[Lsn] = ()) -> Lsn:
    """Finds the highest end up to which something valid says that the log had been synced. That is a frame's
    ``synced``, the next header (all segments but the last), or ``stated`` (checkpoint, idle end). An outside reader may
    read so far of a running node. Reads the last segment once."""
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
    """Finds the highest ``synced`` of a segment's whole frames, ``buf`` from ``start`` (where one may begin) on. It
    counts those that lie behind bad or missing ones; 0 if none."""
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
