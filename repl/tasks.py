"""Tasks that are ended for certain, and what is done in one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
CANCEL_AGAIN_S = 0.2


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancels ``tasks``, more than once: a cancel that meets a task group just as it fails is lost in its error.
    Returns when all of them have ended."""
    under_way = {task for task in tasks if not task.done()}
    while under_way:
        for task in under_way:
            task.cancel()
        _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` comes to, in a task of its own, which a cancel of whoever waits cancels.

    For work that holds a task group: one that fails leaves its task with a cancel counted that nobody asked for, and
    Python 3.11.2 (Debian 12's) then takes each ``asyncio.timeout`` that runs out in that task for a cancel of it."""
    return await asyncio.create_task(work)
