"""Writers of transactions, through the client or over plain HTTP without the client library.

Over HTTP each is begun, staged by several calls, and committed.  A transaction whose commit was never sent fails for
good, whatever the results of its earlier calls.  A commit is repeated, at any node, until an answer is certain: the
first one's VLSNs, or ``transaction-gone``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from harness.values import key_of, number_of
from harness.workloads.writing import PLAIN_TIMEOUT_S, LostAnswer, ask
from repl.client.connect import Client, connect
from repl.client.transaction import Transaction
from repl.web import problem
from vlsn.errors import OutcomeUnknown, TransactionGone, VlsnLogError

ABORTS, HESITATES = 0.05, 0.05
"""The shares that are aborted, and of calls before which the writer waits for a moment, so that faults can hit it."""
HESITATES_S = 1.0
COMMIT_S = 20.0
AGAIN_S = 0.2
REDIRECTS_MAX = 3
GONE = "transaction-gone"
LINES = "application/x-ndjson"


class Aborted(TransactionGone):
    """The commit was never sent."""


@asynccontextmanager
async def client_transactor(urls: list[str], chance: Random) -> AsyncIterator[ClientTransactor]:
    """Opens the client as most programs use it."""
    async with connect(",".join(urls), timeout_s=PLAIN_TIMEOUT_S) as client:
        yield ClientTransactor(client, chance)


class ClientTransactor:
    """One writer's transactions, through the client.  A commit of unknown outcome is called again: it is the same
    one."""

    def __init__(self, client: Client, chance: Random) -> None:
        self._client = client
        self._chance = chance

    async def append(self, values: list[bytes]) -> int:
        deadline_s = asyncio.get_running_loop().time() + COMMIT_S
        txn = self._client.transaction()
        try:
            async with txn:
                await self._fill(txn, values)
        except OutcomeUnknown:
            while txn.appended is None:
                try:
                    await txn.commit()
                except OutcomeUnknown:
                    if asyncio.get_running_loop().time() > deadline_s:
                        raise
        assert txn.appended is not None
        return txn.appended.first

    async def _fill(self, txn: Transaction, values: list[bytes]) -> None:
        for value in values:
            await txn.append(value, key=key_of(number_of(value)))
            if self._chance.random() < HESITATES:
                await asyncio.sleep(self._chance.uniform(0.0, HESITATES_S))
        if self._chance.random() < ABORTS:
            raise Aborted("the writer thought better of it")


class HttpTransactor:
    """One writer's transactions over HTTP. Their entries have keys, and are sent in one to three calls."""

    def __init__(self, urls: Mapping[str, str], chance: Random) -> None:
        self._urls = urls
        self._chance = chance

    async def append(self, values: list[bytes]) -> int:
        try:
            handle = await self._staged(values)
        except VlsnLogError as error:
            raise Aborted(f"{error.slug}: {error}") from None
        if self._chance.random() < ABORTS:
            await self._give_up(handle)
            raise Aborted("the writer thought better of it")
        return await self._commit(handle)

    async def _staged(self, values: list[bytes]) -> str:
        handle: str = (await self._surely("POST", ""))["transaction"]
        done = 0
        while done < len(values):
            part = values[done : done + self._chance.randint(1, len(values) - done)]
            rows = [{"key": key_of(number_of(value)).decode(), "value": value.decode()} for value in part]
            body = "\n".join(map(json.dumps, rows)).encode()
            done = (await self._surely("POST", f"/{handle}/entries?after={done}", body, LINES))["staged"]
            if self._chance.random() < HESITATES:
                await asyncio.sleep(self._chance.uniform(0.0, HESITATES_S))
        return handle

    async def _surely(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> Any:
        """Repeats an unanswered request for a while; a repeated request has no further effect."""
        deadline_s = asyncio.get_running_loop().time() + PLAIN_TIMEOUT_S
        while True:
            try:
                return await self._answer(method, path, body, content_type)
            except VlsnLogError as error:
                if error.slug == GONE or asyncio.get_running_loop().time() > deadline_s:
                    raise
            await asyncio.sleep(self._chance.uniform(0.0, AGAIN_S))

    async def _give_up(self, handle: str) -> None:
        """Aborts the transaction; without an answer it expires by itself."""
        try:
            await self._answer("DELETE", f"/{handle}")
        except VlsnLogError:
            return

    async def _commit(self, handle: str) -> int:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + COMMIT_S
        while True:
            try:
                return int((await self._answer("POST", f"/{handle}/commit?timeout={PLAIN_TIMEOUT_S:g}"))["first"])
            except VlsnLogError as error:
                if error.slug == GONE:
                    raise
                if loop.time() > deadline_s:
                    raise LostAnswer(f"no certain answer in {COMMIT_S:g} s; the last: {error.slug}") from None
            await asyncio.sleep(self._chance.uniform(0.0, AGAIN_S))

    async def _answer(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> Any:
        """Asks any node, then the master that this node names. Raises the error of answers other than 200 and 204."""
        url = f"{self._chance.choice(list(self._urls.values()))}/v1/transactions{path}"
        try:
            async with asyncio.timeout(PLAIN_TIMEOUT_S + 1.0):
                for _ in range(REDIRECTS_MAX):
                    status, headers, answer = await ask(method, url, body, content_type)
                    if status != 307:
                        break
                    url = headers["location"]
        except TimeoutError:
            raise LostAnswer("no answer in time") from None
        if status == 307:
            raise LostAnswer("sent from node to node")
        if status not in (200, 204):
            raise problem.error_of(answer)
        return json.loads(answer) if answer else None
