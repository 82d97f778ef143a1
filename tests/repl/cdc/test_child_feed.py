"""One child that is fed: how long it is waited for, whatever the node itself does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from feeder.source import Mode, Source
from repl.cdc import messages
from repl.cdc.child_end import END_S
from repl.cdc.child_feed import (
    GAP_S,
    WATCH_S,
    CaptureCounts,
    ChildFeed,
    ConsumerFailed,
    ConsumerSlow,
    Joined,
    Patience,
)
from repl.cdc.messages import Commit, Hello, Ready, Start, Stop, ToNode
from tests.fakes.clock import FakeClock
from tests.fakes.loop import virtual
from vlsn.errors import BadBody, ChannelClosed
from vlsn.ids import Vlsn
from vlsn.seams import Buffer

START = Start(
    name="orders", consumer="a:B", node="n1", group="g", next=1, options={}, memory_bytes_max=1 << 26
)  # fmt: skip


class Says:
    """A child that says these words, and then nothing until it is killed."""

    pid = 7

    def __init__(self, *words: ToNode) -> None:
        self._words = list(words)
        self._killed = asyncio.Event()

    async def send(self, message: Buffer) -> None:
        await asyncio.sleep(0)

    async def receive(self) -> bytes:
        if self._words:
            return messages.encode(self._words.pop(0))
        await self._killed.wait()
        raise ChannelClosed("killed")

    async def ended(self) -> int:
        await self._killed.wait()
        return -9

    def demote(self) -> None:
        raise AssertionError("it was given nothing")

    def terminate(self) -> None:
        self._killed.set()

    def kill(self) -> None:
        self._killed.set()


class Nothing:
    """A log that has nothing."""

    durable = Vlsn(0)

    async def until(self, vlsn: int) -> None:
        await asyncio.Event().wait()

    def check_place(self, vlsn: int, term: int) -> None:
        pass


def no_source(next_vlsn: Vlsn, switched: object) -> Source:
    raise AssertionError("it is not ready")


class Empty:
    """A source without a block."""

    next_vlsn, mode = Vlsn(1), Mode.BUFFER

    def from_ring(self, bytes_max: int) -> list[Buffer]:
        return []

    def close(self) -> None:
        pass


async def stored(next_vlsn: int, final: bool) -> bool:
    return True


def feed_of(
    child: Says,
    clock: FakeClock,
    *,
    make_source: Callable[[Vlsn, Callable[[Mode], None]], Source] = no_source,
    store: Callable[[int, bool], Awaitable[bool]] = stored,
) -> ChildFeed:
    return ChildFeed(
        child,
        make_source=make_source,
        reads=Nothing(),
        clock=clock,
        joined=Joined(),
        counts=CaptureCounts(),
        store=store,
        segment_of=lambda vlsn: 1,
        ahead_bytes=1 << 22,
        start_timeout_s=30.0,
        events_timeout_s=30.0,
        upto=None,
    )


def switched(mode: Mode) -> None:
    pass


@pytest.mark.parametrize(("words", "began"), [((), False), ((Hello(),), True)])
@virtual
async def test_a_start_that_takes_too_long_says_whose_time_it_was(words: tuple[ToNode, ...], began: bool) -> None:
    loop = asyncio.get_running_loop()
    begins = loop.time()
    with pytest.raises(ConsumerSlow, match="30 s") as raised:
        await feed_of(Says(*words), FakeClock(loop.time)).run(START, asyncio.Event(), switched)
    assert raised.value.began is began
    assert 30 <= loop.time() - begins <= 30 + 2 * WATCH_S


@virtual
async def test_a_node_that_was_stopped_itself_goes_on_waiting_for_its_child() -> None:
    loop = asyncio.get_running_loop()
    clock = FakeClock(loop.time)
    begins = loop.time()
    running = asyncio.create_task(feed_of(Says(Hello()), clock).run(START, asyncio.Event(), switched))
    for _ in range(5):
        await asyncio.sleep(2)
        clock.advance(3600)
    await asyncio.wait([running])
    assert isinstance(running.exception(), ConsumerFailed)
    assert 30 - 5 * GAP_S - WATCH_S <= loop.time() - begins <= 30 + 2 * WATCH_S


class Babbles(Says):
    """A child that sends what is no message."""

    async def receive(self) -> bytes:
        raise BadBody("a child process sent a message of 0 bytes")


class Deaf(Says):
    """A child that has closed its connection, and goes on."""

    async def receive(self) -> bytes:
        if self._words:
            return await super().receive()
        raise ChannelClosed("closed")


@pytest.mark.parametrize(
    ("child", "said"),
    [
        (Babbles(), "a message of 0 bytes"),
        (Deaf(), "closed its connection"),
        (Deaf(Hello()), "closed its connection"),
    ],
)
@virtual
async def test_a_child_that_breaks_its_connection_is_ended_and_has_failed(child: Says, said: str) -> None:
    loop = asyncio.get_running_loop()
    begins = loop.time()
    with pytest.raises(ConsumerFailed, match=said):
        await feed_of(child, FakeClock(loop.time)).run(START, asyncio.Event(), switched)
    assert loop.time() - begins <= END_S + 2 * WATCH_S
    assert await child.ended() == -9


class DiesCommitted(Says):
    """A child that commits, and has died by the time that it is to stop."""

    async def send(self, message: Buffer) -> None:
        await super().send(message)
        if messages.of_node(bytes(message)) == Stop():
            self._killed.set()
            raise ChannelClosed("it has died")


@virtual
async def test_a_store_under_way_is_waited_for_where_the_child_died_as_it_was_to_stop() -> None:
    storing, may_store, kept = asyncio.Event(), asyncio.Event(), list[int]()

    async def store(next_vlsn: int, final: bool) -> bool:
        storing.set()
        await may_store.wait()
        kept.append(next_vlsn)
        return True

    child = DiesCommitted(Hello(), Ready(1, 0), Commit(1, 1))
    stop = asyncio.Event()
    feed = feed_of(
        child,
        FakeClock(asyncio.get_running_loop().time),
        store=store,
        make_source=lambda *_: cast("Source", Empty()),
    )
    running = asyncio.create_task(feed.run(START, stop, switched))
    await storing.wait()
    stop.set()
    await child.ended()
    await asyncio.sleep(WATCH_S)
    assert not running.done(), "the next child would begin behind a store that is still to come"
    may_store.set()
    await running
    assert kept == [1]


def test_patience_counts_what_lies_between_looks_and_no_gap() -> None:
    clock = FakeClock()
    waited = Patience(clock)
    for _ in range(8):
        clock.advance(WATCH_S)
        waited.look()
    assert waited.seconds == 8 * WATCH_S
    clock.advance(1e6)
    assert waited.look() == 8 * WATCH_S + GAP_S
    waited.again()
    assert waited.look() == 0
