"""A driver for the benchmark's HTTP work, for machines without wrk: N connections, one POST at a time on each.

Each request has the same bytes. Only the status and the length of an answer are read.
"""

from __future__ import annotations

import asyncio
import time
from ssl import SSLContext
from typing import cast
from urllib.parse import urlsplit

from repl.bench.report import Outcome, Samples


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, *, samples: Samples, stop: float) -> None:
        self.errors = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._samples, self._stop = request, samples, stop
        self._received = b""
        self._began = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0 or len(self._received) < head + 4 + _content_length(self._received[:head]):
            return
        if self._received[9:12] == b"200":
            self._samples.since(self._began)
        else:
            self.errors += 1
        self._received = b""
        if time.perf_counter() < self._stop:
            self._send()
        else:
            self._transport.abort()  # under uvloop, a close by TLS fails if the node closes at the same time

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None or time.perf_counter() < self._stop:
            self.errors += 1
        self.ended.set_result(None)

    def _send(self) -> None:
        self._began = self._samples.now()
        self._transport.write(self._request)


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def post_many(
    url: str, path: str, *, body: bytes, connections: int, seconds: float, context: SSLContext | None = None
) -> Outcome:
    """Posts over many connections to the master at ``url``, by TLS if there is a ``context``. Only answers with status
    200 are counted."""
    parts = urlsplit(url)
    samples = Samples()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    start = time.perf_counter()
    opened = []
    for _ in range(connections):
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(request, samples=samples, stop=start + seconds),
            parts.hostname or "127.0.0.1",
            parts.port or 80,
            ssl=context,
        )
        opened.append(connection)
    await asyncio.gather(*(connection.ended for connection in opened))
    errors = sum(connection.errors for connection in opened)
    elapsed = time.perf_counter() - start
    return Outcome(len(samples), len(samples) * len(body), elapsed, samples.milliseconds(), errors)
