"""Threads without threads: in virtual time, or inside the caller.

``FakeThreads`` runs each job at one moment of virtual time. The durations of the job before and after that moment, and
of the delay of its completion, are random.  So a kill finds a job not begun, done and not yet reported, or reported.  A
second job may have run before the first one's completion.  On a stalling disk a job hangs until the stall is over, with
its effect before or after.

``InlineThreads`` runs a job in ``submit`` itself and its completion right after it. A log on it makes the same disk
calls in the same order every time, which a crash at call number N needs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any, TypeVar

from vlsn.errors import LogClosed
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

T = TypeVar("T")
Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]
Completion = tuple[Callable[[Any], None], object]


class FakeThreads:
    """The workers of one process.  ``latency_s`` is the range of a job's own time; the time of its disk calls
    (``FakeDisk.latency``) is added."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        rng: Random | None = None,
        disk: FakeDisk | None = None,
        latency_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.loop = loop
        self.rng = rng or Random(0)
        self.disk = disk
        self.latency_s = latency_s
        self.killed = False

    def worker(self, name: str) -> FakeWorker:
        return FakeWorker(self, name)

    def latch(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def kill(self) -> None:
        """Ends the process: no job runs and no completion is called any more."""
        self.killed = True


class FakeWorker:
    def __init__(self, threads: FakeThreads, name: str) -> None:
        self._threads, self._name = threads, name
        self._jobs: deque[Job] = deque()
        self._finished: deque[Completion] = deque()
        self._pending = 0
        self._begun = False
        """True if the next job has a time."""
        self._free_s = 0.0
        """The time at which the last job ends."""
        self.since_s = threads.loop.time()
        """The time at which it began its job, or its wait."""
        self._closed = False

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        if self._closed:
            raise LogClosed(f"worker {self._name} is closed")
        if not self._pending:
            self.since_s = self._threads.loop.time()
        self._pending += 1
        self._jobs.append((job, done, failed))
        if not self._begun:
            self._begin()

    def pending(self) -> int:
        return self._pending

    def close(self) -> None:
        """Closes in no virtual time: submitted jobs run, and report, inside this call."""
        self._closed = True
        while self._jobs and not self._threads.killed:
            self._run_next()
        while self._finished:
            self._tell()

    def _begin(self) -> None:
        threads, random = self._threads, self._threads.rng.random
        self._begun = True
        low, high = threads.latency_s
        takes_s = low + (high - low) * random()
        before_s = takes_s * random()
        threads.loop.call_at(max(threads.loop.time(), self._free_s) + before_s, self._run, takes_s - before_s)

    def _run(self, after_s: float) -> None:
        threads, random, disk = self._threads, self._threads.rng.random, self._threads.disk
        if disk is not None:
            stall_s = disk.stalled_until_s - threads.loop.time()
            if stall_s > 0.0 and random() < 0.5:
                threads.loop.call_later(stall_s, self._run, after_s)
                return
            disk.take_latency()  # earlier calls on this disk are not this job's time
            calls = len(disk.calls)
        if self._jobs and not threads.killed:
            self._run_next()
        if disk is not None:
            after_s += disk.take_latency()
            if stall_s > 0.0 and len(disk.calls) > calls:
                after_s = max(after_s, stall_s)
        low, high = threads.latency_s
        way_s = low + (high - low) * random() if random() < 0.5 else 0.0
        self._free_s = threads.loop.time() + after_s
        threads.loop.call_at(self._free_s + way_s, self._tell)  # reports the oldest one, whichever timer is first
        self._begun = False
        if self._jobs and not threads.killed:
            self._begin()

    def _run_next(self) -> None:
        job, done, failed = self._jobs.popleft()
        try:
            result = job()
        except StopHere:
            self._threads.kill()
        except BaseException as error:
            self._finished.append((failed, error))
        else:
            self._finished.append((done, result))

    def _tell(self) -> None:
        if not self._finished or self._threads.killed:
            self._finished.clear()
            return
        call, argument = self._finished.popleft()
        self._pending -= 1
        self.since_s = self._threads.loop.time()
        try:
            call(argument)
        except StopHere:
            self._threads.kill()
        except BaseException as error:
            message = f"completion of worker {self._name} raised"
            self._threads.loop.call_exception_handler({"message": message, "exception": error})


class InlineThreads:
    """Threads whose jobs and completions run on the caller's thread before ``submit`` returns. Jobs that these submit
    run after them, still before the outermost ``submit`` returns. ``submit`` passes ``StopHere`` on."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def worker(self, name: str) -> InlineWorker:
        return InlineWorker(self, name)

    def latch(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def run(self, step: Callable[[], None]) -> None:
        self._waiting.append(step)
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._running = False
            self._waiting.clear()


class InlineWorker:
    def __init__(self, threads: InlineThreads, name: str) -> None:
        self._threads, self._name = threads, name
        self._pending = 0
        self._closed = False

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        if self._closed:
            raise LogClosed(f"worker {self._name} is closed")
        self._pending += 1

        def step() -> None:
            try:
                result = job()
            except StopHere:
                raise
            except BaseException as error:
                self._tell(failed, error)
            else:
                self._tell(done, result)

        self._threads.run(step)

    def pending(self) -> int:
        return self._pending

    def close(self) -> None:
        self._closed = True

    def _tell(self, call: Callable[[Any], None], argument: object) -> None:
        self._pending -= 1
        try:
            call(argument)
        except StopHere:
            raise
        except BaseException as error:
            thread = threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
