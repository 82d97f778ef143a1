"""The fake network beyond the seam: partitions, cuts, deaths, and the same behaviour again from a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from repl.web.types import Headers, Request, Response, Upgrade
from tests.fakes.loop import run, virtual
from tests.fakes.net import FakeHost, FakeNet
from vlsn.errors import ChannelClosed, Unreachable
from vlsn.seams import Channel

STALL_S = 2.0


def new_net(seed: int = 1, *, cut_rate: float = 0.0) -> FakeNet:
    loop = asyncio.get_running_loop()
    return FakeNet(loop, Random(seed), delay_s=(0.01, 0.05), stall_s=STALL_S, window_bytes=1000, cut_rate=cut_rate)


class Collected:
    """The server's end of one channel, and the messages that arrived there."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ended_at: float | None = None
        self.channel: Channel | None = None

    async def run(self, channel: Channel) -> None:
        self.channel = channel
        try:
            while True:
                self.messages.append(await channel.receive())
        except ChannelClosed:
            self.ended_at = asyncio.get_running_loop().time()


async def connected(net: FakeNet) -> tuple[FakeHost, Channel, Collected]:
    """Connects n2 to n1, which serves."""
    n1, n2, end = net.host("n1"), net.host("n2"), Collected()

    async def handler(request: Request) -> Upgrade:
        return Upgrade(end.run, 1 << 20)

    await n1.serve("n1", 7701, handler)
    return n2, await n2.connect("http://n1:7701/", message_bytes_max=1 << 20, timeout_s=3), end


@virtual
async def test_a_message_takes_the_way_s_time_and_a_slow_link_longer() -> None:
    net = new_net()
    net.delays_s["n2", "n1"] = (5.0, 5.0)
    loop, n1, n2 = asyncio.get_running_loop(), net.host("n1"), net.host("n2")

    async def handler(request: Request) -> Response:
        return Response()

    await n1.serve("n1", 1, handler)
    began = loop.time()
    await n2.request("GET", "http://n1:1/", timeout_s=60)
    assert 5.01 <= loop.time() - began <= 5.05


@virtual
async def test_a_short_partition_delays_a_long_one_cuts() -> None:
    net = new_net()
    _, channel, end = await connected(net)
    net.split(["n1"], ["n2", "n3"])
    await channel.send(b"one")
    await asyncio.sleep(STALL_S / 2)
    assert end.messages == []
    net.heal()
    await asyncio.sleep(0.1)
    assert end.messages == [b"one"]
    net.split(["n1"], ["n2"])
    await channel.send(b"two")
    await asyncio.sleep(STALL_S * 1.1)
    with pytest.raises(ChannelClosed):
        await channel.receive()
    net.heal()
    await asyncio.sleep(10)
    assert end.messages == [b"one"], "delivered after the cut"
    assert end.ended_at is not None


@virtual
async def test_a_quiet_channel_outlives_any_partition() -> None:
    net = new_net()
    _, channel, end = await connected(net)
    net.split(["n1"], ["n2"])
    await asyncio.sleep(100)
    net.heal()
    await channel.send(b"still there")
    await asyncio.sleep(1)
    assert end.messages == [b"still there"]


@virtual
async def test_a_one_way_block_lets_the_other_way_through_until_it_stalls() -> None:
    net = new_net()
    _, channel, end = await connected(net)
    await asyncio.sleep(1)
    assert end.channel is not None
    net.block("n1", "n2")
    await channel.send(b"heard")
    await end.channel.send(b"not heard")
    await asyncio.sleep(0.1)
    assert end.messages == [b"heard"]
    with pytest.raises(ChannelClosed):
        await channel.receive()


@virtual
async def test_the_window_fills_when_only_the_way_back_is_blocked() -> None:
    net = new_net()
    _, channel, end = await connected(net)
    net.block("n1", "n2")
    for _ in range(2):
        await channel.send(bytes(500))
    third = asyncio.get_running_loop().create_task(channel.send(bytes(500)))
    await asyncio.sleep(STALL_S / 2)
    assert [len(message) for message in end.messages] == [500, 500]
    assert not third.done()
    net.heal()
    await third


@virtual
async def test_a_request_waits_for_the_way_to_open_and_no_longer_than_its_timeout() -> None:
    net = new_net()
    n1, n2 = net.host("n1"), net.host("n2")
    handled: list[str] = []

    async def handler(request: Request) -> Response:
        handled.append(request.path)
        return Response(200, {}, b"answer")

    await n1.serve("n1", 1, handler)
    loop = asyncio.get_running_loop()
    net.block("n2", "n1")
    with pytest.raises(Unreachable, match="no answer in"):
        await n2.request("GET", "http://n1:1/lost", timeout_s=3)
    loop.call_later(1, net.heal)
    assert (await n2.request("GET", "http://n1:1/late", timeout_s=3)).body == b"answer"
    assert handled == ["/late"]
    net.block("n1", "n2")
    with pytest.raises(Unreachable):
        await n2.request("POST", "http://n1:1/unanswered", timeout_s=3)
    assert handled == ["/late", "/unanswered"], "only the answer was to be lost"


