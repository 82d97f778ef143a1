"""Workers that stay connected, against real nodes in one process: credit, order in a key, losses on either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from random import Random
from random import seed as seed_global
from typing import cast

import numpy as np
import pytest
import uvloop

from repl.client.destination import PREFETCH_MAX, Destination, Messages
from repl.client.destination_stream import ACKS_MAX, LAST_WORD_S, SILENT_S, UNSENT_MAX, DestinationStream
from repl.destinations.consume_messages import (
    ACK,
    ACKED,
    ACKS_UNANSWERED_MAX,
    ALIVE_S,
    CREDIT,
    CREDIT_MAX,
    END,
    FAILED,
    HELLO,
    MESSAGES,
    head,
    parted,
)
from repl.destinations.consume_ws import Consuming
from repl.destinations.handed import Handed
from repl.destinations.limits import NOTE_SOON_S
from repl.destinations.message_batch import MessageColumns, decode, encode
from repl.destinations.notes import Notes
from repl.node.gateway import Gateway
from repl.web.limits import READ_BYTES_MAX, WORKER_BYTES_MAX
from repl.web.types import BytesBody, Headers, Request, Upgrade
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import PORT, Group
from tests.seam.test_destinations import acked, client, made, values
from tests.seam.test_once_client import disturb
from vlsn.errors import BadArgument, BadBody, ChannelClosed, NotFound, Unreachable, VlsnLogError
from vlsn.format.block import Entry, EntryKind
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Term, Vlsn
from vlsn.levels import LEVELS
from vlsn.limits import MIB
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

    async def close(self) -> None:
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
    """A message right behind the upgrade may be read before anybody listens."""
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
    """Half-open: the master's machine is gone without a word, and nothing but an acknowledgement is waited for."""
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
    """uvloop gives no ``TimerHandle`` for a call within a millisecond: its time cannot be asked for."""

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
async def test_an_acknowledgement_is_lost_with_a_master_that_falls_silent_though_nobody_asks_for_messages() -> None:
    line, loop = Line(), asyncio.get_running_loop()
    lost: list[tuple[str, list[int], float]] = []
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append((uuid, [*vlsns], loop.time())))
    began = loop.time()
    await stream.ack(np.array([7, 8]))
    await asyncio.sleep(SILENT_S + 2.0)
    assert [(uuid, vlsns) for uuid, vlsns, _ in lost] == [("aaaaaaaaaaaaaaaa", [7, 8])]
    assert lost[0][2] - began < SILENT_S + 1.0 and line.closed
    await stream.close()


@virtual
async def test_acknowledgements_of_one_turn_go_together_and_one_that_is_cancelled_takes_no_other_along() -> None:
    line, lost = Line(), list[list[int]]()
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append([*vlsns]))
    many = [asyncio.create_task(stream.ack(np.array([vlsn]))) for vlsn in (7, 5, 6)]
    tolds = await asyncio.gather(*many)
    first = asyncio.create_task(stream.ack(np.array([8])))
    await asyncio.sleep(0)
    first.cancel()
    later = await stream.ack(np.arange(9, 9 + ACKS_MAX))  # no room beside the one before
    await asyncio.sleep(0.1)
    sent = [(number, VlsnSet.unpack(rest).vlsns().tolist()) for kind, number, rest in line.sent if kind == ACK]
    assert sent == [(1, [5, 6, 7]), (2, [8]), (3, [*range(9, 9 + ACKS_MAX)])]
    line.tell(head(ACKED) + np.array([1, 3], "<u4").tobytes())
    await asyncio.sleep(0.1)
    assert all(told.done() for told in tolds) and later.done() and not lost
    await stream.close()
    assert lost == [[8]], "only this one is not known to be durable"


