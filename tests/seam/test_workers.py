"""Workers that stay connected, against real nodes in one process: credit, order in a key, losses on either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from random import Random
from random import seed as seed_global
from typing import cast

import numpy as np
import pytest
import uvloop

from repl.client.destination import PREFETCH_MAX, Destination, Messages
from repl.client.destination_stream import SILENT_S
from repl.destinations.consume_messages import (
    ACK,
    CREDIT,
    CREDIT_MAX,
    END,
    HELLO,
    MESSAGES,
    head,
    parted,
)
from repl.destinations.consume_ws import Consuming
from repl.destinations.handed import Handed
from repl.destinations.limits import NOTE_SOON_S
from repl.destinations.message_batch import decode
from repl.destinations.notes import Notes
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_destinations import acked, client, made, values
from tests.seam.test_once_client import disturb
from vlsn.errors import BadArgument, ChannelClosed, NotFound, VlsnLogError
from vlsn.format.vlsn_set import VlsnSet
from vlsn.seams import Buffer, Channel


class Of:
    """A destination, as far as its notes ask."""

    uuid = "aaaaaaaaaaaaaaaa"

    def skipped(self) -> VlsnSet:
        return VlsnSet()

    def noted(self, done: VlsnSet) -> None: ...

    def given_back(self, done: VlsnSet) -> None: ...


class Line(Channel):
    """A worker's end of a channel, by hand: the node's messages are kept, the worker's are fed in."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int, bytes]] = []
        self.closed = False
        self._told: asyncio.Queue[bytes | None] = asyncio.Queue()

    def tell(self, message: bytes | None) -> None:
        self._told.put_nowait(message)

    async def send(self, message: Buffer) -> None:
        kind, number, rest = parted(bytes(message))
        self.sent.append((kind, number, bytes(rest)))

    def send_now(self, message: Buffer) -> bool:
        kind, number, rest = parted(bytes(message))
        self.sent.append((kind, number, bytes(rest)))
        return True

    def received_bytes(self) -> int:
        return 0

    async def receive(self) -> bytes:
        message = await self._told.get()
        if message is None:
            raise ChannelClosed("the worker is gone")
        return message

    async def close(self, code: int = 1000) -> None:
        self.closed = True
        self.tell(None)

    def vlsns(self) -> list[int]:
        """The messages that were sent."""
        found = [decode(rest).vlsns.tolist() for kind, _, rest in self.sent if kind == MESSAGES]
        return [vlsn for each in found for vlsn in each]


async def connected(
    group: Group, name: str = "orders", most: int = 10, *, handed: Handed | None = None, line: Line | None = None
) -> tuple[Line, asyncio.Task[None]]:
    lead = group.nodes[group.master].lead
    assert lead is not None
    line = line or Line()
    consuming = Consuming((await lead.destinations.of(name)).worker(), most, handed or Handed())
    return line, asyncio.create_task(consuming.run(line))


async def taken(batches: AsyncIterator[Messages]) -> Messages:
    async with asyncio.timeout(60.0):
        return await anext(batches)


async def silent(batches: AsyncIterator[Messages]) -> asyncio.Task[Messages]:
    waiting = asyncio.ensure_future(cast("asyncio.Future[Messages]", asyncio.create_task(_next(batches))))
    await asyncio.sleep(2.0)
    assert not waiting.done()
    return cast("asyncio.Task[Messages]", waiting)


async def _next(batches: AsyncIterator[Messages]) -> Messages:
    return await anext(batches)


@virtual
async def test_messages_of_a_key_follow_to_the_worker_that_has_it_and_to_no_other() -> None:
    group = await made(21)
    async with client(group) as log:
        await log.destinations.put("orders", ack_timeout_s=60.0)
        one, other = log.destination("orders", prefetch=1), log.destination("orders", prefetch=10)
        mine, theirs = one.batches(), other.batches()
        await log.append(b"a1", key=b"a")
        first = await taken(mine)
        assert values(first) == [b"a1"]
        await log.append_many([b"a2", b"b1", b"a3"], keys=[b"a", b"b", b"a"])
        assert values(await taken(theirs)) == [b"b1"], "a2 waits for a1, which another one has"
        waiting = await silent(theirs)
        second = await taken(mine)
        assert values(second) == [b"a2"], "passed over for the other one, not lost for who has the key"
        third = await taken(mine)
        assert values(third) == [b"a3"] and not waiting.done()
        await one.ack([*first, *second, *third])
        await log.append(b"a4", key=b"a")
        assert values(await waiting) == [b"a4"], "nobody has that key any more, and this one waits longer"
    await group.stop()


