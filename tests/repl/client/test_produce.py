"""Appends through the client: batches, order, repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import Any

import pytest

from repl import connect
from repl.api import Acks, Appended
from repl.client import produce, queue
from repl.produce_messages import decode_request, done_answer, refused_answer
from repl.web import problem
from tests.fakes.loop import virtual
from tests.repl.client.group import at_socket, scripted, served, serving, until
from tests.repl.web.one_node import FIRST, TERM, started
from tests.seam.nodes import Group
from vlsn.durability import GroupDurability
from vlsn.errors import (
    BadArgument,
    BadBody,
    Halted,
    InsufficientReplicas,
    LogClosed,
    NotMaster,
    OutcomeUnknown,
    QueueFull,
    TooLarge,
    Unreachable,
    VlsnLogError,
)
from vlsn.ids import Term, Vlsn
from vlsn.levels import LEVELS
from vlsn.limits import ENTRY_BYTES_MAX, KEY_BYTES_MAX
from vlsn.seams import Channel

NOWHERE = "http://127.0.0.1:9"


async def test_append_returns_the_vlsn_and_keeps_value_and_key() -> None:
    async with serving() as node, connect(node.url) as log:
        assert await log.append(b"value", key=b"k") == FIRST
        assert await log.append(b"") == FIRST + 1
        assert await log.append(b"no key", key=b"") == FIRST + 2
    assert [(entry.key, entry.value) for entry in node.entries] == [
        (b"k", b"value"),
        (None, b""),
        (None, b"no key"),
    ]


async def test_appends_of_one_turn_share_a_batch_in_the_order_of_the_calls() -> None:
    async with serving() as node, connect(node.url) as log:
        await log.append(b"first")
        before = len(node.asked)
        values = [b"%d" % number for number in range(500)]
        vlsns = await asyncio.gather(*(log.append(value) for value in values))
        assert vlsns == list(range(FIRST + 1, FIRST + 501))
        assert len(node.asked) - before == 1
    assert node.values == [b"first", *values]


async def test_keys_stay_with_their_values_in_a_mixed_batch() -> None:
    async with serving() as node, connect(node.url) as log:
        keys = [None, b"a", None, b"b", b""]
        await asyncio.gather(*(log.append(b"%d" % at, key=key) for at, key in enumerate(keys)))
    assert [(entry.key, entry.value) for entry in node.entries] == [
        (None, b"0"), (b"a", b"1"), (None, b"2"), (b"b", b"3"), (None, b"4"),
    ]  # fmt: skip


async def test_append_many_is_one_submission_and_calls_keep_their_order() -> None:
    async with serving() as node, connect(node.url) as log:
        ranges: list[object] = list(
            await asyncio.gather(
                log.append_many([b"a", b"b"]),
                log.append_many([b"c"], keys=[b"k"]),
                log.append(b"d"),
                log.append_many(value for value in (b"e", b"f", b"g")),
            )
        )
        assert ranges == [(FIRST, FIRST + 1), (FIRST + 2, FIRST + 2), FIRST + 3, (FIRST + 4, FIRST + 6)]
        assert len(node.asked) == 4
    assert node.values == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


async def test_bytes_like_values_are_taken_and_text_is_not() -> None:
    async with serving() as node, connect(node.url) as log:
        assert await log.append(bytearray(b"array")) == FIRST
        with pytest.raises(TypeError, match="encode"):
            await log.append("text")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="int"):
            await log.append_many([b"a", 7])  # type: ignore[list-item]
        assert await log.append(b"after") == FIRST + 1
    assert node.values == [b"array", b"after"]


async def test_what_is_over_a_limit_is_refused_here_and_harms_nobody() -> None:
    async with serving() as node, connect(node.url) as log:
        with pytest.raises(TooLarge):
            await log.append(bytes(ENTRY_BYTES_MAX + 1))
        with pytest.raises(TooLarge):
            await log.append(b"", key=bytes(KEY_BYTES_MAX + 1))
        with pytest.raises(TooLarge):
            await log.append_many([b""] * 65_537)
        with pytest.raises(TooLarge):
            await log.append_many([bytes(ENTRY_BYTES_MAX)] * 17)
        with pytest.raises(BadBody):
            await log.append_many([])
        with pytest.raises(BadBody):
            await log.append_many([b"a"], keys=[])
        assert await log.append(bytes(ENTRY_BYTES_MAX), key=bytes(KEY_BYTES_MAX)) == FIRST
    assert len(node.asked) == 1


async def test_append_batch_says_all_that_the_node_answers() -> None:
    async with serving() as node, connect(node.url) as log:
        assert await log.append_batch([b"a", b"b"], keys=[None, b"k"]) == Appended(
            Vlsn(FIRST), Vlsn(FIRST + 1), Term(TERM), True, 1, Acks.MAJORITY
        )
        lower = GroupDurability("no_sync", "no_sync")
        alone = await log.append_batch(iter([b"c"]), acks="none", durability="no_sync")
        assert alone == Appended(Vlsn(FIRST + 2), Vlsn(FIRST + 2), Term(TERM), False, 0, Acks.NONE, False, lower)
        mixed = await asyncio.gather(log.append(b"d"), log.append_batch([b"e"], acks=Acks.ALL), log.append(b"f"))
        assert (mixed[0], mixed[1].first, mixed[1].acks, mixed[2]) == (
            FIRST + 3, FIRST + 4, Acks.ALL, FIRST + 5,
        )  # fmt: skip
        with pytest.raises(BadArgument, match="most"):
            await log.append_batch([b"x"], acks="most")
    assert node.values == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert [entry.key for entry in node.entries[:2]] == [None, b"k"]


async def test_what_was_answered_as_not_durable_is_not_waited_for_by_a_read() -> None:
    async with serving() as node, connect(node.url) as log:
        durable = await log.append_batch([b"a"])
        await log.append_batch([b"b"], acks="none", durability="no_sync")
        assert log.endpoints.durable == durable.last


async def test_large_appends_of_one_turn_are_split_into_batches() -> None:
    async with serving() as node, connect(node.url) as log:
        vlsns = await asyncio.gather(*(log.append(bytes(300_000)) for _ in range(10)))
        assert vlsns == list(range(FIRST, FIRST + 10))
        assert 2 <= len(node.asked) <= 10


async def test_an_append_that_the_node_finds_too_large_does_not_fail_its_neighbours() -> None:
    def refuse_big(values: list[bytes]) -> VlsnLogError | None:
        return TooLarge("over this node's limit") if any(len(value) > 1000 for value in values) else None

    async with serving(refusals=refuse_big) as node, connect(node.url) as log:
        values = [b"a", bytes(1001), b"b", b"c"]
        outcomes = await asyncio.gather(*(log.append(value) for value in values), return_exceptions=True)
    assert [type(each) for each in outcomes] == [int, TooLarge, int, int]
    assert node.values == [b"a", b"b", b"c"]


async def test_a_refusal_is_sent_again_in_order_with_all_that_followed_it() -> None:
    turn = 0

    def refuse_some(values: list[bytes]) -> VlsnLogError | None:
        nonlocal turn
        turn += 1
        return QueueFull("full") if turn in (2, 4, 5) else None

    async with serving(refusals=refuse_some) as node, connect(node.url) as log:
        ranges = await asyncio.gather(*(log.append_many([b"%d" % number]) for number in range(20)))
        assert [first for first, _ in ranges] == list(range(FIRST, FIRST + 20))
    assert node.values == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("refusal", [NotMaster, InsufficientReplicas, QueueFull])
async def test_a_safe_refusal_that_lasts_is_raised_at_the_deadline(refusal: type[VlsnLogError]) -> None:
    async with serving(refuse=refusal("for ever")) as node, connect(node.url, timeout_s=0.4) as log:
        started = asyncio.get_running_loop().time()
        with pytest.raises(refusal) as caught:
            await log.append(b"x")
        assert 0.35 < asyncio.get_running_loop().time() - started < 20
        assert caught.value.retry_safe
        node.refuse = None
        assert await log.append(b"y") == FIRST
    assert node.values == [b"y"]


async def test_an_unsafe_refusal_is_raised_at_once_and_the_client_goes_on() -> None:
    async with serving(refuse=Halted("needs a person")) as node, connect(node.url) as log:
        with pytest.raises(Halted, match="person"):
            await log.append(b"x")
        node.refuse = None
        assert await log.append(b"y") == FIRST


async def test_without_any_node_the_deadline_raises_unreachable() -> None:
    async with connect(NOWHERE, timeout_s=0.3) as log:
        with pytest.raises(Unreachable) as caught:
            await log.append(b"x")
    assert caught.value.retry_safe


async def test_an_append_waits_for_a_node_that_is_late() -> None:
    node = await started()
    async with at_socket(node) as url:
        port = int(url.rpartition(":")[2])
    async with connect(url) as log:
        waiting = asyncio.create_task(log.append(b"early"))
        await asyncio.sleep(0)
        async with at_socket(node, port=port):
            assert await waiting == FIRST


async def test_a_logged_append_without_its_majority_is_outcome_unknown() -> None:
    async with serving(hold=True) as node, connect(node.url, timeout_s=0.3) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(b"x")
    assert node.values == [b"x"]


async def test_a_connection_lost_after_sending_is_outcome_unknown_and_what_was_not_sent_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "IN_FLIGHT_GROUPS_MAX", 1)
    received: list[int] = []

    async def lose_first(channel: Channel) -> None:
        while True:
            id, acks, *_ = decode_request(await channel.receive())
            received.append(id)
            if len(received) == 1:
                return
            at = Vlsn(len(received))
            await channel.send(done_answer(id, Appended(at, at, Term(1), True, 2, acks)))

    async with served(scripted(lose_first)) as listener, connect(listener.url) as log:
        outcomes = await asyncio.gather(log.append_many([b"a"]), log.append_many([b"b"]), return_exceptions=True)
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert outcomes[1] == (2, 2)
    assert len(received) == 2


async def test_a_node_that_never_answers_is_outcome_unknown_soon_after_the_deadline() -> None:
    async def keep_silent(channel: Channel) -> None:
        while True:
            await channel.receive()

    async with served(scripted(keep_silent)) as listener, connect(listener.url, timeout_s=0.3) as log:
        async with asyncio.timeout(20):
            with pytest.raises(OutcomeUnknown):
                await log.append(b"x")


async def test_what_a_node_says_behind_a_refusal_is_heard_before_the_client_is_closed() -> None:
    closing = asyncio.Event()

    async def refuse_all(channel: Channel) -> None:
        ids = [decode_request(await channel.receive())[0] for _ in range(3)]
        await channel.send(refused_answer(ids[0], problem.document(Halted("stuck"))))
        await closing.wait()
        for id in ids[1:]:
            await asyncio.sleep(0.05)
            await channel.send(refused_answer(id, problem.document(Halted("stuck"), after=ids[0])))

    async with served(scripted(refuse_all)) as listener, connect(listener.url) as log:
        tasks = [asyncio.create_task(log.append_many([value])) for value in (b"a", b"b", b"c")]
        with pytest.raises(Halted):
            await tasks[0]
        asyncio.get_running_loop().call_later(0.05, closing.set)
        await log.close(flush=False)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Halted] * 3  # none of them is unknown


async def test_a_close_without_a_refusal_waits_for_no_answer() -> None:
    async def keep_silent(channel: Channel) -> None:
        while True:
            await channel.receive()

    async with served(scripted(keep_silent)) as listener, connect(listener.url) as log:
        task = asyncio.create_task(log.append(b"x"))
        await until(lambda: bool(log._producer and log._producer._in_flight))
        async with asyncio.timeout(10):
            await log.close(flush=False)
        with pytest.raises(OutcomeUnknown):
            await task


async def test_a_node_that_answers_out_of_turn_is_not_believed() -> None:
    async def answer_wrongly(channel: Channel) -> None:
        id, acks, *_ = decode_request(await channel.receive())
        await channel.send(done_answer(id + 1, Appended(Vlsn(5), Vlsn(5), Term(1), True, 2, acks)))
        await channel.receive()

    async with served(scripted(answer_wrongly)) as listener, connect(listener.url) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(b"x")


async def test_a_silent_master_gets_no_more_than_was_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "SILENCE_S", 0.2)
    received: list[bytes] = []

    async def keep_silent(channel: Channel) -> None:
        while True:
            received.append(await channel.receive())

    async with served(scripted(keep_silent)) as listener, connect(listener.url, timeout_s=1) as log:
        first = asyncio.create_task(log.append(b"sent"))
        await until(lambda: bool(received))
        await asyncio.sleep(0.25)
        second = asyncio.create_task(log.append(b"kept back"))
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert not any(b"kept back" in message for message in received)
    assert isinstance(outcomes[1], VlsnLogError)


@virtual
async def test_any_node_leads_to_the_master() -> None:
    group = Group(1, 2, levels=LEVELS, keyed=False)
    await group.start()
    await group.serving("n1")
    async with connect(group.url("n2"), network=group.client) as log:
        vlsn = await log.append(b"x")
    assert await group.read("n1") == {vlsn: b"x"}
    await group.stop()


@virtual
async def test_appends_follow_a_change_of_the_master() -> None:
    group = Group(1, levels=LEVELS)
    await group.start()
    await group.serving("n1")
    async with connect(group.url("n1"), network=group.client) as log:
        first = await log.append(b"at n1")
        await group.nodes["n1"].services.administration.transfer("n2")
        second = await log.append(b"at n2")
        assert group.master == "n2"
        assert group.nodes["n2"].opened().log.view.history.term_of(Vlsn(second)) > TERM
    assert await group.read("n2") == {first: b"at n1", second: b"at n2"}
    await group.stop()


async def test_leaving_the_client_flushes_what_is_under_way() -> None:
    async with serving() as node:
        async with connect(node.url) as log:
            tasks = [asyncio.create_task(log.append(b"%d" % number)) for number in range(50)]
            await asyncio.sleep(0)
        assert [await task for task in tasks] == list(range(FIRST, FIRST + 50))


async def test_closing_without_flush_fails_what_waits() -> None:
    async with serving(hold=True) as node:
        log = connect(node.url)
        await log.__aenter__()
        sent = asyncio.create_task(log.append(b"sent"))
        await until(lambda: node.unanswered == 1)
        queued = asyncio.create_task(log.append(b"queued"))
        await asyncio.sleep(0)
        await log.close(flush=False)
        outcomes = await asyncio.gather(sent, queued, return_exceptions=True)
        assert [type(each) for each in outcomes] == [OutcomeUnknown, LogClosed]
        with pytest.raises(LogClosed):
            await log.append(b"too late")


async def test_a_cancelled_append_leaves_its_neighbours_alone() -> None:
    async with serving(hold=True) as node, connect(node.url) as log:
        tasks = [asyncio.create_task(log.append(b"%d" % number)) for number in range(3)]
        await until(lambda: node.unanswered == 1)
        tasks[1].cancel()
        await asyncio.sleep(0)
        node.release()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [int, asyncio.CancelledError, int]
        assert outcomes[::2] == [FIRST, FIRST + 2]


async def test_every_acknowledged_append_of_a_large_batch_returns_though_the_client_is_closed() -> None:
    async with serving(hold=True) as node:
        log = connect(node.url)
        await log.__aenter__()
        tasks = [asyncio.create_task(log.append(b"%d" % number)) for number in range(3000)]
        await until(lambda: node.unanswered == 1)
        node.release()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await log.close(flush=False)
        assert await asyncio.gather(*tasks) == list(range(FIRST, FIRST + 3000))


async def test_what_waits_to_be_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "QUEUED_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(produce, "IN_FLIGHT_BYTES_MAX", 1_000_000)
    async with serving(hold=True) as node, connect(node.url) as log:
        tasks = [asyncio.create_task(log.append_many([bytes(100_000)])) for _ in range(60)]
        await until(lambda: node.unanswered >= 10)
        producer = log._producer
        assert producer is not None
        assert producer.queue._bytes <= 1_200_000
        assert node.unanswered <= 12
        node.release()
        firsts = [first for first, _ in await asyncio.gather(*tasks)]
        assert sorted(firsts) == list(range(FIRST, FIRST + 60))


async def test_acks_none_is_asked_for_and_a_wrong_policy_is_refused() -> None:
    asked: list[Acks] = []

    async def answer(channel: Channel) -> None:
        while True:
            id, acks, *_ = decode_request(await channel.receive())
            asked.append(acks)
            await channel.send(done_answer(id, Appended(Vlsn(9), Vlsn(9), Term(1), False, 1, acks)))

    async with served(scripted(answer)) as listener, connect(listener.url, acks="none") as log:
        assert await log.append(b"x") == 9
    assert asked == [Acks.NONE]
    with pytest.raises(BadArgument, match="majority"):
        connect(NOWHERE, acks="most")
    with pytest.raises(BadArgument, match="timeout_s"):
        connect(NOWHERE, timeout_s=0)
    with pytest.raises(BadArgument, match="url"):
        connect("ftp://host:1")


async def test_what_is_wrong_is_refused_at_the_call_and_the_client_goes_on() -> None:
    """Each would have failed in the task that sends, and with it the client."""
    async with serving() as node, connect(node.url) as log, connect(node.url, exactly_once=True) as once:
        calls: list[Callable[..., Awaitable[object]]] = [
            log.append_many,
            lambda **given: once.submit(producer=7, sequence=0, born=0, **given),
        ]
        wrong: list[dict[str, Any]] = [
            {"values": "text"},
            {"values": b"text"},
            {"values": 7},
            {"values": [b"a", [b"b"]]},
            {"values": [b"a"], "keys": ["k"]},
            {"values": [b"a"], "keys": [""]},
            {"values": [b"a"], "keys": b"k"},
        ]
        for call in calls:
            for given in wrong:
                with pytest.raises(TypeError):
                    await call(**given)
        with pytest.raises(TooLarge):
            await log.append_many(repeat(b"x"))
        for key in ("", 0, "k"):
            with pytest.raises(TypeError):
                await log.append(b"x", key=key)  # type: ignore[call-overload]
        bad: list[dict[str, Any]] = [{"producer": 1.5}, {"sequence": 0.0}, {"born": 0.5}, {"born": None}]
        for numbers in bad:
            with pytest.raises(TypeError):
                await once.submit([b"x"], **{"producer": 7, "sequence": 0, "born": 0, **numbers})
        out: list[dict[str, Any]] = [{"producer": 0}, {"sequence": -1}, {"born": -1}, {"born": 1 << 64}]
        for numbers in out:
            with pytest.raises(BadArgument):
                await once.submit([b"x"], **{"producer": 7, "sequence": 0, "born": 0, **numbers})
        with pytest.raises(TypeError):
            await once.producer_at(1.5)  # type: ignore[arg-type]
        view = memoryview(b"abcd")[::2]
        assert await log.append_many([view, bytearray(b"b")]) == (FIRST, FIRST + 1)
        assert await log.append(b"after") == FIRST + 2
    assert node.values == [b"ac", b"b", b"after"]
