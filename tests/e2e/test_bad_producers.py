"""``WS /v1/produce`` on a real master: garbage ends the connection, and harms nothing else."""

from __future__ import annotations

import os

from repl.api import Acks
from repl.produce_messages import REQUEST_MESSAGE_BYTES_MAX, decode_answers, request_header
from tests.e2e.group import Group
from tests.e2e.sockets import tell, until_closed, websocket
from vlsn.format import batch

GOOD = batch.encode([b"a", b"b"])


def message(id: int, body: bytes = GOOD, acks: Acks = Acks.MAJORITY) -> bytes:
    return request_header(id, acks, 10_000) + body


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "one byte": b"\x01",
    "random bytes": bytes([9]) + os.urandom(4096),
    "a message over the limit": bytes(REQUEST_MESSAGE_BYTES_MAX + 1),
}


async def test_garbage_ends_the_connection_and_nothing_else(group: Group) -> None:
    with group.unharmed():
        for what, garbage in GARBAGE.items():
            async with websocket(f"{group.master}/v1/produce") as socket:
                await tell(socket, garbage)
                assert await until_closed(socket) == [], what


async def test_text_and_ids_with_a_hole_end_the_connection(group: Group) -> None:
    with group.unharmed():
        async with websocket(f"{group.master}/v1/produce") as socket:
            await socket.send_str("hello")
            assert await until_closed(socket) == []
    async with websocket(f"{group.master}/v1/produce") as socket:
        await socket.send_bytes(message(1))
        assert decode_answers(await socket.receive_bytes())[0].done
        with group.unharmed():
            await socket.send_bytes(message(3))
            assert await until_closed(socket) == []
