"""Delivery and acknowledgement by one consumer beside the plain tail, by one of eleven, and the log that it costs.

All on one cluster, in turns, so that a ratio is of one run: tail, destination, destination, tail.  A destination begins
at the first of the entries each time, made anew; its consumer acknowledges a page while it asks for the next one, and
the time ends when all acknowledgements are durable.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from statistics import median
from typing import Any

from repl.bench.target import Own
from repl.client.connect import Client, connect
from repl.client.destination import Message
from repl.client.reader import BLOCKS_TYPE
from tests.bench.load import ratio
from tests.bench.peers.peer import AHEAD, BATCH, FILL_BATCH, VALUE
from tests.bench.report import Aimed, Figures

ACKS_AHEAD = 16
"""Batches whose acknowledgements may be under way, of the consumer that is held to the tail: twice its credit."""
SLOW = 10
SLOW_S = 1.0
"""Seconds between two messages of a slow consumer."""
WINDOW, ACKS = 10_000, 20_000
ACKS_AT_ONCE = 500
PAGE_MAX = 1000
WORKERS, KEYS = 4, 100


class Deliveries:
    """A filled cluster: ``first`` to ``last`` are entries of 100 bytes without a key: with one key, a message waits for
    the one before it."""

    def __init__(self, own: Own, client: Client) -> None:
        self._own = own
        self._client = client
        self.first = self.last = 0
        self._made = 0

    async def fill(self, messages: int, *, keys: int = 0) -> None:
        """Appends so many, in turns of so many keys; later deliveries begin with them."""
        self.first = 0
        for at in range(0, messages, FILL_BATCH):
            count = min(FILL_BATCH, messages - at)
            named = [b"key-%d" % (number % keys) for number in range(at, at + count)] if keys else None
            first, self.last = await self._client.append_many([VALUE] * count, keys=named)
            self.first = self.first or first

    @asynccontextmanager
    async def subscribed(self) -> AsyncIterator[str]:
        """Makes another destination, from the first of the entries on; drops it with the block."""
        self._made += 1
        name = f"bench-{self._made}"
        await self._client.destinations.put(name, from_=self.first, ack_timeout_s=600.0)
        yield name
        await self._client.destinations.drop(name)

    async def tail(self, messages: int) -> float:
        """Follows as many; entries a second."""
        start = time.perf_counter()
        seen = 0
        async for page in self._client.tail_pages(self.first):
            seen += len(page.entries)
            if seen >= messages:
                break
        return seen / (time.perf_counter() - start)

    async def deliver(self, messages: int, *, look: bool = False, ahead: int = AHEAD) -> float:
        """Delivers and acknowledges as many by one consumer of the client's, of a destination of its own; messages a
        second, until all acknowledgements are durable. With ``look`` a message is made of each, as the tail makes an
        entry; past ``ahead`` batches the consumer waits until the oldest one's acknowledgement is durable."""
        async with self.subscribed() as name:
            consumer = self._client.destination(name, prefetch=BATCH)
            acking: deque[asyncio.Task[None]] = deque()
            start, seen = time.perf_counter(), 0
            async for batch in consumer.batches():
                acking.append(asyncio.create_task(consumer.ack(batch)))
                seen += len(list(batch) if look else batch)
                if len(acking) > ahead:
                    await acking.popleft()
                if seen >= messages:
                    break
            await asyncio.gather(*acking)
            return seen / (time.perf_counter() - start)

    async def share(self, messages: int, workers: int) -> float:
        """Delivers and acknowledges as many by so many workers of one destination, which stay connected; messages a
        second, until all acknowledgements are durable."""
        left, over = messages, asyncio.Event()

        async def work(name: str) -> None:
            nonlocal left
            consumer = self._client.destination(name, prefetch=BATCH)
            async for batch in consumer.batches():
                await consumer.ack(batch)
                left -= len(batch)
                if left <= 0:
                    over.set()

        async with self.subscribed() as name:
            start = time.perf_counter()
            async with _cancelled([work(name) for _ in range(workers)]):
                await over.wait()
            return messages / (time.perf_counter() - start)

    @asynccontextmanager
    async def slow_ones(self) -> AsyncIterator[None]:
        """Keeps ``SLOW`` destinations, whose consumers take a message a second each, as long as it is open."""
        async with AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(self.subscribed()) for _ in range(SLOW)]
            async with _cancelled([self._slowly(name) for name in slow]):
                yield

    async def _slowly(self, name: str) -> None:
        consumer = self._client.destination(name)
        while True:
            for message in await consumer.take(1):
                await asyncio.sleep(SLOW_S)
                await message.ack()

    async def ack_bytes(self, seed: int = 1) -> float:
        """Acknowledges at random within a window of 10,000; the bytes of log that each one took."""
        rng, acks = Random(seed), min(ACKS, self.last - self.first + 1)
        async with self.subscribed() as name:
            consumer = self._client.destination(name)
            before = int((await self._own.master())["range"]["last"])
            window: list[Message] = []
            done = taken = 0
            while done < acks:
                while taken < acks and len(window) < WINDOW:
                    page = await consumer.take(min(PAGE_MAX, acks - taken, WINDOW - len(window)))
                    window += page
                    taken += len(page)
                rng.shuffle(window)
                chosen, window = window[:ACKS_AT_ONCE], window[ACKS_AT_ONCE:]
                await consumer.ack(chosen)
                done += len(chosen)
            return await self._log_bytes(before + 1) / done

    async def _log_bytes(self, from_vlsn: int) -> int:
        """Adds up the blocks from a VLSN on, as they lie in the log, with their frames."""
        url = (await self._own.master_node()).url
        total, at = 0, from_vlsn
        while True:
            answer = await self._own.network.request(
                "GET", f"{url}/v1/entries?from={at}&kinds=all", headers={"Accept": BLOCKS_TYPE}, timeout_s=30.0
            )
            after = int(answer.headers["Vlsnlog-Next"])
            if after <= at:
                return total
            total, at = total + len(answer.body), after