@virtual
async def test_an_acknowledgement_is_not_kept_waiting_by_a_connection_that_is_closed() -> None:
    line, lost = Line(), list[list[int]]()
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append([*vlsns]))
    for at in range(2 * UNSENT_MAX):
        asyncio.ensure_future(stream.ack(np.arange(at * ACKS_MAX + 1, (at + 1) * ACKS_MAX + 1)))
    await asyncio.sleep(0)
    await stream.close()
    async with asyncio.timeout(5.0):
        await stream.ack(np.array([1]))
        await asyncio.sleep(0.1)
    assert len(lost) >= UNSENT_MAX and line.closed


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
async def test_a_greeting_that_never_comes_is_not_waited_for_for_ever() -> None:
    line, loop = Line(), asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unreachable, match="says nothing"):
        await DestinationStream.open(line, lambda *_: None)
    assert SILENT_S <= loop.time() - began < SILENT_S + 1.0
    assert [kind for kind, _, _ in line.sent] == [CREDIT] and line.closed


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
    """An object that is iterated over twice at once: each iteration is a worker, and ``flush`` waits for both."""
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
    """Workers that stay, one of them giving back now and then, while nodes die and come back."""
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


class FullLine(Line):
    """A line whose socket is full from a certain message on, until it is ``emptied``, or until it is ``lost``."""

    lost = False

    def __init__(self) -> None:
        super().__init__()
        self.emptied = asyncio.Event()
        self.emptied.set()

    async def send(self, message: Buffer) -> None:
        if self.lost:
            raise ChannelClosed("the master is gone")
        await self.emptied.wait()
        await super().send(message)


async def full() -> tuple[FullLine, DestinationStream, list[list[int]]]:
    line, lost = FullLine(), list[list[int]]()
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append([*vlsns]))
    line.emptied.clear()
    return line, stream, lost


@virtual
async def test_what_had_come_is_given_out_though_the_connection_is_lost_as_more_is_asked_for() -> None:
    line, stream, _ = await full()
    columns = MessageColumns.of([Entry(Vlsn(7), Term(1), 0, EntryKind.DATA, 0, None, b"a")])
    line.tell(head(MESSAGES) + encode(columns, {}))
    await asyncio.sleep(0.1)
    line.lost = True
    await stream.grant(1)
    assert (await stream.next()).vlsns.tolist() == [7]
    with pytest.raises(Unreachable, match="the master is gone"):
        await stream.next()
    await stream.close()


@virtual
async def test_a_worker_leaves_a_master_that_reads_nothing_and_its_acknowledgements_are_made_again() -> None:
    line, stream, lost = await full()
    stream.pass_over(np.array([9]))
    await stream.ack(np.array([7]))
    async with asyncio.timeout(LAST_WORD_S + 1.0):
        await stream.close()
    assert line.closed and lost == [[7]]


@virtual
async def test_a_worker_whose_leaving_is_cancelled_has_left() -> None:
    line, stream, lost = await full()
    stream.pass_over(np.array([9]))
    await stream.ack(np.array([7]))
    leaving = asyncio.create_task(stream.close())
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert line.closed and lost == [[7]]


@virtual
async def test_who_waits_for_the_socket_goes_together_with_others_who_do() -> None:
    line, stream, lost = await full()
    tolds = [await stream.ack(np.arange(1, 1 + ACKS_MAX)) for _ in range(UNSENT_MAX)]
    waiting = [asyncio.create_task(stream.ack(np.array([vlsn]))) for vlsn in range(1, 101)]
    await asyncio.sleep(0.1)
    line.emptied.set()
    tolds += await asyncio.gather(*waiting)
    await asyncio.sleep(0.1)
    sent = [number for kind, number, _ in line.sent if kind == ACK]
    assert len(sent) < 2 * UNSENT_MAX, "a message for each would be what the master answers one by one"
    line.tell(head(ACKED) + np.array(sent, "<u4").tobytes())
    await asyncio.sleep(0.1)
    assert all(told.done() for told in tolds) and not lost
    await stream.close()


@virtual
async def test_a_master_that_answers_what_nobody_can_read_is_left_at_once() -> None:
    line, stream, lost = await full()
    await stream.ack(np.array([7]))
    line.tell(head(ACKED) + b"abc")
    with pytest.raises(BadBody):
        async with asyncio.timeout(1.0):
            await stream.next()
    assert lost == [[7]]
    again = await stream.ack(np.array([8]))
    assert lost == [[7], [8]] and not again.done(), "nothing more goes out on that connection"
    await stream.close()


