"""A feeder takes only ACKs of its own term from its replica, for blocks that it has sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from feeder.feeder import Feeder, Messages
from feeder.source import Mode
from tests.feeder.test_source_rollback import inline
from tests.vlsn.logs import Machine, Opened
from vlsn.errors import BadBody
from vlsn.format.feed_messages import Ack, MessageType, Start, Syncup, ack_message, encode, message_type
from vlsn.ids import Term, Vlsn
from vlsn.seams import Buffer, Channel


class Replica(Channel):
    """An empty replica that has got past its syncup, and then sends the messages that the test adds to ``take``."""

    def __init__(self) -> None:
        self.begun, self.fed = asyncio.Event(), asyncio.Event()
        empty = Syncup(first=0, last=0, last_sync=0, stored_term=0, term_runs=[])
        self._says = [encode(Start(1)), encode(empty)]

    async def send(self, message: Buffer) -> None:
        self.send_now(message)

    def send_now(self, message: Buffer) -> bool:
        if message_type(bytes(message)) is MessageType.BLOCKS:
            self.fed.set()
        return True

    def received_bytes(self) -> int:
        return 0

    async def receive(self) -> bytes:
        return self._says.pop()

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        self.take = take
        self.begun.set()
        await asyncio.Event().wait()

    async def close(self, code: int = 1000) -> None:
        pass


class Owner:
    """The master, as far as it counts acknowledgements."""

    def __init__(self) -> None:
        self.messages = Messages()
        self.acks: list[Ack] = []

    def acknowledged(self, feeder: Feeder, ack: Ack) -> None:
        self.acks.append(ack)

    def switched(self, feeder: Feeder, mode: Mode) -> None:
        pass

    def answered(self, feeder: Feeder, number: int) -> None:
        pass

    def matched(self, feeder: Feeder, at: Vlsn) -> None:
        pass

    def past_syncup(self, feeder: Feeder) -> None:
        pass


@pytest.mark.parametrize(("term", "beyond"), [(0, 1), (0, 1000), (1, 0), (-1, 0)])
async def test_an_acknowledgement_of_another_term_or_of_what_was_never_sent_is_none(term: int, beyond: int) -> None:
    """The ACK would make durable what nobody has."""
    opened = Opened(Machine())
    for _ in range(3):
        opened.append(b"value")
    log, channel, owner = opened.log, Replica(), Owner()
    own = Term(log.view.history.last_term + 1)
    feeder = Feeder(
        replica="n2",
        incarnation=2,
        term=own,
        log=log,
        channel=channel,
        owner=owner,
        offload=inline,
        heartbeat_s=60.0,
    )
    task = asyncio.create_task(feeder.run())
    await channel.begun.wait()
    await channel.fed.wait()
    last = log.view.range.last
    assert feeder.sent == last
    good = Ack(own, last, last)
    assert channel.take(ack_message(good)) and owner.acks == [good]
    with pytest.raises(BadBody):
        channel.take(ack_message(Ack(Term(own + term), Vlsn(last + beyond), Vlsn(last + beyond))))
    assert owner.acks == [good] and feeder.acked == last
    task.cancel()
    await asyncio.wait([task])
