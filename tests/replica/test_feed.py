"""The replica's side of a feed, step by step: stored terms and sent messages, in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from replica.feed import ReplicaFeed
from replica.matchpoint_check import matchpoint_of
from tests.vlsn.logs import Machine, Opened
from vlsn.errors import BadBody, ChannelClosed, IntegrityFault, StaleTerm, VlsnLogError
from vlsn.format.feed_messages import (
    Ack,
    Matchpoint,
    Position,
    Start,
    ack_message,
    encode,
    heartbeat_message,
    message_type,
    round_message,
)
from vlsn.ids import Term, Vlsn
from vlsn.seams import Buffer, Channel
from vlsn.segments.reader import LogReader, ReadRun


class Master(Channel):
    """A channel whose other end gives one MATCHPOINT and then hangs up; ``events`` is what the replica did."""

    def __init__(self, events: list[object], matchpoint: Matchpoint) -> None:
        self.events = events
        self._messages = [encode(matchpoint)]

    async def send(self, message: Buffer) -> None:
        self.events.append(bytes(message))

    def send_now(self, message: Buffer) -> bool:
        self.events.append(bytes(message))
        return True

    def received_bytes(self) -> int:
        return 0

    async def receive(self) -> bytes:
        if not self._messages:
            raise ChannelClosed("hung up")
        return self._messages.pop()

    async def close(self, code: int = 1000) -> None:
        self._messages.clear()


def follower() -> tuple[Opened, Matchpoint]:
    """A log of term 1 to VLSN 3 that follows, and the matchpoint of a master that holds the same."""
    machine = Machine()
    opened = Opened(machine)
    opened.append(b"a")
    opened.append(b"b")
    opened.close()
    opened = Opened(machine, take_term=False)
    log = opened.log
    mapping = log.view.index.at_or_before(log.view.range.last)
    assert mapping is not None
    reader = LogReader(machine.disk, log.directory, log.view.synced_end)
    block = reader.blocks(log.view.range.last, start=mapping[1], upto_vlsn=log.view.range.last, bytes_max=1).data[0]
    reader.close()
    return opened, matchpoint_of(block, feed_term=5)


class Streaming(Master):
    """A feed whose other end sends, after its MATCHPOINT, the messages that the test adds to ``take``."""

    def __init__(self, events: list[object], matchpoint: Matchpoint) -> None:
        super().__init__(events, matchpoint)
        self.begun = asyncio.Event()

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        self.take = take
        self.begun.set()
        await asyncio.Event().wait()


def feed_of(opened: Opened, events: list[object], channel: Channel, *, somebody_stores: int = 0) -> ReplicaFeed:
    """``somebody_stores`` that term while the feed's own is on its way to the node file."""
    node_file = opened.log.node_file

    async def store_term(term: Term) -> None:
        events.append(term)
        node_file.replace(replace(node_file.record, term=max(node_file.record.term, term, somebody_stores)))

    async def roll_back(matchpoint: Vlsn) -> None:
        events.append(("back to", matchpoint))

    async def drained() -> None:
        pass

    def offload(job: Callable[[], ReadRun]) -> asyncio.Future[ReadRun]:
        future: asyncio.Future[ReadRun] = asyncio.get_running_loop().create_future()
        future.set_result(job())
        return future

    return ReplicaFeed(
        log=opened.log,
        channel=channel,
        store_term=store_term,
        roll_back=roll_back,
        drained=drained,
        offload=offload,
        on_progress=lambda: None,
        on_position=lambda _: None,
    )


async def fed(opened: Opened, matchpoint: Matchpoint, *, somebody_stores: int = 0) -> tuple[list[object], object]:
    """Returns the replica's steps after that matchpoint, and the end of the feed. ``somebody_stores`` that term while
    the feed's own is on its way to the node file."""
    events: list[object] = []
    feed = feed_of(opened, events, Master(events, matchpoint), somebody_stores=somebody_stores)
    ended: list[BaseException] = []
    try:
        await feed.run()
    except* VlsnLogError as errors:
        ended += errors.exceptions
    return events, ended[0]


async def test_the_feeds_term_is_stored_after_the_comparison_and_before_the_first_ack() -> None:
    opened, matchpoint = follower()
    events, _ = await fed(opened, matchpoint)
    syncup, *then = events
    assert isinstance(syncup, bytes)
    assert message_type(syncup).name == "SYNCUP"
    assert then[:3] == [Term(5), encode(Start(4)), ack_message(Ack(5, 3, 3))]
    assert opened.log.node_file.record.term == 5


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"vlsn": 2}, IntegrityFault),
        ({"vlsn": 4}, BadBody),
        ({"vlsn": 0}, BadBody),
        ({"crc32": 1}, IntegrityFault),
        ({"term": 2}, IntegrityFault),
        ({"term": 6}, BadBody),
    ],
)
async def test_a_peer_that_does_not_hold_this_log_leaves_no_term_behind(
    changed: dict[str, int], error: type[VlsnLogError]
) -> None:
    opened, matchpoint = follower()
    before = opened.log.node_file.record
    events, ended = await fed(opened, msgspec.structs.replace(matchpoint, **changed))
    assert isinstance(ended, error)
    assert opened.log.node_file.record == before
    said = [message_type(event).name for event in events if isinstance(event, bytes)]
    assert said == ["SYNCUP", "REFUSE"]


async def test_nothing_is_acknowledged_for_a_feed_whose_term_is_not_the_stored_one() -> None:
    opened, matchpoint = follower()
    events, ended = await fed(opened, matchpoint, somebody_stores=6)
    assert isinstance(ended, StaleTerm)
    assert opened.log.node_file.record.term == 6
    assert [message_type(event).name for event in events if isinstance(event, bytes)] == ["SYNCUP", "REFUSE"]


async def test_a_feed_below_the_stored_term_is_left_alone() -> None:
    opened, matchpoint = follower()
    opened.log.node_file.replace(replace(opened.log.node_file.record, term=9))
    events, ended = await fed(opened, matchpoint)
    assert isinstance(ended, StaleTerm)
    assert [message_type(event).name for event in events if isinstance(event, bytes)] == ["SYNCUP"]


@pytest.mark.parametrize("what", ["synced", "heartbeat", "round"])
async def test_a_feed_says_nothing_more_once_a_later_term_is_stored(what: str) -> None:
    """Each of these asks for an answer: a group that was synced, the master, a read round."""
    opened, matchpoint = follower()
    events: list[object] = []
    channel = Streaming(events, matchpoint)
    feed = feed_of(opened, events, channel)
    task = asyncio.create_task(feed.run())
    await channel.begun.wait()
    del events[:]
    feed.synced()
    assert events == [ack_message(Ack(5, 3, 3))]
    del events[:]
    opened.log.node_file.replace(replace(opened.log.node_file.record, term=6))
    match what:
        case "synced":
            feed.synced()
        case "heartbeat":
            channel.take(heartbeat_message(Position(3, 3, 0, 5)))
        case "round":
            with pytest.raises(StaleTerm):
                channel.take(round_message(5, 1))
            feed.synced()
    with pytest.raises(ExceptionGroup) as ended:
        await task
    assert ended.group_contains(StaleTerm)
    assert events == []
