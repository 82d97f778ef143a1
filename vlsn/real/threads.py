"""The real threads. A worker is one thread that runs jobs from a ``queue.SimpleQueue``.

1. A worker's jobs run one after the other, in the order of ``submit``.
2. After each job, its completion is called exactly once: ``done(result)`` or ``failed(error)``, on the owner's thread,
   in the order of the jobs.
3. Completions that are due while the event loop is busy are delivered together, with one ``call_soon_threadsafe`` for
   each wake-up.
4. If a completion raises an error, that is a bug of its owner. The error is reported (``loop.call_exception_handler``,
   ``threading.excepthook``), and the next completion runs.

                        home (loop's thread)          worker's thread
    submit(job) ──────► SimpleQueue.put ────────────► get, job()
    done(result) ◄───── drain the deque ◄──────────── deque.append, call_soon_threadsafe if none is due

The queue and the deque have no limit here, since the submitter limits its jobs.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from vlsn.errors import LogClosed
from vlsn.seams import Buffer, File

READ_AHEAD = 3
"""The number of pieces of a file that are in memory at once: one in use, one waiting, one being read."""
T = TypeVar("T")
Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]


class CallerWorker:
    """A worker whose completions run on its own thread, for a log without an event loop. With ``daemon``, the process
    may end without closing the worker."""

    def __init__(self, name: str, *, daemon: bool = True) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._counting = threading.Lock()
        self._pending = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        """Submits ``job``. Raises ``LogClosed`` after ``close``."""
        with self._counting:
            if self._closed:
                raise LogClosed(f"worker {self._name} is closed")
            self._pending += 1
            self._jobs.put((job, done, failed))

    def pending(self) -> int:
        return self._pending

    def close(self) -> None:
        with self._counting:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        get, go_home = self._jobs.get, self._go_home
        while (taken := get()) is not None:
            job, done, failed = taken
            try:
                result = job()
            except BaseException as error:  # the boundary of a thread: the owner decides what the error means
                go_home(failed, error)
            else:
                go_home(done, result)
                del result
            del taken, job, done, failed  # so that a waiting worker keeps no group's bytes in memory

    def _go_home(self, call: Callable[[Any], None], argument: object) -> None:
        self._count_down()
        try:
            call(argument)
        except BaseException as error:  # rule 4: report the error and continue
            _report(error)

    def _count_down(self) -> None:
        with self._counting:
            self._pending -= 1


def _report(error: BaseException) -> None:
    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))


class LoopWorker(CallerWorker):
    """A worker whose completions run on an event loop's thread."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, *, daemon: bool = False) -> None:
        self._loop = loop
        self._finished: deque[tuple[Callable[[Any], None], object]] = deque()
        self._due = False  # true while the loop has a scheduled call that delivers completions
        super().__init__(name, daemon=daemon)

    def close(self) -> None:
        """Closes the worker. If ``close`` is called on the owner's thread, or while the event loop is not running, it
        runs the remaining completions itself."""
        super().close()
        if asyncio._get_running_loop() is self._loop or not self._loop.is_running():
            self._drain()

    def _go_home(self, call: Callable[[Any], None], argument: object) -> None:
        self._finished.append((call, argument))
        if not self._due:
            self._due = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed, so ``close`` runs the remaining completions
                self._due = False

    def _drain(self) -> None:
        self._due = False  # set before the deque is read, so that a later completion schedules another call
        finished = self._finished
        while finished:
            call, argument = finished.popleft()
            self._count_down()
            try:
                call(argument)
            except (SystemExit, KeyboardInterrupt):
                self._loop.call_soon(self._drain)
                raise
            except BaseException as error:  # rule 4: report the error and continue
                message = f"completion of worker {self._name} raised"
                self._loop.call_exception_handler({"message": message, "exception": error})


class OneShot:
    """A single result that one thread waits for and another thread sets. The result is passed through a lock, which is
    cheaper than a future."""

    __slots__ = ("_error", "_lock", "left", "relay")

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()
        self.relay: Relay | None = None
        self.left = False
        """True if the waiting thread was interrupted, so that it does not wake the next thread of a relay."""

    def give(self, error: BaseException | None = None) -> None:
        self._error = error
        self._lock.release()

    def wait(self) -> None:
        """Returns once the result is set. Raises the result if it is an error."""
        try:
            self._lock.acquire()
        except BaseException:  # raised by a signal's handler
            self.left = True
            raise
        finally:
            if self.relay is not None:
                self.relay.pass_on()
        if self._error is not None:
            raise self._error


class Relay:
    """A relay wakes many waiting threads: each thread that is woken wakes the next one.

    Waking a thread costs the waking thread 5 to 10 µs. All threads that are awake compete for the interpreter's lock.
    So the thread that has to start the next sync wakes only one thread, and the others are woken while the sync runs. A
    thread that was interrupted does not delay the relay.
    """

    __slots__ = ("_shots",)

    def __init__(self, shots: Iterable[OneShot]) -> None:
        self._shots = deque(shots)
        for shot in self._shots:
            shot.relay = self

    def pass_on(self) -> None:
        """Sets the next result, which wakes its thread. Any thread may call this."""
        shots = self._shots
        while True:
            try:
                shot = shots.popleft()
            except IndexError:
                return
            shot.give()
            if not shot.left:
                return

    def finish(self) -> None:
        """Sets all remaining results, which wakes their threads."""
        while self._shots:
            self.pass_on()


