"""Writers: each awaits the outcome of its append before its next.

An append ends as *fail* only if the error says that nothing was logged (``retry_safe``).  Every other error is *info*:
the append may be in the log.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

from harness.ops import Recorder
from harness.orders import TLS_CA
from harness.values import key_of, number_of, value_of
from repl.client.connect import connect
from repl.web import problem
from vlsn.errors import Unreachable, VlsnLogError

MANY_MAX = 5
BURSTS = 0.1
BURST_MAX = 8
OCTETS = "application/octet-stream"
PLAIN_TIMEOUT_S = 5.0
PRODUCER_TIMEOUT_S = 60.0
"""A producer's timeout: it repeats after an unknown outcome, for longer than most faults last."""


class Appender(Protocol):
    async def append(self, values: list[bytes]) -> int:
        """Appends all of them at once, and returns the first VLSN. Raises ``VlsnLogError``."""
        ...


OpenAppender = Callable[[], AbstractAsyncContextManager[Appender]]


class _ThroughClient:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def append(self, values: list[bytes]) -> int:
        if len(values) == 1:
            return int(await self._client.append(values[0]))
        return int((await self._client.append_many(values))[0])


@asynccontextmanager
async def plain_appender(urls: list[str]) -> AsyncIterator[Appender]:
    """Opens the client as most programs use it: an append that may have been logged is never repeated."""
    async with connect(",".join(urls), timeout_s=PLAIN_TIMEOUT_S) as client:
        yield _ThroughClient(client)


