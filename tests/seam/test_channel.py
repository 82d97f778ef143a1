"""The network seam: aiohttp on real sockets, on two loops, and ``FakeNet`` behave the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import uvloop

from repl.net.client_network import ClientNetwork
from repl.net.network import AiohttpNetwork
from repl.web import problem
from repl.web.types import Handler, Network, Request, Response, Upgrade
from tests.fakes.loop import run
from tests.fakes.net import FakeNet
from vlsn.errors import ChannelClosed, StaleTerm, Unreachable
from vlsn.limits import MIB
from vlsn.seams import Channel

Body = Callable[["Pair"], Awaitable[None]]
RunBody = Callable[[Body], None]
MESSAGE_MAX = 4 * MIB


class Pair:
    """Two processes' networks; the second one serves."""

    def __init__(self, here: Network, there: Network) -> None:
        self.here = here
        self.there = there

    @asynccontextmanager
    async def served(self, handler: Handler) -> AsyncIterator[str]:
        listener = await self.there.serve("127.0.0.1", 0, handler)
        try:
            yield listener.url
        finally:
            await self.here.close()
            await listener.close()

    @asynccontextmanager
    async def channel(self, run_channel: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[Channel]:
        async def handler(request: Request) -> Upgrade:
            return Upgrade(run_channel, MESSAGE_MAX)

        async with self.served(handler) as url:
            channel = await self.here.connect(f"{url}/v1/feed", message_bytes_max=MESSAGE_MAX, timeout_s=10)
            try:
                yield channel
            finally:
                await channel.close()


def real_pair() -> Pair:
    return Pair(AiohttpNetwork(), AiohttpNetwork())


def client_pair() -> Pair:
    """Makes a client's network, which has public parts of aiohttp alone, and a node's."""
    return Pair(ClientNetwork(), AiohttpNetwork())


def fake_pair() -> Pair:
    net = FakeNet(asyncio.get_running_loop(), Random(5))
    return Pair(net.host("here"), net.host("there"))


def narrow_pair() -> Pair:
    """Makes links of 10 MB/s, so that each message takes time."""
    net = FakeNet(asyncio.get_running_loop(), Random(5))
    net.width = lambda source, target: 10e6
    return Pair(net.host("here"), net.host("there"))


MADE: dict[str, tuple[Callable[[Coroutine[Any, Any, None]], None], Callable[[], Pair]]] = {
    "asyncio": (asyncio.run, real_pair),
    "uvloop": (uvloop.run, real_pair),
    "asyncio, client": (asyncio.run, client_pair),
    "uvloop, client": (uvloop.run, client_pair),
    "fake": (run, fake_pair),
    "fake, narrow links": (run, narrow_pair),
}


@pytest.fixture(params=list(MADE))
def run_body(request: pytest.FixtureRequest) -> RunBody:
    on_loop, make = MADE[request.param]

    def run_it(body: Body) -> None:
        async def main() -> None:
            pair = make()
            try:
                async with asyncio.timeout(60):
                    await body(pair)
            finally:
                await pair.here.close()
                await pair.there.close()

        on_loop(main())

    return run_it


# Requests.


def test_a_request_arrives_as_it_was_sent_and_so_does_its_answer(run_body: RunBody) -> None:
    seen: list[Any] = []

    async def handler(request: Request) -> Response:
        body = await request.body(1000)
        seen.append((request.method, request.path, dict(request.query), request.headers.get("x-one"), body))
        return Response(201, {"X-Two": "2"}, body[::-1])

    async def body(pair: Pair) -> None:
        async with pair.served(handler) as url:
            answer = await pair.here.request(
                "POST", f"{url}/v1/a?b=c%20d&e=", headers={"X-One": "1"}, body=b"12345", timeout_s=10
            )
        assert seen == [("POST", "/v1/a", {"b": "c d", "e": ""}, "1", b"12345")]
        assert (answer.status, answer.headers["x-two"], bytes(answer.body)) == (201, "2", b"54321")

    run_body(body)


def test_a_streamed_answer_arrives_whole(run_body: RunBody) -> None:
    closed: list[str] = []

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in all_pieces():
                yield piece
        finally:
            closed.append("closed")

    async def all_pieces() -> AsyncGenerator[bytes, None]:
        for number in range(5):
            yield bytes([number]) * 1000
            await asyncio.sleep(0)

    async def handler(request: Request) -> Response:
        return Response(200, {}, b"", pieces())

    async def body(pair: Pair) -> None:
        async with pair.served(handler) as url:
            answer = await pair.here.request("GET", f"{url}/", timeout_s=10)
        assert bytes(answer.body) == b"".join(bytes([number]) * 1000 for number in range(5))
        assert closed == ["closed"]
        closed.clear()

    run_body(body)


def test_a_redirect_is_not_followed(run_body: RunBody) -> None:
    async def handler(request: Request) -> Response:
        return Response(307, {"Location": "http://127.0.0.1:1/elsewhere"})

    async def body(pair: Pair) -> None:
        async with pair.served(handler) as url:
            answer = await pair.here.request("POST", f"{url}/", body=b"x", timeout_s=10)
        assert (answer.status, answer.headers["location"]) == (307, "http://127.0.0.1:1/elsewhere")

    run_body(body)


def test_where_nobody_listens_is_unreachable(run_body: RunBody) -> None:
    async def handler(request: Request) -> Response:
        return Response()

    async def body(pair: Pair) -> None:
        async with pair.served(handler) as url:
            pass
        with pytest.raises(Unreachable):
            await pair.here.request("GET", url, timeout_s=10)
        with pytest.raises(Unreachable):
            await pair.here.connect(url, message_bytes_max=MESSAGE_MAX, timeout_s=10)

    run_body(body)


def test_no_answer_in_time_is_unreachable_and_the_handler_is_cancelled(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        cancelled = asyncio.Event()

        async def handler(request: Request) -> Response:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return Response()

        async with pair.served(handler) as url:
            with pytest.raises(Unreachable):
                await pair.here.request("GET", url, timeout_s=0.05)
            await cancelled.wait()
            with pytest.raises(Unreachable):
                await pair.here.connect(url, message_bytes_max=MESSAGE_MAX, timeout_s=0.05)

    run_body(body)


def test_an_address_is_had_once(run_body: RunBody) -> None:
    async def handler(request: Request) -> Response:
        return Response()

    async def body(pair: Pair) -> None:
        async with pair.served(handler) as url:
            port = int(url.rsplit(":", 1)[1])
            with pytest.raises(OSError, match="in use"):
                await pair.there.serve("127.0.0.1", port, handler)
        again = await pair.there.serve("127.0.0.1", port, handler)
        assert again.url == url
        await again.close()

    run_body(body)


# Channels.


async def noted_end(work: Awaitable[None], said: list[str], ended: asyncio.Event) -> None:
    """Notes when the channel that ``work`` uses is closed."""
    try:
        await work
    except ChannelClosed:
        said.append("closed")
    ended.set()


async def echo(channel: Channel) -> None:
    try:
        while True:
            await channel.send(await channel.receive())
    except ChannelClosed:
        return


def test_messages_arrive_whole_and_in_order_both_ways(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        async with pair.channel(echo) as channel:
            sent = [b"", b"one", bytes(3 * MIB), *(b"%d" % number for number in range(200))]
            for message in sent[:3]:
                await channel.send(message)
                assert await channel.receive() == message
            for message in sent[3:]:
                await channel.send(memoryview(message))
            assert [await channel.receive() for _ in sent[3:]] == sent[3:]

    run_body(body)


def test_a_refusal_before_the_upgrade_is_raised_by_its_slug(run_body: RunBody) -> None:
    async def handler(request: Request) -> Response:
        return problem.response(StaleTerm("term 3 is behind 5"))

    async def body(pair: Pair) -> None:
        async with pair.served(handler) as url:
            with pytest.raises(StaleTerm, match="term 3 is behind 5"):
                await pair.here.connect(url, message_bytes_max=MESSAGE_MAX, timeout_s=10)

    run_body(body)


def test_what_was_sent_before_a_close_is_received_before_it(run_body: RunBody) -> None:
    async def three_then_close(channel: Channel) -> None:
        for number in range(3):
            await channel.send(b"%d" % number)

    async def body(pair: Pair) -> None:
        async with pair.channel(three_then_close) as channel:
            assert [await channel.receive() for _ in range(3)] == [b"0", b"1", b"2"]
            with pytest.raises(ChannelClosed):
                await channel.receive()
            with pytest.raises(ChannelClosed):
                await channel.send(b"too late")

    run_body(body)


def test_a_closed_channel_is_of_no_use_at_either_end(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        other_end: list[str] = []
        ended = asyncio.Event()

        async def wait(channel: Channel) -> None:
            await channel.receive()

        async with pair.channel(lambda channel: noted_end(wait(channel), other_end, ended)) as channel:
            await channel.close()
            await channel.close()
            with pytest.raises(ChannelClosed):
                await channel.send(b"x")
            with pytest.raises(ChannelClosed):
                await channel.receive()
            await ended.wait()
        assert other_end == ["closed"]

    run_body(body)


def test_a_message_over_the_limit_ends_the_channel(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        seen: list[str] = []
        ended = asyncio.Event()

        async def receive_all(channel: Channel) -> None:
            while True:
                seen.append(f"{len(await channel.receive())} bytes")

        async with pair.channel(lambda channel: noted_end(receive_all(channel), seen, ended)) as channel:
            await channel.send(b"within")
            await channel.send(bytes(MESSAGE_MAX + 1))
            await ended.wait()
            with pytest.raises(ChannelClosed):
                await channel.receive()
        assert seen == ["6 bytes", "closed"]

    run_body(body)


def test_a_sender_waits_for_a_receiver_that_does_not_receive(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        go_on, ended = asyncio.Event(), asyncio.Event()
        received: list[int] = []

        async def receive_late(channel: Channel) -> None:
            await go_on.wait()
            received.extend([(await channel.receive())[0] for _ in range(100)])
            ended.set()

        async with pair.channel(receive_late) as channel:
            sent: list[int] = []

            async def send_all() -> None:
                for number in range(100):
                    await channel.send(bytes([number]) * MIB)
                    sent.append(number)

            sender = asyncio.get_running_loop().create_task(send_all())
            await asyncio.wait([sender], timeout=1.0)
            assert not sender.done(), "100 MiB were taken from the sender, and nobody received"
            assert len(sent) < 50
            go_on.set()
            await sender
            await ended.wait()
        assert received == list(range(100))

    run_body(body)


async def count_to(channel: Channel, last: int) -> None:
    for number in range(last):
        await channel.send(b"%d" % number)


def test_what_comes_is_delivered_as_far_as_it_is_wanted_and_the_rest_waits(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        async with pair.channel(lambda channel: count_to(channel, 300)) as channel:
            taken: list[int] = []

            def take(message: bytes) -> bool:
                taken.append(int(message))
                return len(taken) % 70 != 0

            for stop in (70, 140):
                await channel.deliver(take)
                assert taken == list(range(stop))
            taken.append(int(await channel.receive()))
            while len(taken) < 280:
                await channel.deliver(take)
            with pytest.raises(ChannelClosed):
                await channel.deliver(take)
        assert taken == list(range(300)), "what was sent before the close is delivered before it"

    run_body(body)


def test_large_messages_that_nobody_wanted_yet_are_delivered_when_they_are(run_body: RunBody) -> None:
    sent = [bytes([number]) * (number * 50_000 + 1) for number in range(60)]

    async def send_all(channel: Channel) -> None:
        for message in sent:
            await channel.send(message)
        await channel.receive()

    async def body(pair: Pair) -> None:
        async with pair.channel(send_all) as channel:
            taken: list[bytes] = []

            def take(message: bytes) -> bool:
                taken.append(message)
                return len(taken) % 7 != 0

            while len(taken) < 56:
                await channel.deliver(take)
                await asyncio.sleep(0.01)
            taken += [await channel.receive() for _ in range(4)]
            await channel.send(b"enough")
        assert taken == sent

    run_body(body)


def test_what_a_taker_raises_ends_the_delivery_and_the_channel_goes_on(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        async with pair.channel(echo) as channel:

            def take(message: bytes) -> bool:
                if message == b"bad":
                    raise ValueError("no such message")
                return True

            for message in (b"good", b"bad", b"next"):
                await channel.send(message)
            with pytest.raises(ValueError, match="no such message"):
                await channel.deliver(take)
            assert await channel.receive() == b"next"

    run_body(body)


def test_nothing_is_taken_once_a_delivery_was_cancelled(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        async with pair.channel(echo) as channel:
            taken: list[bytes] = []
            first = asyncio.Event()

            def take(message: bytes) -> bool:
                taken.append(message)
                first.set()
                return True

            delivering = asyncio.get_running_loop().create_task(channel.deliver(take))
            await channel.send(b"one")
            await first.wait()
            delivering.cancel()
            await asyncio.wait([delivering])
            assert delivering.cancelled()
            await channel.send(b"two")
            assert await channel.receive() == b"two"
        assert taken == [b"one"]

    run_body(body)


def test_a_delivery_ends_with_the_other_side_and_with_a_message_over_the_limit(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        seen: list[str] = []
        over = asyncio.Event()

        def take(message: bytes) -> bool:
            seen.append(f"{len(message)} bytes")
            return True

        async def deliver_all(channel: Channel) -> None:
            await noted_end(channel.deliver(take), seen, over)

        async with pair.channel(deliver_all) as channel:
            await channel.send(b"within")
            await channel.send(bytes(MESSAGE_MAX + 1))
            await over.wait()
        assert seen == ["6 bytes", "closed"]
        seen.clear()
        over.clear()
        async with pair.channel(deliver_all) as channel:
            await channel.send(b"within")
            await channel.close()
            await over.wait()
        assert seen == ["6 bytes", "closed"]

    run_body(body)


def test_a_sender_that_waits_is_woken_by_the_end_of_the_other_side(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        leave = asyncio.Event()

        async def never_receive(channel: Channel) -> None:
            await leave.wait()

        async def send_on(channel: Channel) -> None:
            while True:
                await channel.send(bytes(MIB))

        async with pair.channel(never_receive) as channel:
            sender = asyncio.get_running_loop().create_task(send_on(channel))
            await asyncio.wait([sender], timeout=0.3)
            assert not sender.done()
            leave.set()
            with pytest.raises(ChannelClosed):
                await sender

    run_body(body)


def test_a_listener_that_closes_ends_its_channels(run_body: RunBody) -> None:
    async def body(pair: Pair) -> None:
        async def handler(request: Request) -> Upgrade:
            return Upgrade(echo, MESSAGE_MAX)

        listener = await pair.there.serve("127.0.0.1", 0, handler)
        channel = await pair.here.connect(listener.url, message_bytes_max=MESSAGE_MAX, timeout_s=10)
        await channel.send(b"still there")
        assert await channel.receive() == b"still there"
        closing = asyncio.get_running_loop().create_task(listener.close())
        with pytest.raises(ChannelClosed):
            await channel.receive()
        await channel.close()
        await closing

    run_body(body)


def test_who_has_connected_closes_without_a_word_from_the_other_side(run_body: RunBody) -> None:
    """The other side may be suspended: a replica that leaves its feed to elect another master must not wait for it."""
    ended = asyncio.Event()

    async def stands_still(channel: Channel) -> None:
        await ended.wait()

    async def body(pair: Pair) -> None:
        async with pair.channel(stands_still) as channel:
            await channel.send(b"the last word")
            closing = asyncio.create_task(channel.close())
            for _ in range(20):
                await asyncio.sleep(0)
            done = closing.done()
            ended.set()
            await closing
            assert done

    run_body(body)
