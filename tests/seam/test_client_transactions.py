"""The client's transactions against real nodes in one process: whole and once, or absent, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import signature
from random import Random
from random import seed as seed_global
from typing import Any

import pytest

from repl import connect
from repl.client.connect import Client
from repl.client.consumer import Consumer
from repl.client.transaction import KEPT_BYTES_MAX, Transaction
from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import fed
from tests.seam.test_once_client import disturb
from tests.seam.test_transactions import known, lead, next_master
from vlsn.errors import (
    BadArgument,
    NotMaster,
    OutcomeUnknown,
    StaleTerm,
    TransactionClosed,
    TransactionGone,
    VlsnLogError,
    WrongVersion,
)
from vlsn.levels import LEVEL_1, LEVELS
from vlsn.limits import MIB

LARGE = b"." * (KEPT_BYTES_MAX // 2)
FIRST = b"first"


def played(
    *, seed: int = 11, settings: dict[str, Any] | None = None, **client: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a test of an async function, which receives three nodes and their client; the innermost decorator."""

    def made(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def main(**given: Any) -> None:
            seed_global(seed)
            group = Group(seed, levels=LEVELS, **{"segment_bytes": 8 * MIB, **(settings or {})})
            await group.start()
            await group.serving()
            await fed(group, 2)
            urls = ",".join(map(group.url, group.names))
            async with connect(urls, network=group.client, **client) as log:
                await story(group, log, **given)
            assert not group.fatal
            await group.stop()

        def test(**given: Any) -> None:
            run(main(**given))

        test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
        _, _, *given = signature(story).parameters.values()
        test.__signature__ = signature(story).replace(parameters=given, return_annotation=None)  # type: ignore[attr-defined]
        return test

    return made


async def failed(txn: Transaction, *entries: bytes) -> None:
    async with txn:
        await txn.append_many(entries)
        raise ZeroDivisionError


async def filled(txn: Transaction, entries: list[bytes]) -> None:
    async with txn:
        await txn.append_many(entries)


async def values(group: Group, name: str = "") -> list[bytes]:
    """Returns the logged values without ``FIRST``."""
    return [value for value in (await group.read(name or group.master)).values() if value != FIRST]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_what_a_block_appends_is_logged_as_it_is_left_and_nothing_where_it_fails(exactly_once: bool) -> None:
    async def story(group: Group, log: Client) -> None:
        async with log.transaction() as txn:
            await txn.append(b"a", key=b"k")
            await txn.append_many([b"b", b"c"], keys=[None, b"l"])
            assert await values(group) == []
        assert txn.appended is not None and txn.appended.durable
        first, last = txn.appended.first, txn.appended.last
        assert [(entry.vlsn, entry.key, entry.value) async for entry in log.read()] == [
            (first, b"k", b"a"),
            (first + 1, None, b"b"),
            (first + 2, b"l", b"c"),
        ]
        assert last == first + 3
        for found in (log.read(), log.read(key_prefix=b"k"), log.read(key=b"")):
            assert {entry.txn async for entry in found} == {first}, "filtered by the node or not"
        txn = log.transaction()
        with pytest.raises(ZeroDivisionError):
            await failed(txn, b"never")
        assert txn.appended is None
        async with log.transaction() as txn:
            pass
        assert txn.appended is None
        with pytest.raises(TransactionClosed):
            await txn.append(b"late")
        async with log.transaction() as txn:
            await txn.append(b"taken back")
            await txn.abort()
        appended = await log.append_batch([b"behind"])
        assert appended.first == last + 1
        assert await values(group) == [b"a", b"b", b"c", b"behind"]

    played(exactly_once=exactly_once)(story)()


@played()
async def test_a_large_transaction_is_staged_by_the_piece_and_is_one_all_the_same(group: Group, log: Client) -> None:
    async with log.transaction(acks="all") as txn:
        for number in range(10):
            await txn.append(b"%d" % number + LARGE)
        assert len(group.nodes[group.master].lead.transactions) == 1  # type: ignore[union-attr]
        assert await values(group) == []
    assert txn.appended is not None and txn.appended.synced == 3
    assert await values(group) == [b"%d" % number + LARGE for number in range(10)]
    with pytest.raises(ZeroDivisionError):
        await failed(log.transaction(), *[LARGE] * 4)
    assert len(group.nodes[group.master].lead.transactions) == 0  # type: ignore[union-attr]


@played()
async def test_a_small_transaction_outlives_its_master_and_a_large_one_is_gone_with_it(
    group: Group, log: Client
) -> None:
    small, large = log.transaction(), log.transaction()
    await small.append(b"small")
    await large.append_many([LARGE] * 4)
    await next_master(group)
    appended = await small.commit()
    assert appended is not None and not appended.duplicate
    with pytest.raises(TransactionGone) as gone:
        await large.commit()
    assert gone.value.retry_safe
    assert await values(group) == [b"small"]


@played(settings={"election_timeout_s": 5.0}, timeout_s=20.0)
async def test_a_commit_whose_answer_was_lost_is_asked_again_by_itself(group: Group, log: Client) -> None:
    for size in (1, 4):
        txn = log.transaction()
        await txn.append_many([b"%d" % size + LARGE] * size)
        master = group.nodes[group.master].opened().log
        last: int = master.view.range.last
        group.net.split([name for name in group.names if name != group.master], [group.master])
        committing = asyncio.create_task(txn.commit())
        while master.view.range.last == last:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        group.net.heal()
        group.net.block(group.master, "client")
        group.net.cut("client", group.master)
        await asyncio.sleep(5.0)
        group.net.heal()
        appended = await committing
        assert appended is not None and (appended.duplicate, appended.last - appended.first) == (True, size)
    assert len(await values(group)) == 5


@played(settings={"election_timeout_s": 20.0}, timeout_s=2.0)
async def test_an_outcome_that_is_unknown_is_told_and_the_commit_may_be_called_again(group: Group, log: Client) -> None:
    for size in (1, 4):
        txn = log.transaction()
        await txn.append_many([LARGE] * size)
        others = [name for name in group.names if name != group.master]
        group.net.split(others, [group.master, "client"])
        with pytest.raises(OutcomeUnknown):
            await txn.commit()
        with pytest.raises(VlsnLogError):
            await txn.append(b"more")
        group.net.heal()
        await group.serving()
        appended = await txn.commit()
        assert appended is not None and appended.duplicate
        assert await txn.commit() == appended
    assert len(await values(group)) == 5


@pytest.mark.parametrize("size", [1, 4])
@played(settings={"election_timeout_s": 20.0}, timeout_s=2.0)
async def test_a_commit_that_is_refused_after_one_of_unknown_outcome_is_unknown_too(
    group: Group, log: Client, size: int
) -> None:
    """A refusal is about its own attempt only: a caller that took it for the outcome would run the transaction
    twice."""
    txn = log.transaction()
    await txn.append_many([LARGE] * size)
    others = [name for name in group.names if name != group.master]
    group.net.split(others, [group.master, "client"])
    with pytest.raises(OutcomeUnknown):
        await txn.commit()
    group.kill(*group.names)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await txn.commit()
    with pytest.raises(VlsnLogError):
        await txn.append(b"more")
    group.net.heal()
    await group.start()
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "one leads", 90.0)
    await group.serving()
    try:
        appended = await txn.commit()
    except TransactionGone:
        assert size > 1 and await values(group) == []
    else:
        assert appended is not None and appended.last - appended.first == size
        assert await values(group) == [LARGE] * size