class Stuck(Line):
    """A worker that takes nothing before ``emptied``."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied = asyncio.Event()

    async def send(self, message: Buffer) -> None:
        await self.emptied.wait()
        await super().send(message)

    def send_now(self, message: Buffer) -> bool:
        return self.emptied.is_set() and super().send_now(message)

    @property
    def unheard(self) -> int:
        return self._told.qsize()


@asynccontextmanager
async def large(seed: int, count: int, size: int) -> AsyncIterator[Group]:
    """Yields a group of one whose destination has so many messages of so many bytes."""
    group = Group(seed, 1, levels=LEVELS, segment_bytes=64 * MIB)
    await group.start()
    await group.serving()
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=600.0)
        for _ in range(count):
            await log.append(bytes(size))
    yield group
    await group.stop()


async def consuming(group: Group, line: Line, query: str = "") -> asyncio.Task[None]:
    """Serves a worker as the gateway does."""
    headers = Headers({"Host": f"{group.master}:{PORT}", "Connection": "Upgrade", "Upgrade": "websocket"})
    asked = Request("GET", f"/v1/destinations/orders/consume{query}", headers, BytesBody(b""))
    upgrade = await Gateway(group.nodes[group.master].services).handle(asked)
    assert isinstance(upgrade, Upgrade)

    async def run() -> None:
        await upgrade.run(line)

    return asyncio.create_task(run())


@virtual
async def test_a_worker_that_takes_nothing_is_handed_less_than_two_answers() -> None:
    async with large(41, 80, MIB // 4) as group:
        line = Stuck()
        serving = await consuming(group, line)
        line.tell(head(CREDIT, 80))
        await asyncio.sleep(10.0)
        lead = group.nodes[group.master].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        assert 0 < delivery.out * MIB // 4 <= WORKER_BYTES_MAX + READ_BYTES_MAX
        line.emptied.set()
        await group.until(lambda: len(line.vlsns()) == 80, "all that it gave credit for")
        line.tell(None)
        await serving


@virtual
async def test_workers_that_take_nothing_are_given_up_where_others_need_their_room() -> None:
    async with large(42, 80, MIB // 4) as group:
        room, lines, all_serving = Handed(8 * MIB), list[Line](), list[asyncio.Task[None]]()
        for _ in range(6):
            line, serving = await connected(group, handed=room, line=Stuck(), most=4)
            line.tell(head(CREDIT, 80))
            lines.append(line)
            all_serving.append(serving)
        await asyncio.sleep(0.5)
        assert 8 * MIB <= room.bytes <= 8 * MIB + READ_BYTES_MAX
        quick, served = await connected(group, handed=room, most=4)
        quick.tell(head(CREDIT, 80))
        await group.until(lambda: len(quick.vlsns()) >= 40, "what was handed to those who took nothing", 30.0)
        assert room.bytes <= 8 * MIB + READ_BYTES_MAX and room.given_up == sum(each.done() for each in all_serving)
        assert room.given_up > 0 and not quick.closed
        quick.tell(None)
        for line in lines:
            line.tell(None)
        await asyncio.wait([served, *all_serving])
        assert room.bytes == 0


@virtual
async def test_a_worker_that_takes_no_answer_is_heard_no_further() -> None:
    async with large(43, 1, 1) as group:
        line = Stuck()
        serving = await consuming(group, line)
        for number in range(5_000):
            line.tell(head(ACK, number) + VlsnSet.of([10**9]).pack())
        await asyncio.sleep(10.0)
        assert 5_000 - line.unheard <= ACKS_UNANSWERED_MAX + 1
        line.emptied.set()
        await group.until(lambda: sum(kind == FAILED for kind, _, _ in line.sent) == 5_000, "each is answered")
        line.tell(None)
        await serving


@virtual
async def test_a_worker_that_takes_nothing_is_told_once_that_there_is_nothing() -> None:
    async with large(44, 0, 1) as group:
        line = Stuck()
        serving = await consuming(group, line)
        line.tell(head(CREDIT, 10))
        await asyncio.sleep(20 * ALIVE_S)
        line.emptied.set()
        await asyncio.sleep(1.0)
        assert [kind for kind, _, _ in line.sent] in ([HELLO], [HELLO, MESSAGES])
        line.tell(None)
        await serving
