"""Requests that never finish their heads, and send a byte now and then."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from harness.hostile.kind import Kind, Scene
from harness.hostile.sockets import address

CONNECTIONS = 1_000
HEAD_S = 3.0
"""Seconds for which the nodes wait for a head, by these settings."""
LATE_S = 5.0
"""Seconds by which the end of a connection may be noticed later."""
BYTE_S = 0.5
_HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


async def _attack(scene: Scene) -> str:
    held = await asyncio.gather(*(_hold(scene.master_url) for _ in range(CONNECTIONS)))
    longest = max(held)
    if longest > HEAD_S + LATE_S:
        scene.found.append(f"half a head was waited for {longest:.1f} s, over {HEAD_S:g}")
    return f"{CONNECTIONS:,} half heads, a byte each {BYTE_S:g} s; held {min(held):.1f} to {longest:.1f} s"


async def _hold(url: str) -> float:
    """Returns the seconds until the node closed the connection, or twice the allowed time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with suppress(OSError):
        async with asyncio.timeout(2 * (HEAD_S + LATE_S)):
            reader, writer = await asyncio.open_connection(*address(url))
            try:
                writer.write(_HALF)
                ended = asyncio.ensure_future(reader.read())
                while not (await asyncio.wait([ended], timeout=BYTE_S))[0]:
                    writer.write(b"x")
                await ended  # raises the error of a reset connection
            finally:
                writer.close()
    return loop.time() - began


KIND = Kind(
    "half-heads",
    f"{CONNECTIONS:,} requests that never get to the end of their heads",
    _attack,
    settings={"head_s": HEAD_S},
)
