"""The client's transactions against real nodes in one process: whole and once or not at all, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from random import seed as seed_global
from typing import Any

import pytest

from repl import connect
from repl.client.connect import Client
from repl.client.transaction import KEPT_BYTES_MAX, Transaction
from tests.fakes.loop import run
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import fed
from tests.seam.test_once_client import disturb
from tests.seam.test_transactions import known, next_master
from vlsn.errors import OutcomeUnknown, TransactionClosed, TransactionGone, VlsnLogError, WrongVersion
from vlsn.levels import LEVEL_1, LEVELS
from vlsn.limits import MIB

LARGE = b"." * (KEPT_BYTES_MAX // 2)
Story = Callable[[Group, Client], Awaitable[None]]


def played(story: Story, *, seed: int = 11, settings: dict[str, Any] | None = None, **client: Any) -> None:
    async def main() -> None:
        seed_global(seed)
        group = Group(seed, levels=LEVELS, **{"segment_bytes": 8 * MIB, **(settings or {})})
        await group.start()
        await group.serving()
        await fed(group, 2)
        urls = ",".join(map(group.url, group.names))
        async with connect(urls, network=group.client, **client) as log:
            await story(group, log)
        assert not group.fatal
        await group.stop()

    run(main())


async def failed(txn: Transaction, *entries: bytes) -> None:
    async with txn:
        await txn.append_many(entries)
        raise ZeroDivisionError


async def filled(txn: Transaction, entries: list[bytes]) -> None:
    async with txn:
        await txn.append_many(entries)


async def values(group: Group, name: str = "") -> list[bytes]:
    return list((await group.read(name or group.master)).values())


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

    played(story, exactly_once=exactly_once)


def test_a_large_transaction_is_staged_by_the_piece_and_is_one_all_the_same() -> None:
    async def story(group: Group, log: Client) -> None:
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

    played(story)


def test_a_small_transaction_outlives_its_master_and_a_large_one_is_gone_with_it() -> None:
    async def story(group: Group, log: Client) -> None:
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

    played(story)


def test_a_commit_whose_answer_was_lost_is_asked_again_by_itself() -> None:
    async def story(group: Group, log: Client) -> None:
        for size in (1, 4):
            txn = log.transaction()
            await txn.append_many([b"%d" % size + LARGE] * size)
            master = group.nodes[group.master].opened().log
            last: int = master.range.last
            group.net.split([name for name in group.names if name != group.master], [group.master])
            committing = asyncio.create_task(txn.commit())
            while master.range.last == last:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            group.net.heal()
            group.net.block(group.master, "client")
            group.net.cut("client", group.master)
            await asyncio.sleep(5.0)
            group.net.heal()
            appended = await committing
            assert appended is not None and (appended.duplicate, appended.last - appended.first) == (True, size)
        assert len(await values(group)) == 5

    played(story, settings={"election_timeout_s": 5.0}, timeout_s=20.0)


def test_an_outcome_that_is_unknown_is_told_and_the_commit_may_be_called_again() -> None:
    async def story(group: Group, log: Client) -> None:
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

    played(story, settings={"election_timeout_s": 20.0}, timeout_s=2.0)


@pytest.mark.parametrize("size", [1, 4])
def test_a_commit_that_is_refused_after_one_of_unknown_outcome_is_unknown_too(size: int) -> None:
    """A refusal speaks of its own try: who took it for the end would run the transaction again, and double it."""

    async def story(group: Group, log: Client) -> None:
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

    played(story, settings={"election_timeout_s": 20.0}, timeout_s=2.0)


def test_a_group_below_their_level_refuses_them_by_name_and_goes_on() -> None:
    async def main() -> None:
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

    run(main())


async def write(log: Client, name: str, rng: Random, told: dict[bytes, tuple[int, int]], unsure: set[bytes]) -> None:
    """Runs transactions, several under way at once, and notes what was told of each."""

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
def test_every_transaction_is_there_whole_and_once_or_not_at_all_whatever_fails(seed: int) -> None:
    async def main() -> None:
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

    run(main())


def test_nothing_is_taken_beside_a_commit_that_leaves_it_out() -> None:
    async def story(group: Group, log: Client) -> None:
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

    played(story)
