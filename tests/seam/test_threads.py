"""The threads seam: ``LoopThreads``, ``CallerThreads``, ``FakeThreads`` and ``InlineThreads`` behave the same."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import pytest
import uvloop

from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.fakes.threads import FakeThreads, InlineThreads
from vlsn.errors import LogClosed
from vlsn.real.threads import CallerThreads, LoopThreads
from vlsn.seams import Threads, Worker
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

Body = Callable[[Threads], Awaitable[None]]
RunBody = Callable[[Body], None]

MADE: dict[str, tuple[Callable[[Coroutine[Any, Any, None]], None], Callable[[], Threads]]] = {
    "asyncio": (asyncio.run, lambda: LoopThreads(asyncio.get_running_loop())),
    "uvloop": (uvloop.run, lambda: LoopThreads(asyncio.get_running_loop())),
    "caller": (asyncio.run, CallerThreads),
    "inline": (asyncio.run, InlineThreads),
    "fake": (run, lambda: FakeThreads(asyncio.get_running_loop(), rng=Random(1))),
    "fake-slow": (run, lambda: FakeThreads(asyncio.get_running_loop(), rng=Random(2), latency_s=(0.001, 0.5))),
}


@pytest.fixture(params=list(MADE))
def run_body(request: pytest.FixtureRequest) -> RunBody:
    on_loop, make = MADE[request.param]

    def run_it(body: Body) -> None:
        async def main() -> None:
            with Owned(make()) as threads:
                await body(threads)

        on_loop(main())

    return run_it


class Owned:
    """Threads whose workers end with the test, however it ends."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._workers: list[Worker] = []

    def worker(self, name: str) -> Worker:
        self._workers.append(self._threads.worker(name))
        return self._workers[-1]

    def latch(self) -> contextlib.AbstractContextManager[object]:
        return self._threads.latch()

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()