@asynccontextmanager
async def _cancelled(works: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs these beside the block, and cancels them at its end."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def deliveries(messages: int, *, keys: int = 0) -> AsyncIterator[Deliveries]:
    """Opens a cluster of its own with so many entries."""
    async with Own() as own, connect(own.urls) as client:
        made = Deliveries(own, client)
        await made.fill(messages, keys=keys)
        yield made


async def measured(messages: int, rounds: int) -> Figures:
    """Measures rates a second, and their ratios: medians of ``rounds``."""
    tails, given, looked, beside = list[float](), list[float](), list[float](), list[float]()
    async with deliveries(messages) as filled:
        await filled.tail(messages)  # the first read warms the cache for the others
        for _ in range(rounds):
            tails.append(await filled.tail(messages))
            given.append(await filled.deliver(messages))
            looked.append(await filled.deliver(messages, look=True, ahead=ACKS_AHEAD))
            async with filled.slow_ones():
                beside.append(await filled.deliver(messages))
                beside.append(await filled.deliver(messages))
            looked.append(await filled.deliver(messages, look=True, ahead=ACKS_AHEAD))
            given.append(await filled.deliver(messages))
            tails.append(await filled.tail(messages))
        bytes_each = await filled.ack_bytes()
    return {
        "tail_per_s": round(median(tails)),
        "delivered_per_s": round(median(given)),
        "looked_at_per_s": round(median(looked)),
        "acknowledged_whole_of_the_tail": ratio(median(given), median(tails)),
        "of_the_tail": Aimed(ratio(median(looked), median(tails)), "≥ 0.5"),
        "beside_ten_slow_per_s": round(median(beside)),
        "of_alone": Aimed(ratio(median(beside), median(given)), "≥ 0.9"),
        "log_bytes_an_ack": Aimed(round(bytes_each, 2), "≤ 5"),
        "batch": BATCH,
    }


async def shared(messages: int, rounds: int) -> Figures:
    """Measures workers that share one destination, whose messages have ``KEYS`` keys, or none: one, and ``WORKERS``."""
    found: Figures = {}
    for keys in (KEYS, 0):
        one, several = list[float](), list[float]()
        async with deliveries(messages, keys=keys) as filled:
            await filled.share(messages, 1)
            for _ in range(rounds):
                one.append(await filled.share(messages, 1))
                several += [await filled.share(messages, WORKERS), await filled.share(messages, WORKERS)]
                one.append(await filled.share(messages, 1))
        name = f"{keys}_keys" if keys else "no_keys"
        found[f"{name}_one_worker_per_s"] = round(median(one))
        found[f"{name}_{WORKERS}_workers_per_s"] = round(median(several))
        found[f"{name}_of_one"] = Aimed(ratio(median(several), median(one)), "≥ 1.0")
    return found
