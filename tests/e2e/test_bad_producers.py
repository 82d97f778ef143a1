"""``WS /v1/produce`` on a real master: what producers may send, and what ends their connection."""

from __future__ import annotations

import os

import msgspec
import pytest

from repl.api import Acks
from repl.produce_messages import REQUEST, REQUEST_MESSAGE_BYTES_MAX, Answer, decode_answers, request_header
from tests.e2e.calls import call
from tests.e2e.group import Group
from tests.e2e.sockets import tell, until_closed, websocket
from vlsn.format import batch

GOOD = batch.encode([b"a", b"b"])


def message(id: int, body: bytes = GOOD, acks: Acks = Acks.MAJORITY) -> bytes:
    return request_header(id, acks, 10_000) + body


async def test_pipelined_batches_are_answered_in_order(group: Group) -> None:
    first = group.settle() + 1
    answers: list[Answer] = []
    async with websocket(f"{group.master}/v1/produce") as socket:
        for id in range(7, 107):
            await socket.send_bytes(message(id, acks=(Acks.NONE, Acks.MAJORITY, Acks.ALL)[id % 3]))
        while len(answers) < 100:
            answers += decode_answers(await socket.receive_bytes())
    assert [answer.id for answer in answers] == list(range(7, 107))
    assert [(answer.first, answer.last) for answer in answers] == [
        (first + 2 * n, first + 2 * n + 1) for n in range(100)
    ]
    assert {answer.done for answer in answers} == {True}
    assert call("GET", f"{group.master}/v1/entries/{first + 199}").body == b"b"


async def test_after_one_refusal_all_later_ones_are_refused_with_its_type(group: Group) -> None:
    with group.unharmed(appended=2):
        async with websocket(f"{group.master}/v1/produce") as socket:
            for id, body in ((1, GOOD), (2, GOOD[:-1]), (3, GOOD), (4, batch.encode([bytes(1 << 21)])), (5, GOOD)):
                await socket.send_bytes(message(id, body))
            answers: list[Answer] = []
            while len(answers) < 5:
                answers += decode_answers(await socket.receive_bytes())
        assert [answer.done for answer in answers] == [True, False, False, False, False]
        problems = [msgspec.json.decode(answer.problem) for answer in answers[1:]]
        assert {problem["type"] for problem in problems} == {"bad-body"}
        assert [problem.get("after") for problem in problems] == [None, 2, 2, 2]


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "one byte": b"\x01",
    "half a header": message(1)[:15],
    "another type": REQUEST.pack(9, 1, 0, 1000, 1) + GOOD,
    "unknown acks": REQUEST.pack(1, 3, 0, 1000, 1) + GOOD,
    "reserved bytes": REQUEST.pack(1, 1, 1, 1000, 1) + GOOD,
    "no timeout": REQUEST.pack(1, 1, 0, 0, 1) + GOOD,
    "a timeout out of range": REQUEST.pack(1, 1, 0, 600_001, 1) + GOOD,
    "zeros": bytes(1000),
    "random bytes": bytes([9]) + os.urandom(4096),
    "a message over the limit": bytes(REQUEST_MESSAGE_BYTES_MAX + 1),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_the_connection_and_nothing_else(group: Group, what: str) -> None:
    with group.unharmed():
        async with websocket(f"{group.master}/v1/produce") as socket:
            await tell(socket, GARBAGE[what])
            assert await until_closed(socket) == []


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


async def test_a_batch_that_is_refused_says_why(group: Group) -> None:
    with group.unharmed():
        for body, slug in (
            (b"", "bad-body"),
            (GOOD + b"\0", "bad-body"),
            (b"VLB1" + bytes(100), "bad-body"),
            (batch.encode([bytes((1 << 20) + 1)]), "too-large"),
            (batch.encode([b""], [bytes((1 << 16) + 1)]), "too-large"),
        ):
            async with websocket(f"{group.master}/v1/produce") as socket:
                await socket.send_bytes(message(1, body))
                (answer,) = decode_answers(await socket.receive_bytes())
                assert msgspec.json.decode(answer.problem)["type"] == slug