@virtual
async def test_a_group_below_their_level_refuses_them_by_name_and_goes_on() -> None:
    group = Group(12, levels=LEVEL_1)
    await group.start()
    await group.serving()
    async with connect(group.url("n1"), network=group.client) as log:
        for size in (1, 4):
            with pytest.raises(WrongVersion, match="vlsnlog group upgrade"):
                await filled(log.transaction(), [LARGE] * size)
        await log.append(b"plain")
    assert await values(group) == [b"plain"]
    await group.stop()


async def write(log: Client, name: str, rng: Random, told: dict[bytes, tuple[int, int]], unsure: set[bytes]) -> None:
    """Runs transactions, several under way at once, and notes the answer to each."""

    async def one(number: int) -> None:
        value = f"{name}/{number}".encode()
        large = rng.random() < 0.1
        while True:
            try:
                async with log.transaction() as txn:
                    await txn.append(value)
                    await txn.append(value + b"/2")
                    if large:
                        await txn.append_many([value + LARGE] * 3)
                    await txn.append(value + b"/3")
            except OutcomeUnknown:
                unsure.add(value)
                return
            except VlsnLogError as error:
                if not error.retry_safe:
                    raise
                continue
            break
        assert txn.appended is not None
        told[value] = txn.appended.first, txn.appended.last

    tasks = []
    for number in range(40):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02, 0.1, 0.6)))
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_every_transaction_is_there_whole_and_once_or_not_at_all_whatever_fails(seed: int) -> None:
    seed_global(seed)
    group, rng = Group(seed, levels=LEVELS, segment_bytes=8 * MIB), Random(f"transactions/{seed}")
    group.net.cut_rate = 0.01
    await group.start()
    await group.serving()
    told: dict[bytes, tuple[int, int]] = {}
    unsure: set[bytes] = set()
    struck: list[str] = []
    urls = ",".join(map(group.url, group.names))
    disturbing = asyncio.create_task(disturb(group, rng, struck))
    async with (
        connect(urls, network=group.client, timeout_s=60.0) as one,
        connect(urls, network=group.client, timeout_s=60.0, exactly_once=True) as other,
    ):
        await asyncio.gather(write(one, "one", rng, told, unsure), write(other, "other", rng, told, unsure))
    disturbing.cancel()
    group.net.heal()
    for name in group.names:
        if name not in group.nodes:
            await group.start(name)
    await group.serving()
    await known(group, max(last for _, last in told.values()))
    read = await group.read(group.master)
    begins = {value: vlsn for vlsn, value in read.items() if value.count(b"/") == 1 and LARGE not in value}
    assert set(told) <= set(begins) <= set(told) | unsure
    assert len(begins) == sum(value in begins for value in read.values()), "one is there twice"
    for value, vlsn in begins.items():
        mine = [read[at] for at in range(vlsn, vlsn + 6) if at in read and read[at].startswith(value)]
        assert mine in (
            [value, value + b"/2", value + b"/3"],
            [value, value + b"/2", *[value + LARGE] * 3, value + b"/3"],
        )
    assert len(struck) >= 3
    assert not group.fatal
    await group.stop()


