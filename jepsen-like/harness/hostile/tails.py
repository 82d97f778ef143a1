"""As many tails as a node accepts, all on one replica: each reads the whole log, then follows it."""

from __future__ import annotations

import asyncio

from harness.hostile.kind import Kind, Scene
from harness.hostile.sockets import address
from repl.client.connect import Client, connect
from vlsn.errors import VlsnLogError

TAILS = 250
BACKLOG = 10_000
WRITERS = 16
_BATCH = 1_000
_VALUE = bytes(100)


async def _attack(scene: Scene) -> str:
    loop = asyncio.get_running_loop()
    async with connect(",".join(scene.cluster.urls)) as log:
        for _ in range(BACKLOG // _BATCH):
            _, last = await log.append_many([_VALUE] * _BATCH)
        await scene.cluster.durable(last)
        until = loop.time() + scene.seconds
        replica = scene.url(scene.replicas[0])
        tails = asyncio.gather(*(_tail(replica, until) for _ in range(TAILS)))
        writers = asyncio.gather(*(_write(log, until) for _ in range(WRITERS)))
        read, written = sum(await tails), sum(await writers)
    if not read:
        scene.found.append("no tail read anything")
    return f"{TAILS} tails of one replica from VLSN 1 on, {read / 1e6:,.0f} MB read, {written:,} appends meanwhile"


async def _write(log: Client, until: float) -> int:
    loop = asyncio.get_running_loop()
    count = 0
    while loop.time() < until:
        try:
            await log.append(_VALUE)
        except VlsnLogError:
            continue  # only the watch's writers must not fail
        count += 1
    return count


class _Counts(asyncio.Protocol):
    def __init__(self) -> None:
        self.bytes = 0
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


async def _tail(url: str, until: float) -> int:
    """Counts the bytes that a tail reads; a tail that is cut off begins again."""
    loop = asyncio.get_running_loop()
    read = 0
    while loop.time() < until:
        try:
            transport, counts = await loop.create_connection(_Counts, *address(url))
        except OSError:
            await asyncio.sleep(0.1)
            continue
        transport.write(b"GET /v1/tail?from=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait([counts.lost], timeout=max(0.0, until - loop.time()))
        read += counts.bytes
        transport.abort()
    return read


KIND = Kind("tails", f"{TAILS} tails of one replica, from the log's beginning, while {WRITERS} writers append", _attack)
