"""Background work: jobs on which no promise to a client depends. A failing background job never makes the log fail.

    standby    makes the next segment before it is needed
    sidecar    writes the file of offsets and checksum of a sealed segment
    space      checks the free space of the file system
    removal    removes the files of segments that were cleaned away
    hole       frees the disk space after a sealed segment's end
    mapping    reads rotten parts of the index again from the segments

1. A failure is counted, and the next tick reports it with path and errno. After the first failure in a row, the job is
   tried again at once. After the n-th failure in a row, it is tried again after ``RETRY_S_MIN`` · 2^(n-2) seconds, at
   most ``RETRY_S_MAX``. Nothing waits for background work, unless its description says so.
2. If many jobs fail at once, only ``WAITING_MAX`` of them are tried again, and the oldest job is given up. The log
   works without that job, or the next opening of the log does it.
3. Writes and syncs of segments, of the node file and of the stores are not background work, since their failure makes
   the log fail. An error in this program, as opposed to a failure of the system, also makes the log fail.

All calls are made on the owner's thread (``seams.Worker``). ``do`` and ``tick`` acquire the log's latch themselves.
Methods other than ``do`` and ``tick`` are called under the latch.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from vlsn.errors import Damaged, said_of
from vlsn.limits import RETRY_S_MAX, RETRY_S_MIN, WAITING_MAX
from vlsn.seams import Clock, Worker

T = TypeVar("T")
WORKS = ("standby", "sidecar", "space", "removal", "hole", "mapping")
_TOLD_MAX = 64
"""The most faults that are reported between two ticks."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A background job that fails. ``failures`` is the number of failures in a row, or 0 if the job has just succeeded
    again."""

    work: str
    name: str
    """The file that the job is about, if there are such jobs for several files."""
    why: str
    """The error, which names the file or the directory."""
    errno: int
    failures: int
    since_s: float
    """The time of the first of the failures in a row, by the monotonic clock."""
    due_s: float


class Background:
    """The failures of one log's background jobs, and the jobs to try again."""

    def __init__(
        self,
        keeper: Worker,
        latch: AbstractContextManager[object],
        clock: Clock,
        *,
        ends: Callable[[str, BaseException], None],
    ) -> None:
        self.failures: Counter[str] = Counter()
        """The number of failures since the log was opened, by kind of job."""
        self.told: Callable[[Fault], None] = lambda _: None
        """A function that is called with every fault, and when a failing job succeeds again. The log's owner sets
        it."""
        self.keeper = keeper
        self.latch = latch
        self._clock = clock
        self._ends = ends
        self._faults: dict[tuple[str, str], Fault] = {}
        self._again: dict[tuple[str, str], Callable[[], None]] = {}
        self._current: dict[tuple[str, str], Callable[[], None]] = {}
        self._telling: deque[Fault] = deque(maxlen=_TOLD_MAX)
        self._closed = False

    def faults(self) -> list[Fault]:
        """Lists the jobs that are failing now."""
        with self.latch:
            return list(self._faults.values())

    def fault(self, work: str, name: str = "") -> Fault | None:
        return self._faults.get((work, name))

    def is_due(self, work: str, name: str = "") -> bool:
        """Returns whether a job that its owner starts itself should be tried now."""
        fault = self._faults.get((work, name))
        return fault is None or fault.failures < 2 or self._clock.monotonic_s() >= fault.due_s

    def do(
        self,
        work: str,
        name: str,
        job: Callable[[], T],
        done: Callable[[T], None] = lambda _: None,
        failed: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """Runs ``job`` on the keeper's thread (the log's background thread) until it succeeds, is forgotten, or is
        replaced by another job of the same name. ``done`` gets the result of the job. ``failed`` gets each error after
        the next try is scheduled, even if the job was forgotten meanwhile."""

        def attempt() -> None:
            self.keeper.submit(job, worked, broke)

        def is_current() -> bool:
            """Returns whether this job still has to be done: it is not forgotten and not replaced by another job."""
            return self._current.get((work, name)) is attempt

        def worked(result: T) -> None:
            with self.latch:
                if is_current():
                    self.works(work, name)
            done(result)

        def broke(error: BaseException) -> None:
            with self.latch:
                if is_current():
                    self.fails(work, error, attempt, name)
            failed(error)

        with self.latch:
            self._current[work, name] = attempt
        attempt()

    def fails(
        self, work: str, error: BaseException, again: Callable[[], None], name: str = "", *, path: str = ""
    ) -> None:
        """Records one more failure of a job. ``again`` is called when the next try is due. ``path`` is the path that
        failed, if ``name`` is another path and ``error`` contains no path."""
        if not isinstance(error, OSError | MemoryError | Damaged):
            self._ends(f"{work} {name}: {error!r}", error)
            return
        if self._closed:
            return
        now, before = self._clock.monotonic_s(), self._faults.get((work, name))
        row = before.failures + 1 if before is not None else 1
        since_s = before.since_s if before is not None else now
        due_s = now + (min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(row - 2, 64)) if row > 1 else 0.0)
        why, where = said_of(error), path or name
        if where not in why:
            why = f"{where}: {why}"
        fault = Fault(work, name, why, getattr(error, "errno", None) or 0, row, since_s, due_s)
        self.failures[work] += 1
        self._telling.append(fault)
        self._faults[work, name] = fault
        if row == 1:
            self._make_room()
            again()
        else:
            self._again[work, name] = again

    def works(self, work: str, name: str = "") -> None:
        """Records that a job has succeeded, so that the next failure is again the first in a row."""
        self._current.pop((work, name), None)
        self._again.pop((work, name), None)
        fault = self._faults.pop((work, name), None)
        if fault is not None:
            self._telling.append(replace(fault, failures=0))

    def forget(self, work: str, names: Iterable[str]) -> None:
        """Forgets jobs that need not be done any more."""
        for name in names:
            for each in (self._current, self._again, self._faults):
                each.pop((work, name), None)

    def tick(self) -> None:
        """Reports the faults, and retries the jobs that are due."""
        with self.latch:
            said, self._telling = list(self._telling), deque(maxlen=_TOLD_MAX)
            now = self._clock.monotonic_s()
            due = [] if self._closed else [key for key in self._again if self._faults[key].due_s <= now]
            for again in [self._again.pop(key) for key in due]:
                again()
        for fault in said:
            self.told(fault)

    def close(self) -> None:
        """Stops all retries. The next opening of the log does the remaining work."""
        self._closed = True
        self._again.clear()

    def _make_room(self) -> None:
        while len(self._faults) > WAITING_MAX:
            work, name = next(key for key in self._faults if key[1])
            self.forget(work, [name])