@virtual
async def test_what_a_worker_has_not_looked_at_is_another_ones_at_once() -> None:
    group = await made(22)
    async with client(group) as log:
        await log.destinations.put("orders", ack_timeout_s=600.0)
        one, other = log.destination("orders", prefetch=2), log.destination("orders", prefetch=10)
        await log.append_many([b"%d" % number for number in range(8)])
        async with aclosing(one.batches()) as batches:
            seen = await taken(batches)
            await one.ack(seen)
            seen = await taken(batches)  # a quick worker: the rest is on its way
            await asyncio.sleep(1.0)
        rest = await other.take(10, 5.0)
        assert values(seen) == [b"2", b"3"] and values(rest) == [b"4", b"5", b"6", b"7"]
        assert {message.attempt for message in rest} == {1}
    await group.stop()


@virtual
async def test_acknowledgements_under_way_are_made_again_when_the_master_is_lost() -> None:
    group = await made(23)
    async with client(group) as log:
        told = await log.destinations.put("orders", from_="start", ack_timeout_s=60.0)
        await log.append_many([b"a", b"b", b"c"])
        dest = log.destination("orders", prefetch=10)
        batches = dest.batches()
        messages = await taken(batches)
        assert values(messages) == [b"a", b"b", b"c"]
        group.kill(group.master, power=True)
        async with asyncio.timeout(120.0):
            await dest.ack(messages[:2])
            await messages[2].ack(wait=False)
            await dest.flush()
        assert acked(group, told["uuid"]).done.has(messages.vlsns).all()
        waiting = await silent(batches)
        await log.append(b"d")
        assert values(await waiting) == [b"d"], "by the next master"
    await group.stop()


@virtual
async def test_a_worker_is_told_when_its_destination_is_gone() -> None:
    group = await made(24)
    async with client(group) as log:
        with pytest.raises(NotFound):
            await taken(log.destination("none").batches())
        await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        dest = log.destination("orders")
        batches = dest.batches()
        messages = await taken(batches)
        await log.destinations.drop("orders")
        with pytest.raises(NotFound):
            await taken(batches)
        with pytest.raises(NotFound):
            await dest.ack(messages)
        with pytest.raises(BadArgument):
            log.destination("orders", prefetch=0)
    await group.stop()


@virtual
async def test_nothing_is_sent_before_a_majority_has_confirmed_the_lead() -> None:
    group = await made(25)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        line, serving = await connected(group)
        group.net.split([group.master], [name for name in group.names if name != group.master])
        line.tell(head(CREDIT, 10))
        await asyncio.wait([serving], timeout=20.0)
        assert line.vlsns() == [] and line.sent[0][0] == HELLO
        assert line.sent[-1][0] == END, "told that this one leads no more"
    await group.stop()


@virtual
async def test_the_node_is_silent_until_the_worker_has_spoken() -> None:
    """A message right after the upgrade may be read before any code listens."""
    group = await made(29)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        line, serving = await connected(group)
        await asyncio.sleep(2.0)
        assert line.sent == []
        line.tell(head(CREDIT, 0))
        await asyncio.sleep(0.1)
        assert [kind for kind, _, _ in line.sent] == [HELLO]
        line.tell(None)
        await asyncio.wait([serving])
    await group.stop()


@virtual
async def test_what_was_handed_out_and_not_sent_is_as_if_it_had_not_been_out() -> None:
    group = await made(26)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=600.0)
        await log.append_many([b"a", b"b"])
        lead = group.nodes[group.master].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        line, serving = await connected(group)
        others = [name for name in group.names if name != group.master]
        group.net.split([group.master], others)
        line.tell(head(CREDIT, 10))
        await asyncio.sleep(0.1)
        assert delivery.out == 2
        line.tell(None)
        await asyncio.wait([serving])
        assert delivery.out == 0
    await group.stop()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"VL",
        head(b"Z"),
        b"XXX" + head(CREDIT, 1)[3:],
        head(CREDIT, CREDIT_MAX + 1),
        head(ACK, 1) + b"\x02\x00",
    ],
)
@virtual
async def test_a_worker_that_says_what_nobody_can_read_is_left_and_loses_nothing(message: bytes) -> None:
    group = await made(27)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", from_="start"))["uuid"]
        vlsn = await log.append(b"a")
        line, serving = await connected(group)
        line.tell(message)
        await asyncio.wait([serving], timeout=10.0)
        assert serving.done() and serving.exception() is None
        assert acked(group, uuid).floor < vlsn
    await group.stop()


