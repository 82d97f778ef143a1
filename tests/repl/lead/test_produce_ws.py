"""``WS /v1/produce`` against a real node on fakes, over a channel in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from repl import produce_messages
from repl.api import Acks
from repl.node.gateway import Gateway
from repl.produce_messages import SETS_BYTES_MAX, Answer, decode_answers, request_header
from repl.web import limits, problem
from repl.web.types import Upgrade
from tests.repl.client.group import until
from tests.repl.web.calls import call, json, refused, request, whole_body
from tests.repl.web.channels import MemoryChannel, pair
from tests.repl.web.one_node import FIRST, TERM, OneNode, follower, masterless, started
from vlsn.durability import SYNCED, Durability, group_durability
from vlsn.errors import BadBody, ChannelClosed, NoSpace, NotMaster, OutcomeUnknown, QueueFull
from vlsn.format import batch
from vlsn.format.producer_columns import HANDLE_SEQUENCE

UPGRADE = {"Upgrade": "websocket"}


@asynccontextmanager
async def producing(node: OneNode | Gateway, query: str = "") -> AsyncIterator[MemoryChannel]:
    """Returns the producer's end of a connection; on leaving, the server's side has ended too."""
    gateway = node if isinstance(node, Gateway) else Gateway(node.services)
    upgrade = await gateway.handle(request("GET", f"/v1/produce{query}", UPGRADE))
    assert isinstance(upgrade, Upgrade)
    ours, theirs = pair()
    serving = asyncio.ensure_future(upgrade.run(theirs))
    try:
        yield ours
    finally:
        await ours.close()
        await asyncio.wait_for(serving, 60)


def message(id: int, *values: bytes, acks: Acks = Acks.MAJORITY, timeout_ms: int = 10_000) -> bytes:
    return request_header(id, acks, timeout_ms) + batch.encode(values)


async def values_in(node: OneNode) -> list[bytes]:
    """Lists the values in the log."""
    response = await call(node, "GET", "/v1/entries")
    return [msgspec.json.decode(line)["value"].encode() for line in (await whole_body(response)).splitlines()]


async def answers(channel: MemoryChannel, count: int) -> list[Answer]:
    found: list[Answer] = []
    while len(found) < count:
        found += decode_answers(await channel.receive())
    assert len(found) == count
    return found


async def test_produce_answers_each_request_in_order() -> None:
    node = await started()
    async with producing(node) as channel:
        for id in range(5, 15):
            await channel.send(message(id, b"a", b"b"))
        found = await answers(channel, 10)
    assert [(one.id, one.first, one.last, one.term, one.durable, one.synced) for one in found] == [
        (5 + n, FIRST + 2 * n, FIRST + 1 + 2 * n, TERM, True, 1) for n in range(10)
    ]


async def test_produce_answers_of_one_wake_up_share_one_message() -> None:
    node = await started(hold=True)
    async with producing(node) as channel:
        for id in range(20):
            await channel.send(message(id, b"v"))
        await node.until_unanswered(20)
        node.release()
        assert [len(decode_answers(await channel.receive())) for _ in range(2)] == [1, 19]  # two blocks


async def test_produce_after_a_refusal_later_requests_are_refused_and_not_submitted() -> None:
    node = await started()
    async with producing(node) as channel:
        await channel.send(message(1, b"a"))
        assert (await answers(channel, 1))[0].done
        node.refuse = NoSpace("full")
        await channel.send(message(2, b"b"))
        (second,) = await answers(channel, 1)
        node.refuse = None
        await channel.send(message(3, b"c"))
        await channel.send(message(4, b"d"))
        later = await answers(channel, 2)
    assert isinstance(problem.error_of(second.problem), NoSpace)
    assert [type(problem.error_of(one.problem)) for one in later] == [NoSpace, NoSpace]
    assert node.services.member.counts.refused == {"no-space": 1}, "later requests are refused because of that one"
    assert await values_in(node) == [b"a"]


async def test_produce_keeps_the_order_and_what_was_submitted_before_a_refusal_its_own_answer() -> None:
    node = await started(hold=True)
    async with producing(node) as channel:
        for id, timeout_ms in ((1, 10_000), (2, 20), (3, 10_000)):
            await channel.send(message(id, b"v", timeout_ms=timeout_ms))
        await node.until_unanswered(3)
        await until(lambda: node.unanswered == 2)
        assert channel.unread == 0
        node.release()
        first, second, third = await answers(channel, 3)
        await channel.send(message(4, b"v"))
        (fourth,) = await answers(channel, 1)
    assert [one.id for one in (first, second, third)] == [1, 2, 3]
    assert [first.done, second.done, third.done, fourth.done] == [True, False, True, False]
    assert b'"after":2' in fourth.problem
    assert b"after" not in second.problem
    assert len(node.asked) == 3


async def test_produce_bad_batch_is_refused_and_the_next_ones_too() -> None:
    node = await started()
    async with producing(node) as channel:
        await channel.send(request_header(1, Acks.ALL, 1000) + b"no batch")
        await channel.send(message(2, b"v"))
        found = await answers(channel, 2)
    assert [type(problem.error_of(one.problem)) for one in found] == [BadBody, BadBody]
    assert len(node.asked) == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"x",
        bytes(15),
        bytes(16) + batch.encode([b"v"]),
        message(1, b"v")[:4] + bytes(4) + message(1, b"v")[8:],
        b"\x01\x03" + message(1, b"v")[2:],
        b"\x01\x01\x01" + message(1, b"v")[3:],
        b"\x01\x01\x01\x04" + message(1, b"v")[4:],
        message(3, b"v"),
        message(1, b"v", timeout_ms=600_001),
        request_header(2, Acks.ALL, 9, 60)[:-1],
        request_header(2, Acks.ALL, 9, 2**63) + batch.encode([b"v"], producer=(1, 0)),
        request_header(2, Acks.ALL, 9, 60, (1, 0))[:-1],
        request_header(2, Acks.ALL, 9, 60, (0, 0)) + batch.encode([b"v"]),
        request_header(2, Acks.ALL, 9, 60, (1, HANDLE_SEQUENCE + 1)) + batch.encode([b"v"]),
        request_header(2, Acks.ALL, 9, 60, (2**63, HANDLE_SEQUENCE)) + batch.encode([b"v"]),
        request_header(2, Acks.ALL, 9, 60, (2, HANDLE_SEQUENCE), None, b"{}")[:-8],
        request_header(2, Acks.ALL, 9, 60, (2, HANDLE_SEQUENCE), None, b"{}")[:-1] + b"1",
        request_header(2, Acks.ALL, 9, 60, (2, HANDLE_SEQUENCE), None, b" " * (SETS_BYTES_MAX + 1)),
        request_header(2, Acks.ALL, 9, 2**63, (1, 0)) + batch.encode([b"v"]),
    ],
)
async def test_produce_garbage_ends_the_connection_and_harms_nothing(garbage: bytes) -> None:
    node = await started()
    gateway = Gateway(node.services)
    async with producing(gateway) as channel:
        await channel.send(message(1, b"v"))
        await answers(channel, 1)
        await channel.send(garbage)
    async with producing(gateway) as channel:
        await channel.send(message(1, b"w"))
        assert (await answers(channel, 1))[0].done


async def test_produce_each_request_has_its_own_deadline() -> None:
    node = await started(hold=True)
    async with producing(node) as channel:
        await channel.send(message(1, b"a", timeout_ms=40))
        await channel.send(message(2, b"b", timeout_ms=20))
        await channel.send(message(3, b"c", timeout_ms=60))
        found = await answers(channel, 3)
    assert [type(problem.error_of(one.problem)) for one in found] == [OutcomeUnknown] * 3
    assert b"after" not in b"".join(one.problem for one in found)


async def test_produce_stops_reading_when_too_many_requests_have_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.lead.produce_ws.REQUESTS_IN_FLIGHT_MAX", 10)
    node = await started(hold=True)
    async with producing(node) as channel:
        for id in range(30):
            await channel.send(message(id, b"v"))
        await node.until_unanswered(10)
        await asyncio.sleep(0.01)
        assert len(node.asked) == 10
        node.release()
        assert [one.id for one in await answers(channel, 30)] == list(range(30))


async def test_produce_stops_reading_when_too_many_bytes_have_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.lead.produce_ws.PRODUCER_BYTES_IN_FLIGHT_MAX", 10_000)
    node = await started(hold=True)
    async with producing(node) as channel:
        for id in range(10):
            await channel.send(message(id, bytes(4_000)))
        await node.until_unanswered(3)
        await asyncio.sleep(0.01)
        assert len(node.asked) == 3
        node.release()
        await answers(channel, 10)


async def test_produce_waits_in_line_for_a_full_queue_and_is_not_refused() -> None:
    node = await started()
    gateway = Gateway(node.services)
    async with producing(gateway) as one, producing(gateway) as other:
        node.refuse = QueueFull("262144 entries already wait to be logged")
        for id in (1, 2):
            await one.send(message(id, b"one"))
        await until(lambda: len(node.asked) > 0)
        await other.send(message(1, b"other"))
        await asyncio.sleep(0.01)
        assert (one.unread, other.unread) == (0, 0)
        node.refuse = None
        assert [answer.done for answer in await answers(one, 2)] == [True, True]
        assert [answer.done for answer in await answers(other, 1)] == [True]
    assert await values_in(node) == [b"one", b"other", b"one"]


async def test_producers_wait_in_line_for_the_budget_of_bodies_and_each_has_its_turn() -> None:
    node = await started(hold=True)
    gateway = Gateway(node.services, limits.AppendLimits(body_bytes_max=100_000, bodies_in_flight_bytes_max=200_000))
    async with producing(gateway) as greedy, producing(gateway) as one, producing(gateway) as other:
        for id in range(1, 6):
            await greedy.send(message(id, bytes(60_000)))
        await node.until_unanswered(3)
        for channel in (one, other):
            await channel.send(message(1, bytes(50_000)))
        await asyncio.sleep(0.01)
        assert node.unanswered == 3
        node.release()
        for channel, count in ((one, 1), (other, 1), (greedy, 5)):
            assert all(answer.done for answer in await answers(channel, count))
    assert [len(value) for value in (await values_in(node))[3:]] == [60_000, 50_000, 50_000, 60_000]


async def test_produce_that_waits_in_line_does_not_try_in_every_turn_of_the_loop() -> None:
    node = await started(refuse=QueueFull("262144 entries already wait to be logged"))
    async with producing(node) as channel:
        await channel.send(message(1, b"v"))
        await until(lambda: len(node.asked) > 0)
        await asyncio.sleep(0.2)
        tries, node.refuse = len(node.asked), None
        assert [answer.done for answer in await answers(channel, 1)] == [True]
    assert tries < 20, "what a try has taken and given back is no room"


async def test_produce_that_found_no_room_in_its_time_is_refused() -> None:
    node = await started(refuse=QueueFull("full"))
    async with producing(node) as channel:
        await channel.send(request_header(1, Acks.MAJORITY, 50) + batch.encode([b"v"]))
        await channel.send(message(2, b"v"))
        found = await answers(channel, 2)
    assert [type(problem.error_of(one.problem)) for one in found] == [QueueFull, QueueFull]
    assert b'"after":1' in found[1].problem


async def test_produce_what_waits_in_line_is_refused_for_good_or_for_what_went_before() -> None:
    node = await started(hold=True)
    async with producing(node) as channel:
        await channel.send(message(1, b"v", timeout_ms=100))
        await node.until_unanswered(1)
        node.refuse = QueueFull("full")
        await channel.send(message(2, b"v"))
        await until(lambda: len(node.asked) > 1)
        found = await answers(channel, 2)
    assert b'"after":1' in found[1].problem
    node = await started(refuse=QueueFull("full"))
    async with producing(node) as channel:
        await channel.send(message(1, b"v"))
        await until(lambda: len(node.asked) > 0)
        node.refuse = NotMaster("another node leads")
        (refusal,) = await answers(channel, 1)
    assert isinstance(problem.error_of(refusal.problem), NotMaster)


async def test_produce_that_leaves_the_line_keeps_nobody_behind_it_waiting() -> None:
    node = await started(refuse=QueueFull("full"))
    gateway = Gateway(node.services)
    async with producing(gateway) as other:
        upgrade = await gateway.handle(request("GET", "/v1/produce", UPGRADE))
        assert isinstance(upgrade, Upgrade)
        first, theirs = pair()
        serving = asyncio.ensure_future(upgrade.run(theirs))
        await first.send(message(1, b"first"))
        await until(lambda: len(node.asked) > 0)
        await other.send(message(1, b"other"))
        serving.cancel()  # as when its connection is lost
        await asyncio.wait([serving])
        node.refuse = None
        assert [answer.done for answer in await answers(other, 1)] == [True]
    assert await values_in(node) == [b"other"]


async def test_produce_that_leaves_gives_all_its_places_back() -> None:
    node = await started(hold=True)
    gateway = Gateway(node.services, limits.AppendLimits(body_bytes_max=10_000, bodies_in_flight_bytes_max=1_000_000))
    for _ in range(10):  # more bytes than there may be in flight
        async with producing(gateway) as channel:
            for id in range(20):
                await channel.send(message(id, bytes(9_000)))
            await node.until_unanswered(20)
    assert node.unanswered == 0
    node.release()
    async with producing(gateway) as channel:
        await channel.send(message(1, b"v"))
        assert (await answers(channel, 1))[0].done


async def test_produce_producer_that_stops_receiving_ends_with_its_connection() -> None:
    node = await started()
    async with producing(node) as channel:
        for id in range(50):
            await channel.send(message(id, b"v"))
    with pytest.raises(ChannelClosed):
        await channel.send(b"")


async def test_produce_takes_as_many_producers_as_there_are_connections() -> None:
    gateway = Gateway((await started()).services)
    channels = []
    runs = []
    for _ in range(4_096):
        upgrade = await gateway.handle(request("GET", "/v1/produce", UPGRADE))
        assert isinstance(upgrade, Upgrade)
        ours, theirs = pair()
        channels.append(ours)
        runs.append(asyncio.ensure_future(upgrade.run(theirs)))
    await asyncio.sleep(0)
    async with producing(gateway) as channel:
        await channel.send(message(1, b"v"))
        assert (await answers(channel, 1))[0].done
    for channel in channels:
        await channel.close()
    await asyncio.gather(*runs)


async def test_produce_refusals_come_before_the_upgrade() -> None:
    refused(await call(await started(), "GET", "/v1/produce"), 400, "bad-argument")
    refused(await call(await masterless(), "GET", "/v1/produce", UPGRADE), 503, "no-master")
    response = await call(await follower(), "GET", "/v1/produce", UPGRADE)
    assert (response.status, response.headers["Location"]) == (307, "http://n1:7701/v1/produce")
    assert json(response)["type"] == "no-master"


def test_answers_round_trip_with_and_without_problems() -> None:
    document = problem.document(NotMaster("gone"))
    ok = produce_messages.ANSWER.pack(1, 0, 1, 3, 0, 7, 10, 19)
    found = decode_answers(ok + produce_messages.refused_answer(2, document) + ok)
    assert found[0] == found[2] == Answer(1, True, 3, found[0].term, found[0].first, found[0].last, b"")
    assert (found[0].first, found[0].last, found[0].term) == (10, 19, 7)
    assert (found[1].id, found[1].done, found[1].problem) == (2, False, document)


@pytest.mark.parametrize("replica", Durability)
@pytest.mark.parametrize("local", Durability)
async def test_durability_goes_with_a_request_and_comes_back_with_its_answer(
    local: Durability, replica: Durability
) -> None:
    asked = group_durability(f"{local.name},{replica.name}".lower())
    node = await started()
    async with producing(Gateway(node.services)) as channel:
        await channel.send(request_header(1, Acks.MAJORITY, 9_000, durability=asked) + batch.encode([b"v"]))
        await channel.send(request_header(2, Acks.MAJORITY, 9_000) + batch.encode([b"w"]))
        lower, default = await answers(channel, 2)
    assert lower.durability == asked and lower.durable is (local is Durability.SYNC)
    assert lower.appended(Acks.MAJORITY).durability == asked
    assert (default.durability, default.durable) == (SYNCED, True)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes(39),
        produce_messages.ANSWER.pack(1, 3, 0, 0, 0, 0, 0, 0),
        produce_messages.ANSWER.pack(1, 2, 0, 0, 5, 0, 0, 0) + bytes(8),
        produce_messages.ANSWER.pack(1, 0, 3 << 1, 0, 0, 0, 0, 0),
        produce_messages.ANSWER.pack(1, 0, 3 << 3, 0, 0, 0, 0, 0),
        produce_messages.ANSWER.pack(1, 0, 1 << 5, 0, 0, 0, 0, 0),
        produce_messages.ANSWER.pack(1, 1, 0, 0, 0, 0, 0, 0),
        produce_messages.ANSWER.pack(1, 0, 0, 0, 5, 0, 0, 0) + bytes(8),
        produce_messages.ANSWER.pack(1, 1, 0, 0, 5, 0, 0, 0) + bytes(5),
        produce_messages.ANSWER.pack(1, 1, 0, 0, 0xFFFF_FFFF, 0, 0, 0) + bytes(64),
        produce_messages.refused_answer(1, b"problem") + bytes(8),
    ],
)
def test_answers_that_are_not_their_format_are_refused(message: bytes) -> None:
    with pytest.raises(BadBody):
        decode_answers(message)


PRODUCER = 2**64 - 1


def named(node: OneNode) -> list[tuple[int, int, int | None]]:
    """Lists producer, sequence and birth of each submission."""
    return [(submission.producer, submission.sequence, born) for submission, born in node.asked]


async def test_produce_gives_the_node_producer_sequence_and_birth() -> None:
    node = await started()
    async with producing(node) as channel:
        for id, born in ((1, FIRST), (2, None)):
            data = batch.encode([b"a", b"b"], producer=(PRODUCER, id - 1))
            await channel.send(request_header(id, Acks.MAJORITY, 10_000, born) + data)
        await channel.send(message(3, b"c"))
        assert [(one.id, one.duplicate) for one in await answers(channel, 3)] == [(1, False), (2, False), (3, False)]
    assert named(node) == [(PRODUCER, 0, FIRST), (PRODUCER, 1, None), (0, 0, None)]


async def test_produce_takes_a_whole_transaction_under_its_name() -> None:
    node = await started()
    async with producing(node) as channel:
        for id, name in ((1, (5, HANDLE_SEQUENCE)), (2, (PRODUCER, 0))):
            await channel.send(request_header(id, Acks.MAJORITY, 10_000, FIRST, name) + batch.encode([b"a", b"b"]))
        await channel.send(message(3, b"c"))
        assert [(one.first, one.last) for one in await answers(channel, 3)] == [
            (FIRST, FIRST + 2),
            (FIRST + 3, FIRST + 5),
            (FIRST + 6, FIRST + 6),
        ]
    assert named(node) == [(5, HANDLE_SEQUENCE, FIRST), (PRODUCER, 0, FIRST), (0, 0, None)]
    lines = await whole_body(await call(node, "GET", "/v1/entries?txns=true"))
    txns = [msgspec.json.decode(line).get("txn", 0) for line in lines.splitlines()]
    assert txns == [FIRST, FIRST, FIRST + 3, FIRST + 3, 0]


async def test_produce_takes_what_a_transaction_sets_with_its_entries_and_without() -> None:
    node = await started()
    sets = b'{"positions":{"billing":{"next":%d,"at":%d,"by":"00000000000000aa"}}}'
    async with producing(node, "?types=4") as channel:
        for id, more, at in ((1, batch.encode([b"a"]), 0), (2, b"", FIRST + 1)):
            name = id, HANDLE_SEQUENCE
            await channel.send(request_header(id, Acks.MAJORITY, 10_000, FIRST, name, None, sets % (id, at)) + more)
        assert [(one.first, one.last) for one in await answers(channel, 2)] == [
            (FIRST, FIRST + 1),
            (FIRST + 2, FIRST + 2),
        ]
        told = json(await call(node, "GET", "/v1/consumers/billing"))
        assert (told["next"], told["at"]) == (2, FIRST + 2)
        wrong = b'{"positions":{"billing":{"nxt":7}}}'
        await channel.send(request_header(3, Acks.MAJORITY, 10_000, FIRST, (3, HANDLE_SEQUENCE), None, wrong))
        (answer,) = await answers(channel, 1)
        assert isinstance(problem.error_of(answer.problem), BadBody)


@pytest.mark.parametrize("types", ["0", "5", "x"])
async def test_produce_refuses_types_that_it_does_not_take(types: str) -> None:
    refused(await call(await started(), "GET", f"/v1/produce?types={types}", UPGRADE), 400, "bad-argument")


async def test_produce_says_what_was_done_before() -> None:
    async with producing(await started()) as channel:
        for id in (1, 2):
            data = batch.encode([b"v"], producer=(1, 0))
            await channel.send(request_header(id, Acks.MAJORITY, 10_000, FIRST) + data)
        found = await answers(channel, 2)
    assert [(one.done, one.duplicate, one.first) for one in found] == [(True, False, FIRST), (True, True, FIRST)]


@pytest.mark.parametrize(
    "data",
    [
        request_header(1, Acks.ALL, 9, 60) + batch.encode([b"v"]),
        request_header(1, Acks.ALL, 9, 60)[:16] + batch.encode([b"v"], producer=(1, 0)),
        request_header(1, Acks.ALL, 9, 60, (1, 0)) + batch.encode([b"v"], producer=(1, 0)),
    ],
    ids=["no producer in the batch", "no birth before it", "a transaction with another name in the batch"],
)
async def test_a_producers_message_without_a_producer_is_refused(data: bytes) -> None:
    node = await started()
    async with producing(node) as channel:
        await channel.send(data)
        (answer,) = await answers(channel, 1)
    assert isinstance(problem.error_of(answer.problem), BadBody)
    assert not node.asked


def test_layouts_are_these_bytes() -> None:
    assert request_header(0x0102030405060708, Acks.ALL, 0x0A0B).hex() == "010200000b0a00000807060504030201"
    assert request_header(1, Acks.NONE, 2, 3).hex() == "0200000002000000" + "0100000000000000" + "0300000000000000"
    named = request_header(1, Acks.NONE, 2, 3, (4, 5), None, b"{}").hex()
    assert named == (
        "0400000002000000" + "".join(f"0{number}" + "00" * 7 for number in (1, 3, 4, 5, 2)) + "7b7d000000000000"
    )
    assert produce_messages.refused_answer(1, b"abc").hex() == (
        "01000000000000000100000003000000" + "00" * 24 + "6162630000000000"
    )
