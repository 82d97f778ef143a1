"""One destination of a cluster of our own, over plain HTTP: made, consumed in batches, and acknowledged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from repl.bench.destinations.stream_peer import BATCH
from repl.bench.target import Own
from repl.net.network import AiohttpNetwork
from repl.web import problem

JSON = {"Content-Type": "application/json"}
TIMEOUT_S = 60.0
WAIT_S = 5.0


class Row(msgspec.Struct):
    """A message, as far as it is looked at."""

    vlsn: int
    attempt: int
    value: str = ""


_rows = msgspec.json.Decoder(Row)


@dataclass(slots=True)
class Consumed:
    """A consumer's take: messages in ``seconds``, and the VLSNs that came before a lower one."""

    messages: int = 0
    seconds: float = 0.0
    disordered: int = 0
    again: int = 0
    last: int = 0

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0


class Subscription:
    """One named destination."""

    def __init__(self, own: Own, network: AiohttpNetwork, name: str) -> None:
        self._own = own
        self._network = network
        self.name = name
        self._url = ""

    async def make(self, **settings: Any) -> None:
        """Raises ``VlsnLogError``."""
        await self._call("PUT", "", json.dumps(settings).encode())

    async def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(await self._call("GET", ""))
        return shown

    async def drop(self) -> None:
        await self._call("DELETE", "")

    async def page(self, most: int = BATCH, wait_s: float = WAIT_S) -> list[Row]:
        return _rows.decode_lines(await self._call("GET", f"/messages?max={most}&wait={wait_s:g}"))

    async def ack(self, vlsns: list[int], *, wait: bool = True) -> None:
        """Acknowledges them; durable when it returns, with ``wait``."""
        await self._call("POST", "/ack" if wait else "/ack?wait=0", msgspec.json.encode({"vlsns": vlsns}))

    async def pages(self, messages: int, most: int = BATCH) -> AsyncIterator[list[Row]]:
        """Yields pages up to so many messages. Each is acknowledged while the next one is asked for; all are durable
        when it ends."""
        acking: asyncio.Task[None] | None = None
        done = 0
        try:
            while done < messages:
                page = await self.page(min(most, messages - done))
                if acking is not None:
                    await acking
                    acking = None
                if page:
                    acking = asyncio.create_task(self.ack([row.vlsn for row in page]))
                    done += len(page)
                    yield page
            if acking is not None:
                await acking
        finally:
            if acking is not None and not acking.done():
                acking.cancel()

    async def consume(self, messages: int, most: int = BATCH) -> Consumed:
        """Takes and acknowledges so many."""
        found = Consumed()
        start = time.perf_counter()
        async for page in self.pages(messages, most):
            for row in page:
                found.disordered += row.vlsn < found.last
                found.again += row.attempt > 1
                found.last = row.vlsn
            found.messages += len(page)
        found.seconds = time.perf_counter() - start
        return found

    async def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        if not self._url:
            self._url = (await self._own.master_node()).url
        url = f"{self._url}/v1/destinations/{self.name}{path}"
        answer = await self._network.request(method, url, headers=JSON, body=body, timeout_s=TIMEOUT_S)
        if answer.status not in (200, 201, 204):
            raise problem.error_of(bytes(answer.body))
        return bytes(answer.body)
