"""An asyncio loop of virtual time.

1. Time moves only when nothing is ready, and then at once to the next timer: an hour costs nothing.
2. If nothing is ready, no timer is set, and the main future is not done, it raises ``Deadlock`` with each task's wait.
3. The order of everything follows from the program alone.  Tasks and futures hash by their number, so that
   asyncio's own sets of them iterate the same way in every process.
4. Calls that would leave the process or the thread (executors, sockets, other threads) are refused.
5. An exception that asyncio would only log fails the run.

    result = run(main())                   a fresh loop, from time 1000.0 on; all tasks are ended after it
    @virtual                               the same for an async test
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import wraps
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn, ParamSpec, TypeVar, TypeVarTuple

from tests.fakes.handles import VirtualHandle, made, report
from vlsnlog.testing.fakes.disk import StopHere

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_S = 1_000.0
LIMIT_S = 86_400.0
TURNS_MAX = 500_000
"""The most loop turns without a step of time: more means a loop that never waits."""
CANCELLED_MAX = 200
"""Cancelled timers in the heap, from which on they are removed once they are half of it."""
ENDED_MAX = 20
"""Ended tasks, from which on they are dropped once there are as many as others."""


class Deadlock(AssertionError):
    """Nothing is scheduled, and some task still waits."""


class OutOfTime(AssertionError):
    """The run has used up its virtual time, or its turns without any."""


class Tasks:
    """Tasks in the order of their starts."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []
        self._max = ENDED_MAX

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)
        if len(self._tasks) > self._max:
            self._max = 2 * len(self.alive) + ENDED_MAX

    @property
    def alive(self) -> list[asyncio.Task[Any]]:
        self._tasks = [task for task in self._tasks if not task.done()]
        return self._tasks


async def ended(task: asyncio.Task[Any]) -> None:
    """Waits until the task is done, with any result; a cancel of the waiter does not reach the task."""
    waiter: asyncio.Future[None] = task.get_loop().create_future()
    task.add_done_callback(lambda _: wake(waiter))
    await waiter


def wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Owner:
    """The tasks of one simulated process: those that it starts, and those that its tasks and timers start."""

    def __init__(self) -> None:
        self.ended = False
        self._tasks: Tasks | None = None
        """The tasks of its loop, including its own; None before its first one."""
        self._context = Context()
        self._context.run(OWNER.set, self)

    def context(self) -> Context:
        """Copies the context, to start a task that belongs to this process."""
        return self._context.copy()

    def add(self, task: VirtualTask, tasks: Tasks) -> None:
        self._tasks = tasks
        if self.ended:
            task.cancel()

    def end(self) -> None:
        self.ended = True
        for task in self._tasks.alive if self._tasks is not None else ():
            if isinstance(task, VirtualTask) and task.owner is self:
                task.cancel()


OWNER: ContextVar[Owner | None] = ContextVar("OWNER", default=None)


class VirtualTask(asyncio.Task[Any]):
    __slots__ = ("_number", "owner")

    _number: int
    owner: Owner | None

    def __hash__(self) -> int:
        return self._number


