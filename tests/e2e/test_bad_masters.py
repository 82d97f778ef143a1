"""A replica fed by somebody in its master's place: that feed alone ends, and its log stays.

The stand-in answers at the master's address, with the master's identity.  The replica connects anew after every
feed, so each piece of garbage has a feed of its own, and the next one shows that the replica is whole.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit
from zlib import crc32

import msgspec
import pytest

from repl.group.founding import Answer
from repl.net.network import AiohttpNetwork
from repl.web import problem
from repl.web.types import Request, Response, Upgrade
from tests.e2e.group import Group
from tests.e2e.signing import peer_door
from vlsn.errors import ChannelClosed, Halted, NotMaster, Unauthorized
from vlsn.format.block import EntryKind, decode_header
from vlsn.format.checksum import crc
from vlsn.format.feed_messages import (
    MESSAGE_BYTES_MAX,
    Ack,
    Matchpoint,
    MessageType,
    Position,
    Refuse,
    Start,
    Syncup,
    ack_message,
    blocks_message,
    decode_ack,
    decode_json,
    encode,
    heartbeat_message,
)
from vlsn.format.frame import FRAME, FRAME_BYTES
from vlsn.format.seal import seal, seal_local
from vlsn.format.submission import Values
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.seams import Channel
from vlsn.state import node_file
from vlsn.verify.dump import dump_rows

WAIT_S = 30.0


class StandIn:
    """Somebody at n1's address who feeds n2, and refuses everybody else."""

    def __init__(self, group: Group) -> None:
        self._door = peer_door(group, "n1")
        record = node_file.read(PosixDisk(), str(group.path("n1") / "node.id"))
        block = last_block(group)
        header = decode_header(block)
        self.term = record.term
        self.last = header.last_vlsn
        self.matchpoint = Matchpoint(
            vlsn=self.last,
            feed_term=self.term,
            term=header.term,
            block_first=header.first_vlsn,
            crc32c=crc(block),
            crc32=crc32(block),
        )
        answer = Answer(
            group=record.group,
            name=record.node,
            incarnation=f"{record.incarnation:016x}",
            process="0" * 16,
            term=record.term,
            empty=False,
            last_term=header.term,
            last=self.last,
            state="MASTER",
        )
        self.hello = Response(200, {}, msgspec.json.encode(answer))
        """The answer to n2 when it says hello."""
        self.hellos = 0
        self._feeds: asyncio.Queue[tuple[Channel, asyncio.Event]] = asyncio.Queue()

    async def asked(self, group: Group) -> None:
        """Returns when n2 has said hello twice more: it has outlived the answer before."""
        before = self.hellos
        await asyncio.to_thread(
            group.until, lambda: self.hellos >= before + 2 or not group.running("n2"), "n2 says hello again"
        )
        assert group.running("n2"), "n2 has ended"

    async def handle(self, request: Request) -> Response | Upgrade:
        """Answers as a member that has the group's key."""
        try:
            return await self._door.serve(request, self._answered)
        except Unauthorized as error:
            return problem.response(error)

    async def _answered(self, request: Request) -> Response | Upgrade:
        if request.path == "/v1/peer/hello" and json.loads(await request.body(1 << 16))["sender"] == "n2":
            self.hellos += 1
            return self.hello
        if request.path != "/v1/feed" or request.headers["Vlsnlog-Node"] != "n2":
            return problem.response(NotMaster("only a stand-in, and for n2"))

        async def serve(channel: Channel) -> None:
            over = asyncio.Event()
            self._feeds.put_nowait((channel, over))
            await over.wait()

        return Upgrade(serve, 1 << 20)

    @asynccontextmanager
    async def feed(self) -> AsyncIterator[Channel]:
        """Returns the next feed that n2 asks for, its SYNCUP received. On leaving it is closed."""
        async with asyncio.timeout(WAIT_S):
            channel, over = await self._feeds.get()
            try:
                syncup = decode_json(await channel.receive(), Syncup)
                assert (syncup.first, syncup.last, syncup.last_sync) == (1, self.last, self.last)
                yield channel
            finally:
                over.set()

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[Channel]:
        """Returns the same past its syncup, with a heartbeat that n2 has answered."""
        async with self.feed() as channel:
            await channel.send(encode(self.matchpoint))
            assert decode_json(await channel.receive(), Start).from_vlsn == self.last + 1
            assert decode_ack(await channel.receive()) == Ack(self.term, self.last, self.last)
            await channel.send(heartbeat_message(self.position()))
            assert decode_ack(await channel.receive()).synced == self.last
            yield channel

    def position(self, *, last: int = 0, dtvlsn: int = 0, term: int = 0) -> Position:
        return Position(last or self.last, dtvlsn or self.last, 1, term or self.term)

    def block(self, *, first: int = 0, term: int = 0) -> bytearray:
        """Returns one that might follow."""
        sealed = seal(
            [Values([b"forged"])],
            term=term or self.term,
            first_vlsn=first or self.last + 1,
            dtvlsn=self.last - 1,
            clock_us=1,
        )
        return bytearray(sealed[0].data)

    def own_entry(self, kind: EntryKind, value: bytes) -> bytes:
        """Returns a block that might follow, of the log's own."""
        return seal_local(
            [kind], [value], term=self.term, first_vlsn=self.last + 1, dtvlsn=self.last - 1, clock_us=1
        ).data


async def ended(channel: Channel) -> None:
    """Waits until the other side has hung up, and drops its last messages."""
    async with asyncio.timeout(WAIT_S):
        with suppress(ChannelClosed):
            while True:
                await channel.receive()


