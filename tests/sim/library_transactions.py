"""Transactions of the client library in a simulation: small ones are sent in one message, larger ones are staged.

A commit of unknown outcome is called again: it is the same commit.  If the error says that a retry is safe, the
transaction is absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

import repl.client.transaction
from repl import connect
from repl.client.connect import Client
from repl.client.identity import HandleNames
from repl.client.transaction import Transaction
from tests.fakes.random import SeededRandom
from tests.sim.transactions import PAUSES_S, SIZES, Sent
from vlsn.errors import OutcomeUnknown, VlsnLogError

if TYPE_CHECKING:
    from tests.sim.clients import Clients

CLIENTS = 2
KEPT_BYTES_MAX = 3000
"""The bytes above which a transaction is staged, instead of 1 MiB, since no block here is so large."""
VALUES_MAX = 6
ABORTS = 0.1
AGAIN = 4
"""Times that a commit of unknown outcome is called again."""
TIMEOUT_S = 4.0


class OnPurpose(Exception):
    """Raised to leave a transaction's block."""


@contextmanager
def staged_soon() -> Iterator[None]:
    kept = repl.client.transaction.KEPT_BYTES_MAX
    repl.client.transaction.KEPT_BYTES_MAX = KEPT_BYTES_MAX  # type: ignore[misc]
    try:
        yield
    finally:
        repl.client.transaction.KEPT_BYTES_MAX = kept  # type: ignore[misc]


class LibraryTransactions:
    def __init__(self, clients: Clients, number: int) -> None:
        self._clients, self._group, self._report = clients, clients.group, clients.report
        self._books = clients.group.watch.transactions
        self._name = f"lt{number}"
        self._rng = Random(f"{self._name}/{clients.report.seed}")

    async def run(self) -> None:
        urls = ",".join(self._group.url(name) for name in self._group.names)
        log = connect(urls, timeout_s=TIMEOUT_S, network=self._group.client)
        log._names = HandleNames(SeededRandom(Random(f"{self._name}/names/{self._report.seed}")))
        count = 0
        async with log:
            while not self._clients.over:
                count += 1
                await self._one(log, count)
                await asyncio.sleep(self._rng.choice(PAUSES_S))

    async def _one(self, log: Client, count: int) -> None:
        sent = Sent([], nowhere="no commit was sent")
        self._report.operations += 1
        txn = log.transaction(acks=self._rng.choice(("majority", "majority", "all")))
        try:
            async with txn:
                await self._fill(txn, sent, count)
                if self._rng.random() < ABORTS:
                    raise OnPurpose
                sent.nowhere = ""
        except OnPurpose:
            self._report.met["a transaction that its client aborted"] += 1
        except OutcomeUnknown:
            await self._again(txn, sent)
        except VlsnLogError as error:
            self._failed(error, sent)
        if txn.appended is not None:
            self._committed(txn, sent)
        self._books.sent.append(sent)

    async def _fill(self, txn: Transaction, sent: Sent, count: int) -> None:
        for each in range(self._rng.randint(1, VALUES_MAX)):
            value = f"{self._name}.{count}.{each}:".encode().ljust(self._rng.choice(SIZES), b"l")
            sent.values.append(value)
            await txn.append(value, key=b"k%d" % each)
            await asyncio.sleep(self._rng.choice(PAUSES_S[:3]))

    async def _again(self, txn: Transaction, sent: Sent) -> None:
        for _ in range(AGAIN):
            try:
                await txn.commit()
            except OutcomeUnknown:
                continue
            except VlsnLogError as error:
                self._failed(error, sent)
            return
        self._report.unknown += 1

    def _failed(self, error: VlsnLogError, sent: Sent) -> None:
        if error.retry_safe:
            sent.nowhere = f"{self._name} was told {error.slug}: {error}"
            self._report.refused += 1
            self._clients.refused.update(sent.values)
        else:
            self._report.unknown += 1

    def _committed(self, txn: Transaction, sent: Sent) -> None:
        watch, appended = self._group.watch, txn.appended
        assert appended is not None
        watch.hold(appended.durable, f"{self._name} was told of what is not durable: {appended}")
        said = f"{self._name} committed {len(sent.values)} entries and was told {appended}"
        watch.hold(appended.last - appended.first == len(sent.values), said)
        self._books.is_whole(self._name, appended.first, sent.values)
        sent.first = appended.first
        self._report.committed += 1
        self._report.met["a transaction that the library committed"] += 1
        for vlsn, value in enumerate(sent.values, appended.first):
            self._clients.acknowledge(vlsn, value)