@virtual
async def test_an_acknowledgement_of_what_is_not_there_fails_by_itself() -> None:
    group = await made(28)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", from_="start"))["uuid"]
        vlsn = await log.append(b"a")
        line, serving = await connected(group)
        line.tell(head(ACK, 7) + VlsnSet.of([1 << 40]).pack())
        line.tell(head(ACK, 8) + VlsnSet.between(1, 20_000).pack())
        line.tell(head(ACK, 9) + VlsnSet.of([vlsn]).pack())
        await asyncio.sleep(2.0)
        failed = [(kind, number) for kind, number, _ in line.sent if kind == b"F"]
        assert failed == [(b"F", 7), (b"F", 8)] and acked(group, uuid).done.has([vlsn]).all()
        done = [np.frombuffer(rest, "<u4").tolist() for kind, _, rest in line.sent if kind == b"A"]
        assert done == [[9]]
        line.tell(None)
        await asyncio.wait([serving])
    await group.stop()


@virtual
async def test_a_worker_that_waits_for_an_acknowledgement_of_a_master_that_is_silent_goes_to_the_next_one() -> None:
    """Half-open: the master's machine is gone silently, and the worker only waits for an acknowledgement."""
    group = await made(41)
    async with client(group) as log:
        told = await log.destinations.put("orders", from_="start", ack_timeout_s=600.0)
        await log.append_many([b"a", b"b"])
        dest = log.destination("orders", prefetch=10)
        messages = await taken(dest.batches())
        master = group.master
        rest = [name for name in group.names if name != master]
        group.net.split([master], [*rest, "client"])
        async with asyncio.timeout(3 * SILENT_S):
            await dest.ack(messages)
        group.net.heal()
        await group.serving()
        assert acked(group, told["uuid"]).done.has(messages.vlsns).all()
    await group.stop()


