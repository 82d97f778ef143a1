"""Transactions that a client stages at the master in pieces, which are abandoned, repeated and freed."""

from __future__ import annotations

import asyncio
from functools import partial
from random import seed as seed_global

import pytest

from repl import connect
from repl.client.connect import Client
from repl.client.staging import ATTEMPT_S
from repl.client.transaction import KEPT_BYTES_MAX, Transaction
from repl.lead.append_http import APPEND_PARAMETERS
from repl.lead.transactions import Transactions
from repl.produce_messages import TRANSACTION
from tests.seam.nodes import Group
from tests.seam.test_client_transactions import FIRST, LARGE, behind_first, filled, left, played, values
from tests.seam.test_transactions import lead
from vlsn.errors import (
    QueueFull,
    TooLarge,
    TransactionGone,
    VlsnLogError,
)
from vlsn.limits import MIB


async def full_of(txn: Transaction, count: int) -> list[bytes]:
    """Appends an odd number of large entries: the last is kept, and staged with the next one."""
    entries = [b"%d" % number + LARGE for number in range(count)]
    for entry in entries:
        await txn.append(entry)
    return entries


@pytest.mark.parametrize("gone", ["refused", "unanswered", "cancelled", "cancelled, its answer lost"])
@played(timeout_s=2.0)
async def test_an_append_that_raised_is_not_in_its_transaction_and_what_was_is(
    group: Group, log: Client, gone: str
) -> None:
    txn = log.transaction()
    before = await full_of(txn, 5)
    transactions = lead(group).transactions
    staged = transactions.staged_bytes
    for _ in range(2):
        if gone == "refused":
            transactions._staged.limit = staged
        elif gone.endswith("lost"):
            group.net.block(group.master, "client")
        else:
            group.net.split(["client"], group.names)
        appending = asyncio.create_task(txn.append(b"raised" + LARGE))
        if gone.startswith("cancelled"):
            await asyncio.sleep(0.1)
            appending.cancel()
        with pytest.raises((VlsnLogError, asyncio.CancelledError)):
            await appending
        transactions._staged.limit = 1 << 30
        group.net.heal()
        if gone.endswith("lost"):
            assert transactions.staged_bytes > staged, "the master has staged what was given up"
    with pytest.raises(TooLarge):
        await txn.append_many([LARGE] * 40)
    await txn.append(b"behind" + LARGE)
    appended = await txn.commit()
    assert appended is not None and await values(group) == [*before, b"behind" + LARGE]
    assert (len(transactions), transactions.staged_bytes) == (0, 0)


@played()
async def test_what_was_given_up_is_taken_back_by_a_commit_too(group: Group, log: Client) -> None:
    txn = log.transaction()
    entries = await full_of(txn, 5)
    group.net.block(group.master, "client")
    appending = asyncio.create_task(txn.append_many([b"given up", LARGE, LARGE]))
    staged = lead(group).transactions.staged_bytes
    await group.until(lambda: lead(group).transactions.staged_bytes > staged, "it is staged")
    await left(appending)
    group.net.heal()
    await txn.commit()
    assert await values(group) == entries


@played()
async def test_of_several_that_append_only_the_one_that_raised_loses_its_entries(group: Group, log: Client) -> None:
    txn = log.transaction()
    group.net.block(group.master, "client")
    tasks = [asyncio.create_task(txn.append(b"%d" % number + LARGE)) for number in range(5)]
    await asyncio.sleep(0.5)
    await left(tasks[1], tasks[3])
    group.net.heal()
    await asyncio.gather(tasks[0], tasks[2], tasks[4])
    await txn.commit()
    assert sorted(await values(group)) == [b"%d" % number + LARGE for number in (0, 2, 4)]