@played()
async def test_nothing_is_taken_beside_a_commit_that_leaves_it_out(group: Group, log: Client) -> None:
    await log.append(b"a")
    consumer = log.consumer("billing", from_vlsn="start")
    async for _ in consumer:
        break
    txn = log.transaction()
    await txn.append_many([LARGE, LARGE, b"staged"])
    await txn.append(b"kept")
    committing = asyncio.create_task(txn.commit())
    await asyncio.sleep(0)
    with pytest.raises(TransactionClosed):
        await txn.append(b"beside")
    with pytest.raises(TransactionClosed):
        await txn.commit_position(consumer)
    await committing
    assert await values(group) == [b"a", LARGE, LARGE, b"staged", b"kept"]


async def left(*tasks: asyncio.Task[Any]) -> None:
    """Cancels these, and waits for them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def logged(group: Group, log: Client, txn: Transaction) -> asyncio.Task[Any]:
    """Commits ``txn`` so that no answer arrives, and returns once its block is in the master's log."""
    await filled(log.transaction(), [FIRST])  # it is connected
    log_of_master = lead(group).log
    last = log_of_master.view.range.last
    group.net.block(group.master, "client")
    committing = asyncio.create_task(txn.commit())
    await group.until(lambda: log_of_master.view.range.last > last, "it is logged")
    return committing