def last_block(group: Group) -> bytes:
    """Reads the last block of n1, which is down."""
    *_, row = dump_rows(PosixDisk(), LmdbStores(), str(group.path("n1")))
    data = (group.path("n1") / row.file).read_bytes()
    start = row.offset + FRAME_BYTES
    block: bytes = data[start : start + FRAME.unpack_from(data, row.offset)[3]]
    return block


@pytest.fixture
async def stand_in(hurt: Group) -> AsyncIterator[StandIn]:
    """Stands in n1's place while n1 and n3 are down, so that n2 cannot be elected. Afterwards n2 is the same process
    with the same log, and both are back."""
    last = hurt.settle()
    process = hurt.status("n2")["process"]
    hurt.kill("n3", "n1")
    made = StandIn(hurt)
    assert made.last == last
    parts = urlsplit(hurt.urls["n1"])
    network = AiohttpNetwork()
    assert parts.hostname
    assert parts.port
    listener = await network.serve(parts.hostname, parts.port, made.handle)
    try:
        yield made
        told = hurt.status("n2")
    finally:
        await listener.close()
        await network.close()
        if not hurt.running("n2"):
            hurt.launch("n2")
        hurt.start("n1", "n3")
    if told:
        assert (told["process"], told["range"]["last"]) == (process, last)
    settled = hurt.settle()
    assert settled > last  # a new term's own entry
    assert hurt.append(b"still here") == [settled + 1]


async def test_garbage_for_a_matchpoint_ends_that_feed_alone(stand_in: StandIn) -> None:
    right = stand_in.matchpoint
    for message in (
        b"",
        os.urandom(1000),
        bytes([MessageType.MATCHPOINT]) + b"{",
        encode(Refuse("internal", "not today")),
        encode(msgspec.structs.replace(right, vlsn=right.vlsn + 1)),
        encode(msgspec.structs.replace(right, vlsn=0)),
        encode(msgspec.structs.replace(right, feed_term=right.feed_term - 1)),
        # A peer without this log leaves no higher term behind: the stream after it has the old one.
        encode(msgspec.structs.replace(right, feed_term=right.feed_term + 5, vlsn=right.vlsn + 1)),
        encode(msgspec.structs.replace(right, feed_term=right.feed_term + 5, vlsn=0)),
    ):
        async with stand_in.feed() as channel:
            await channel.send(message)
            await ended(channel)
        async with stand_in.stream():
            pass


async def test_garbage_in_a_stream_ends_that_feed_alone(stand_in: StandIn) -> None:
    flipped_body, many = stand_in.block(), [stand_in.block() for _ in range(40)]
    flipped_body[-1] ^= 1
    for number, block in enumerate(many):
        block[:] = stand_in.block(first=stand_in.last + 1 + number)
    many[20][-1] ^= 1
    right = blocks_message(stand_in.position(last=stand_in.last + 1), [stand_in.block()])
    for message in (
        b"",
        os.urandom(5000),
        encode(stand_in.matchpoint),
        ack_message(Ack(stand_in.term, 1, 1)),
        bytes([right[0], 0x80]) + right[2:],  # a flag that there is none of
        blocks_message(stand_in.position(), [flipped_body]),
        blocks_message(stand_in.position(), many),
        blocks_message(stand_in.position(), [stand_in.block(first=stand_in.last + 2)]),
        blocks_message(stand_in.position(), [stand_in.block(term=stand_in.term + 1)]),
        blocks_message(stand_in.position(term=stand_in.term + 1), [stand_in.block()]),
        heartbeat_message(stand_in.position(term=stand_in.term + 1)),
        heartbeat_message(stand_in.position(dtvlsn=stand_in.last + 1)),
        blocks_message(stand_in.position(), [stand_in.block(term=stand_in.term - 1)]),
        blocks_message(stand_in.position(), [stand_in.own_entry(EntryKind.TERM, b"no JSON")]),
        blocks_message(stand_in.position(), [stand_in.own_entry(EntryKind.GROUP, b"{}")]),
        bytes(MESSAGE_BYTES_MAX + 1024),
    ):
        async with stand_in.stream() as channel:
            with suppress(ChannelClosed):
                await channel.send(message)
            await ended(channel)
    async with stand_in.stream():
        pass


async def test_garbage_for_a_hello_is_asked_again(hurt: Group, stand_in: StandIn) -> None:
    right = stand_in.hello
    answer = json.loads(bytes(right.body))
    for garbage in (
        Response(200, {}, json.dumps({**answer, "group": "another"}).encode()),
        Response(200, {}, json.dumps({**answer, "name": "n3"}).encode()),
        Response(200, {}, json.dumps({**answer, "incarnation": "xyz"}).encode()),
        Response(200, {}, json.dumps({**answer, "last": 1 << 70}).encode()),
        Response(500, {"Content-Type": "text/html"}, b"<html>"),
        Response(307, {"Location": "http://127.0.0.1:9/"}),
    ):
        async with stand_in.stream():
            stand_in.hello = garbage
        await stand_in.asked(hurt)
        stand_in.hello = right
    async with stand_in.stream():
        pass


async def test_a_master_that_says_it_has_halted_halts_nobody_else(hurt: Group, stand_in: StandIn) -> None:
    right = stand_in.hello
    async with stand_in.stream():
        stand_in.hello = problem.response(Halted("diverged"))
    await stand_in.asked(hurt)
    assert hurt.status("n2")["state"] == "UNKNOWN"
    stand_in.hello = right
    async with stand_in.stream():
        pass


async def test_a_term_that_no_record_holds_ends_that_feed_alone(stand_in: StandIn) -> None:
    async with stand_in.feed() as channel:
        await channel.send(encode(msgspec.structs.replace(stand_in.matchpoint, feed_term=1 << 70)))
        await ended(channel)
    async with stand_in.stream():
        pass