class _ThroughClientByKey:
    """Appends each value with its key."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def append(self, values: list[bytes]) -> int:
        keys = [key_of(number_of(value)) for value in values]
        return int((await self._client.append_many(values, keys=keys))[0])


@asynccontextmanager
async def keyed_appender(urls: list[str]) -> AsyncIterator[Appender]:
    """Opens a plain client, whose entries have keys."""
    async with connect(",".join(urls), timeout_s=PLAIN_TIMEOUT_S) as client:
        yield _ThroughClientByKey(client)


@asynccontextmanager
async def producing_appender(urls: list[str]) -> AsyncIterator[Appender]:
    """Opens the client as an exactly-once producer, which repeats until it has an answer."""
    async with connect(",".join(urls), timeout_s=PRODUCER_TIMEOUT_S, exactly_once=True) as client:
        yield _ThroughClient(client)


class HttpAppender:
    """Sends plain POSTs to any node, each on a connection of its own, without the client library. A redirect is
    followed once or not at all: a redirected append was not logged."""

    def __init__(self, urls: Mapping[str, str], chance: Random) -> None:
        self._urls = urls
        self._chance = chance

    async def append(self, values: list[bytes]) -> int:
        try:
            async with asyncio.timeout(PLAIN_TIMEOUT_S):
                return await self._append(f"{self._chance.choice(list(self._urls.values()))}/v1/entries", values[0])
        except TimeoutError:
            raise LostAnswer(f"no answer in {PLAIN_TIMEOUT_S:g} s") from None

    async def _append(self, url: str, value: bytes) -> int:
        status, headers, body = await ask("POST", url, value, OCTETS)
        if status == 307 and self._chance.random() < 0.7:
            status, headers, body = await ask("POST", headers["location"], value, OCTETS)
        if status != 200:
            raise problem.error_of(body)
        return int(json.loads(body)["first"])


async def ask(method: str, url: str, sent: bytes, content_type: str) -> tuple[int, dict[str, str], bytes]:
    """Makes a call; returns status, headers by lower-case name, and body. Raises ``Unreachable`` if nothing was sent,
    otherwise ``LostAnswer``."""
    target = urlsplit(url)
    try:
        secured = _context() if target.scheme == "https" else None
        reader, writer = await asyncio.open_connection(target.hostname, target.port, ssl=secured)
    except OSError as error:
        raise Unreachable(str(error)) from None
    path = target.path + (f"?{target.query}" if target.query else "")
    head = f"{method} {path} HTTP/1.1\r\nHost: {target.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: {content_type}\r\nContent-Length: {len(sent)}\r\n\r\n"
    try:
        writer.write(head.encode() + sent)
        answer = await reader.read()
        if not answer:
            raise LostAnswer("closed without an answer")
        first, *lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
        body = answer.partition(b"\r\n\r\n")[2]
        if len(body) != int(headers.get("content-length", 0)):
            raise LostAnswer(f"{len(body)} bytes of an answer of {headers['content-length']}")
        return int(first.split()[1]), headers, body
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise LostAnswer(f"{type(error).__name__} {error}") from None
    finally:
        writer.close()


def _context() -> ssl.SSLContext:
    """Makes the context of a client that trusts what the environment names."""
    return ssl.create_default_context(cafile=os.environ.get(TLS_CA))


class LostAnswer(VlsnLogError):
    """A POST without a whole answer: it may have been logged."""

    retry_safe = False


async def write(
    process: str,
    appender: OpenAppender,
    recorder: Recorder,
    *,
    chance: Random,
    rate: float,
    stop: asyncio.Event,
    client: bool = True,
    txn: bool = False,
    keyed: bool = False,
) -> None:
    """Appends about ``rate`` times a second until ``stop``, one at a time or, through a ``client``, several at once.
    These keep their order. After an unknown outcome a writer begins anew. With ``txn`` each append is a transaction;
    with ``keyed`` its entries have keys, as those of a transaction do."""
    bursts = itertools.count(1)
    while not stop.is_set():
        async with appender() as opened:
            while not stop.is_set():
                if client and not txn and chance.random() < BURSTS:
                    size = chance.randint(2, BURST_MAX)
                    known = await _burst(f"{process}.{next(bursts)}", opened, recorder, chance, size, keyed)
                    await _pause(stop, chance.expovariate(rate / size))
                else:
                    count = chance.randint(1, MANY_MAX) if txn else _values(chance) if client else 1
                    known = await append_once(process, opened, recorder, count, txn=txn, keyed=keyed)
                    await _pause(stop, chance.expovariate(rate))
                if not known:
                    break


async def _burst(burst: str, appender: Appender, recorder: Recorder, chance: Random, size: int, keyed: bool) -> bool:
    """Sends appends that are all under way before any has ended, each as a process of its own in the history."""
    sizes = [_values(chance) for _ in range(size)]
    ends = await asyncio.gather(
        *(append_once(f"{burst}.{at}", appender, recorder, sizes[at], burst=burst, keyed=keyed) for at in range(size))
    )
    return all(ends)


def _values(chance: Random) -> int:
    return chance.randint(2, MANY_MAX) if chance.random() < 0.3 else 1


async def append_once(
    process: str,
    appender: Appender,
    recorder: Recorder,
    count: int,
    *,
    burst: str = "",
    txn: bool = False,
    keyed: bool = False,
) -> bool:
    """Sends and notes one append of ``count`` values; False if its outcome is unknown."""
    numbers = [recorder.next_number() for _ in range(count)]
    more: dict[str, Any] = {"burst": burst} if burst else {"txn": True} if txn else {}
    more |= {"keyed": True} if keyed else {}
    recorder.record(process, "invoke", "append", {"numbers": numbers, **more})
    try:
        first = await appender.append([value_of(number) for number in numbers])
    except VlsnLogError as error:
        type_ = "fail" if error.retry_safe else "info"
        recorder.record(process, type_, "append", {"numbers": numbers, **more}, f"{error.slug}: {error}"[:200])  # type: ignore[arg-type]
        return error.retry_safe
    except asyncio.CancelledError:
        recorder.record(process, "info", "append", {"numbers": numbers, **more}, "cancelled")
        raise
    recorder.record(process, "ok", "append", {"numbers": numbers, "first": first, **more})
    return True


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
