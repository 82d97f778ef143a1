"""Ends a consumer's process: first STOP, then SIGTERM, then SIGKILL.

STOP ─► STOP_S ─► SIGTERM ─► TERMINATE_S ─► SIGKILL ─► TERMINATE_S ─► the node waits no longer
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from repl.cdc import messages
from repl.cdc.children import Child
from vlsn.errors import ChannelClosed

STOP_S = 10.0
"""After STOP, the consumer has this many seconds to return from its call and from ``stop``. A consumer that takes
longer gets SIGTERM."""
TERMINATE_S = 5.0
"""Seconds between SIGTERM and SIGKILL. The node also waits this long after SIGKILL."""
END_S = 2.0
"""A process has this many seconds to end after it has closed its connection."""


async def stop_child(child: Child, stopped: asyncio.Task[None]) -> None:
    """Stops the consumer and its process. ``stopped`` completes when the consumer reports that it has stopped. A
    process that has died meanwhile counts as stopped."""
    try:
        async with asyncio.timeout(STOP_S):
            with suppress(ChannelClosed):
                await child.send(messages.encode(messages.Stop()))
                await asyncio.wait([stopped])
    except TimeoutError:
        child.terminate()
    if not await _ends(child, TERMINATE_S):
        child.kill()
        await _ends(child, TERMINATE_S)


async def how_it_ended(child: Child) -> str:
    """Describes how a child ended that has closed its connection. Waits at most ``END_S`` for a child that still
    runs."""
    if not await _ends(child, END_S):
        return "it closed its connection to the node, and was killed"
    status = await child.ended()
    return f"its process ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


async def _ends(child: Child, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await child.ended()
        return True
    except TimeoutError:
        return False