@played(settings={"segment_bytes": 13 * MIB // 4})
async def test_a_transaction_that_is_too_large_for_a_segment_can_be_committed_without_what_was_too_much(
    group: Group, log: Client
) -> None:
    txn = log.transaction()
    with pytest.raises(TooLarge):
        await full_of(txn, 20)
    appended = await txn.commit()
    assert appended is not None
    taken = appended.last - appended.first
    assert taken == 6 and await values(group) == [b"%d" % number + LARGE for number in range(taken)]


@played()
async def test_a_piece_whose_answer_was_lost_is_sent_again_and_staged_once(group: Group, log: Client) -> None:
    txn = log.transaction()
    entries = await full_of(txn, 5)
    group.net.block(group.master, "client")
    appending = asyncio.create_task(txn.append(b"again" + LARGE))
    staged = lead(group).transactions.staged_bytes
    await group.until(lambda: lead(group).transactions.staged_bytes > staged, "it is staged")
    await asyncio.sleep(ATTEMPT_S + 2.0)  # the first try's time is over
    group.net.heal()
    await appending
    await txn.commit()
    assert await values(group) == [*entries, b"again" + LARGE]


async def waits_in(txn: Transaction, count: int) -> None:
    """Runs a transaction's block that appends, and waits there until it is cancelled."""
    async with txn:
        await full_of(txn, count)
        await asyncio.Event().wait()


def is_over(transactions: Transactions, staged: int) -> bool:
    return transactions.staged_bytes > staged


async def given_back(group: Group, within_s: float = 1.0) -> None:
    transactions = lead(group).transactions
    await group.until(lambda: len(transactions) == transactions.staged_bytes == 0, "all is given back", within_s)


@played()
async def test_a_transaction_that_is_cancelled_gives_back_what_is_staged_at_once(group: Group, log: Client) -> None:
    tasks = [asyncio.create_task(waits_in(log.transaction(), 4)) for _ in range(40)]
    transactions = lead(group).transactions
    await group.until(lambda: transactions.staged_bytes > 40 * 4 * len(LARGE), "all are staged")
    await left(*tasks)
    await given_back(group)
    counts = lead(group).member.counts
    assert (counts.aborted, counts.expired) == (40, 0)


@played()
async def test_a_transaction_that_is_cancelled_in_the_middle_of_a_call_leaves_nothing_at_the_master(
    group: Group, log: Client
) -> None:
    await filled(log.transaction(), [LARGE] * 3)  # it knows who leads
    transactions = lead(group).transactions
    for staged in (0, 2 * len(LARGE)):  # as it begins, and as it stages
        group.net.block(group.master, "client")
        task = asyncio.create_task(waits_in(log.transaction(), 6))
        await group.until(lambda: len(transactions) == 1, "it is begun")
        if staged:
            group.net.heal()
            await group.until(partial(is_over, transactions, staged), "it is staged")
            group.net.block(group.master, "client")
        await left(task)
        group.net.heal()
        await given_back(group)


@played()
async def test_a_client_that_ends_gives_back_what_its_cancelled_transaction_has_staged(
    group: Group, log: Client
) -> None:
    async def work() -> None:
        async with connect(group.url(group.master), network=group.net.host("another")) as other:
            await waits_in(other.transaction(), 4)

    task = asyncio.create_task(work())
    await group.until(lambda: lead(group).transactions.staged_bytes > 4 * len(LARGE), "it is staged")
    await left(task)
    assert len(lead(group).transactions) == 0


@played(timeout_s=2.0)
async def test_what_kept_a_piece_waiting_is_told_when_its_time_is_over(group: Group, log: Client) -> None:
    lead(group).transactions._staged.limit = KEPT_BYTES_MAX
    group.net.delays_s["client", group.master] = (0.2, 0.2)
    for seed in range(20):
        seed_global(seed)
        began = group.loop.time()
        with pytest.raises(QueueFull, match="bytes of staged transactions"):
            await filled(log.transaction(), [LARGE] * 3)
        assert 1.0 < group.loop.time() - began < 4.0


@played(settings={"segment_bytes": 16 * MIB})
async def test_a_large_piece_has_the_time_that_its_bytes_take(group: Group, log: Client) -> None:
    group.net.bytes_per_s["client", group.master] = 2e6
    mine = [b"%d" % number + LARGE for number in range(16)]
    await filled(log.transaction(), mine)
    assert await values(group) == mine
    counts = lead(group).member.counts
    assert counts.commits == 1


@played()
async def test_an_older_master_is_asked_in_its_own_words(
    group: Group, log: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repl.lead.produce_ws._KNOWN", frozenset())
    monkeypatch.setattr("repl.produce_messages.TYPES_MAX", TRANSACTION)
    monkeypatch.setattr("repl.lead.transactions_http._BEGINNING", frozenset())
    monkeypatch.setattr("repl.lead.transactions_http._STAGING", frozenset({"after"}))
    monkeypatch.setattr("repl.lead.transactions_http._COMMITTING", APPEND_PARAMETERS)
    mine = [LARGE] * 4
    await filled(log.transaction(), mine)
    assert await values(group) == mine
    consumer = await behind_first(log)
    async with log.transaction() as txn:
        await txn.append(FIRST)
        await txn.commit_position(consumer)
    placed = await consumer.position()
    assert placed is not None and txn.appended is not None
    assert (placed.next, placed.at) == (consumer.next_vlsn, txn.appended.last)
    txn = log.transaction()
    await full_of(txn, 5)
    group.net.split(["client"], group.names)
    appending = asyncio.create_task(txn.append(LARGE))
    await asyncio.sleep(0.1)
    await left(appending)
    group.net.heal()
    with pytest.raises(TransactionGone, match="older"):
        await txn.commit()
    await given_back(group)
    assert await values(group) == mine