@pytest.mark.parametrize("position", [False, True])
@pytest.mark.parametrize("what", ["whole", "staged", "whole, its connection cut"])
@played(timeout_s=4.0)
async def test_a_commit_that_was_cancelled_and_is_asked_again_is_logged_once(
    group: Group, log: Client, monkeypatch: pytest.MonkeyPatch, what: str, position: bool
) -> None:
    """This holds even if the log has forgotten the commit, after as many others as it remembers. A position that the
    commit itself has replaced does not count as another worker's."""
    for node in group.nodes.values():
        monkeypatch.setattr(node.opened().log.view.history.commits, "_most", 4)
    await log.append(FIRST)
    consumer = await behind_first(log)
    txn = log.transaction()
    mine = [LARGE] * 4 if what == "staged" else [b"mine"]
    await txn.append_many(mine)
    if position:
        await txn.commit_position(consumer)
    await left(await logged(group, log, txn))
    if what.endswith("cut"):
        group.net.cut("client", group.master)
    async with connect(group.url(group.master), network=group.net.host("another")) as other:
        for number in range(8):
            await filled(other.transaction(), [b"other %d" % number])
    group.net.heal()
    try:
        appended = await txn.commit()
    except OutcomeUnknown:
        assert what != "whole", "its answer came"
    else:
        assert appended is not None and appended.duplicate
        assert (await group.read(group.master))[appended.first] == mine[0]
    assert [value for value in await values(group) if not value.startswith(b"other")] == mine


@played()
async def test_a_commit_that_was_cancelled_before_it_was_sent_is_logged_once_when_asked_again(
    group: Group, log: Client
) -> None:
    txn = log.transaction()
    await txn.append(b"once")
    group.net.split(["client"], group.names)
    await left(asyncio.create_task(txn.commit()))
    group.net.heal()
    appended = await txn.commit()
    assert appended is not None and await txn.commit() == appended
    await log.append(b"behind")
    assert await values(group) == [b"once", b"behind"]


@pytest.mark.parametrize("size", [1, 4])
@played(timeout_s=2.0)
async def test_an_abort_beside_a_commit_or_behind_an_uncertain_one_raises(group: Group, log: Client, size: int) -> None:
    txn = log.transaction()
    await txn.append_many([LARGE] * size)
    committing = await logged(group, log, txn)
    with pytest.raises(TransactionClosed, match="under way"):
        await txn.abort()
    with pytest.raises(OutcomeUnknown):
        await committing
    with pytest.raises(OutcomeUnknown, match="commit it again"):
        await txn.abort()
    group.net.heal()
    appended = await txn.commit()
    assert appended is not None and appended.duplicate
    with pytest.raises(TransactionClosed, match="committed"):
        await txn.abort()
    assert await values(group) == [LARGE] * size


@pytest.mark.parametrize("size", [1, 4])
@played(timeout_s=2.0)
async def test_a_block_that_fails_behind_an_uncertain_commit_does_not_pass_for_aborted(
    group: Group, log: Client, size: int
) -> None:
    async def block(txn: Transaction, fault: type[Exception]) -> None:
        async with txn:
            await txn.append_many([LARGE] * size)
            try:
                await (await logged(group, log, txn))
            except OutcomeUnknown as unknown:
                raise fault("told") from unknown

    for fault in (ZeroDivisionError, OutcomeUnknown):
        txn = log.transaction()
        with pytest.raises(OutcomeUnknown) as unknown:
            await block(txn, fault)
        assert isinstance(unknown.value if fault is OutcomeUnknown else unknown.value.__context__, fault)
        group.net.heal()
        await txn.commit()
    assert await values(group) == [LARGE] * 2 * size


@played()
async def test_a_commit_that_was_cancelled_and_has_come_through_is_not_aborted(group: Group, log: Client) -> None:
    txn = log.transaction()
    await txn.append(b"through")
    await left(await logged(group, log, txn))
    with pytest.raises(OutcomeUnknown):
        await txn.abort()
    group.net.heal()
    await log.append(b"behind")
    with pytest.raises(TransactionClosed):
        await txn.abort()
    assert txn.appended is not None and await values(group) == [b"through", b"behind"]


