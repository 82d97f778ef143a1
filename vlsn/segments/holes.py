"""Holes. The disk space after the end of each sealed segment is freed by making a hole in the segment's file.

    |header|frames    end|    zeros, or dead frames     size|        64 MiB of disk
    |header|frames    end|page|          hole           size|        the bytes of the log, and the rest of a page

1. Space is freed only after the end that the next segment's header states, and only once that header is synced. After
   that header is synced, no reader, no opening of the log and no tool reads after the stated end.
2. The hole begins at the next 4 KiB page, so that no page with bytes of the log is ever written again.
3. The file keeps its size and format, since a hole reads as zeros, like the rest of a new segment.
4. Nothing depends on a hole. The keeper (the log's background thread) makes holes, ``SEGMENTS_A_JOB`` segments in a
   job, and nothing waits for it. After a crash, the next opening of the log makes the remaining holes, since it checks
   every sealed segment. If the file system cannot make holes, the space stays allocated, and this is reported once.
   Other failures are retried (``background``).

All calls are made on the owner's thread, under the log's latch, except the keeper's jobs.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

from vlsn.errors import said_of
from vlsn.format.segment import segment_name
from vlsn.limits import KIB
from vlsn.seams import Disk
from vlsn.segments.background import Background

PAGE_BYTES = 4 * KIB
HOLE_BYTES_MIN = 16 * KIB
"""The smallest hole, in bytes, that is worth the file system's work."""
SEGMENTS_A_JOB = 16
"""The number of segments that the keeper's thread checks before it does another job."""
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS)


class Holes:
    """Frees the disk space after the ends of one log's segments, and records how much disk space each segment
    occupies."""

    def __init__(self, disk: Disk, directory: str, background: Background) -> None:
        self.taken: dict[int, int] = {}
        """The bytes of disk space that each checked, sealed segment occupies, by segment number."""
        self.given_bytes = 0
        """The bytes of disk space that were freed since the log was opened."""
        self.fault = ""
        """The reason why this file system cannot free the space; empty if it can."""
        self._disk = disk
        self._directory = directory
        self._background = background
        self._waiting: deque[tuple[int, int]] = deque()
        self._running = self._cannot = self._closed = False

    def give_back(self, sealed: Iterable[tuple[int, int]]) -> None:
        """Frees the space after the end of each segment in ``sealed`` (number, end), when the keeper's thread is free
        (rule 1)."""
        self._waiting.extend(sealed)
        self._next()

    def forget_before(self, number: int) -> None:
        for each in [each for each in self.taken if each < number]:
            del self.taken[each]
            self._background.forget("hole", [segment_name(each)])

    def close(self) -> None:
        """Drops the segments that still wait. The next opening of the log checks them again."""
        self._closed = True
        self._waiting.clear()

    def _next(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        job = [self._waiting.popleft() for _ in range(min(SEGMENTS_A_JOB, len(self._waiting)))]
        self._background.keeper.submit(
            lambda: self._look(job), self._looked, lambda error: self._looked(_all_failed(job, error))
        )

    def _look(self, job: list[tuple[int, int]]) -> _Seen:
        """Frees the space of one job's segments, on the keeper's thread. Returns the space that each segment occupies
        afterwards, the bytes freed, and the failures."""
        seen = _Seen()
        for number, end in job:
            path = f"{self._directory}/{segment_name(number)}"
            try:
                before, after = give_back(self._disk, path, end, punch=not self._cannot)
            except FileNotFoundError:
                seen.done.append(number)  # the segment was cleaned away meanwhile
            except OSError as error:
                if error.errno in _CANNOT:
                    self._cannot = True
                    seen.fault = f"{segment_name(number)}: {said_of(error)}"
                else:
                    seen.failed.append((number, end, error))
            else:
                seen.done.append(number)
                seen.taken[number] = after
                seen.given += before - after
        return seen

    def _looked(self, seen: _Seen) -> None:
        with self._background.latch:
            self._running = False
            self.taken |= seen.taken
            self.given_bytes += seen.given
            self.fault = seen.fault or self.fault
            for number in seen.done:
                self._background.works("hole", segment_name(number))
            for number, end, error in seen.failed:
                self._fails(number, end, error)
            if not self._closed:
                self._next()

    def _fails(self, number: int, end: int, error: BaseException) -> None:
        self._background.fails("hole", error, lambda: self._try_again(number, end), segment_name(number))

    def _try_again(self, number: int, end: int) -> None:
        with self._background.latch:
            self._waiting.append((number, end))
            self._next()


@dataclass(slots=True)
class _Seen:
    """The results of one job of the keeper's thread."""

    done: list[int] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)
    failed: list[tuple[int, int, BaseException]] = field(default_factory=list)
    """For each segment that failed: the number, the end, and the error."""
    given: int = 0
    fault: str = ""


def _all_failed(job: list[tuple[int, int]], error: BaseException) -> _Seen:
    return _Seen(failed=[(number, end, error) for number, end in job])


def give_back(disk: Disk, path: str, end: int, *, punch: bool = True) -> tuple[int, int]:
    """Frees the disk space of a segment's file after ``end`` (rule 2). Returns the bytes of disk space that the file
    occupies before and after."""
    with closing(disk.open(path, write=True)) as file:
        before = file.allocated()
        start = -(-end // PAGE_BYTES) * PAGE_BYTES
        size = file.size() - start
        if not punch or size < HOLE_BYTES_MIN or before < start + HOLE_BYTES_MIN:
            return before, before
        file.punch(start, size)
        return before, file.allocated()
