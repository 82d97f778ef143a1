"""Tasks that are ended for certain."""

from __future__ import annotations

import asyncio

CANCEL_AGAIN_S = 0.2


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancels ``tasks``, more than once: a cancel that meets a timeout just as it runs out, in a library's code, may be
    lost in it.  Returns when all of them have ended."""
    under_way = {task for task in tasks if not task.done()}
    while under_way:
        for task in under_way:
            task.cancel()
        _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)