class Finish:
    """An event that is set from any thread and awaited on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self, _: object = None) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        async with asyncio.timeout(200):
            await self._event.wait()


def never(_: object) -> None:
    raise AssertionError("this completion was not to be called")


async def finished(worker: Worker) -> None:
    """Waits until all earlier submissions have been answered."""
    finish = Finish()
    worker.submit(lambda: None, finish.set, never)
    await finish.wait()


def test_jobs_run_and_are_told_in_their_order(run_body: RunBody) -> None:
    async def body(threads: Threads) -> None:
        worker = threads.worker("w")
        ran: list[int] = []
        told: list[int] = []

        def job(number: int) -> Callable[[], int]:
            def run_job() -> int:
                ran.append(number)
                return number * 10

            return run_job

        for number in range(100):
            worker.submit(job(number), told.append, never)
        await finished(worker)
        assert ran == list(range(100))
        assert told == [number * 10 for number in range(100)]

    run_body(body)


def test_a_job_that_raises_is_told_as_failed_and_the_next_one_runs(run_body: RunBody) -> None:
    async def body(threads: Threads) -> None:
        worker = threads.worker("w")
        told: list[object] = []
        error = OSError(5, "broken")

        def fail() -> None:
            raise error

        worker.submit(fail, never, told.append)
        worker.submit(lambda: "next", told.append, never)
        await finished(worker)
        assert told == [error, "next"]

    run_body(body)


def test_pending_counts_what_was_not_told_yet(run_body: RunBody) -> None:
    async def body(threads: Threads) -> None:
        worker = threads.worker("w")
        assert worker.pending() == 0
        inside: list[int] = []
        finish = Finish()

        def done(_: object) -> None:
            inside.append(worker.pending())
            finish.set()

        worker.submit(lambda: None, done, never)
        await finish.wait()
        assert inside == [0], "a completion that is being called is no longer pending"
        assert worker.pending() == 0

    run_body(body)


def test_a_completion_may_submit(run_body: RunBody) -> None:
    async def body(threads: Threads) -> None:
        worker, other = threads.worker("w"), threads.worker("other")
        finish = Finish()
        seen: list[str] = []

        def second(text: str) -> None:
            seen.append(text)
            other.submit(lambda: "third", third, never)

        def third(text: str) -> None:
            seen.append(text)
            finish.set()

        worker.submit(lambda: "first", lambda text: worker.submit(lambda: text + " second", second, never), never)
        await finish.wait()
        assert seen == ["first second", "third"]
        worker.close()

    run_body(body)


def test_close_runs_and_tells_what_was_submitted(run_body: RunBody) -> None:
    async def body(threads: Threads) -> None:
        worker = threads.worker("w")
        told: list[int] = []
        for number in range(50):
            worker.submit(partial(int, number), told.append, never)
        worker.close()
        assert told == list(range(50))
        assert worker.pending() == 0
        worker.close()
        with pytest.raises(LogClosed):
            worker.submit(lambda: None, never, never)
        await asyncio.sleep(0)
        assert told == list(range(50)), "told twice"

    run_body(body)


def test_a_completion_that_raises_is_reported_and_the_next_one_is_called(
    run_body: RunBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(threads: Threads) -> None:
        reported: list[BaseException | None] = []
        monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        worker = threads.worker("w")
        bug = ZeroDivisionError("a bug of the owner")

        def raise_it(_: object) -> None:
            raise bug

        worker.submit(lambda: None, raise_it, never)
        await finished(worker)
        assert reported == [bug]
        assert worker.pending() == 0

    run_body(body)


def test_the_latch_is_re_entrant(run_body: RunBody) -> None:
    async def body(threads: Threads) -> None:
        latch = threads.latch()
        with latch, latch:
            pass

    run_body(body)


# The purpose of each.


def test_loop_threads_run_jobs_elsewhere_and_tell_at_home() -> None:
    async def main() -> None:
        with Owned(LoopThreads(asyncio.get_running_loop())) as threads:
            worker = threads.worker("writer")
            told: list[tuple[int, int]] = []
            worker.submit(threading.get_ident, lambda ran: told.append((ran, threading.get_ident())), never)
            await finished(worker)
            ((ran, at),) = told
            assert at == threading.get_ident()
            assert ran != at

    uvloop.run(main())


def test_caller_threads_tell_on_the_worker_s_own_thread() -> None:
    with Owned(CallerThreads()) as threads:
        told: list[tuple[int, int]] = []
        worker = threads.worker("writer")
        worker.submit(threading.get_ident, lambda ran: told.append((ran, threading.get_ident())), never)
        worker.close()
    ((ran, at),) = told
    assert ran == at != threading.get_ident()


def test_completions_that_pile_up_come_home_in_one_wake_up() -> None:
    class Counting(asyncio.SelectorEventLoop):
        wake_ups = 0

        def _write_to_self(self) -> None:
            self.wake_ups += 1
            super()._write_to_self()  # type: ignore[misc]

    loop = Counting()

    async def main() -> None:
        with Owned(LoopThreads(loop)) as threads:
            worker = threads.worker("w")
            told: list[int] = []
            all_ran = threading.Event()
            for number in range(1000):
                worker.submit(partial(int, number), told.append, never)
            worker.submit(all_ran.set, lambda _: None, never)
            assert all_ran.wait(20)
            assert (told, loop.wake_ups) == ([], 1)
            before = loop.wake_ups
            await finished(worker)
            assert told == list(range(1000))
            assert loop.wake_ups <= before + 2  # the one of ``finished`` itself, and its wake-up

    with contextlib.closing(loop):
        loop.run_until_complete(main())


def test_a_worker_outlives_its_loop_and_tells_the_rest_at_close() -> None:
    told: list[str] = []

    async def main() -> Worker:
        return LoopThreads(asyncio.get_running_loop()).worker("w")

    worker = asyncio.run(main())
    worker.submit(lambda: "after the loop", told.append, never)
    worker.close()
    assert told == ["after the loop"]


# Virtual time alone.


def events_of(seed: int) -> list[str]:
    """Returns the order of the events of two workers for a seed."""
    seen: list[str] = []

    def note(text: str, _: object = None) -> None:
        seen.append(text)

    async def main() -> None:
        threads = FakeThreads(asyncio.get_running_loop(), rng=Random(seed), latency_s=(0.0, 0.1))
        workers = [threads.worker(name) for name in "ab"]
        for number in range(5):
            for name, worker in zip("ab", workers, strict=True):
                worker.submit(partial(note, f"run {name}{number}"), partial(note, f"{name}{number}"), never)
        await asyncio.sleep(10)

    run(main())
    return seen


def test_a_seed_draws_the_same_order_again_and_seeds_differ() -> None:
    assert len(events_of(1)) == 20
    assert events_of(1) == events_of(1)
    assert len({tuple(events_of(seed)) for seed in range(10)}) > 5


def test_a_second_job_may_run_before_the_first_one_is_told() -> None:
    orders = [events_of(seed) for seed in range(20)]
    ahead = [order.index("run a1") < order.index("a0") for order in orders]
    assert True in ahead
    assert False in ahead


@virtual
async def test_a_killed_process_runs_and_tells_nothing_more() -> None:
    threads = FakeThreads(asyncio.get_running_loop(), rng=Random(3), latency_s=(0.1, 0.2))
    worker = threads.worker("w")
    ran: list[int] = []
    told: list[int] = []
    for number in range(10):
        worker.submit(partial(ran.append, number), lambda _: told.append(len(ran)), never)
    await asyncio.sleep(0.5)
    threads.kill()
    before = list(ran), list(told)
    assert 0 < len(ran) < 10
    await asyncio.sleep(10)
    worker.close()
    assert (ran, told) == before


@virtual
async def test_a_job_that_dies_at_a_disk_call_is_never_told() -> None:
    disk = FakeDisk()
    file = disk.open("/a", create=True)
    threads = FakeThreads(asyncio.get_running_loop(), disk=disk)
    worker = threads.worker("w")
    disk.stop_at(lambda call: call.name == "sync")
    worker.submit(file.sync, never, never)
    worker.submit(lambda: never(None), never, never)
    await asyncio.sleep(1)
    assert threads.killed
    assert disk.stopped


@virtual
async def test_a_slow_disk_takes_virtual_time() -> None:
    loop, disk = asyncio.get_running_loop(), FakeDisk()
    file = disk.open("/a", create=True)
    disk.latency = lambda call: 5.0 if call.name == "sync" else 0.0
    worker = FakeThreads(loop, disk=disk).worker("w")
    began, finish = loop.time(), Finish()
    worker.submit(file.sync, finish.set, never)
    await finish.wait()
    assert loop.time() - began == pytest.approx(5.0)


def test_inline_threads_let_a_crash_come_out_of_submit() -> None:
    disk = FakeDisk()
    file = disk.open("/a", create=True)
    disk.stop_at(2)
    with pytest.raises(StopHere):
        InlineThreads().worker("w").submit(file.sync, never, never)


@pytest.mark.parametrize("seed", seeds(8))
def test_on_a_disk_that_stalls_a_job_hangs_until_it_is_over_and_others_do_not(seed: int) -> None:
    effects: list[float] = []

    async def main() -> None:
        loop, disk = asyncio.get_running_loop(), FakeDisk()
        began = loop.time()
        threads = FakeThreads(loop, rng=Random(seed), disk=disk)
        writer, other = threads.worker("w"), FakeThreads(loop, disk=FakeDisk()).worker("o")
        disk.stalled_until_s = began + 30.0
        told: dict[str, float] = {}
        failed: list[BaseException] = []

        def write() -> None:
            effects.append(loop.time() - began)
            disk.make_directory("/a")

        writer.submit(write, lambda _: told.update(written=loop.time() - began), failed.append)
        writer.submit(lambda: disk.list("/"), lambda _: told.update(after=loop.time() - began), failed.append)
        other.submit(lambda: None, lambda _: told.update(other=loop.time() - began), failed.append)
        await asyncio.sleep(29.0)
        assert told == {"other": 0.0} and writer.pending() == 2 and writer.since_s == began
        await asyncio.sleep(2.0)
        assert told["written"] == told["after"] == 30.0 and not writer.pending() and not failed

    run(main())
    assert effects in ([0.0], [30.0])
