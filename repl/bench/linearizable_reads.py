"""Linearizable reads beside idle transactions: what staged entries cost whoever reads, which is to be nothing.

    turn          without │ begin, stage an entry: ``batch`` times ─► with │ taken back │ without …

Each of ``writers`` readers asks one node for one entry, and waits for it before the next.  Nothing is written then, so
that a read waits for the majority's word alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import numpy as np

from repl.bench.report import Outcome, Samples
from repl.bench.target import Given, Own, master_url
from repl.client.connect import connect
from repl.net.network import AiohttpNetwork
from repl.web import problem
from vlsn.errors import VlsnLogError

TURNS = 10
TIMEOUT_S = 30.0
_JSON = {"Content-Type": "application/json"}
_OCTETS = {"Content-Type": "application/octet-stream"}


class _Begun(msgspec.Struct):
    transaction: str


async def linearizable(target: Given | Own, *, seconds: float, readers: int, stages: int, value: bytes) -> Outcome:
    """Reads by turns, without and with ``stages`` open transactions; the latencies are those with."""
    async with connect(target.urls) as client:
        vlsn = await client.append(value)
    network = AiohttpNetwork()
    without, beside = Samples(), Samples()
    errors = 0
    spent = 0.0
    loop = asyncio.get_running_loop()

    async def read(samples: Samples) -> None:
        nonlocal errors, spent
        end = loop.time() + seconds / (2 * TURNS)

        async def reader(url: str) -> None:
            nonlocal errors
            asked = f"{url}/v1/entries/{vlsn}?consistency=linearizable"
            while loop.time() < end:
                began = samples.now()
                try:
                    response = await network.request("GET", asked, timeout_s=TIMEOUT_S)
                except VlsnLogError:
                    errors += 1
                    await asyncio.sleep(0.01)
                else:
                    errors += response.status != 200
                    samples.since(began)

        began = loop.time()
        urls = target.urls.split(",")
        await asyncio.gather(*(reader(urls[at % len(urls)]) for at in range(readers)))
        spent += loop.time() - began

    try:
        await read(Samples())  # connections are made, and what is read first is read
        spent = 0.0
        for _ in range(TURNS):
            await read(without)
            async with _staged(network, target.urls, stages, value):
                await read(beside)
    finally:
        await network.close()
    before, now = (float(np.percentile(each.milliseconds(), 50)) for each in (without, beside))
    more = {"stages": stages, "p50_ms_without": round(before, 4), "ratio": round(now / max(before, 1e-9), 3)}
    done = len(beside)
    return Outcome(done, done * len(value), spent / 2, beside.milliseconds(), errors, more)


@asynccontextmanager
async def _staged(network: AiohttpNetwork, urls: str, stages: int, value: bytes) -> AsyncIterator[None]:
    """Holds so many transactions open at the master, an entry in each. Raises ``VlsnLogError`` where it takes them
    not."""
    path = f"{await master_url(urls)}/v1/transactions"
    handles: list[str] = []

    async def call(method: str, url: str, headers: dict[str, str], body: bytes = b"", *, good: Sequence[int]) -> bytes:
        response = await network.request(method, url, headers=headers, body=body, timeout_s=TIMEOUT_S)
        if response.status not in good:
            raise problem.error_of(bytes(response.body))
        return bytes(response.body)

    for _ in range(stages):
        begun = msgspec.json.decode(await call("POST", path, _JSON, good=[200]), type=_Begun)
        handles.append(begun.transaction)
        await call("POST", f"{path}/{begun.transaction}/entries", _OCTETS, value, good=[200])
    yield
    for handle in handles:
        await call("DELETE", f"{path}/{handle}", _JSON, good=[204])
