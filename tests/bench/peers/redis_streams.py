"""Redis Streams: ``XREADGROUP`` of 1,000, ``XACK`` of them, ``WAIT 1``; ``appendfsync always``, two replicas.

The acknowledgements of a batch go out on a connection of their own, beside the next read.  ``WAIT 1`` says that one
replica has received them, not that it has synced them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from pathlib import Path

from tests.bench.peers.peer import AHEAD, BATCH, FILL_BATCH, VALUE, Work
from tests.bench.peers.redis import Redis, command_of

_WAIT = command_of(b"WAIT", b"1", b"5000")
_READ = command_of(b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"%d" % BATCH, b"STREAMS", b"log", b">")
_ADD = command_of(b"XADD", b"log", b"*", b"v", VALUE)
_ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")
READ_BYTES = 1 << 18


class RedisStreams(Redis):
    name = "Redis Streams"

    async def start(self, directory: Path) -> list[Work]:
        """Makes a stream and a consumer of it, too."""
        await super().start(directory)
        reader, writer = await self.connected()
        writer.write(command_of(b"XGROUP", b"CREATE", b"log", b"g", b"0", b"MKSTREAM"))
        if await reader.readline() != b"+OK\r\n":
            raise RuntimeError("Redis made no group")
        writer.close()
        return []

    async def fill(self, messages: int) -> None:
        """Appends ``messages`` of 100 bytes, durable."""
        reader, writer = await self.connected()
        for at in range(0, messages, FILL_BATCH):
            count = min(FILL_BATCH, messages - at)
            writer.write(_ADD * count + _WAIT)
            for _ in range(count):
                await reader.readline()
                await reader.readline()
            await reader.readline()
        writer.close()

    async def consume(self, messages: int) -> float:
        """Takes and acknowledges as many, ``BATCH`` at a time; the seconds it took."""
        reader, writer = await self.connected()
        answers, acks = await self.connected()  # WAIT holds its connection
        start = time.perf_counter()
        done, sent = 0, deque[int]()
        writer.write(_READ)
        while done < messages:
            ids = _ID.findall(await _page(reader))
            done += len(ids)
            if done < messages:
                writer.write(_READ)
            acks.write(command_of(b"XACK", b"log", b"g", *ids) + _WAIT)
            sent.append(len(ids))
            if len(sent) > AHEAD:
                await _acknowledged(answers, sent.popleft())
        for count in sent:
            await _acknowledged(answers, count)
        seconds = time.perf_counter() - start
        writer.close()
        acks.close()
        return seconds


async def _acknowledged(reader: asyncio.StreamReader, count: int) -> None:
    acknowledged, received = await reader.readline(), await reader.readline()
    if acknowledged != b":%d\r\n" % count or received in (b":0\r\n", b""):
        raise RuntimeError(f"Redis acknowledged {acknowledged!r} of {count}, {received!r} replicas")


async def _page(reader: asyncio.StreamReader) -> bytes:
    """Reads the answer of one XREADGROUP: that of a stream of equal values ends where as many were read as it says."""
    for _ in range(4):
        await reader.readline()
    count = int((await reader.readline())[1:])
    read, seen = bytearray(), 0
    while seen < count:  # nothing is behind it yet: the next command has not been sent
        read += await reader.read(READ_BYTES)
        seen = read.count(VALUE + b"\r\n")
    return bytes(read)
