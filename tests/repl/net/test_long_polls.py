"""Long-polls on the short way, over real sockets: no handler, the same answers, the same limits."""

from __future__ import annotations

import pytest

from repl.net.connection import KNOWN_POLLS_MAX
from repl.net.listener import HttpListener
from repl.node.gateway import Gateway
from repl.web.types import Request, Response, Upgrade
from tests.repl.client.group import until
from tests.repl.net.test_net import Wire, post
from tests.repl.web.one_node import FIRST, OneNode

READERS_MAX = 20


class Counted(Gateway):
    """Counts the requests that take the long way."""

    handled = 0

    async def handle(self, request: Request) -> Response | Upgrade:
        self.handled += 1
        return await super().handle(request)


@pytest.fixture
async def gateway(node: OneNode) -> Counted:
    return Counted(node.services, readers_max=READERS_MAX)


def poll(from_vlsn: int, more: str = "", wait: str = "60") -> bytes:
    return f"GET /v1/entries?from={from_vlsn}&wait={wait} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


async def waiting(listener: HttpListener, gateway: Counted, count: int, request: bytes) -> list[Wire]:
    """Opens so many connections on which a long-poll waits."""
    begin, wires = gateway.readers.used, []
    for number in range(count):
        wires.append(await Wire.open(listener.url))
        await wires[-1].send(request)
        await until(lambda number=number: gateway.readers.used == begin + number + 1)  # type: ignore[misc]
    return wires


async def test_those_that_stand_at_one_place_are_served_without_a_handler_but_for_the_first(
    listener: HttpListener, gateway: Counted, node: OneNode
) -> None:
    wires = await waiting(listener, gateway, READERS_MAX, poll(FIRST))
    assert gateway.handled == 1
    for vlsn in range(FIRST, FIRST + 4):
        await node.append(b"%d" % vlsn)
        answers = [await wire.answer() for wire in wires]
        assert {(status, body) for status, _, body in answers} == {(200, answers[0][2])}
        assert answers[0][2].count(b"\n") == 1 and b'"value":"%d"' % vlsn in answers[0][2]
        assert {(fields["Vlsnlog-Next"], fields["Vlsnlog-Durable"]) for _, fields, _ in answers} == {
            (str(vlsn + 1), str(vlsn))
        }
        for number, wire in enumerate(wires):
            await wire.send(poll(vlsn + 1))
            await until(lambda number=number: gateway.readers.used == number + 1)  # type: ignore[misc]
        assert gateway.handled <= vlsn - FIRST + 2
    for wire in wires:
        wire.writer.close()
    await until(lambda: gateway.readers.used == 0)


async def test_past_the_limit_they_are_refused_on_the_short_way_too_and_may_ask_again(
    listener: HttpListener, gateway: Counted, node: OneNode
) -> None:
    wires = await waiting(listener, gateway, READERS_MAX, poll(FIRST))
    async with await Wire.open(listener.url) as late:
        for _ in range(2):
            await late.send(poll(FIRST))
            status, fields, body = await late.answer()
            assert (status, fields["Content-Type"], fields["Retry-After"]) == (429, "application/problem+json", "1")
            assert b'"type":"queue-full"' in body
        await late.send(b"GET /v1/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, fields, body = await late.answer()
        assert (status, fields["Retry-After"]) == (429, "1")
        await late.send(post(b"a"))
        assert (await late.answer())[0] == 200  # an append is no reader
        for wire in wires:
            assert (await wire.answer())[0] == 200
        await late.send(poll(FIRST))
        assert (await late.answer())[0] == 200
    assert gateway.handled <= 3
    for wire in wires:
        wire.writer.close()


async def test_one_that_leaves_and_one_that_waits_in_vain_give_their_places_back(
    listener: HttpListener, gateway: Counted, node: OneNode
) -> None:
    wires = await waiting(listener, gateway, 2, poll(FIRST))
    wires[1].writer.close()
    await until(lambda: gateway.readers.used == 1)
    short = await Wire.open(listener.url)
    for _ in range(2):
        await short.send(poll(FIRST, wait="0.1"))
        status, fields, body = await short.answer()
        assert (status, fields["Vlsnlog-Next"], fields["Vlsnlog-Durable"], body) == (
            200,
            str(FIRST),
            str(FIRST - 1),
            b"",
        )
    assert gateway.readers.used == 1
    await node.append(b"a")
    assert (await wires[0].answer())[0] == 200
    assert gateway.readers.used == 0
    for wire in (wires[0], short):
        wire.writer.close()


async def test_what_depends_on_more_than_its_head_takes_the_long_way(gateway: Counted) -> None:
    def quick(target: str, headers: dict[str, str] | None = None) -> bool:
        from tests.repl.web.calls import request

        return gateway.quick(request("GET", target, headers)) is not None

    assert quick("/v1/entries?from=2&wait=1")
    assert quick("/v1/entries?from=2&wait=1&after_term=7&limit=5&kinds=all&key=k&consistency=durable")
    for target in (
        "/v1/entries?from=2",
        "/v1/entries?from=2&wait=0",
        "/v1/entries?wait=1",
        "/v1/entries?from=start&wait=1",
        "/v1/entries?from=end&wait=1",
        "/v1/entries?from=2&wait=1&consistency=linearizable",
        "/v1/entries?from=2&wait=61",
        "/v1/entries?from=2&wait=1&limit=0",
        "/v1/entries?from=2&wait=1&unknown=1",
        "/v1/tail?from=2&wait=1",
    ):
        assert not quick(target), target
    assert not quick("/v1/entries?from=2&wait=1", {"Host": "evil.example"})
    assert not quick("/v1/entries?from=2&wait=1&key=k", {"Accept": "application/x-vlsnlog-blocks"})


async def test_heads_of_polls_are_few_and_push_no_others_out(listener: HttpListener, gateway: Counted) -> None:
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"a"))
        assert (await wire.answer())[0] == 200
        known = set(listener._server.known)
        for number in range(KNOWN_POLLS_MAX + 10):
            await wire.send(poll(FIRST + number, wait="0.001" if number else "60"))
            assert (await wire.answer())[0] == 200
        heads = set(listener._server.known)
        assert known <= heads
        assert len(heads - known) == KNOWN_POLLS_MAX
