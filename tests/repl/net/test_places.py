"""Connections are bounded; silence gives way, half heads end, and members and health checks always get through."""

from __future__ import annotations

import asyncio

import pytest

from repl import connect
from repl.api import Acks
from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.net.places import Guest, Places
from repl.net.turns import GoOn
from repl.node.gateway import Gateway
from repl.produce_messages import request_header
from repl.web.types import GAVE_WAY
from tests.repl.client.group import until
from tests.repl.net.test_arrivals import BINARY, UPGRADE, frame
from tests.repl.net.test_net import Wire, post
from tests.repl.web.one_node import FIRST, OneNode, started
from vlsn.format import batch

PLACES, KEPT = 16, 4
STRANGERS = PLACES - KEPT
WAITING = b"GET /v1/entries?from=1000&wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Counted(Places):
    """Says how many have come."""

    entered = 0

    def enter(self, guest: Guest) -> None:
        super().enter(guest)
        self.entered += 1


@pytest.fixture
async def listener(listener: HttpListener) -> HttpListener:
    listener._server.places.close()
    listener._server.places = Counted(head_s=30.0, connections_max=PLACES, kept=KEPT)
    return listener


async def opened(listener: HttpListener, count: int, data: bytes = b"") -> list[Wire]:
    """Opens so many connections, which the node has seen, one after the other."""
    seen, wires = listener._server.places, []
    assert isinstance(seen, Counted)
    for _ in range(count):
        due = seen.entered + 1
        wires.append(await Wire.open(listener.url))
        await wires[-1].send(data)
        await until(lambda due=due: seen.entered >= due)  # type: ignore[misc]
    return wires


def _busy(listener: HttpListener) -> int:
    """Strangers that have something under way."""
    return sum(guest.idle_since is None for guest in listener._server.places._strangers)


async def closed(wire: Wire) -> bool:
    """Says whether the node has closed it by now; later traffic of another connection comes behind that."""
    reading = asyncio.ensure_future(wire.reader.read())
    for _ in range(20):  # by looks at the loop, too: a process that stood still has not looked
        await asyncio.wait([reading], timeout=0.01)
        if reading.done():
            break
    reading.cancel()
    await asyncio.wait([reading])
    try:
        return reading.result() == b""
    except asyncio.CancelledError:
        return False
    except ConnectionError:
        return True


async def test_silent_connections_give_way_the_longest_idle_first(listener: HttpListener) -> None:
    silent = await opened(listener, STRANGERS)
    for number in range(3):
        async with await Wire.open(listener.url) as wire:
            await wire.send(post(b"a"))
            assert (await wire.answer())[0] == 200
            assert await closed(silent[number])
            assert not await closed(silent[number + 1])
            silent += await opened(listener, 1)
    for wire in silent:
        wire.writer.close()


async def test_whoever_never_sent_a_request_gives_way_before_whoever_did(listener: HttpListener) -> None:
    async with await Wire.open(listener.url) as known:
        await known.send(post(b"a"))
        assert (await known.answer())[0] == 200
        silent = await opened(listener, 2 * STRANGERS)
        await known.send(post(b"b"))
        assert (await known.answer())[0] == 200
        for wire in silent:
            wire.writer.close()


