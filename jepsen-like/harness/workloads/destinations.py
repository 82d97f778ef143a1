"""Consumers of destinations, over plain HTTP without the client library.

| destination | messages | consumers during the faults |
|---|---|---|
| shared | every key | three; they acknowledge a page or half of one, in some order, refuse, or forget it |
| one-key | those of one key | two, the same |
| failing | every key | two; of some messages every attempt is refused, so that they die |
| slow | every key | one, a few messages a second: it lags behind the cleaning |
| late | every key | none |

A consumer *dies* by never answering for its messages.  At the end healthy ones take all remaining messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from harness.ops import Recorder
from harness.values import DEAD_KEY, number_of
from harness.workloads.writing import LostAnswer, ask
from repl.web import problem
from vlsn.errors import VlsnLogError

JSON = "application/json"
TIMEOUT_S = 5.0
MAKE_S = 60.0
REDIRECTS_MAX = 3
AGAIN_S = 0.3
DIES, FORGETS, REFUSES, HALVES, AT_ONCE = 0.04, 0.2, 0.08, 0.2, 0.15
"""Probabilities: that a consumer dies with a page, that it forgets an unanswered acknowledgement, that it refuses one
message of a page, that it acknowledges a page in two parts, and that it does not wait for the disks."""
GONE_S = 3.0
POISON = 13
"""Every consumer of ``failing`` refuses each value whose number is a multiple of this."""
DRAIN_MAX = 1000
PREFIX = "key "


@dataclass(frozen=True, slots=True)
class Made:
    """One destination of the workload."""

    name: str
    prefix: str
    consumers: int
    page_max: int
    pause_s: float
    attempts_max: int
    poisoned: bool = False

    def settings(self) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "from": 1,
            "ack_timeout_s": ACK_TIMEOUT_S,
            "attempts_max": self.attempts_max,
            "dead_letter": (DEAD_KEY + self.name.encode()).decode(),
        }


ACK_TIMEOUT_S = 4.0
ATTEMPTS = 1000
"""More attempts than ever happen, so that these destinations have no dead letters."""
EVERY: Sequence[Made] = (
    Made("shared", PREFIX, 3, 60, 0.05, ATTEMPTS),
    Made("one-key", f"{PREFIX}3", 2, 10, 0.1, ATTEMPTS),
    Made("failing", PREFIX, 2, 60, 0.1, 3, poisoned=True),
    Made("slow", PREFIX, 1, 5, 1.0, ATTEMPTS),
    Made("late", PREFIX, 0, 1, 1.0, ATTEMPTS),
)


class Row(msgspec.Struct):
    """One message."""

    vlsn: int
    attempt: int
    key: str = ""
    value: str = ""


_rows = msgspec.json.Decoder(Row)


async def make(urls: Mapping[str, str], recorder: Recorder) -> None:
    """Makes and notes all destinations. Raises ``VlsnLogError`` if that takes too long."""
    caller = Caller(urls, Random("make"))
    for each in EVERY:
        await caller.surely("PUT", f"/{each.name}", json.dumps(each.settings()).encode())
        value = {"name": each.name, "prefix": each.prefix, "from": 1, "attempts_max": each.attempts_max}
        recorder.record("make", "ok", "destination", value)


async def consume(urls: Mapping[str, str], recorder: Recorder, seed: int, stop: asyncio.Event) -> None:
    """Runs all consumers until ``stop``."""
    async with asyncio.TaskGroup() as tasks:
        for each in EVERY:
            for number in range(each.consumers):
                process = f"c-{each.name}-{number}"
                caller = Caller(urls, Random(f"{seed} {process}"))
                tasks.create_task(Consumer(process, each, caller, recorder).run(stop))


async def drain(urls: Mapping[str, str], recorder: Recorder, to_vlsn: int, seconds: float) -> list[str]:
    """Takes and acknowledges all remaining messages; returns the names of destinations that are not empty by then."""
    async with asyncio.TaskGroup() as tasks:
        draining = {each.name: tasks.create_task(_drained(each, urls, recorder, to_vlsn, seconds)) for each in EVERY}
    return [name for name, done in draining.items() if not done.result()]


async def _drained(each: Made, urls: Mapping[str, str], recorder: Recorder, to_vlsn: int, seconds: float) -> bool:
    """Returns true once no message arrived for longer than one can be out, and none is blocked."""
    process = f"d-{each.name}"
    caller = Caller(urls, Random(f"drain {process}"))
    consumer = Consumer(process, each, caller, recorder)
    loop = asyncio.get_running_loop()
    until_s, quiet_since_s = loop.time() + seconds, loop.time()
    while loop.time() < until_s:
        page = await consumer.take(DRAIN_MAX, wait_s=1.0)
        if page is None or page:
            quiet_since_s = loop.time()
        if page:
            await consumer.settle(page)
        elif loop.time() - quiet_since_s > ACK_TIMEOUT_S + 2.0 and not await consumer.blocked_by():
            recorder.record(process, "ok", "drained", {"destination": each.name, "to": to_vlsn})
            return True
    return False


class Consumer:
    """A consumer that requests messages, works, and reports the results."""

    def __init__(self, process: str, made: Made, caller: Caller, recorder: Recorder) -> None:
        self._process = process
        self._made = made
        self._caller = caller
        self._chance = caller.chance
        self._recorder = recorder

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            page = await self.take(self._chance.randint(1, self._made.page_max), wait_s=self._chance.choice((0.0, 1.0)))
            if page:
                await self._work(page)
            await _pause(stop, self._chance.expovariate(1.0 / self._made.pause_s))

    async def take(self, most: int, *, wait_s: float) -> list[Row] | None:
        """Requests a page; None without an answer."""
        where = {"destination": self._made.name}
        self._recorder.record(self._process, "invoke", "deliver", where)
        try:
            body = await self._caller.answer("GET", f"/{self._made.name}/messages?max={most}&wait={wait_s:g}")
            rows = _rows.decode_lines(body)
        except (VlsnLogError, msgspec.DecodeError) as error:
            self._recorder.record(self._process, "fail", "deliver", where, f"{error}"[:200])
            await asyncio.sleep(AGAIN_S)
            return None
        if rows:
            numbers = [number_of(row.value.encode(), row.key.encode()) for row in rows]
            told = {"vlsns": [row.vlsn for row in rows], "attempts": [row.attempt for row in rows], "numbers": numbers}
            self._recorder.record(self._process, "ok", "deliver", where | told)
        return rows

    async def blocked_by(self) -> str:
        """Returns the reason why the master delivers none of its messages; empty if none is blocked."""
        try:
            told = json.loads(await self._caller.answer("GET", f"/{self._made.name}"))
        except VlsnLogError as error:
            return f"{error.slug}: {error}"
        return str(told["blocked_by"] or told.get("pages", {}).get("blocked_by", ""))

    async def _work(self, page: list[Row]) -> None:
        chance = self._chance
        if chance.random() < DIES:
            await asyncio.sleep(chance.uniform(0.0, GONE_S))
            return
        bad = [row for row in page if self._made.poisoned and number_of(row.value.encode()) % POISON == 0]
        if not bad and chance.random() < REFUSES:
            bad = [chance.choice(page)]
        good = [row for row in page if row not in bad]
        if bad:
            await self._say("nack", bad, {"reason": "refused by the test"})
        if chance.random() < HALVES:
            chance.shuffle(good)
            await self.settle(good[: len(good) // 2])
            good = good[len(good) // 2 :]
        await self.settle(good, wait=chance.random() >= AT_ONCE)

    async def settle(self, rows: list[Row], *, wait: bool = True) -> None:
        """Acknowledges the messages; without an answer it repeats the call, or forgets them."""
        while rows and not await self._say("ack", rows, {}, wait=wait):
            if self._chance.random() < FORGETS:
                return
            await asyncio.sleep(self._chance.uniform(0.0, AGAIN_S))

    async def _say(self, word: str, rows: list[Row], more: dict[str, str], *, wait: bool = True) -> bool:
        vlsns = [row.vlsn for row in rows]
        value = {"destination": self._made.name, "vlsns": vlsns} | ({} if wait else {"wait": False})
        self._recorder.record(self._process, "invoke", word, value)
        path = f"/{self._made.name}/{word}" + ("" if wait else "?wait=0")
        try:
            await self._caller.answer("POST", path, json.dumps({"vlsns": vlsns, **more}).encode())
        except VlsnLogError as error:
            type_ = "fail" if error.retry_safe else "info"
            self._recorder.record(self._process, type_, word, value, f"{error.slug}: {error}"[:200])  # type: ignore[arg-type]
            return False
        self._recorder.record(self._process, "ok", word, value)
        return True


class Caller:
    """Calls any node, then the master that this node names."""

    def __init__(self, urls: Mapping[str, str], chance: Random) -> None:
        self._urls = urls
        self.chance = chance

    async def answer(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Returns the body of an answer of 200, 201 or 204. Raises the error of other answers, and ``LostAnswer``."""
        url = f"{self.chance.choice(list(self._urls.values()))}/v1/destinations{path}"
        status, headers, answer = 0, dict[str, str](), b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for _ in range(REDIRECTS_MAX):
                    status, headers, answer = await ask(method, url, body, JSON)
                    if status != 307:
                        break
                    url = headers["location"]
        except TimeoutError:
            raise LostAnswer(f"no answer in {TIMEOUT_S:g} s") from None
        if status == 307:
            raise LostAnswer("sent from node to node")
        if status not in (200, 201, 204):
            raise problem.error_of(answer)
        return answer

    async def surely(self, method: str, path: str, body: bytes) -> bytes:
        """Repeats a call until it succeeds."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + MAKE_S
        while True:
            try:
                return await self.answer(method, path, body)
            except VlsnLogError:
                if loop.time() > until_s:
                    raise
            await asyncio.sleep(AGAIN_S)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
