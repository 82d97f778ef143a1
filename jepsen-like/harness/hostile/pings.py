"""Two hundred sockets that send only pings."""

from __future__ import annotations

import asyncio
from collections import Counter

from harness.hostile.kind import Kind, Scene
from harness.hostile.sockets import PING, frame, upgraded

SOCKETS = 200
PINGS = 50_000
"""Pings of a socket, before it connects again."""
CLOSED_S = 5.0


async def _attack(scene: Scene) -> str:
    until = asyncio.get_running_loop().time() + scene.seconds
    closed = Counter[str]()
    sent = sum(await asyncio.gather(*(_socket(scene, until, closed) for _ in range(SOCKETS))))
    ends = ", ".join(f"{code}: {count}" for code, count in closed.items())
    return f"{sent:,} pings, {SOCKETS} sockets at once; closed {ends}"


async def _socket(scene: Scene, until: float, closed: Counter[str]) -> int:
    loop = asyncio.get_running_loop()
    ping, sent = frame(PING, b""), 0
    while loop.time() < until:
        try:
            async with upgraded(scene.master_url, "/v1/produce") as socket:
                await socket.send(ping, PINGS, until=until)
                sent += socket.sent // len(ping)
                closed[await socket.ended(min(until, loop.time() + CLOSED_S))] += 1
        except (ConnectionError, TimeoutError):
            closed["refused"] += 1
            await asyncio.sleep(0.1)
    return sent


KIND = Kind("pings", f"{SOCKETS} sockets that send nothing but pings", _attack)
