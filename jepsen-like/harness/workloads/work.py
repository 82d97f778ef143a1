"""The workloads by name.

| workload | writers | readers |
|---|---|---|
| append | plain clients, every fourth a plain POST at any node | one for each node, two over all |
| producer | exactly-once producers, which send again until they have an answer | one for each node, two over all |
| tail | plain clients | one for each node, six over all, which stop and begin again |
| transaction | transactions of several keys, half through the client, half over HTTP | the same |
| destination | half write transactions, half of these over HTTP; the others entries with keys | the same, and |
| | | consumers of destinations (``destinations``); the log is cleaned meanwhile |
| cdc | as ``append``, a second fourth in transactions through the client | the same, and consumers inside the nodes |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from harness.ops import Recorder
from harness.workloads.transactions import HttpTransactor, client_transactor
from harness.workloads.writing import Appender, HttpAppender, keyed_appender, plain_appender, producing_appender, write

HTTP_EACH = 4


@dataclass(frozen=True, slots=True)
class Work:
    """One workload: its writers and their kinds, the number of readers besides one for each node, and how restless
    these are."""

    name: str
    producers: bool
    readers: int
    restless: float
    http: bool
    transactions: bool = False
    http_each: int = HTTP_EACH
    destinations: bool = False
    """True if it has consumers; then every other writer has transactions, and every entry a key."""
    settings: Mapping[str, int | float] = field(default_factory=dict)
    """The nodes' settings that it needs."""
    captures: bool = False
    """True if consumers run inside the nodes (``harness.captures``)."""

    def appender(self, urls: Mapping[str, str]) -> AbstractAsyncContextManager[Appender]:
        """Opens a client of its own."""
        if self.producers:
            return producing_appender(list(urls.values()))
        if self.destinations:
            return keyed_appender(list(urls.values()))
        return plain_appender(list(urls.values()))

    async def write(
        self,
        number: int,
        urls: Mapping[str, str],
        recorder: Recorder,
        seed: int,
        rate: float,
        stop: asyncio.Event,
    ) -> None:
        """Runs writer ``number``, until ``stop``."""
        process, chance = f"w{number}", Random(f"{seed} w{number}")
        by_http = self.http and number % self.http_each == self.http_each - 1
        txn = self.transactions or (self.destinations and number % 2 == 1)
        txn = txn or (self.captures and number % self.http_each == 0)

        @asynccontextmanager
        async def posting() -> AsyncIterator[Appender]:
            yield (HttpTransactor if txn else HttpAppender)(urls, chance)

        def opened() -> AbstractAsyncContextManager[Appender]:
            if txn and not by_http:
                return client_transactor(list(urls.values()), chance)
            return posting() if by_http else self.appender(urls)

        await write(
            process,
            opened,
            recorder,
            chance=chance,
            rate=rate,
            stop=stop,
            client=not by_http,
            txn=txn,
            keyed=self.destinations,
        )


_WORKS = {
    "append": Work("append", producers=False, readers=2, restless=0.05, http=True),
    "producer": Work("producer", producers=True, readers=2, restless=0.05, http=False),
    "transaction": Work(
        "transaction", producers=False, readers=2, restless=0.05, http=True, transactions=True, http_each=2
    ),
    "destination": Work(
        "destination",
        producers=False,
        readers=2,
        restless=0.02,
        http=True,
        destinations=True,
        settings={"segment_bytes": 1 << 20, "retention_bytes": 4 << 20, "cleaning_period_s": 1.0},
    ),
    "cdc": Work(
        "cdc", producers=False, readers=2, restless=0.05, http=True, captures=True, settings={"ring_bytes_max": 1 << 14}
    ),
    "tail": Work("tail", producers=False, readers=6, restless=0.3, http=True),
}
NAMES = tuple(_WORKS)


def work_of(name: str) -> Work:
    return _WORKS[name]
