"""Many waiting readers in one process: a socket and a small object each, nothing else that costs.

``python -m tests.bench.reader_load`` is started by the bench ``readers``.  It reads one JSON object (``Asked``) from
its input, answers ``ready``, then an object (``Found``) for each line it is sent, with the counts since the line
before. Readers are long-polls (``/v1/entries?wait=``) and tails (``/v1/tail``), in turns, over all URLs in turns.  One
whose connection ends goes on at the next URL, from the VLSN after the last it has seen.

An entry's value is ``#00000017@00000000012345678901``: its number, and when it was appended (``perf_counter_ns``, which
all processes of a machine share).  Numbers that come to a reader out of turn are counted as wrong.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import msgspec
import numpy as np
import uvloop

from repl.bench.report import Samples

VALUE = b"#%08d@%020d"
AGAIN_S = 0.05
"""Seconds until a reader that was cut off, or refused, asks the next node."""
CONNECTS_AT_ONCE = 64
WAIT_S = 60
_ENTRY = re.compile(rb'"vlsn":(\d+),[^#]*#(\d{8})@(\d{20})')


class Asked(msgspec.Struct):
    urls: list[str]
    tails: int
    polls: int
    from_vlsn: int
    number: int
    """The number of the first entry at or after ``from_vlsn``."""


class Found(msgspec.Struct):
    """Counts of the entries that all readers saw since the last question; ``wrong`` are holes, doubles and swaps."""

    deliveries: int
    entries: int
    wrong: int
    refused: int
    lost: int
    behind: int
    """Readers that have not seen the last entry that any has."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_s: float


class Seen:
    """The counters of all readers."""

    def __init__(self) -> None:
        self.clear()
        self.connecting = asyncio.Semaphore(CONNECTS_AT_ONCE)

    def clear(self) -> None:
        self.deliveries = self.entries = self.wrong = self.refused = self.lost = 0
        self.samples = Samples()


class Reader(asyncio.Protocol):
    """One reader, on one connection after another."""

    def __init__(self, seen: Seen, asked: Asked, at: int) -> None:
        self.seen, self.urls, self.at = seen, asked.urls, at
        self.vlsn, self.number = asked.from_vlsn, asked.number
        self.is_tail = at % (asked.tails + asked.polls) < asked.tails
        self._left = b""
        self._again: asyncio.Task[None] | None = None
        self.answered = False
        self.heard = asyncio.Event()

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            parts = urlsplit(self.urls[self.at % len(self.urls)])
            self.host = parts.netloc
            try:
                async with self.seen.connecting:
                    await loop.create_connection(lambda: self, parts.hostname or "", parts.port or 0)
                return
            except OSError:
                self.at += 1
                await asyncio.sleep(AGAIN_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._left, self.answered = b"", False
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.seen.lost += 1
        self.at += 1
        self._again = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        await asyncio.sleep(AGAIN_S)
        await self.connect()

    def _ask(self) -> None:
        path = f"/v1/tail?from={self.vlsn}" if self.is_tail else f"/v1/entries?from={self.vlsn}&wait={WAIT_S}"
        self._transport.write(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        if self._left:
            data, self._left = self._left + data, b""
        if not self.answered or not self.is_tail:
            self.answered = True
            if data[9:12] != b"200":
                self.seen.refused += 1
                self._transport.close()
                return
        if self.is_tail:
            if not data.endswith(b"\n\n\r\n"):
                if b"\r\n\r\n" in data[-4:]:
                    return  # the head alone
                self._left = data
                return
            self._entries(data, now)
            return
        head = data.find(b"\r\n\r\n") + 4
        size = data.find(b"Content-Length: ")
        if head < 4 or len(data) < head + int(data[size + 16 : data.index(b"\r", size)]):
            self._left = data
            return
        self._entries(data, now)
        following = data.index(b"Vlsnlog-Next: ") + 14
        self.vlsn = int(data[following : data.index(b"\r", following)])
        self._ask()

    def _entries(self, data: bytes, now: int) -> None:
        seen, found = self.seen, _ENTRY.findall(data)
        if found:
            seen.deliveries += 1
            seen.entries += len(found)
        for vlsn, number, stamp in found:
            seen.wrong += int(number) != self.number
            self.number, self.vlsn = int(number) + 1, int(vlsn) + 1
            seen.samples.take(now - int(stamp))


async def _run() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    asked = msgspec.json.decode(await lines.readline(), type=Asked)
    seen = Seen()
    readers = [Reader(seen, asked, at) for at in range(asked.tails + asked.polls)]
    await asyncio.gather(*(reader.connect() for reader in readers))
    print("ready", flush=True)
    cpu_s = time.process_time()
    while await lines.readline():
        last = max(reader.number for reader in readers)
        times = seen.samples.milliseconds()
        p50, p99, most = (round(float(each), 3) for each in np.percentile(times if len(times) else [0], (50, 99, 100)))
        behind = sum(reader.number < last for reader in readers)
        used_s, cpu_s = time.process_time() - cpu_s, time.process_time()
        found = Found(
            seen.deliveries, seen.entries, seen.wrong, seen.refused, seen.lost, behind, p50, p99, most, used_s
        )
        print(msgspec.json.encode(found).decode(), flush=True)
        seen.clear()


if __name__ == "__main__":
    _files, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_most, _most))
    os.nice(10)  # on few processors the readers would slow the nodes that they measure
    uvloop.run(_run())
