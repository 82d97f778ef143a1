"""The effect of many requests at once on a master's event loop, and on appends.

Three nodes of its own.  Each call in turn is asked for by 400 sockets, 10 times at once each, over and over for
``--seconds``, by a process of its own.  Four figures are printed for each. The longest turn of the master's loop
(``vlsnlog_loop_late_seconds``) is the bound of its bucket. The longest gap lies between two acknowledged appends of a
client that appends one after the other. The others are the number of answers, and whether the lead was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from repl.bench.target import Own
from repl.client.connect import Client, connect
from tests.bench.load import call
from tests.bench.process import command, environment
from tests.bench.report import Aimed, Figures, Section
from tests.bench.request_flood import Flood
from vlsn.errors import VlsnLogError

SOCKETS: Final = 400
PIPELINED: Final = 10
GAP_MS_MAX: Final = 1000
PAUSE_S: Final = 0.5
"""Seconds between two floods."""
REQUEST_S: Final = 30.0
BODIES: Final = 64
BODY_BYTES: Final = 4 << 20
CONSUMERS: Final = 64
ESCAPED: Final = b"\x01"
"""A byte that takes six in JSON."""
ROUTES: Final = (
    *("/healthz", "/readyz", "/metrics", "/", "/v1/status", "/v1/openapi.json", "/v1/events", "/v1/group"),
    *("/v1/overview", "/v1/key", "/v1/admin/tokens"),
    *("/v1/entries/{last}", "/v1/entries?limit=1000", "/v1/entries?from={last}&wait=60", "/v1/tail?from={last}"),
    *("/v1/entries?from={escaped}&limit=10000", "/v1/entries?from={large}&limit=10000", "/v1/tail?from={escaped}"),
    *("/v1/spans", "/v1/segments", "/v1/segments/1", "/v1/producers/00000000000000ff"),
    *("/v1/consumers", "/v1/consumers/c0", "/v1/sinks", "/v1/sinks/none", "/v1/cdc", "/v1/cdc/none"),
    *("/v1/destinations", "/v1/destinations/d", "/v1/destinations/d/messages?max=100"),
    *("/v1/destinations/d/messages?peek=true&max=10000", "/v1/destinations/d/consume"),
    *(
        "/v1/produce",
        "/v1/feed",
        "/v1/peer/restore",
        "/v1/peer/block",
        "/v1/peer/messages",
        "/v1/peer/copy",
        "/v1/peer/status",
    ),
)
"""Each call of ``GET``, some of them for more than one answer."""
_NDJSON = "POST /v1/entries HTTP/1.1\r\nContent-Type: application/x-ndjson"
_BUCKET = re.compile(r'^vlsnlog_loop_late_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ask:
    """The requests that are sent, from how many sockets, how often at once from each."""

    name: str
    head: str
    body: bytes = b""
    sockets: int = SOCKETS
    pipelined: int = PIPELINED


class Appends:
    """A client that appends one entry after the other, and the longest time between two answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.restart()

    def restart(self) -> None:
        self.longest_s, self._last_s = 0.0, time.perf_counter()
        self.failed: list[str] = []

    def look(self) -> float:
        """Returns the longest so far, with the one that has not ended."""
        return max(self.longest_s, time.perf_counter() - self._last_s)

    async def run(self) -> None:
        while True:
            try:
                await self._client.append(b"x" * 100)
            except VlsnLogError as error:
                self.failed.append(error.slug)
            else:
                self.longest_s, self._last_s = self.look(), time.perf_counter()


