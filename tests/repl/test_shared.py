"""One call for many callers."""

from __future__ import annotations

import asyncio

import pytest

from repl.shared import Shared, undisturbed
from vlsn.errors import NotMaster


class Calls:
    """Calls that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[int]] = []
        self.changed = asyncio.Event()

    async def call(self) -> int:
        due: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.begun.append(due)
        self.changed.set()
        return await due

    async def until(self, count: int) -> None:
        while len(self.begun) < count:
            self.changed.clear()
            await self.changed.wait()


async def test_who_asks_while_a_call_is_under_way_gets_the_next_ones_result() -> None:
    calls = Calls()
    shared = Shared(calls.call)
    first = asyncio.create_task(shared.get())
    await calls.until(1)
    later = [asyncio.create_task(shared.get()) for _ in range(3)]
    await asyncio.sleep(0)
    calls.begun[0].set_result(1)
    assert await first == 1
    await calls.until(2)
    assert not any(task.done() for task in later)
    calls.begun[1].set_result(2)
    assert await asyncio.gather(*later) == [2, 2, 2]
    assert len(calls.begun) == 2


async def test_a_fault_is_of_those_who_shared_the_call_and_of_nobody_after_them() -> None:
    calls = Calls()
    shared = Shared(calls.call)
    task = asyncio.create_task(shared.get())
    await calls.until(1)
    after = asyncio.create_task(shared.get())
    await asyncio.sleep(0)
    calls.begun[0].set_exception(NotMaster("no"))
    with pytest.raises(NotMaster):
        await task
    await calls.until(2)
    calls.begun[1].set_result(7)
    assert await after == 7


async def test_a_caller_that_leaves_takes_nothing_from_the_others() -> None:
    calls = Calls()
    shared = Shared(calls.call)
    leaving, staying = (asyncio.create_task(shared.get()) for _ in range(2))
    await calls.until(1)
    leaving.cancel()
    await asyncio.sleep(0)
    calls.begun[0].set_result(3)
    assert await staying == 3


async def test_closing_ends_the_call_and_all_who_wait_or_come() -> None:
    calls = Calls()
    shared = Shared(calls.call)
    waiting = [asyncio.create_task(shared.get())]
    await calls.until(1)
    waiting.append(asyncio.create_task(shared.get()))
    await asyncio.sleep(0)
    over = NotMaster("over")
    shared.close(over)
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, NotMaster)
    with pytest.raises(NotMaster):
        await shared.get()
    assert len(calls.begun) == 1
    assert over.__traceback__ is None, "it is kept, and would keep whoever has asked"


async def test_a_cancelled_caller_leaves_a_future_running_and_logs_no_later_error() -> None:
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
    due: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    left, stays = (asyncio.create_task(undisturbed(due)) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait((left,))
    assert left.cancelled() and not due.done()
    due.set_exception(NotMaster("gone"))
    with pytest.raises(NotMaster):
        await stays
    with pytest.raises(NotMaster):
        await undisturbed(due)
    assert logged == []
