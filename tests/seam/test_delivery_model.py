"""Compares the delivery of a destination on real nodes with a plain model of each right answer.

The steps are random. Entries are appended; two consumers fetch, and acknowledge in order, at random, twice, or long
after their deadline. They refuse, with a delay or without, or stay silent. Dead messages are retried or deleted, and
nodes lose power.  Each answer is compared with the model's, message by message, with its attempt; at the end the table
is compared, and each dead letter must be there once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from repl.client.connect import Client
from repl.client.destination import Destination
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_destinations import acked, client
from vlsn.levels import LEVELS

TIMEOUT_S = 5.0
UNSURE_S = 0.6
"""Seconds around a deadline in which a message may be out or not: it is redelivered at the next tick."""
DEAD = b"o/dead"
KEYS = (b"o1", b"o2", b"other", None)
ASKS_S = 0.0


@dataclass(slots=True)
class Out:
    """A message that is out."""

    attempt: int
    deadline_s: float


@dataclass(slots=True)
class Model:
    """A destination as plain sets and dicts, after every step."""

    prefix: bytes
    attempts_max: int
    max_out: int = 0
    delay_s: float = 0.0
    """The delay after the first attempt; twice as long after each further one."""
    keys: dict[int, bytes | None] = field(default_factory=dict)
    """The keys of all messages by VLSN, in the order of the log."""
    done: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    out: dict[int, Out] = field(default_factory=dict)
    delayed: dict[int, float] = field(default_factory=dict)
    """The times at which refused messages with a delay are delivered again."""
    tries: dict[int, int] = field(default_factory=dict)
    """Ended attempts, by VLSN."""
    noted: dict[int, int] = field(default_factory=dict)
    """Attempts in the log: from the second on."""
    anew: set[int] = field(default_factory=set)
    """Messages whose delay begins anew once the new master meets them."""
    letters: list[tuple[int, int]] = field(default_factory=list)
    """VLSN and attempts of dead messages, in their order."""

    def append(self, vlsn: int, key: bytes | None) -> None:
        if (key or b"").startswith(self.prefix):
            self.keys[vlsn] = key

    def take(self, most: int, now_s: float) -> list[tuple[int, int]]:
        """Returns the VLSNs and attempts of the right answer to a fetch."""
        waits = {self.keys[vlsn] for vlsn in self.out}
        given: list[tuple[int, int]] = []
        if self.max_out:
            most = max(0, min(most, self.max_out - len(self.out)))
        for vlsn, key in self.keys.items():
            if len(given) == most:
                break
            if vlsn in self.done or vlsn in self.out or (key is not None and key in waits):
                continue
            if vlsn in self.delayed or (vlsn in self.anew and self.put_off(vlsn, self.tries[vlsn], now_s)):
                waits.add(key)
                continue
            if self.tries.get(vlsn, 0) >= self.attempts_max:
                self.die(vlsn)
                continue
            given.append((vlsn, self.tries.get(vlsn, 0) + 1))
        for vlsn, attempt in given:
            self.out[vlsn] = Out(attempt, now_s + TIMEOUT_S)
            if attempt > 1:
                self.noted[vlsn] = attempt
        return given

    def die(self, vlsn: int) -> None:
        self.letters.append((vlsn, self.tries.pop(vlsn)))
        self.noted.pop(vlsn, None)
        self.done.add(vlsn)
        self.dead.add(vlsn)

    def ack(self, vlsns: list[int]) -> None:
        for vlsn in vlsns:
            for known in (self.out, self.tries, self.noted, self.delayed):
                known.pop(vlsn, None)
        self.done.update(vlsns)
        self.dead.difference_update(vlsns)

    def put_off(self, vlsn: int, attempts: int, now_s: float, delay_s: float | None = None) -> bool:
        self.anew.discard(vlsn)
        delay_s = self.delay_s * 2.0 ** (attempts - 1) if delay_s is None else delay_s
        if not delay_s or attempts >= self.attempts_max:
            return False
        self.delayed[vlsn] = now_s + delay_s
        return True

    def come_back(self, vlsns: list[int], now_s: float, delay_s: float | None = None) -> None:
        """Ends an attempt of each; later messages of their keys that are out return as if not delivered."""
        ended = {vlsn: self.out[vlsn].attempt for vlsn in sorted(vlsns) if vlsn in self.out}
        for vlsn, attempt in ended.items():
            self.tries[vlsn] = attempt
            self.out.pop(vlsn, None)
            key = self.keys[vlsn]
            later = [each for each in self.out if each > vlsn and key is not None and self.keys[each] == key]
            for each in later:
                del self.out[each]
            if attempt >= self.attempts_max:
                self.die(vlsn)
            else:
                self.put_off(vlsn, attempt, now_s, delay_s)

    def end_attempts(self, now_s: float) -> None:
        while late := sorted({out.deadline_s for out in self.out.values() if out.deadline_s <= now_s}):
            self.come_back([vlsn for vlsn, out in self.out.items() if out.deadline_s <= late[0]], late[0])

    def end_delays(self, now_s: float) -> None:
        self.delayed = {vlsn: due_s for vlsn, due_s in self.delayed.items() if due_s > now_s}

    def sure_from(self, now_s: float) -> float:
        """Finds the first time from now on that is not near a deadline."""
        for deadline_s in sorted([*(out.deadline_s for out in self.out.values()), *self.delayed.values()]):
            if abs(deadline_s - now_s) <= UNSURE_S:
                now_s = deadline_s + UNSURE_S + 0.01
        return now_s

    def lose_power(self) -> None:
        self.out.clear()
        self.delayed.clear()
        self.tries = dict(self.noted)
        self.anew = set(self.noted)

    def retry_dead(self, vlsns: set[int]) -> None:
        self.done -= vlsns
        self.dead -= vlsns


class Steps:
    """One random run: each step is done on a real node, and on the model."""

    def __init__(self, group: Group, log: Client, model: Model) -> None:
        self.group, self.log, self.model = group, log, model
        self.consumers: list[Destination] = [log.destination("orders"), log.destination("orders")]
        self.had: list[list[int]] = [[], []]
        """All that each consumer was ever given."""
        self.again = self.stale = self.waited = 0

    async def do(self, step: tuple[Any, ...]) -> None:
        name, *rest = step
        await self.surely()
        await getattr(self, name)(*rest)

    async def surely(self) -> None:
        """Waits until no message is near its deadline."""
        loop, from_s = self.group.loop, -1.0
        while from_s < loop.time():
            from_s = loop.time()
            self.model.end_attempts(from_s)
            await asyncio.sleep(self.model.sure_from(from_s) - from_s)
        self.model.end_delays(from_s)

    async def append(self, keys: list[bytes | None]) -> None:
        for key in keys:
            vlsn = await self.log.append(b"v", key=key)
            self.model.append(int(vlsn), key)

    async def take(self, who: int, most: int) -> None:
        wanted = self.model.take(most, self.group.loop.time())
        messages = await self.consumers[who].take(most, ASKS_S)
        assert [(message.vlsn, message.attempt) for message in messages] == wanted
        assert all(message.key == self.model.keys[message.vlsn] for message in messages)
        self.had[who] += [message.vlsn for message in messages]
        self.again += sum(attempt > 1 for _, attempt in wanted)

    def chosen(self, who: int, picks: list[int]) -> list[int]:
        had = self.had[who]
        return [had[pick % len(had)] for pick in picks] if had else []

    async def ack(self, who: int, picks: list[int]) -> None:
        """Acknowledges messages that this consumer had at any time, even if another consumer has them now."""
        await self._ack(self.chosen(who, picks))

    async def ack_in_order(self, who: int, count: int) -> None:
        mine = [vlsn for vlsn in dict.fromkeys(self.had[who]) if vlsn in self.model.out]
        await self._ack(sorted(mine)[:count])

    async def _ack(self, vlsns: list[int]) -> None:
        if not vlsns:
            return
        self.stale += sum(vlsn not in self.model.out for vlsn in vlsns)
        await self.log.destinations.ack("orders", vlsns)
        self.model.ack(vlsns)

    async def nack(self, who: int, picks: list[int], delay_s: float | None) -> None:
        vlsns = self.chosen(who, picks)
        if vlsns:
            await self.log.destinations.nack("orders", vlsns, "no use", delay_s=delay_s)
            self.model.come_back(vlsns, self.group.loop.time(), delay_s)
            self.waited += len(self.model.delayed)
            await asyncio.sleep(0.2)  # what is dead now is logged

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def lose_power(self) -> None:
        await asyncio.sleep(0.2)  # attempts are noted by now
        await self.surely()
        self.group.kill("n1", power=True)
        await self.group.start("n1")
        await self.group.serving()
        self.model.lose_power()

    async def retry_dead(self, picks: list[int]) -> None:
        """Retries these dead messages, or all if none is named."""
        if self.model.dead:
            await asyncio.sleep(0.2)  # what is dead is durable
            some = self.dead(picks)
            await self.log.destinations.retry_dead("orders", sorted(some) if picks else None)
            await self.surely()
            self.model.retry_dead(some if picks else set(self.model.dead))

    async def delete_dead(self, picks: list[int]) -> None:
        if self.model.dead:
            await asyncio.sleep(0.2)
            some = self.dead(picks)
            await self.log.destinations.delete_dead("orders", sorted(some))
            self.model.dead -= some

    def dead(self, picks: list[int]) -> set[int]:
        dead = sorted(self.model.dead)
        return {dead[pick % len(dead)] for pick in picks}

    async def end(self) -> None:
        """Compares the final table and the letters."""
        await self.surely()
        await asyncio.sleep(0.2)
        known = acked(self.group, (await self.log.destinations.get("orders"))["uuid"])
        messages = list(self.model.keys)
        assert [vlsn for vlsn in messages if known.done.has([vlsn])[0]] == sorted(self.model.done)
        assert set(known.dead.vlsns().tolist()) == self.model.dead
        assert dict(zip(known.tries.vlsns.tolist(), known.tries.counts.tolist(), strict=True)) == self.model.noted
        letters = [msgspec.json.decode(entry.value) async for entry in self.log.read(key=DEAD)]
        assert sorted((letter["vlsn"], letter["attempts"]) for letter in letters) == sorted(self.model.letters)
        event("something came back" if self.again else "nothing came back")
        event("something waited for its delay" if self.waited else "nothing waited")
        event("acknowledged though not out" if self.stale else "all acknowledged while out")
        event("a dead letter" if letters else "no dead letter")


PICKS = st.lists(st.integers(0, 30), min_size=1, max_size=5)
WHO = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=5)),
        *[st.tuples(st.just("take"), WHO, st.integers(1, 6))] * 3,
        st.tuples(st.just("ack"), WHO, PICKS),
        st.tuples(st.just("ack_in_order"), WHO, st.integers(1, 4)),
        *[st.tuples(st.just("nack"), WHO, PICKS, st.sampled_from([None, None, 0.0, 3.0, 9.0]))] * 2,
        *[st.tuples(st.just("wait"), st.sampled_from([1.0, TIMEOUT_S + 1.0, 3 * TIMEOUT_S]))] * 2,
        st.tuples(st.just("lose_power")),
        st.tuples(st.just("retry_dead"), st.just([]) | PICKS),
        st.tuples(st.just("delete_dead"), PICKS),
    ),
    min_size=15,
    max_size=40,
)


@pytest.mark.long
@given(
    STEPS,
    st.sampled_from([b"", b"o"]),
    st.sampled_from([1, 2, 3, 3, 5]),
    st.sampled_from([0, 0, 3]),
    st.sampled_from([0.0, 2.0]),
)
@settings(max_examples=60, deadline=None)
@virtual
async def test_each_answer_is_what_a_plain_model_says(
    steps: list[tuple[Any, ...]], prefix: bytes, attempts_max: int, max_out: int, delay_s: float
) -> None:
    group = Group(1, 1, levels=LEVELS)
    await group.start()
    await group.serving()
    async with client(group) as log:
        options: dict[str, Any] = {"from_": "start", "ack_timeout_s": TIMEOUT_S, "attempts_max": attempts_max}
        options |= {"redelivery_delay_s": delay_s, "redelivery_factor": 2.0, "max_out": max_out}
        await log.destinations.put("orders", prefix=prefix.decode(), dead_letter=DEAD.decode(), **options)
        drawn = Steps(group, log, Model(prefix, attempts_max, max_out, delay_s))
        await drawn.do(("append", list(KEYS)))
        await drawn.do(("take", 0, 2))
        await drawn.do(("take", 1, 6))
        for step in steps:
            await drawn.do(step)
        await drawn.end()
    await group.stop()