async def test_members_operators_and_health_checks_get_through_when_all_others_are_busy(
    listener: HttpListener,
) -> None:
    busy = await opened(listener, STRANGERS, WAITING)
    await until(lambda: _busy(listener) == STRANGERS)
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"a"))
        status, fields, body = await wire.answer()
        assert (status, fields["Connection"]) == (429, "close")
        assert b'"type":"queue-full"' in body
        assert await closed(wire)
    for target in (b"GET /healthz", b"GET /metrics", b"POST /v1/peer/hello", b"POST /v1/admin/checkpoint"):
        async with await Wire.open(listener.url) as wire:
            await wire.send(target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            assert (await wire.answer())[0] != 429, target
    for wire in busy:
        wire.writer.close()


async def test_a_stranger_to_the_path_of_members_gets_no_kept_place(listener: HttpListener) -> None:
    listener._keeps = lambda request: request.headers.get("X-Signed") == "yes"
    busy = await opened(listener, STRANGERS, WAITING)
    await until(lambda: _busy(listener) == STRANGERS)
    head = b"POST /v1/peer/hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
    for signed, refused in ((b"", True), (b"X-Signed: yes\r\n", False)):
        async with await Wire.open(listener.url) as wire:
            await wire.send(head + signed + b"\r\n")
            assert ((await wire.answer())[0] == 429) is refused
    for wire in busy:
        wire.writer.close()


async def test_silence_does_not_take_the_kept_places_either(listener: HttpListener) -> None:
    busy = await opened(listener, STRANGERS, WAITING)
    await until(lambda: _busy(listener) == STRANGERS)
    silent = await opened(listener, 2 * KEPT)
    async with await Wire.open(listener.url) as wire:
        await wire.send(HEALTH)
        assert (await wire.answer())[0] == 200
    assert [await closed(wire) for wire in silent] == [True] * (KEPT + 1) + [False] * (KEPT - 1)
    busy[0].writer.close()
    await until(lambda: not listener._server.places._strangers or len(listener._server.places._strangers) < STRANGERS)
    await silent[-1].send(post(b"a"))  # there is room again
    assert (await silent[-1].answer())[0] == 200
    for each in (*busy, *silent):
        each.writer.close()


async def test_a_producer_with_nothing_under_way_gives_way_and_one_that_waits_for_its_answer_does_not(
    listener: HttpListener, node: OneNode
) -> None:
    node.hold = True
    asks, rests = await opened(listener, 2, UPGRADE)
    for wire in (asks, rests):
        assert (await wire.head())[0] == 101
    message = request_header(1, Acks.MAJORITY, 30_000) + batch.encode([b"a"])
    await asks.send(frame(BINARY, message))
    await node.until_unanswered(1)
    sweep(listener)
    busy = await opened(listener, STRANGERS - 1, WAITING)
    assert (await asyncio.wait_for(rests.reader.read(), 10)).startswith(b"\x88")
    node.release()
    assert (await asyncio.wait_for(asks.reader.readexactly(2), 10))[0] == 0x82
    for wire in (asks, rests, *busy):
        wire.writer.close()


def sweep(listener: HttpListener) -> None:
    """Has each connection looked at, as it is once a second."""
    for connection in listener._server.connections:
        connection.swept(asyncio.get_running_loop().time())  # type: ignore[attr-defined]


async def test_silent_producers_give_way_to_a_client_and_are_told_why(listener: HttpListener, node: OneNode) -> None:
    silent = await opened(listener, STRANGERS, UPGRADE)
    for wire in silent:
        assert (await wire.head())[0] == 101
    sweep(listener)
    async with connect(listener.url) as log:
        assert await log.append(b"a") == FIRST
        said = await asyncio.wait_for(silent[0].reader.read(), 10)
        assert said[:1] == b"\x88" and int.from_bytes(said[2:4], "big") == GAVE_WAY
        assert b"others have no place" in said[4:]
        assert not await closed(silent[-1])
    for wire in silent:
        wire.writer.close()


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_an_append_that_meets_its_connection_as_it_gives_way_is_logged_once(
    listener: HttpListener, node: OneNode, exactly_once: bool
) -> None:
    async with connect(listener.url, exactly_once=exactly_once) as log:
        assert await log.append(b"a") == FIRST
        [connection] = [each for each in listener._server.connections if each._upgrade is not None]  # type: ignore[attr-defined]
        assert connection.transport is not None and log._producer is not None
        connection.transport.pause_reading()  # it comes too late to be taken
        appending = asyncio.create_task(log.append(b"b"))
        await until(lambda: bool(log._producer and log._producer._in_flight))
        listener._server.places._close(connection)  # type: ignore[arg-type]
        assert await appending == FIRST + 1
    assert node.submitted == [(None, b"a"), (None, b"b")]


async def test_what_waits_for_its_turn_is_not_taken_once_its_connection_gave_way(
    listener: HttpListener, node: OneNode
) -> None:
    async with connect(listener.url) as log:
        assert await log.append(b"a") == FIRST
        [connection] = [each for each in listener._server.connections if each._upgrade is not None]  # type: ignore[attr-defined]
        line: list[GoOn] = []
        with pytest.MonkeyPatch.context() as patch:
            for name, said in (("small", lambda: False), ("share", lambda: 0), ("wait", line.append)):
                patch.setattr(listener._turns, name, said)
            appending = asyncio.create_task(log.append(b"b"))
            await until(lambda: bool(line))
        sweep(listener)
        sweep(listener)
        assert connection.idle_since is None  # type: ignore[attr-defined]
        listener._server.places._close(connection)  # type: ignore[arg-type]
        assert line[0](10) == 0
        assert await appending == FIRST + 1
    assert node.submitted == [(None, b"a"), (None, b"b")]


async def test_few_places_are_kept_by_half() -> None:
    places = Places(head_s=30.0, connections_max=6)
    guests = [Silent() for _ in range(7)]
    for guest in guests:
        places.enter(guest)
    assert [guest.gave_way for guest in guests] == [True] * 4 + [False] * 3
    places.close()


class Silent:
    """A guest that never says anything."""

    kept = False
    head_since = 1.0
    silent = True
    idle_since = 1.0
    context = None

    def __init__(self) -> None:
        self.gave_way = False

    def end(self) -> None:
        self.give_way()

    def swept(self, now: float) -> None:
        pass

    def give_way(self) -> None:
        self.gave_way = True


async def test_half_a_head_is_not_waited_for_however_it_drips() -> None:
    network = AiohttpNetwork(head_s=0.4, idle_s=30.0)
    gateway = Gateway((await started()).services)
    listener = await network.serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick)
    loop = asyncio.get_running_loop()
    silent, idle, quick = [await Wire.open(listener.url) for _ in range(3)]
    for wire in (idle, quick):  # the second one's head is known already
        await wire.send(post(b"a"))
        assert (await wire.answer())[0] == 200
    began = loop.time()
    async with await Wire.open(listener.url) as wire:
        await wire.send(HEALTH)
        assert (await wire.answer())[0] == 200
        await wire.send(HEALTH[:-2])
        while not await closed(wire):
            wire.writer.write(b"X: x\r\n")
            assert loop.time() - began < 60
    assert await closed(silent)
    silent.writer.close()
    for wire in (idle, quick):
        assert not await closed(wire)
        wire.writer.close()
    await listener.close()
    await network.close()


async def test_a_slow_body_is_no_half_head() -> None:
    network = AiohttpNetwork(head_s=0.2, idle_s=30.0)
    listener = await network.serve("127.0.0.1", 0, Gateway((await started()).services).handle)
    async with await Wire.open(listener.url) as wire:
        whole = post(b"x" * 100)
        await wire.send(whole[:-50])
        assert not await closed(wire)
        assert not await closed(wire)
        await wire.send(whole[-50:])
        assert (await wire.answer())[0] == 200
    await listener.close()
    await network.close()
