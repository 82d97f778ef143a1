"""Opens more silent connections than a node accepts."""

from __future__ import annotations

import asyncio
from collections import Counter

from harness.hostile.kind import Kind, Scene
from harness.hostile.sockets import address

CONNECTIONS = 4_096
AT_ONCE = 64
"""Callers at once, each of which opens one connection after the other."""
CONNECT_S = 5.0


async def _attack(scene: Scene) -> str:
    until = asyncio.get_running_loop().time() + scene.seconds
    seen = Counter[str]()
    await asyncio.gather(*(_keep_open(scene, CONNECTIONS // AT_ONCE, until, seen) for _ in range(AT_ONCE)))
    most = ", ".join(f"{count:,} {what}" for what, count in sorted(seen.items()))
    return f"{CONNECTIONS:,} silent connections held open at the master: {most}"


class _Silent(asyncio.Protocol):
    def __init__(self) -> None:
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False


async def _keep_open(scene: Scene, count: int, until: float, seen: Counter[str]) -> None:
    """Keeps this number of connections, and opens again each that the node closes."""
    loop = asyncio.get_running_loop()
    held: list[tuple[asyncio.BaseTransport, _Silent]] = []
    while loop.time() < until:
        seen["closed by the node"] += sum(not silent.open for _, silent in held)
        held = [each for each in held if each[1].open]
        while len(held) < count and loop.time() < until:
            try:
                async with asyncio.timeout(CONNECT_S):
                    held.append(await loop.create_connection(_Silent, *address(scene.master_url)))
            except OSError:
                seen["refused"] += 1
                break
            seen["opened"] += 1
        await asyncio.sleep(0.1)
    for transport, _ in held:
        transport.close()


KIND = Kind("idle", f"{CONNECTIONS:,} connections that say nothing, opened again where the node closes them", _attack)
