"""The short way and the long way, given the same bytes in the same pieces: equal answers, equal logs."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from tests.repl.net.test_net import POST, Wire, post
from tests.repl.web.one_node import FIRST, started
from vlsn.limits import MIB

_TIME = re.compile(rb'"time":\d+')
"""The two nodes are not asked at the same time."""


def poll(wanted: bytes) -> bytes:
    return b"GET /v1/entries?%b&wait=0.02 HTTP/1.1\r\nHost: localhost\r\n\r\n" % wanted


CHUNKED = POST.replace(b"Content-Length: %d\r\n\r\n%b", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
REQUESTS = [
    post(b"v"),
    post(b"w"),
    post(b""),
    post(b"a body with \r\n\r\n in it"),
    post(b"POST /v1/entries HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    post(bytes(100_000)),
    post(b"k").replace(b"/v1/entries", b"/v1/entries?key=k&acks=all"),
    post(b"n").replace(b"/v1/entries", b"/v1/entries?acks=none"),
    post(b"x").replace(b"/v1/entries", b"/v1/entries?acks=some"),
    post(b'{"value":"line"}').replace(b"octet-stream", b"x-ndjson"),
    post(b"not a line").replace(b"octet-stream", b"x-ndjson"),
    post(b"t").replace(b"octet-stream", b"json"),
    CHUNKED,
    poll(b"from=%d&limit=1" % FIRST),
    poll(b"from=1&kinds=all&limit=3"),
    poll(b"from=5000"),
    poll(b"from=5&after_term=0"),
    poll(b"from=%d&limit=0" % FIRST),
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PUT /v1/entries HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab",
]
WEIGHTS = [30, 5, 5, 5, 5, 1, 5, 5, 2, 5, 2, 2, 2, 5, 5, 1, 3, 2, 2, 2]


async def answers(pieces: list[bytes], count: int, *, short: bool, pause_s: float) -> tuple[list[object], list[object]]:
    """(status and body of each answer, what was submitted) of one connection that sends ``pieces``."""
    node = await started(segment_bytes=MIB)
    gateway = Gateway(node.services)
    listener = await AiohttpNetwork().serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick if short else None)
    async with await Wire.open(listener.url) as wire:

        async def send() -> None:
            for piece in pieces:
                await wire.send(piece)
                await asyncio.sleep(pause_s)

        sending = asyncio.ensure_future(send())
        found: list[object] = []
        for _ in range(count):
            status, _, body = await wire.answer()
            found.append((status, _TIME.sub(b"", body)))
        await sending
    await listener.close()
    return found, list[object](node.submitted)


@pytest.mark.parametrize("seed", range(12))
async def test_two_ways_give_the_same_answers(seed: int) -> None:
    draw = random.Random(seed)
    requests = draw.choices(REQUESTS, WEIGHTS, k=40)
    data = b"".join(requests)
    if seed % 3 == 0:
        pieces = requests
    else:
        cuts = sorted(draw.randrange(len(data)) for _ in range(draw.choice([3, 30, 100])))
        pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    pause_s = draw.choice([0, 0.0005])
    short = await answers(pieces, len(requests), short=True, pause_s=pause_s)
    long = await answers(pieces, len(requests), short=False, pause_s=pause_s)
    assert short == long
