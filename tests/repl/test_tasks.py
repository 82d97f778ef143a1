"""Work in a task of its own: what a task group that fails leaves behind stays there."""

from __future__ import annotations

import asyncio

import pytest

from repl.tasks import apart


async def fail() -> None:
    await asyncio.sleep(0.001)
    raise OSError("a test")


async def group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
        tasks.create_task(asyncio.sleep(60))


async def test_after_a_task_group_has_failed_a_timeout_is_a_timeout() -> None:
    """In one task with both it is a cancel, in Python 3.11.2."""
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(ExceptionGroup):
        await apart(group())
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)


async def test_a_cancel_of_whoever_waits_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    waiting = asyncio.create_task(apart(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() and ended.is_set()