class LoopShot:
    """A result for a coroutine, set as the result of ``future`` on ``loop``. After the loop is closed, the result is
    dropped."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def give(self, error: BaseException | None = None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, error)
        except RuntimeError:
            pass

    def _settle(self, error: BaseException | None) -> None:
        if self.future.done():
            return  # the waiting coroutine was cancelled
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Answer(Generic[T]):
    """A single value or error that one thread waits for and another thread sets. A ``Future`` would use an internal
    lock while it waits. If a signal came while that lock is released, the waiting thread would get an error about the
    lock, and not the error of the signal's handler."""

    __slots__ = ("_error", "_given", "_value")

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._given = threading.Lock()
        self._given.acquire()

    @property
    def given(self) -> bool:
        return not self._given.locked()

    def give(self, value: T) -> None:
        self._value = value
        self._given.release()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._given.release()

    def wait(self, timeout_s: float | None = None) -> T:
        """Waits for the answer. Only one thread may wait for an answer. That thread may wait again only after a
        ``TimeoutError``."""
        if not self._given.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


def undisturbed(call: Callable[[], T], abandoned: Callable[[T], object]) -> T:
    """Runs ``call`` in a separate thread, and returns its result or raises its error. So a signal's handler that raises
    interrupts only the waiting for ``call``. If the waiting was interrupted, ``abandoned`` gets the result."""
    results: list[T] = []
    answer: Answer[None] = Answer()
    over = threading.Lock()  # acquired by whichever finishes first: the call, or the interrupted wait

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # the boundary of a thread: the caller gets the error
            answer.fail(error)
            return
        answer.give(None)
        if not over.acquire(blocking=False):
            abandoned(results[0])

    try:
        # ``Thread.start`` is not used, since it leaves a half-started thread behind if it is interrupted
        _thread.start_new_thread(run, ())
        answer.wait()
        return results[0]
    except BaseException:
        if not over.acquire(blocking=False):
            abandoned(results[0])
        raise


def begin_apart(call: Callable[[], object]) -> None:
    """Runs ``call`` in a thread for which nothing waits. A finalizer, which may run at any point, can call
    ``begin_apart``, too."""
    _thread.start_new_thread(call, ())


class ReadAhead:
    """Reads the next pieces of a file on a separate thread, while the caller works on the previous piece. The same
    ``READ_AHEAD`` buffers are used again and again, for one caller at a time. If reading a piece fails, the error is
    raised when the caller requests the piece."""

    def __init__(self) -> None:
        self._buffers = [bytearray() for _ in range(READ_AHEAD)]

    def __call__(self, file: File, ranges: Sequence[tuple[int, int]]) -> Generator[Buffer, None, None]:
        read: SimpleQueue[Buffer | BaseException | None] = SimpleQueue()
        slots = threading.Semaphore(READ_AHEAD)
        over = False

        def run() -> None:
            last: BaseException | None = None
            try:
                for number, (offset, size) in enumerate(ranges):
                    slots.acquire()
                    if over:
                        return
                    read.put(self._read(file, number % READ_AHEAD, offset, size))
            except BaseException as error:  # the boundary of a thread: the caller gets the error
                last = error
            read.put(last)

        thread = threading.Thread(target=run, name="vlsnlog-read-ahead", daemon=True)
        thread.start()
        try:
            while (piece := read.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
                slots.release()
        finally:
            over = True
            slots.release()
            thread.join()

    def _read(self, file: File, slot: int, offset: int, size: int) -> Buffer:
        if len(self._buffers[slot]) < size:
            self._buffers[slot] = bytearray(size)
        into = memoryview(self._buffers[slot])[:size]
        return into[: file.read_into(offset, into)]


class Ticker:
    """Calls ``tick`` every ``period_s`` on a thread of its own, until ``close``."""

    def __init__(self, name: str, period_s: float, tick: Callable[[], None]) -> None:
        self._over = threading.Event()
        self._period_s = period_s
        self._tick = tick
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. On return no tick is running."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._tick()
            except BaseException as error:  # rule 4: the next tick may succeed where this one failed
                _report(error)


class LoopThreads:
    """The workers of a node. The workers' completions run on the thread of ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def worker(self, name: str) -> LoopWorker:
        return LoopWorker(name, self._loop)

    def latch(self) -> AbstractContextManager[object]:
        return threading.RLock()


class CallerThreads:
    """The workers of an embedded log. Each worker's completions run on its own thread, and any thread may submit
    jobs."""

    def worker(self, name: str) -> CallerWorker:
        return CallerWorker(name)

    def latch(self) -> AbstractContextManager[object]:
        return threading.RLock()