class VirtualFuture(asyncio.Future[Any]):
    """A future that gets its number when it is first needed; few futures are ever in a set."""

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            loop = self.get_loop()
            assert isinstance(loop, VirtualLoop)
            self._number = next(loop.numbers)
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    _closed: bool
    _ready: deque[VirtualHandle]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        super().__init__()
        self.faults: list[dict[str, Any]] = []
        """Faults that asyncio reported and no code handled."""
        self._now = START_S
        self._end = START_S + limit_s
        self._turns = 0
        self.numbers = itertools.count(1)
        self.tasks = Tasks()
        self._timers: list[tuple[float, int, VirtualHandle]] = []
        self._paused: set[Owner | None] = set()
        self._held: list[VirtualHandle] = []
        self._steps_left = 0
        """Steps until ``_break`` is called; below 0 if there is none."""
        self._break: Callable[[], object] = lambda: None
        self._home = threading.get_ident()
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def after_steps(self, steps: int, call: Callable[[], object]) -> None:
        """Makes ``call`` between two callbacks of the loop, ``steps`` callbacks from now: so between any two awaits of
        any tasks.  Only one is kept; a later one replaces it."""
        self._steps_left = steps
        self._break = call

    def pause(self, owner: Owner) -> None:
        """Stops all code of that process until ``resume``, as between SIGSTOP and SIGCONT; time continues."""
        self._paused.add(owner)

    def resume(self, owner: Owner) -> None:
        """Runs now what the process would have done meanwhile, in that order. Has no effect if it was not paused."""
        self._paused.discard(owner)
        held, self._held = self._held, []
        for handle in held:
            (self._held if self._is_held(handle) else self._ready).append(handle)

    def _is_held(self, handle: VirtualHandle) -> bool:
        return handle._context.get(OWNER) in self._paused

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> VirtualHandle:
        if self._closed:
            self._check_closed()
        handle = made(callback, args, self, context, 0.0)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> VirtualHandle:
        """Sets a timer; two timers of one time run in the order in which they were set."""
        return self._set_timer(when, callback, args, context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> VirtualHandle:
        return self._set_timer(self._now + delay, callback, args, context)

    def _set_timer(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> VirtualHandle:
        if self._closed:
            self._check_closed()
        timer = made(callback, args, self, context, when)
        timer._scheduled = True
        heappush(self._timers, (when, next(self.numbers), timer))
        return timer

    def _run_once(self) -> None:
        """Runs turns until the loop must stop, each like asyncio's own, without its selector, clock and debug mode.
        Time jumps instead of being waited for."""
        ready, timers, paused = self._ready, self._timers, self._paused
        while True:
            if self._timer_cancelled_count > CANCELLED_MAX:
                self._throw_out()
            if not ready and not self._stopping:
                self._move_time()
            else:
                self._turns += 1
                if self._turns > TURNS_MAX:
                    raise OutOfTime(f"{TURNS_MAX} turns at {self._now - START_S:.6f} s: {_waits(self)}")
            end = self._now + self._clock_resolution
            while timers and timers[0][0] < end:
                timer = heappop(timers)[2]
                timer._scheduled = False
                if timer._cancelled:
                    self._timer_cancelled_count -= 1
                else:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if paused and self._is_held(handle):
                    self._held.append(handle)
                    continue
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except BaseException as error:
                        report(handle, error)
                self._steps_left -= 1
                if not self._steps_left:
                    self._break()
            if self._stopping:
                return

    get_debug = staticmethod(bool)
    """A false ``get_debug``, which every future calls, since ``bool()`` runs no Python code."""

    def _throw_out(self) -> None:
        timers = self._timers
        if self._timer_cancelled_count * 2 > len(timers):
            timers[:] = [each for each in timers if not each[2]._cancelled]
            heapify(timers)
            self._timer_cancelled_count = 0

    def _move_time(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._timer_cancelled_count -= 1
        if not timers:
            raise Deadlock(f"deadlock in virtual time at {self._now - START_S:.6f} s: {_waits(self)}")
        self._turns = 0
        if timers[0][0] > self._now:
            self._now = timers[0][0]
        if self._now > self._end:
            raise OutOfTime(f"not done after {self._end - START_S:.0f} s of virtual time: {_waits(self)}")

    def extend(self, seconds: float = 60.0) -> None:
        """Extends the run by ``seconds`` from now, even if its limits have just ended it."""
        self._turns = 0
        self._end = self._now + seconds

    def create_future(self) -> asyncio.Future[Any]:
        return VirtualFuture(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self._closed:
            self._check_closed()
        number = next(self.numbers)
        task = VirtualTask(coro, loop=self, name=f"task-{number}" if name is None else str(name), context=context)
        task._number = number
        self.tasks.add(task)
        task.owner = OWNER.get() if context is None else context.get(OWNER)
        if task.owner is not None:
            task.owner.add(task, self.tasks)
        return task

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps the exception, unless it follows from the end of a simulated process, which is intended."""
        error = context.get("exception")
        if _ended(context):
            return
        if isinstance(error, BaseExceptionGroup):
            error = error.split(StopHere)[1]
            if error is None:
                return
        if not isinstance(error, StopHere):
            self.faults.append(context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            raise RuntimeError("another thread has no place in virtual time")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("virtual time knows no executor: threads come from FakeThreads")

    def _no_sockets(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("virtual time knows no sockets: connections come from FakeNet")

    create_connection = create_server = create_datagram_endpoint = _no_sockets
    connect_accepted_socket = getaddrinfo = getnameinfo = _no_sockets

    def _write_to_self(self) -> None:
        """Does nothing, since no select has to be woken."""

    def _check_closed(self) -> None:
        if self.is_closed():
            raise RuntimeError("the virtual loop is closed")


def run(main: Coroutine[Any, Any, T], *, limit_s: float = LIMIT_S) -> T:
    """Runs ``main`` on a loop of its own, returns its result, and cancels the tasks that it leaves."""
    loop = VirtualLoop(limit_s=limit_s)
    with _by_the_loop_alone():
        try:
            result = loop.run_until_complete(main)
        except BaseException as error:
            for fault in loop.faults:
                error.add_note(f"besides: {_told(fault)}")
            raise
        finally:
            _end_tasks(loop)
            loop.close()
    if loop.faults:
        first = loop.faults[0].get("exception")
        raise AssertionError("; ".join(map(_told, loop.faults))) from first
    return result


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes an async test run in virtual time, on a loop of its own; the innermost decorator."""

    @wraps(test)
    def played(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return played


@contextmanager
def _by_the_loop_alone() -> Iterator[None]:
    """Keeps tasks in their loop, not in asyncio's weak set of all tasks. Tasks of successive runs have the same
    numbers, which are their hashes, so a new task would be compared with all that are not collected yet."""
    everywhere: Any = getattr(asyncio.tasks, "_all_tasks" if sys.version_info < (3, 12) else "_scheduled_tasks", None)
    if everywhere is None:
        yield
        return
    everywhere.add = lambda task: None
    try:
        yield
    finally:
        del everywhere.add


def _end_tasks(loop: VirtualLoop) -> None:
    for _ in range(10):  # a task's end may start another
        loop.extend()
        tasks = loop.tasks.alive
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        try:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        except (Deadlock, OutOfTime):
            break
    loop.extend()
    loop.run_until_complete(loop.shutdown_asyncgens())


def _ended(fault: dict[str, Any]) -> bool:
    """Says whether the fault is of a task or callback of an ended process."""
    task, handle = fault.get("task", fault.get("future")), fault.get("handle")
    owner = task.owner if isinstance(task, VirtualTask) else None
    if handle is not None:
        owner = handle._context.get(OWNER)
    return owner is not None and owner.ended


def _told(fault: dict[str, Any]) -> str:
    return f"{fault.get('message')}: {fault.get('exception')!r}"


def _waits(loop: VirtualLoop) -> str:
    return "; ".join(f"{task.get_name()} waits at {_place(task)}" for task in loop.tasks.alive) or "no task"


def _place(task: asyncio.Task[Any]) -> str:
    """Returns file, line and function of the innermost coroutine."""
    at: Any = task.get_coro()
    frame = None
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None) or frame
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)
    if frame is None:
        return "its start"
    code = frame.f_code
    return f"{'/'.join(code.co_filename.split('/')[-2:])}:{frame.f_lineno} ({code.co_qualname})"