@played()
async def test_a_consumer_whose_commit_was_aborted_reads_on_from_where_the_log_says(group: Group, log: Client) -> None:
    await log.append_many([b"a", b"b", b"c"])
    consumer = log.consumer("billing", from_vlsn="start")
    reading = aiter(consumer)
    txn = log.transaction()
    assert [(await anext(reading)).value for _ in range(2)] == [b"a", b"b"]
    await txn.commit_position(consumer)
    await txn.abort()
    assert consumer.begins_anew
    assert (await anext(aiter(consumer))).value == b"a"


async def behind_first(log: Client) -> Consumer:
    """Makes a consumer that has received the first entry."""
    consumer = log.consumer("billing", from_vlsn="start")
    async for _ in consumer:
        break
    return consumer


@pytest.mark.parametrize("entries", [[], [b"out"], [b"out", b"out 2"]])
@played()
async def test_a_position_goes_with_its_entries_in_one_message(group: Group, log: Client, entries: list[bytes]) -> None:
    await log.append(b"in")
    consumer = await behind_first(log)
    asked: list[str] = []
    group.net.on_said = lambda source, target, path, body: asked.append(path) if target == "client" else None
    for _ in range(3):
        async with log.transaction(acks="all") as txn:
            await txn.append_many(entries)
            await txn.commit_position(consumer)
    assert asked == []
    placed = await consumer.position()
    assert placed is not None and txn.appended is not None and txn.appended.synced == 3
    assert (placed.next, placed.at) == (consumer.next_vlsn, txn.appended.last)
    assert txn.appended.last - txn.appended.first == len(entries)
    assert await values(group) == [b"in", *3 * entries]


@played()
async def test_a_position_that_another_worker_has_replaced_takes_its_entries_with_it(group: Group, log: Client) -> None:
    await log.append(b"in")
    sleeper, worker = await behind_first(log), await behind_first(log)
    txn = log.transaction()
    await txn.append(b"worker's")
    await txn.commit_position(worker)
    await txn.commit()
    stale = log.transaction()
    await stale.append(b"sleeper's")
    await stale.commit_position(sleeper)
    beside = [asyncio.create_task(filled(log.transaction(), [b"beside %d" % number])) for number in range(3)]
    with pytest.raises(StaleTerm):
        await stale.commit()
    with pytest.raises(TransactionClosed):
        await stale.commit()
    await asyncio.gather(*beside)
    assert sorted(await values(group)) == [b"beside 0", b"beside 1", b"beside 2", b"in", b"worker's"]
    assert sleeper.begins_anew


@played(timeout_s=2.0)
async def test_a_position_past_the_end_of_the_log_is_refused_by_who_leads_for_certain(
    group: Group, log: Client
) -> None:
    await log.append(b"in")
    consumer = await behind_first(log)
    consumer._next += 1_000
    txn, again = log.transaction(), log.transaction()
    for each in (txn, again):
        await each.append(b"out")
        await each.commit_position(consumer)
    with pytest.raises(BadArgument):
        await txn.commit()
    group.net.split([group.master, "client"], [name for name in group.names if name != group.master])
    with pytest.raises((NotMaster, OutcomeUnknown)):
        await again.commit()
    group.net.heal()
    await group.serving()
    assert await values(group) == [b"in"]


@pytest.mark.parametrize("cancelled", [False, True])
@played(timeout_s=2.0)
async def test_a_position_whose_commit_had_no_answer_is_set_once_when_it_is_asked_again(
    group: Group, log: Client, cancelled: bool
) -> None:
    await log.append(b"in")
    consumer = await behind_first(log)
    txn = log.transaction()
    await txn.append(b"out")
    await txn.commit_position(consumer)
    committing = await logged(group, log, txn)
    if cancelled:
        await left(committing)
    else:
        with pytest.raises(OutcomeUnknown):
            await committing
    assert consumer.begins_anew, "the log says where to go on"
    group.net.heal()
    appended = await txn.commit()
    assert appended is not None and appended.duplicate
    placed = await consumer.position()
    assert placed is not None and placed.at == appended.last
    assert await values(group) == [b"in", b"out"]
