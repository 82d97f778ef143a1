"""Connections that are accepted as their listener closes, on the event loop that nodes have."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import uvloop

from repl.net.accepting import Accepting


class Answering(asyncio.Protocol):
    """A connection whose listener closes in the turn of the loop in which it is made. A request comes in the same
    turn."""

    def __init__(self, accepting: Accepting) -> None:
        self._accepting = accepting
        self.tasks: list[asyncio.Task[None]] = []
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self.tasks.append(asyncio.create_task(self._accepting.close()))

    def data_received(self, data: bytes) -> None:
        self.tasks.append(asyncio.create_task(self._answer()))

    async def _answer(self) -> None:
        self._transport.write(b"answer")
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


async def _asked_as_it_closes() -> bytes:
    """Returns the answer to a client that asks before it is accepted; its connection learns of its end."""
    made: list[Answering] = []

    def answering() -> Answering:
        made.append(Answering(accepting))
        return made[-1]

    accepting = Accepting(answering)
    port = await accepting.bind("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"request")
        async with asyncio.timeout(30):
            client.setblocking(False)
            told = await asyncio.get_running_loop().sock_recv(client, 100)
            (connection,) = made
            await asyncio.gather(*connection.tasks, connection.lost)
    return told


def test_a_request_that_came_as_the_listener_closed_is_answered() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_asked_as_it_closes()) == b"answer"