class Bench:
    def __init__(self, own: Own, client: Client, seconds: float) -> None:
        self._own, self._client, self._seconds = own, client, seconds
        self._places: dict[str, int] = {}

    async def fill(self) -> None:
        """Writes what the calls are to find."""
        _, last = await self._client.append_many([b"%08d" % number + bytes(92) for number in range(20_000)])
        self._places["last"] = last
        for _ in range(4):
            first, _ = await self._client.append_many([ESCAPED * 400] * 10_000)
            self._places["escaped"] = first
        for _ in range(8):
            self._places.setdefault("large", await self._client.append(ESCAPED * (1 << 20)))
        master = (await self._own.master())["url"]
        for number in range(CONSUMERS):
            await call(self._own.network, "PUT", f"{master}/v1/consumers/c{number}", {"next": 1})
        await call(self._own.network, "PUT", f"{master}/v1/destinations/d", {"prefix": "d-"})
        await self._client.append_many([ESCAPED * 400] * 10_000, keys=[b"d-%d" % number for number in range(10_000)])

    def asks(self) -> list[Ask]:
        asks = [Ask(f"GET {each}", f"GET {each.format(**self._places)} HTTP/1.1") for each in ROUTES]
        for name, one in (("\\u0041", b"\\u0041"), ('\\"', b'\\"')):
            body = b'{"value":"' + one * (BODY_BYTES // 4 // len(one)) + b'"}\n'
            asks.append(Ask(f"POST /v1/entries, 4 lines of 1 MiB of {name}", _NDJSON, body * 4, BODIES, 1))
            body = b'{"value":"' + one * (BODY_BYTES // len(one)) + b'"}\n'
            asks.append(Ask(f"POST /v1/entries, a line of 4 MiB of {name}", _NDJSON, body, BODIES, 1))
        body = b'{"value":"\\n\\n\\n\\n","key":"\\n\\n"}\n' * 60_000
        return [*asks, Ask("POST /v1/entries, 60,000 short lines", _NDJSON, body, BODIES, 1)]

    async def row(self, ask: Ask, appends: Appends) -> Figures:
        """Measures one call: the bound of the loop's longest turn, and the longest gap between appends, in ms."""
        lead = await self._serving()
        before = await self._late(lead["url"])
        appends.restart()
        answers = await self._flooded(ask, lead["url"])
        gap_ms, failed = appends.look() * 1000, len(appends.failed)
        now = await self._serving()
        after = await self._late(lead["url"])
        lost = (now["node"], now["term"]) != (lead["node"], lead["term"])
        late = [bound for bound in after if after[bound] > before.get(bound, 0.0)]
        return {
            "turn_ms": 1000 * max(late, default=0.0) if after else None,
            "gap_ms": Aimed(round(gap_ms), f"≤ {GAP_MS_MAX}"),
            "answers": dict(sorted(answers.items())),
            "leads_lost": Aimed(int(lost), "= 0"),
            "failed": Aimed(failed, "= 0"),
        }

    async def _serving(self) -> dict[str, Any]:
        """Returns the status of the master, once it takes appends."""
        async with asyncio.timeout(REQUEST_S):
            await self._own.cluster.serving()
            return await self._own.master()

    async def _flooded(self, ask: Ask, url: str) -> dict[str, int]:
        flood = Flood(url, ask.head, ask.body, ask.sockets, ask.pipelined, self._seconds)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command("request_flood"), stdin=pipe, stdout=pipe, env=environment()
        )
        said, _ = await process.communicate(msgspec.json.encode(flood))
        answers: dict[str, int] = msgspec.json.decode(said)
        return answers

    async def _late(self, url: str) -> dict[float, float]:
        """Returns the looks of the loop by their buckets' upper bounds; an empty result for a node without them."""
        text = bytes((await self._own.network.request("GET", f"{url}/metrics", timeout_s=REQUEST_S)).body).decode()
        looks, below = {}, 0.0
        for bound, count in _BUCKET.findall(text):
            looks[float(bound)] = float(count) - below
            below = float(count)
        return looks


@asynccontextmanager
async def benched(seconds: float) -> AsyncIterator[tuple[Bench, Appends]]:
    """A filled group of its own, and appends to it under way."""
    async with Own() as own, connect(own.urls) as client, connect(own.urls, timeout_s=60.0) as appending:
        bench, appends = Bench(own, client, seconds), Appends(appending)
        await bench.fill()
        running = asyncio.create_task(appends.run())
        try:
            yield bench, appends
        finally:
            running.cancel()
            await asyncio.wait([running])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3.0, help="of each call")
    parser.add_argument("--only", default="", help="calls with this in their name")


async def measured(options: argparse.Namespace) -> AsyncIterator[Section]:
    async with benched(options.seconds) as (bench, appends):
        for ask in bench.asks():
            if options.only in ask.name:
                await asyncio.sleep(PAUSE_S)
                yield ask.name, [await bench.row(ask, appends)]
