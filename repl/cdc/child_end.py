"""The end of a consumer's process: it is asked, then sent SIGTERM, then killed.

STOP ─► STOP_S ─► SIGTERM ─► TERMINATE_S ─► SIGKILL ─► TERMINATE_S, and nobody waits any more
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from repl.cdc import messages
from repl.cdc.children import Child
from vlsn.errors import ChannelClosed

STOP_S = 10.0
"""Seconds that a consumer has to return from its call and from ``stop``, until its process is terminated."""
TERMINATE_S = 5.0
"""Seconds from SIGTERM to SIGKILL, and from there until nobody waits for its end any more."""
END_S = 2.0
"""Seconds that a process has to end by itself once it has closed its connection."""


async def stop_child(child: Child, stopped: asyncio.Task[None]) -> None:
    """Stops the consumer, which has done so when ``stopped`` ends; one that has died meanwhile is stopped."""
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
    """Returns how a child has ended whose connection is closed. A child that goes on without its connection gets no
    wait."""
    if not await _ends(child, END_S):
        return "it has closed its connection to the node, and was ended"
    status = await child.ended()
    return f"its process ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


async def _ends(child: Child, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await child.ended()
        return True
    except TimeoutError:
        return False