@virtual
async def test_cut_ends_the_channels_between_two_at_both_ends_and_no_others() -> None:
    net = new_net()
    _, channel, end = await connected(net)
    n3 = net.host("n3")
    other = await n3.connect("http://n1:7701/", message_bytes_max=100, timeout_s=1)
    net.cut("n2", "n1")
    with pytest.raises(ChannelClosed, match="was cut"):
        await channel.receive()
    with pytest.raises(ChannelClosed, match="was cut"):
        await channel.send(b"x")
    await other.send(b"not cut")
    await asyncio.sleep(1)
    assert end.messages == [b"not cut"]


@virtual
async def test_a_killed_host_is_refused_and_its_peers_are_told() -> None:
    net = new_net()
    n2, channel, end = await connected(net)
    net.kill("n1")
    with pytest.raises(ChannelClosed, match="n1 is gone"):
        await channel.receive()
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable, match="refused"):
        await n2.connect("http://n1:7701/", message_bytes_max=100, timeout_s=60)
    assert asyncio.get_running_loop().time() - began < 1
    assert end.ended_at is None, "a killed process's task went on"


@virtual
async def test_a_host_that_dies_silently_is_missed_only() -> None:
    net = new_net()
    n2, channel, _ = await connected(net)
    net.kill("n1", silent=True)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unreachable, match="no answer in 5"):
        await n2.request("GET", "http://n1:7701/", timeout_s=5)
    assert loop.time() - began == pytest.approx(5)
    await channel.send(b"anybody?")
    with pytest.raises(ChannelClosed):
        await channel.receive()
    assert loop.time() - began == pytest.approx(5 + STALL_S, abs=0.1)


@virtual
async def test_a_host_of_the_same_name_resets_what_the_old_one_had() -> None:
    net = new_net()
    n2, channel, _ = await connected(net)
    net.kill("n1", silent=True)
    net.host("n1")
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(Unreachable, match="refused"):
        await n2.request("GET", "http://n1:7701/", timeout_s=5)


@virtual
async def test_a_dead_process_reaches_nobody() -> None:
    net = new_net()
    n2, channel, _ = await connected(net)
    net.kill("n2")
    with pytest.raises(Unreachable, match="n2 is gone"):
        await n2.request("GET", "http://n1:7701/", timeout_s=5)
    with pytest.raises(ChannelClosed):
        await channel.send(b"x")


def test_a_faulty_handler_fails_the_run() -> None:
    async def main() -> None:
        net = new_net()
        n1, n2 = net.host("n1"), net.host("n2")

        async def handler(request: Request) -> Response:
            raise ZeroDivisionError("a bug")

        await n1.serve("n1", 1, handler)
        assert (await n2.request("GET", "http://n1:1/", timeout_s=5)).status == 500

    with pytest.raises(AssertionError, match=r"handler of http://n1:1 raised.*a bug"):
        run(main())


