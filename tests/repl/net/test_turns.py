"""Frames and requests are budgeted by the turn of the loop; a connection that sends only tiny frames is ended."""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from repl.api import Acks
from repl.net import metered, turns
from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.net.turns import FRAMES_A_TURN, FRAMES_AT_ONCE, Turns
from repl.node.gateway import Gateway
from repl.produce_messages import decode_answers, request_header
from tests.repl.client.group import until
from tests.repl.net.test_arrivals import BINARY, CONTINUATION, PING, UPGRADE, frame
from tests.repl.net.test_net import Wire
from tests.repl.web.one_node import OneNode, started
from vlsn.format import batch
from vlsn.limits import MIB

TURN_S_MAX = 0.1
"""CPU time of the loop's thread: a machine that does other things, too, does not show."""


class Flood:
    """A flood from a thread, so that its cost is not the loop's."""

    def __init__(self, url: str, first: bytes, one: bytes, times: int) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        self._first, self._piece, self._pieces = first, one * 10_000, times // 10_000
        self.came = b""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with socket.create_connection(self._address) as sock, suppress(OSError):
            sock.sendall(UPGRADE)
            sock.recv(4096)
            reading = threading.Thread(target=self._read, args=(sock,))
            reading.start()
            with suppress(OSError):
                sock.sendall(self._first)
                for _ in range(self._pieces):
                    sock.sendall(self._piece)
            sock.shutdown(socket.SHUT_WR)
            reading.join()

    def _read(self, sock: socket.socket) -> None:
        with suppress(OSError):
            while came := sock.recv(65_536):
                self.came = (self.came + came)[-100:]

    async def over(self) -> None:
        await asyncio.to_thread(self._thread.join)

    @property
    def close_code(self) -> int:
        at = self.came.rfind(b"\x88")
        return int.from_bytes(self.came[at + 2 : at + 4], "big") if at >= 0 else 0


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Keeps the collector out of the turns: it would look through what every test before has left in this process."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Turned:
    """The longest turn of this thread's loop, by its CPU time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = time.thread_time()
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self._handle = self._loop.call_soon(self._turn)

    def restart(self) -> None:
        """Counts from here on."""
        self.longest_s, self._last = 0.0, time.thread_time()

    def stop(self) -> None:
        self._handle.cancel()


@asynccontextmanager
async def listening(node: OneNode | None = None) -> AsyncIterator[HttpListener]:
    network = AiohttpNetwork()
    listener = await network.serve("127.0.0.1", 0, Gateway((node or await started()).services).handle)
    try:
        yield listener
    finally:
        await listener.close()
        await network.close()


FLOODS = {
    "continuations": (frame(BINARY, b"x", fin=False), frame(CONTINUATION, b"x", fin=False), 1, 1_000_000),
    "empty continuations": (frame(BINARY, b"", fin=False), frame(CONTINUATION, b"", fin=False), 1, 1_000_000),
    "pings": (b"", frame(PING, b""), 20, 50_000),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_tiny_frames_takes_no_long_turn_of_the_loop_and_is_ended(kind: str) -> None:
    longest_s, codes = uvloop.run(flooded(*FLOODS[kind]))
    assert longest_s < TURN_S_MAX
    assert set(codes) == {1008}


def test_frames_are_taken_in_by_the_turn_also_where_nothing_speaks_against_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metered, "TINY_FRAMES_MAX", 1 << 62)
    longest_s, _ = uvloop.run(flooded(*FLOODS["continuations"]))
    assert longest_s < TURN_S_MAX


async def flooded(first: bytes, one: bytes, sockets: int, times: int) -> tuple[float, list[int]]:
    """Returns the longest turn meanwhile, and the codes with which the sockets were closed."""
    async with listening() as listener:
        turned = Turned()
        floods = [Flood(listener.url, first, one, times) for _ in range(sockets)]
        for flood in floods:
            await flood.over()
        turned.stop()
        return turned.longest_s, [flood.close_code for flood in floods]


TAILS = 500


def read_tails(url: str, count: int, last: bytes) -> None:
    """Reads so many tails from the log's beginning, until each has had an event that ends with ``last``."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            sock = socket.create_connection((host, int(port)))
            sock.sendall(b"GET /v1/tail?from=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            selector.register(sock, selectors.EVENT_READ, b"")
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                tail = key.data + key.fileobj.recv(1 << 20)
                if last in tail:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                else:
                    selector.modify(key.fileobj, selectors.EVENT_READ, tail[-len(last) :])


def test_an_append_that_wakes_many_tails_takes_no_long_turn_of_the_loop() -> None:
    async def tailed() -> float:
        node = await started(segment_bytes=MIB)
        async with listening(node) as listener:
            reading = asyncio.create_task(asyncio.to_thread(read_tails, listener.url, TAILS, b"the last one"))
            await until(lambda: _tails(listener) == TAILS)
            turned = Turned()
            await node.append(*(b"%05d" % number + bytes(100) for number in range(998)), b"the last one")
            await reading
            turned.stop()
            return turned.longest_s

    assert uvloop.run(tailed()) < TURN_S_MAX


def _tails(listener: HttpListener) -> int:
    """Connections that have got the head of their stream, and wait."""
    return sum(connection._request_in_progress for connection in listener._server.connections)


async def test_whoever_sends_many_messages_in_one_read_has_them_all_answered_in_order() -> None:
    async with listening() as listener:
        network = AiohttpNetwork()
        channel = await network.connect(listener.url + "/v1/produce", message_bytes_max=1 << 20, timeout_s=60)
        count = 4 * FRAMES_A_TURN
        for id in range(1, count + 1):
            await channel.send(request_header(id, Acks.MAJORITY, 30_000) + batch.encode([b"%d" % id]))
        answered: list[int] = []
        while len(answered) < count:
            answers = decode_answers(await asyncio.wait_for(channel.receive(), 60))
            assert all(answer.done for answer in answers)
            answered += [answer.id for answer in answers]
        assert answered == list(range(1, count + 1))
        await channel.close()
        await network.close()


@pytest.mark.parametrize("small", [0, 1 << 20])
async def test_messages_that_come_alone_are_answered_in_order_past_their_share_of_a_turn_too(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SMALL_A_TURN", small)
    async with listening() as listener:
        network = AiohttpNetwork()
        channel = await network.connect(listener.url + "/v1/produce", message_bytes_max=1 << 20, timeout_s=60)
        for id in range(1, 20):
            await channel.send(request_header(id, Acks.MAJORITY, 30_000) + batch.encode([b"%d" % id]))
            (answer,) = decode_answers(await asyncio.wait_for(channel.receive(), 60))
            assert (answer.id, answer.done) == (id, True)
        await channel.close()
        await network.close()


async def test_pings_now_and_then_end_nothing_and_the_last_of_several_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metered, "TINY_FRAMES_MAX", 30)
    monkeypatch.setattr(metered, "TINY_FRAMES_S", 0.0)
    async with listening() as listener, await Wire.open(listener.url) as wire:
        await wire.send(UPGRADE)
        assert (await wire.head())[0] == 101
        for number in range(20):
            await wire.send(frame(PING, b"%03d" % number) * 10 + frame(PING, b"!%02d" % number))
            expected = bytes([0x8A, 3]) + b"!%02d" % number
            await asyncio.wait_for(wire.reader.readuntil(expected), 60)


SOCKETS = 250
PIPELINED = 3
WORK_S = 0.001
"""Seconds that a node spends on one answer here."""


def readiness_that_works() -> list[str]:
    """Spends time of the loop's thread on a health check."""
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        pass
    return []


def read_answers(socks: list[socket.socket], count: int, last: bytes) -> None:
    """Reads until each socket has had ``last`` so many times."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ, [b"", 0])
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                came = key.fileobj.recv(1 << 20)
                assert came, "the connection was closed"
                came = key.data[0] + came
                *before, left = came.split(last)
                key.data[0], key.data[1] = left[1 - len(last) :], key.data[1] + len(before)
                if key.data[1] >= count:
                    selector.unregister(key.fileobj)


async def asked_at_once(node: OneNode, request: bytes, *, sockets: int, pipelined: int, last: bytes) -> float:
    """Sends so many requests before the loop turns again; the longest turn until all are answered."""
    async with listening(node) as listener:
        host, _, port = listener.url.removeprefix("http://").rpartition(":")
        socks = [await asyncio.to_thread(socket.create_connection, (host, int(port))) for _ in range(sockets)]
        await until(lambda: len(listener._server.places._strangers) == sockets)
        turned = Turned()
        for sock in socks:
            sock.sendall(request * pipelined)
        turned.restart()
        await asyncio.to_thread(read_answers, socks, pipelined, last)
        turned.stop()
        for sock in socks:
            sock.close()
        return turned.longest_s


def test_requests_take_turns_whatever_each_of_them_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ready = b'"reasons":[]}'

    async def asked() -> float:
        node = await started()
        monkeypatch.setattr(node.services.monitoring, "readiness", readiness_that_works)
        return await asked_at_once(node, ask, sockets=SOCKETS, pipelined=PIPELINED, last=ready)

    assert uvloop.run(asked()) < TURN_S_MAX


def test_heads_are_parsed_in_turns() -> None:
    fields = b"".join(b"X-%02d: %b\r\n" % (number, b"x" * 40) for number in range(90))
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n"
    alive = b'{"alive":true}'

    async def asked() -> float:
        return await asked_at_once(await started(), ask, sockets=300, pipelined=24, last=alive)

    assert uvloop.run(asked()) < TURN_S_MAX


def test_pages_of_escapes_are_encoded_in_turns_and_end_when_they_are_long() -> None:
    ask = b"GET /v1/entries?from=4&limit=10000 HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def asked() -> float:
        node = await started(segment_bytes=32 * MIB)
        for _ in range(20):
            await node.append(*[b"\x01" * 4_000] * 250)
        return await asked_at_once(node, ask, sockets=6, pipelined=1, last=b"HTTP/1.1 ")

    assert uvloop.run(asked()) < TURN_S_MAX


async def test_a_request_is_served_in_each_turn_and_who_gives_up_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "SERVED_S_A_TURN", 0.0)
    serving, served = turns.Serving(), list[int]()

    async def request(number: int) -> None:
        await serving.turn()
        served.append(number)

    tasks = [asyncio.create_task(request(number)) for number in range(200)]
    await asyncio.sleep(0)
    for number in (5, 6, 7, 150):
        tasks[number].cancel()
    before = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        assert len(served) - before <= 2
        before = len(served)
    assert served == [number for number in range(200) if number not in (5, 6, 7, 150)]


class Waits:
    """Holds so many frames."""

    def __init__(self, line: Turns, name: str, frames: int, said: list[tuple[str, int]]) -> None:
        self._turns, self._name, self._frames, self._said = line, name, frames, said

    def go_on(self, frames_max: int) -> int:
        took = min(frames_max, self._frames)
        self._frames -= took
        self._said.append((self._name, took))
        if self._frames:
            self._turns.wait(self.go_on)
        return took


async def test_the_line_is_served_a_few_frames_each_and_a_turns_share_at_most() -> None:
    line, said = Turns(), list[tuple[str, int]]()
    line.wait(Waits(line, "flood", 10 * FRAMES_A_TURN, said).go_on)
    line.wait(Waits(line, "other", FRAMES_AT_ONCE + 1, said).go_on)
    assert line.share() == 0
    await asyncio.sleep(0)
    assert said[:4] == [("flood", 32), ("other", 32), ("flood", 32), ("other", 1)]
    assert sum(took for _, took in said) == FRAMES_A_TURN
    await asyncio.sleep(0)
    assert sum(took for _, took in said) == 2 * FRAMES_A_TURN