def test_a_note_that_is_due_at_once_is_asked_about_on_the_loop_that_nodes_run_on() -> None:
    """uvloop returns no ``TimerHandle`` for a call within a millisecond, so its time cannot be read."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        notes, of = Notes(lambda *_: None, lambda: None), Of()  # nothing is durable here
        handles = 0
        for _ in range(200):
            notes._noted_s = loop.time() - NOTE_SOON_S + 0.0004
            for low in (1, 301, 601):
                notes.add(of, VlsnSet.between(low, low + 299), wait=False)
            handles += notes._timer is not None and not hasattr(notes._timer, "when")
            notes.forget(of)
            if notes._timer is not None:
                notes._timer.cancel()
                notes._timer = None
            notes._under_way.clear()
        assert handles > 0
        notes.close()

    uvloop.run(main())


@virtual
async def test_what_is_sent_together_is_given_in_parts_of_what_was_asked_for() -> None:
    group = await made(24)
    async with client(group) as log:
        await log.destinations.put("orders", ack_timeout_s=600.0)
        dest = log.destination("orders", prefetch=3)
        await log.append_many([b"%d" % number for number in range(26)], keys=[b"k%d" % (n % 3) for n in range(26)])
        sizes, seen = list[int](), list[tuple[bytes | None, bytes]]()
        async with aclosing(dest.batches()) as batches:
            while len(seen) < 26:
                batch = await taken(batches)
                assert [message.vlsn for message in batch] == batch.vlsns.tolist()
                sizes.append(len(batch))
                seen += [(message.key, message.value) for message in batch]
                await dest.ack(batch)
        assert seen == [(b"k%d" % (n % 3), b"%d" % n) for n in range(26)]
        assert max(sizes) == 3 and not await log.destinations.peek("orders", 1)
    await group.stop()


@virtual
async def test_a_quick_worker_that_takes_many_is_not_granted_more_than_a_node_lets_it() -> None:
    group = await made(25)
    async with client(group) as log:
        await log.destinations.put("orders", ack_timeout_s=600.0)
        dest, streams = log.destination("orders", prefetch=PREFETCH_MAX), set[object]()
        async with aclosing(dest.batches()) as batches:
            for number in range(4):
                await log.append(b"%d" % number)
                batch = await taken(batches)
                assert values(batch) == [b"%d" % number]
                await dest.ack(batch)
                streams.update(dest._streams)
        assert len(streams) == 1, "it was never thrown out"
    await group.stop()


@virtual
async def test_the_master_ends_between_its_greeting_and_the_first_batch() -> None:
    group = await made(42)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=600.0)
        dest = log.destination("orders", prefetch=10)
        batches = dest.batches()
        first = asyncio.create_task(_next(batches))
        await group.until(lambda: any(stream.uuid for stream in dest._streams), "it is greeted")
        group.kill(group.master, power=True)
        await group.serving()
        await log.append(b"a")
        assert values(await asyncio.wait_for(first, 60.0)) == [b"a"], "by the next master"
    await group.stop()


@virtual
async def test_two_workers_by_one_object_are_two_and_both_flush() -> None:
    """One object is iterated over twice at once: each iteration is a worker, and ``flush`` waits for both."""
    group = await made(43)
    async with client(group) as log:
        told = await log.destinations.put("orders", from_="start", ack_timeout_s=600.0)
        dest = log.destination("orders", prefetch=1)
        one, other = dest.batches(), dest.batches()
        await log.append_many([b"a", b"b"], keys=[b"x", b"y"])
        first, second = await taken(one), await taken(other)
        assert sorted([*values(first), *values(second)]) == [b"a", b"b"]
        await first[0].ack(wait=False)
        await second[0].ack(wait=False)
        await dest.flush()
        vlsns = np.concatenate([first.vlsns, second.vlsns])
        assert acked(group, told["uuid"]).done.has(vlsns).all()
    await group.stop()


@pytest.mark.parametrize("seed", seeds(6))
@virtual
async def test_workers_that_stay_lose_nothing_through_any_failure(seed: int) -> None:
    """Two workers stay connected, one of them refuses now and then, while nodes die and restart."""
    seed_global(seed)
    group, rng = await made(seed), Random(seed)
    handled: dict[bytes, int] = {}
    sent = [f"{number}".encode() for number in range(150)]
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=2.0, attempts_max=1000)
        disturbing = asyncio.create_task(disturb(group, rng, []))

        async def handle(dest: Destination, messages: Messages, lazy: bool) -> None:
            before = set(handled)
            for message in messages:
                if lazy and rng.random() < 0.2:
                    with suppress(VlsnLogError):
                        await message.nack("not now")
                    return
                with suppress(VlsnLogError):
                    await message.ack(wait=message.value not in before)
                    handled.setdefault(message.value, message.vlsn)

        async def work(number: int) -> None:
            dest = log.destination("orders", prefetch=rng.choice([1, 7, 50]))
            while True:
                async with aclosing(dest.batches()) as batches:
                    async for messages in batches:
                        await handle(dest, messages, bool(number))
                        if rng.random() < 0.1:
                            break
                await dest.flush()

        workers = [asyncio.create_task(work(number)) for number in range(3)]
        for value in sent:
            await log.append(value, key=rng.choice([b"a", b"b", None]))
            await asyncio.sleep(rng.random() / 10)
        async with asyncio.timeout(600.0):
            await group.until(lambda: len(handled) == len(sent), "all are handled", 600.0)
        for each in (*workers, disturbing):
            each.cancel()
        await asyncio.gather(*workers, disturbing, return_exceptions=True)
        assert set(handled) == set(sent)
    await group.stop()


@virtual
async def test_flush_waits_for_the_call_that_is_on_its_way_and_says_how_it_has_failed() -> None:
    group = await made(51)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        dest = log.destination("orders")
        (one,) = await dest.take(1, 1.0)
        await log.destinations.drop("orders")
        await one.ack(wait=False)
        await asyncio.sleep(0)  # its call is on its way
        with pytest.raises(NotFound):
            await dest.flush()
    await group.stop()


@virtual
async def test_flush_waits_for_what_another_iteration_of_the_worker_acknowledged() -> None:
    group = await made(56)
    async with client(group) as log:
        told = await log.destinations.put("orders", from_="start")
        await log.append_many([b"a", b"b"])
        dest = log.destination("orders", prefetch=1)
        async with aclosing(dest.batches()) as one, aclosing(dest.batches()) as other:
            batch = await anext(one)
            for machine in group.machines.values():
                machine.disk.latency = lambda call: 5.0 if "sync" in call.name else 0.0
            await dest.ack(batch, wait=False)
            await anext(other)
            await dest.flush()
            assert acked(group, told["uuid"]).done.has(batch.vlsns).all()
    await group.stop()


@virtual
async def test_what_is_acknowledged_of_a_destination_that_is_gone_fails_for_itself_alone() -> None:
    group = await made(52)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        dest = log.destination("orders")
        gone = await dest.take(1, 1.0)
        await log.destinations.drop("orders")
        told = await log.destinations.put("orders", from_="start")
        here = await dest.take(1, 1.0)
        first, second = asyncio.create_task(dest.ack(gone)), asyncio.create_task(dest.ack(here))
        await second
        assert acked(group, told["uuid"]).done.has(here.vlsns).all()
        with pytest.raises(NotFound):
            await first
    await group.stop()


@virtual
async def test_what_a_worker_leaves_of_a_batch_is_another_ones_at_once() -> None:
    group = await made(53)
    async with client(group) as log:
        await log.destinations.put("orders", ack_timeout_s=600.0)
        await log.append_many([b"%d" % number for number in range(5)])
        async for message in log.destination("orders", prefetch=5):
            await message.ack()
            if message.value == b"1":
                break
        rest = await log.destination("orders").take(10, 5.0)
        assert values(rest) == [b"2", b"3", b"4"] and {message.attempt for message in rest} == {1}
        with pytest.raises(BadArgument):
            await log.destination("orders").take(0, 0.0)
    await group.stop()