def history(seed: int) -> list[str]:
    """Returns the times of messages and of a random cut."""
    seen: list[str] = []

    async def receive(channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                seen.append(f"{loop.time():.6f} {(await channel.receive()).decode()}")
        except ChannelClosed as error:
            seen.append(f"{loop.time():.6f} {error}")

    async def main() -> None:
        net = new_net(seed, cut_rate=0.05)
        n1, n2 = net.host("n1"), net.host("n2")

        async def handler(request: Request) -> Upgrade:
            return Upgrade(receive, 100)

        await n1.serve("n1", 1, handler)

        async def send(name: str) -> None:
            channel = await n2.connect("http://n1:1/", message_bytes_max=100, timeout_s=5)
            try:
                for number in range(20):
                    await channel.send(f"{name}{number}".encode())
                    await asyncio.sleep(0.01)
            except ChannelClosed:
                return

        senders: list[Callable[[], Awaitable[None]]] = [lambda name=name: send(name) for name in "abc"]  # type: ignore[misc]
        await asyncio.gather(*(sender() for sender in senders))
        await asyncio.sleep(10)

    run(main())
    return seen


def test_a_seed_gives_the_same_history_again_and_others_differ() -> None:
    histories = [history(seed) for seed in range(10)]
    assert histories == [history(seed) for seed in range(10)]
    assert len({tuple(one) for one in histories}) == 10
    cuts = [line for one in histories for line in one if line.endswith("drawn from the seed")]
    assert 0 < len(cuts) < 30


def narrow_net() -> FakeNet:
    """Makes a network of 1,000 bytes a second to n1, without delay."""
    net = FakeNet(asyncio.get_running_loop(), Random(1), delay_s=(0.0, 0.0), stall_s=STALL_S, window_bytes=1 << 20)
    net.width = lambda source, target: 1_000.0 if target == "n1" else 0.0
    return net


@virtual
async def test_a_narrow_link_takes_the_time_of_what_it_carries_and_the_way_back_none() -> None:
    net = narrow_net()
    loop, n1, n2 = asyncio.get_running_loop(), net.host("n1"), net.host("n2")

    async def handler(request: Request) -> Response:
        return Response(200, Headers(), bytes(50_000))

    await n1.serve("n1", 1, handler)
    began = loop.time()
    await n2.request("POST", "http://n1:1/", body=bytes(5_000), timeout_s=60)
    assert loop.time() - began == pytest.approx(5.0, abs=0.01)


@virtual
async def test_the_connections_of_a_narrow_link_share_it_and_what_fits_a_packet_passes_by() -> None:
    net = narrow_net()
    loop = asyncio.get_running_loop()
    came: list[tuple[int, int]] = []

    async def run_channel(channel: Channel) -> None:
        while True:
            size = len(await channel.receive())
            came.append((size, round(loop.time() - began)))

    async def handler(request: Request) -> Upgrade:
        return Upgrade(run_channel, 1 << 20)

    n1, n2 = net.host("n1"), net.host("n2")
    await n1.serve("n1", 7701, handler)
    dialled = [await n2.connect("http://n1:7701/", message_bytes_max=1 << 20, timeout_s=3) for _ in range(3)]
    began = loop.time()
    for channel, size in zip(dialled, (4_000, 2_000, 1_000), strict=True):
        await channel.send(bytes(size))
    await asyncio.sleep(10.0)
    assert came == [(1_000, 1), (4_000, 4), (2_000, 6)]


@virtual
async def test_what_a_lost_connection_had_sent_holds_a_narrow_link_up_no_longer() -> None:
    net = narrow_net()
    loop = asyncio.get_running_loop()
    n2, channel, end = await connected(net)
    began = loop.time()
    await channel.send(bytes(60_000))
    await asyncio.sleep(1.0)
    net.cut("n1", "n2")
    again = await n2.connect("http://n1:7701/", message_bytes_max=1 << 20, timeout_s=3)
    await again.send(bytes(2_000))
    await asyncio.sleep(1.9)
    assert not end.messages
    await asyncio.sleep(0.2)
    assert len(end.messages) == 1 and loop.time() - began < 3.2


def slow_net() -> FakeNet:
    """Makes a network that delivers messages of ended processes within a second."""
    loop = asyncio.get_running_loop()
    return FakeNet(loop, Random(1), delay_s=(1.0, 1.0), stall_s=STALL_S, late_rate=1.0)


@virtual
async def test_what_a_process_had_sent_arrives_after_its_end() -> None:
    net = slow_net()
    _, channel, end = await connected(net)
    await channel.send(b"last words")
    await asyncio.sleep(0.5)
    net.kill("n2")
    net.host("n2")
    await asyncio.sleep(0.6)
    assert end.messages == [b"last words"]
    assert end.channel is not None
    with pytest.raises(ChannelClosed, match="n2 is gone"):
        await end.channel.send(b"to nobody")
    await asyncio.sleep(1.0)
    assert end.ended_at is not None and net.late == 1


@virtual
async def test_what_a_machine_without_power_had_sent_arrives_when_it_is_back() -> None:
    net = slow_net()
    _, channel, end = await connected(net)
    await channel.send(b"last words")
    net.kill("n2", silent=True)
    await asyncio.sleep(1.5)
    assert not end.messages
    net.host("n2")
    await asyncio.sleep(0)
    assert end.messages == [b"last words"]
    await asyncio.sleep(1.1)
    assert end.ended_at is not None and net.late == 1


@pytest.mark.parametrize("ends", ["n1", "n2"])
@virtual
async def test_a_request_outlives_its_sender_and_meets_whoever_listens_then(ends: str) -> None:
    net = slow_net()
    heard: list[str] = []

    def handler_of(life: str) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            heard.append(life)
            return Response()

        return handler

    n1, n2 = net.host("n1"), net.host("n2")
    await n1.serve("n1", 7701, handler_of("first"))
    sender = n2.start(n2.request("GET", "http://n1:7701/", timeout_s=5))
    await asyncio.sleep(0.5)
    net.kill(ends)
    again = net.host(ends)
    if ends == "n1":
        await again.serve("n1", 7701, handler_of("second"))
    await asyncio.wait([sender])
    await asyncio.sleep(1.5)
    assert heard == ["second" if ends == "n1" else "first"] and net.late == 1
    assert sender.cancelled() == (ends == "n2")
