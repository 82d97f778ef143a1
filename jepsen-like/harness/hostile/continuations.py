"""Sends a million frames of a byte each, all of one message, over one socket after the other."""

from __future__ import annotations

import asyncio
from collections import Counter

from harness.hostile.kind import Kind, Scene
from harness.hostile.sockets import BINARY, CONTINUATION, frame, upgraded

FRAMES = 1_000_000
CLOSED_S = 5.0


async def _attack(scene: Scene) -> str:
    loop = asyncio.get_running_loop()
    until = loop.time() + scene.seconds
    sent, closed = 0, Counter[str]()
    while loop.time() < until:
        try:
            async with upgraded(scene.master_url, "/v1/produce") as socket:
                await socket.send(frame(BINARY, b"x", fin=False), 1, until=until)
                await socket.send(frame(CONTINUATION, b"x", fin=False), FRAMES, until=until)
                sent += socket.sent
                closed[await socket.ended(min(until, loop.time() + CLOSED_S))] += 1
        except (ConnectionError, TimeoutError):
            closed["refused"] += 1
            await asyncio.sleep(0.1)
    ends = ", ".join(f"{code}: {count}" for code, count in closed.items())
    return f"{sent // 7:,} one-byte frames ({sent / 1e6:.1f} MB), one socket at a time; closed {ends}"


KIND = Kind("continuations", "a million one-byte frames of one message, down one socket after the other", _attack)
