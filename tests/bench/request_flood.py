"""Many connections in one process, each of which sends so many requests at once, and again when all are answered.

``python -m tests.bench.request_flood`` is started by the bench ``turns``.  It reads one JSON object (``Flood``) from
its input, and prints one: how often each status was answered, and ``cut`` for connections that ended before their last.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from urllib.parse import urlsplit

import msgspec
import uvloop

CONNECTS_AT_ONCE = 64
READ_BYTES = 1 << 18
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Flood(msgspec.Struct):
    url: str
    head: str
    """A request's first line and fields, without ``Host`` and the empty line."""
    body: bytes
    sockets: int
    pipelined: int
    seconds: float


async def _run(flood: Flood) -> Counter[str]:
    parts = urlsplit(flood.url)
    head = f"{flood.head}\r\nHost: {parts.netloc}\r\n"
    if flood.body:
        head += f"Content-Length: {len(flood.body)}\r\n"
    one = f"{head}\r\n".encode() + flood.body
    last = f"{head}Connection: close\r\n\r\n".encode() + flood.body
    sent = one * (flood.pipelined - 1) + last
    seen: Counter[str] = Counter()
    connecting = asyncio.Semaphore(CONNECTS_AT_ONCE)
    until = asyncio.get_running_loop().time() + flood.seconds

    async def connection() -> None:
        while asyncio.get_running_loop().time() < until:
            async with connecting:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=READ_BYTES)
            try:
                await _exchange(reader, writer)
            except ConnectionError:
                seen["cut"] += 1
            finally:
                writer.close()

    async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        kept = b""
        while data := await reader.read(READ_BYTES):
            data = kept + data
            end = 0
            for found in _STATUS.finditer(data):
                seen[found[1].decode()] += 1
                end = found.end()
            kept = data[max(end, len(data) - 12) :]

    try:
        async with asyncio.timeout(flood.seconds), asyncio.TaskGroup() as group:
            for _ in range(flood.sockets):
                group.create_task(connection())
    except TimeoutError:
        pass
    return seen


def main() -> None:
    flood = msgspec.json.decode(sys.stdin.buffer.read(), type=Flood)
    print(msgspec.json.encode(dict(uvloop.run(_run(flood)))).decode())


if __name__ == "__main__":
    main()
