"""The event loop: real asyncio, uvloop and virtual time behave the same, and virtual time has some more features."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.fakes.loop import Deadlock, OutOfTime, run, virtual

Run = Callable[[Coroutine[Any, Any, Any]], Any]
RUNS: dict[str, Run] = {"virtual": run, "asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=list(RUNS))
def run_on(request: pytest.FixtureRequest) -> Run:
    return RUNS[request.param]


def test_callbacks_run_in_the_order_they_were_asked_for(run_on: Run) -> None:
    async def main() -> list[int]:
        loop, seen, last = asyncio.get_running_loop(), list[int](), asyncio.Event()
        for number in range(5):
            loop.call_soon(seen.append, number)
        loop.call_soon_threadsafe(seen.append, 5)
        loop.call_soon(last.set)
        await last.wait()
        return seen

    assert run_on(main()) == [0, 1, 2, 3, 4, 5]


def test_timers_fire_in_the_order_of_their_times(run_on: Run) -> None:
    async def main() -> list[str]:
        loop, seen, last = asyncio.get_running_loop(), list[str](), asyncio.Event()
        loop.call_later(0.03, last.set)
        loop.call_later(0.02, seen.append, "second")
        loop.call_later(0.01, seen.append, "first")
        loop.call_later(0.015, seen.append, "cancelled").cancel()
        await last.wait()
        return seen

    assert run_on(main()) == ["first", "second"]


def test_a_sleep_moves_the_time(run_on: Run) -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.02)
        return asyncio.get_running_loop().time() - began

    assert 0.0199 <= run_on(main()) < 5.0


def test_a_timeout_cancels_what_waits(run_on: Run) -> None:
    async def main() -> str:
        ended = []
        try:
            async with asyncio.timeout(0.01):
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    ended.append("inside")
        except TimeoutError:
            return ",".join([*ended, "timeout"])
        return "nothing"

    assert run_on(main()) == "inside,timeout"


def test_a_task_group_ends_the_others_when_one_fails(run_on: Run) -> None:
    async def main() -> list[str]:
        seen = []

        async def wait_forever(name: str) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append(name)
                raise

        async def fail() -> None:
            await asyncio.sleep(0.001)
            raise ValueError("meant")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(wait_forever("a"))
                group.create_task(fail())
                group.create_task(wait_forever("b"))
        except* ValueError:
            seen.append("failed")
        return sorted(seen)

    assert run_on(main()) == ["a", "b", "failed"]


def test_what_main_raises_comes_out_and_tasks_left_behind_are_ended(run_on: Run) -> None:
    ended = []

    async def left_behind() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("task")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(left_behind(), name="left")
        await asyncio.sleep(0.001)
        assert task.get_name() == "left"
        raise KeyError("out")

    with pytest.raises(KeyError, match="out"):
        run_on(main())
    assert ended == ["task"]


def test_an_asynchronous_generator_is_closed_at_the_end(run_on: Run) -> None:
    ended = []
    kept = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("closed")

    async def main() -> int:
        source = numbers()
        kept.append(source)
        return await anext(source)

    assert run_on(main()) == 1
    assert ended == ["closed"]


# Virtual time alone.


def test_an_hour_of_virtual_time_costs_nothing() -> None:
    async def main() -> float:
        before = asyncio.get_running_loop().time()
        for _ in range(60):
            await asyncio.sleep(60)
        return asyncio.get_running_loop().time() - before

    began = time.monotonic()
    assert run(main()) == pytest.approx(3600)
    assert time.monotonic() - began < 30


def test_a_deadlock_names_who_waits_and_where() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.get_running_loop().create_task(wait_for_nobody(), name="lonely")

    with pytest.raises(Deadlock, match=r"lonely waits at .*locks\.py:\d+ \(Event\.wait\)"):
        run(main())


def test_a_program_that_only_ticks_runs_out_of_time() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - it is meant never to end
            await asyncio.sleep(0.2)

    with pytest.raises(OutOfTime, match="after 10 s"):
        run(main(), limit_s=10.0)


def test_a_program_that_never_waits_runs_out_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.loop.TURNS_MAX", 1_000)

    async def main() -> None:
        while True:  # noqa: ASYNC110 - it is meant never to end
            await asyncio.sleep(0)

    with pytest.raises(OutOfTime, match="1000 turns"):
        run(main())


@virtual
async def test_executors_sockets_and_other_threads_are_refused() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(RuntimeError, match="no executor"):
        await asyncio.to_thread(int)
    with pytest.raises(RuntimeError, match="no sockets"):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(RuntimeError, match="no sockets"):
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    refused: list[BaseException] = []

    def call() -> None:
        try:
            loop.call_soon_threadsafe(int)
        except RuntimeError as error:
            refused.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "virtual time" in str(refused[0])


def test_an_exception_that_nobody_took_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(main())


@virtual
async def test_sets_of_tasks_and_futures_iterate_by_their_numbers() -> None:
    loop = asyncio.get_running_loop()
    waiting = {loop.create_task(asyncio.sleep(60), name=str(n)) for n in range(20)}
    assert [task.get_name() for task in waiting] == [str(n) for n in range(20)]
    futures = {loop.create_future() for _ in range(20)}
    numbers = [hash(future) for future in futures]
    assert numbers == sorted(numbers)
