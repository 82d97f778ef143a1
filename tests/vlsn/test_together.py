"""Work side by side: how it ends, and that its task is as before afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tests.fakes.loop import virtual
from vlsn.together import together


async def _fail(after_s: float, error: Exception) -> None:
    await asyncio.sleep(after_s)
    raise error


async def _sleep(ended: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        try:
            await asyncio.sleep(0.01)
        finally:
            ended.append("slept")


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancels a task that is still under way, and waits for its end."""
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@virtual
async def test_returns_when_every_part_has() -> None:
    told: list[int] = []

    async def tell(number: int) -> None:
        await asyncio.sleep(0.01 * number)
        told.append(number)

    await together(first=tell(2), second=tell(1))
    assert told == [1, 2]


@virtual
async def test_one_that_fails_ends_the_others_first() -> None:
    ended: list[str] = []
    with pytest.raises(ExceptionGroup) as raised:
        await together(fails=_fail(0.01, ValueError("no")), sleeps=_sleep(ended))
    assert ended == ["slept"]
    assert [str(error) for error in raised.value.exceptions] == ["no"]


@virtual
async def test_all_that_fail_in_one_turn_are_told_of() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await together(first=_fail(0, ValueError("one")), second=_fail(0, KeyError("two")))
    assert [type(error) for error in raised.value.exceptions] == [ValueError, KeyError]


def test_a_failure_leaves_no_cancel_behind() -> None:
    """The count is 1 here with ``asyncio.TaskGroup`` before Python 3.13; in 3.11.2 the timeout raises
    ``CancelledError``."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(ExceptionGroup):
            await together(fails=_fail(0.01, ValueError("no")))
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)

    asyncio.run(main())


@virtual
async def test_a_cancel_that_meets_a_failing_part_is_not_lost() -> None:
    ended: list[str] = []
    task = asyncio.create_task(together(fails=_fail(0, ValueError("no")), sleeps=_sleep(ended)))
    await asyncio.sleep(0.005)  # it has failed, and the other one takes its time to end
    await _cancel(task)
    assert ended == ["slept"]


@virtual
async def test_a_cancel_ends_the_parts_and_is_passed_on_again_to_one_that_lost_it() -> None:
    ended: list[str] = []

    async def loses_one() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        await _sleep(ended)

    task = asyncio.create_task(together(loses=loses_one()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.02)
    await _cancel(task)
    assert ended == ["slept"]


@pytest.mark.parametrize("while_ending", [False, True])
def test_a_cancel_of_the_whole_leaves_no_cycle(while_ending: bool) -> None:
    """A cycle would keep the parts, and what they worked with, until a collection."""

    async def main() -> list[BaseException]:
        begun = asyncio.get_running_loop().create_future()

        async def fails() -> None:
            await asyncio.sleep(0.01)
            raise ValueError("no")

        async def slow() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                begun.set_result(None)
                await asyncio.sleep(0.01)

        whole = asyncio.create_task(together(fails=fails(), slow=slow()))
        if while_ending:
            await begun
        else:
            await asyncio.sleep(0)
        whole.cancel()
        await asyncio.wait([whole])
        assert whole.cancelled()
        del whole
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [each for each in gc.garbage if isinstance(each, BaseException)]

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main()) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_part_that_was_cancelled_is_freed_though_its_frame_knows_its_task() -> None:
    seen: list[weakref.ref[asyncio.Event]] = []

    async def waits() -> None:
        event = asyncio.Event()
        seen.append(weakref.ref(event))
        mine = asyncio.current_task()
        await event.wait()
        assert mine is None, "it is cancelled before"

    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            await together(waits=waits(), fails=_fail(0.01, ValueError("no")))
        await asyncio.sleep(0)
        assert seen[0]() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
