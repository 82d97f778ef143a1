"""Holes: the room behind a sealed segment's end is given back to the file system.

    |header|frames    end|    zeros, or what is dead    size|        64 MiB of disk
    |header|frames    end|page|          hole           size|        what its log takes, and the rest of a page

1. Only past the end that the next segment's header names, and only once that header is synced: no reader, no open and
   no tool looks there any more.
2. From the next page on, so that no page with log in it is ever written again.
3. The file's size and format stay: a hole reads as the zeros that a segment was made of.
4. Nothing rests on it.  It is the keeper's work, some segments a job, and nobody waits for it; a crash leaves it to the
   next open, which looks at every sealed segment.  Where the file system cannot it is left, and said once; what fails
   otherwise is tried again (``background``).

On the owner's thread, under the log latch, except for the keeper's jobs.
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
"""Bytes below which a hole is not worth a transaction of the file system."""
SEGMENTS_A_JOB = 16
"""Looked at by the keeper between two other jobs of its own."""
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS)


class Holes:
    """Gives back the ends of one log's segments, and knows what each takes of the disk."""

    def __init__(self, disk: Disk, directory: str, background: Background) -> None:
        self.taken: dict[int, int] = {}
        """Number → bytes of disk of the sealed segments that were looked at."""
        self.given_bytes = 0
        """Bytes given back since the log was opened."""
        self.fault = ""
        """The reason why this file system gives nothing back; empty where it does."""
        self._disk = disk
        self._directory = directory
        self._background = background
        self._waiting: deque[tuple[int, int]] = deque()
        self._running = self._cannot = self._closed = False

    def give_back(self, sealed: Iterable[tuple[int, int]]) -> None:
        """Gives back what lies behind the end of each segment (number, end), when the keeper comes to it (rule 1)."""
        self._waiting.extend(sealed)
        self._next()

    def forget_before(self, number: int) -> None:
        for each in [each for each in self.taken if each < number]:
            del self.taken[each]
            self._background.forget("hole", [segment_name(each)])

    def close(self) -> None:
        """Leaves what waits to the next open."""
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
        """Looks, on the keeper's thread, at the room that each takes now, the room given back, and the failures."""
        seen = _Seen()
        for number, end in job:
            path = f"{self._directory}/{segment_name(number)}"
            try:
                before, after = give_back(self._disk, path, end, punch=not self._cannot)
            except FileNotFoundError:
                seen.done.append(number)  # cleaned away meanwhile
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
    """The findings of one job."""

    done: list[int] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)
    failed: list[tuple[int, int, BaseException]] = field(default_factory=list)
    """Number, end, why."""
    given: int = 0
    fault: str = ""


def _all_failed(job: list[tuple[int, int]], error: BaseException) -> _Seen:
    return _Seen(failed=[(number, end, error) for number, end in job])


def give_back(disk: Disk, path: str, end: int, *, punch: bool = True) -> tuple[int, int]:
    """Returns bytes of disk that the file takes before and after what lies behind ``end`` was given back (rule 2)."""
    with closing(disk.open(path, write=True)) as file:
        before = file.allocated()
        start = -(-end // PAGE_BYTES) * PAGE_BYTES
        size = file.size() - start
        if not punch or size < HOLE_BYTES_MIN or before < start + HOLE_BYTES_MIN:
            return before, before
        file.punch(start, size)
        return before, file.allocated()
