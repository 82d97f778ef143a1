"""The real threads: a worker is one thread behind a ``queue.SimpleQueue``.

1. A worker's jobs run one after the other, in the order of ``submit``.
2. Each job ends in exactly one call, ``done(result)`` or ``failed(error)``, on the owner's thread, in the same order.
3. Completions that pile up while the loop is busy go home together: one ``call_soon_threadsafe`` a wake-up.
4. A completion that raises is a bug of its owner: reported (``loop.call_exception_handler``,
   ``threading.excepthook``), and the next one runs.

                        home (loop's thread)          worker's thread
    submit(job) ──────► SimpleQueue.put ────────────► get, job()
    done(result) ◄───── drain the deque ◄──────────── deque.append, call_soon_threadsafe if none is due

Neither the queue nor the deque has a maximum here: the submitter bounds its jobs.
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
"""Pieces of a file that are in memory at once: one looked at, one that waits, one being read."""
T = TypeVar("T")
Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]


class CallerWorker:
    """A worker whose home is its own thread: for a log without an event loop.  ``daemon``: the end of the process does
    not wait for it to be closed."""

    def __init__(self, name: str, *, daemon: bool = True) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._counting = threading.Lock()
        self._pending = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        """Raises ``LogClosed`` after ``close``."""
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
            except BaseException as error:  # the boundary of a thread: the owner decides what it means
                go_home(failed, error)
            else:
                go_home(done, result)
                del result
            del taken, job, done, failed  # a waiting worker keeps no group's bytes alive

    def _go_home(self, call: Callable[[Any], None], argument: object) -> None:
        self._count_down()
        try:
            call(argument)
        except BaseException as error:  # rule 4
            _report(error)

    def _count_down(self) -> None:
        with self._counting:
            self._pending -= 1


def _report(error: BaseException) -> None:
    thread = threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))


class LoopWorker(CallerWorker):
    """A worker whose home is an event loop's thread."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._finished: deque[tuple[Callable[[Any], None], object]] = deque()
        self._due = False  # a drain is on its way to the loop
        super().__init__(name, daemon=False)

    def close(self) -> None:
        """Closes the worker. On the owner's thread, or with the loop not running, runs the last completions in this
        call."""
        super().close()
        if asyncio._get_running_loop() is self._loop or not self._loop.is_running():
            self._drain()

    def _go_home(self, call: Callable[[Any], None], argument: object) -> None:
        self._finished.append((call, argument))
        if not self._due:
            self._due = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed: the remaining completions run in ``close``
                self._due = False

    def _drain(self) -> None:
        self._due = False  # before the deque is read: a completion that comes now asks for another drain
        finished = self._finished
        while finished:
            call, argument = finished.popleft()
            self._count_down()
            try:
                call(argument)
            except (SystemExit, KeyboardInterrupt):
                self._loop.call_soon(self._drain)
                raise
            except BaseException as error:  # rule 4
                message = f"completion of worker {self._name} raised"
                self._loop.call_exception_handler({"message": message, "exception": error})


class OneShot:
    """A value that one thread waits for and another gives, once: a lock, cheaper than a future."""

    __slots__ = ("_error", "_lock", "left", "relay")

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()
        self.relay: Relay | None = None
        self.left = False
        """Its thread was interrupted, and passes nothing on."""

    def give(self, error: BaseException | None = None) -> None:
        self._error = error
        self._lock.release()

    def wait(self) -> None:
        """Returns once the answer is there; raises it when it is an error."""
        try:
            self._lock.acquire()
        except BaseException:  # of a signal's handler
            self.left = True
            raise
        finally:
            if self.relay is not None:
                self.relay.pass_on()
        if self._error is not None:
            raise self._error


class Relay:
    """Many shots given by those who wait for them: each thread that is woken wakes the next one.

    Waking a thread costs its waker 5 to 10 µs, and all who are awake want the interpreter's lock at once, the waker
    with them.  So the thread that has the next sync to start wakes one, and the others are woken while it runs.
    A thread that was interrupted, before or after the relay came to be, does not hold it up.
    """

    __slots__ = ("_shots",)

    def __init__(self, shots: Iterable[OneShot]) -> None:
        self._shots = deque(shots)
        for shot in self._shots:
            shot.relay = self

    def pass_on(self) -> None:
        """Gives the next one.  From any thread."""
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
        """Gives all that are left."""
        while self._shots:
            self.pass_on()


class LoopShot:
    """The same for a coroutine of ``loop``; ``future`` is done there.  It reaches nobody once the loop is closed."""

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
            return  # its waiter was cancelled
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class Answer(Generic[T]):
    """A value, or an error, that one thread waits for and another gives, once.  A ``Future`` waits behind a lock of its
    own, and a signal may come while that is let go: its waiter is then told of the lock, not of the signal."""

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
        """Waits for the answer, in one thread; again only after a ``TimeoutError``."""
        if not self._given.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


def undisturbed(call: Callable[[], T], abandoned: Callable[[T], object]) -> T:
    """Runs ``call`` in a thread of its own and returns or raises what it does. A signal whose handler raises then
    interrupts the waiting, and nothing else. ``abandoned`` gets what nobody waits for any more."""
    results: list[T] = []
    answer: Answer[None] = Answer()
    over = threading.Lock()  # taken by the first to finish: the call, or the wait that was interrupted

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # the boundary of a thread: the caller gets it
            answer.fail(error)
            return
        answer.give(None)
        if not over.acquire(blocking=False):
            abandoned(results[0])

    try:
        _thread.start_new_thread(run, ())  # not ``Thread.start``, which leaves half a thread behind when interrupted
        answer.wait()
        return results[0]
    except BaseException:
        if not over.acquire(blocking=False):
            abandoned(results[0])
        raise


def begin_apart(call: Callable[[], object]) -> None:
    """Runs ``call`` in a thread that nobody waits for; from a finalizer, too, which may run anywhere."""
    _thread.start_new_thread(call, ())


class ReadAhead:
    """A ``Reading`` on a thread of its own, while its user works on the piece before. It reads into the same
    ``READ_AHEAD`` buffers again and again, for one user at a time. Raises what a read raised, in its turn."""

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
            except BaseException as error:  # the boundary of a thread: the caller gets it
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
        """Ends the thread; no tick is under way on return."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._tick()
            except BaseException as error:  # rule 4: the next tick may do what this one could not
                _report(error)


class LoopThreads:
    """Workers of a node: completions run on the thread of ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def worker(self, name: str) -> LoopWorker:
        return LoopWorker(name, self._loop)

    def latch(self) -> AbstractContextManager[object]:
        return threading.RLock()


class CallerThreads:
    """Workers of an embedded log: completions run on each worker's own thread, any thread may call."""

    def worker(self, name: str) -> CallerWorker:
        return CallerWorker(name)

    def latch(self) -> AbstractContextManager[object]:
        return threading.RLock()
