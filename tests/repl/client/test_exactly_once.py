"""The exactly-once client: groups that keep their name or get another one, and the caller's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from repl import connect, connect_sync
from repl.api import Acks, Appended
from repl.client import produce
from repl.client.group import Group
from repl.client.identity import Identities
from repl.produce_messages import Asked, decode_request, done_answer, refused_answer
from repl.web import problem
from tests.fakes.random import SeededRandom
from tests.repl.client.group import ServedNode, scripted, served, serving, until
from tests.repl.web.one_node import FIRST
from vlsn.errors import (
    BadArgument,
    BadBody,
    DuplicateForgotten,
    Halted,
    LogClosed,
    OutcomeUnknown,
    OutOfSequence,
    QueueFull,
    TooLarge,
    UnknownProducer,
    VlsnLogError,
)
from vlsn.format import batch
from vlsn.format.batch import Batch
from vlsn.format.producer_columns import PRODUCER_BYTES
from vlsn.ids import Term, Vlsn
from vlsn.limits import BODY_BYTES_MAX, MIB
from vlsn.seams import Channel


async def take(channel: Channel) -> tuple[Asked, Batch]:
    message = await channel.receive()
    asked = decode_request(message)
    return asked, batch.decode(memoryview(message)[asked.batch_at :])


def done(id: int, at: int, *, duplicate: bool = False) -> bytes:
    return done_answer(id, Appended(Vlsn(at), Vlsn(at), Term(1), True, 2, Acks.MAJORITY, duplicate))


def script(*sessions: Callable[[Channel], Awaitable[None]]) -> Callable[[Channel], Awaitable[None]]:
    """Runs one session for each connection, in their order."""
    left = list(sessions)

    async def run(channel: Channel) -> None:
        await left.pop(0)(channel)

    return run


async def test_what_was_sent_and_not_answered_goes_out_again_under_its_names() -> None:
    seen: list[list[tuple[int, int, int | None]]] = [[], []]

    async def lose_three(channel: Channel) -> None:
        for _ in range(3):
            asked, one = await take(channel)
            seen[0].append((one.producer, one.sequence, asked.born))

    async def answer_all(channel: Channel) -> None:
        for at in range(4):
            asked, one = await take(channel)
            seen[1].append((one.producer, one.sequence, asked.born))
            await channel.send(done(asked.id, 10 + at, duplicate=at < 2))

    handler = scripted(script(lose_three, answer_all))
    async with served(handler) as listener, connect(listener.url, exactly_once=True) as log:
        tasks = [asyncio.create_task(log.append_many([value])) for value in (b"a", b"b", b"c")]
        assert [first for first, _ in await asyncio.gather(*tasks)] == [10, 11, 12]
        assert await log.append(b"d") == 13
    assert seen[1][:3] == seen[0]
    assert [sequence for _, sequence, _ in seen[1]] == [0, 1, 2, 3]
    assert len({(producer, born) for producer, _, born in seen[1]}) == 1
    assert seen[1][0][0] > 0


async def test_a_group_split_for_its_neighbour_leaves_no_hole_in_the_sequences() -> None:
    def refuse_big(values: list[bytes]) -> VlsnLogError | None:
        return TooLarge("over this node's limit") if any(len(value) > 1000 for value in values) else None

    async with serving(refusals=refuse_big) as node, connect(node.url, exactly_once=True) as log:
        values = [b"a", bytes(1001), b"b", b"c"]
        outcomes = await asyncio.gather(*(log.append(value) for value in values), return_exceptions=True)
        await log.append(b"d")
    assert [type(each) for each in outcomes] == [int, TooLarge, int, int]
    assert [sequence for _, sequence, _ in node.taken] == [0, 1, 2, 3]


async def test_refusals_leave_no_hole_either_and_keep_the_order() -> None:
    turn = 0

    def refuse_some(values: list[bytes]) -> VlsnLogError | None:
        nonlocal turn
        turn += 1
        return QueueFull("full") if turn in (2, 4, 5) else None

    async with serving(refusals=refuse_some) as node, connect(node.url, exactly_once=True) as log:
        await asyncio.gather(*(log.append_many([b"%d" % number]) for number in range(20)))
    assert node.values == [b"%d" % number for number in range(20)]
    assert [sequence for _, sequence, _ in node.taken] == list(range(20))


@pytest.mark.parametrize("refusal", [UnknownProducer, OutOfSequence])
async def test_who_is_not_known_any_more_goes_on_under_another_name(refusal: type[VlsnLogError]) -> None:
    forgotten = False

    def forget(values: list[bytes]) -> VlsnLogError | None:
        nonlocal forgotten
        if values == [b"c"] and not forgotten:
            forgotten = True
            return refusal("who are you")
        return None

    async with serving(refusals=forget) as node, connect(node.url, exactly_once=True) as log:
        for value in (b"a", b"b", b"c", b"d"):
            await log.append(value)
    assert node.values == [b"a", b"b", b"c", b"d"]
    names = [producer for producer, _, _ in node.taken]
    assert names[0] == names[1] != names[2] == names[3]
    assert [sequence for _, sequence, _ in node.taken] == [0, 1, 0, 1]
    assert node.taken[2][2] is not None
    assert node.taken[2][2] >= FIRST + 1, "it was born when the others were durable"


@pytest.mark.parametrize("refusal", [UnknownProducer, OutOfSequence, DuplicateForgotten, Halted, TooLarge, BadBody])
async def test_what_may_have_been_logged_and_is_refused_is_unknown(refusal: type[VlsnLogError]) -> None:
    async def lose_one(channel: Channel) -> None:
        await take(channel)

    async def refuse(channel: Channel) -> None:
        asked, _ = await take(channel)
        await channel.send(refused_answer(asked.id, problem.document(refusal("no"))))
        await channel.receive()

    async def answer(channel: Channel) -> None:
        asked, one = await take(channel)
        assert one.sequence == 0
        await channel.send(done(asked.id, 7))

    handler = scripted(script(lose_one, refuse, answer))
    async with served(handler) as listener, connect(listener.url, exactly_once=True) as log:
        with pytest.raises(OutcomeUnknown, match="no"):
            await log.append(b"x")
        assert await log.append(b"y") == 7


async def test_an_outcome_that_a_node_does_not_know_is_asked_for_again() -> None:
    async def not_in_time(channel: Channel) -> None:
        asked, _ = await take(channel)
        await channel.send(refused_answer(asked.id, problem.document(OutcomeUnknown("stopped leading"))))
        await channel.receive()

    async def answer(channel: Channel) -> None:
        asked, one = await take(channel)
        assert one.sequence == 0
        await channel.send(done(asked.id, 7, duplicate=True))

    handler = scripted(script(not_in_time, answer))
    async with served(handler) as listener, connect(listener.url, exactly_once=True) as log:
        assert await log.append(b"x") == 7


async def test_a_node_that_does_not_answer_is_left_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "SILENCE_S", 0.2)

    async def keep_silent(channel: Channel) -> None:
        while True:
            await channel.receive()

    async def answer(channel: Channel) -> None:
        asked, _ = await take(channel)
        await channel.send(done(asked.id, 7))

    handler = scripted(script(keep_silent, answer))
    async with served(handler) as listener, connect(listener.url, exactly_once=True, timeout_s=30) as log:
        async with asyncio.timeout(20):
            assert await log.append(b"x") == 7


async def test_past_the_deadline_what_was_sent_is_unknown_and_what_was_not_is_not() -> None:
    async with serving(hold=True) as node, connect(node.url, timeout_s=0.5, exactly_once=True) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(b"x")
        node.refuse = QueueFull("full")
        with pytest.raises(QueueFull):
            await log.append(b"y")
    assert set(node.values) == {b"x"}


async def test_closing_tells_what_was_sent_from_what_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "IN_FLIGHT_GROUPS_MAX", 1)

    async def lose_one(channel: Channel) -> None:
        await take(channel)

    async def hold(channel: Channel) -> None:
        while True:
            await channel.receive()

    handler = scripted(script(lose_one, hold))
    async with served(handler) as listener:
        log = connect(listener.url, exactly_once=True)
        await log.__aenter__()
        sent = asyncio.create_task(log.append(b"sent"))
        producer = log._producer
        assert producer is not None
        await until(lambda: any(group.uncertain for group in producer._in_flight))
        queued = asyncio.create_task(log.append(b"queued"))
        await asyncio.sleep(0)
        await log.close(flush=False)
        outcomes = await asyncio.gather(sent, queued, return_exceptions=True)
    assert [type(each) for each in outcomes] == [OutcomeUnknown, LogClosed]


async def test_the_largest_batch_leaves_room_for_its_name() -> None:
    async with serving(segment_bytes=32 * MIB) as node, connect(node.url, timeout_s=60, exactly_once=True) as log:
        values = [bytes(1 << 20)] * 15
        rest = BODY_BYTES_MAX - PRODUCER_BYTES - 15 * (1 << 20) - (4 * 17 + 4)
        assert await log.append_many([*values, bytes(rest)]) == (FIRST, FIRST + 15)
        with pytest.raises(TooLarge):
            await log.append_many([*values, bytes(rest + 1)])


def test_connect_sync_can_be_exactly_once() -> None:
    with ServedNode() as served_node, connect_sync(served_node.url, exactly_once=True) as log:
        assert [log.append(b"a"), log.append(b"b")] == [FIRST, FIRST + 1]
    assert [sequence for _, sequence, _ in served_node.node.taken] == [0, 1]


# Names, by themselves.


def groups(count: int) -> list[Group]:
    return [Group(1.0) for _ in range(count)]


def names_of(some: list[Group]) -> list[int | None]:
    return [group.sequence if group.identity is not None else None for group in some]


def named(identities: Identities, some: list[Group]) -> None:
    for group in some:
        identities.name(group, 5)


def test_only_what_may_be_in_the_log_and_what_lies_before_it_keeps_its_name() -> None:
    identities, all_ = Identities(SeededRandom()), groups(5)
    named(identities, all_)
    identities.acknowledged(all_[0])
    all_[2].uncertain = True
    identities.settle(all_[1:])
    assert names_of(all_[1:]) == [1, 2, None, None]
    named(identities, [*all_[1:], *groups(1)])
    assert names_of(all_[1:]) == [1, 2, 3, 4]


def test_groups_that_were_not_sent_this_time_keep_their_names_too() -> None:
    identities, all_ = Identities(SeededRandom()), groups(4)
    named(identities, all_)
    for group in all_[:3]:
        group.uncertain = True
    identities.settle(all_)
    assert names_of(all_) == [0, 1, 2, None]
    identities.settle(all_[:1])  # a connection that broke after the first of them
    named(identities, all_)
    assert names_of(all_) == [0, 1, 2, 3]


def test_behind_a_group_that_is_given_up_names_are_new() -> None:
    identities, all_ = Identities(SeededRandom()), groups(3)
    named(identities, all_)
    for group in all_[:2]:
        group.uncertain = True
    identities.settle(all_)
    all_[0].fail(OutcomeUnknown("too late"))
    named(identities, all_[1:])
    assert all_[1].identity is all_[0].identity
    assert all_[2].identity is not all_[0].identity
    assert names_of(all_[1:]) == [1, 0]


async def test_submissions_with_names_of_their_own_keep_them_whatever_becomes_of_the_connection() -> None:
    seen: list[list[tuple[int, int, int | None]]] = []

    async def note(channel: Channel, count: int) -> list[int]:
        taken = [await take(channel) for _ in range(count)]
        seen.append([(one.producer, one.sequence, asked.born) for asked, one in taken])
        return [asked.id for asked, _ in taken]

    async def refuse_all(channel: Channel) -> None:
        first, *later = await note(channel, 3)
        await channel.send(refused_answer(first, problem.document(QueueFull("full"))))
        for id in later:
            await channel.send(refused_answer(id, problem.document(QueueFull("full"), after=first)))

    async def lose_all(channel: Channel) -> None:
        await note(channel, 3)

    async def answer_all(channel: Channel) -> None:
        for at, id in enumerate(await note(channel, 3)):
            await channel.send(done(id, 10 + at, duplicate=not at))

    handler = scripted(script(refuse_all, lose_all, answer_all))
    async with served(handler) as listener, connect(listener.url, exactly_once=True) as log:
        told = await asyncio.gather(*(log.submit([b"v"], producer=7, sequence=5 + at, born=3) for at in range(3)))
    assert [(each.first, each.last, each.duplicate) for each in told] == [
        (10, 10, True),
        (11, 11, False),
        (12, 12, False),
    ]
    assert seen == [[(7, 5, 3), (7, 6, 3), (7, 7, 3)]] * 3


async def test_a_submission_that_is_refused_for_good_leaves_its_name_to_none_behind_it() -> None:
    def refuse_big(values: list[bytes]) -> VlsnLogError | None:
        return TooLarge("over this node's limit") if values == [b"big"] else None

    async with serving(refusals=refuse_big) as node, connect(node.url, exactly_once=True) as log:
        values = [b"a", b"big", b"c"]
        told = await asyncio.gather(
            *(log.submit([value], producer=7, sequence=at, born=1) for at, value in enumerate(values)),
            return_exceptions=True,
        )
        assert [type(each) for each in told] == [Appended, TooLarge, OutOfSequence]
        assert node.values == [b"a"]
        assert [submission.sequence for submission, _ in node.asked] == [0, 1, 2]
        assert (await log.producer_at(7)).place.next == 1
        assert (await log.producer_at(8)).place.next == 0
        with pytest.raises(BadArgument, match="sequence -1"):
            await log.submit([b"v"], producer=7, sequence=-1, born=1)
    async with serving() as node, connect(node.url) as log:
        with pytest.raises(BadArgument, match="exactly_once"):
            await log.submit([b"v"], producer=7, sequence=3, born=1)
