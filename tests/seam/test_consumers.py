"""Consumers against real nodes in one process: each continues where it last committed, after any failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from random import Random
from random import seed as seed_global

import pytest

from repl import connect
from repl.client.connect import Client
from repl.client.consumer import Consumer
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_client_transactions import played
from tests.seam.test_once_client import disturb
from vlsn.errors import BadArgument, LogClosed, StaleTerm, VlsnLogError
from vlsn.format.block import Entry
from vlsn.levels import LEVELS
from vlsn.state.consumers import position_of

ENTRIES = 150
story = partial(played, timeout_s=300.0, exactly_once=True)


async def made(seed: int) -> Group:
    group = Group(seed, levels=LEVELS)
    await group.start()
    await group.serving()
    return group


def client(group: Group, timeout_s: float = 300.0) -> Client:
    return connect(
        ",".join(group.url(name) for name in group.names),
        timeout_s=timeout_s,
        exactly_once=True,
        network=group.client,
    )


async def taken(log: Client, count: int, **begin: object) -> list[bytes]:
    """Reads ``count`` entries as a new worker of ``billing``, and commits after the last one."""
    found: list[bytes] = []
    consumer = log.consumer("billing", **begin)  # type: ignore[arg-type]
    async for entry in consumer:
        found.append(entry.value)
        if len(found) == count:
            await consumer.commit()
            break
    return found


@story(seed=1)
async def test_a_worker_goes_on_where_the_one_before_it_committed(group: Group, log: Client) -> None:
    values = [f"{number}".encode() for number in range(10)]
    await log.append_many(values)
    assert await taken(log, 4, from_vlsn="start") == values[:4]
    assert await taken(log, 3, from_vlsn="start") == values[4:7], "where it begins counts only once"
    lost = log.consumer("billing")
    async for _ in lost:
        break
    assert await taken(log, 3) == values[7:], "what was not committed is read again"
    at_end = log.consumer("later", from_vlsn="end")
    waiting = asyncio.ensure_future(anext(aiter(at_end)))
    small = group.nodes[group.master].opened().log.view.history.small
    await group.until(lambda: "consumer/later" in small, "it has a position before it has read anything")
    await log.append(b"this")
    assert (await waiting).value == b"this"
    with pytest.raises(BadArgument):
        await log.consumer("none").commit()
    with pytest.raises(BadArgument):
        log.consumer("two words")
    with pytest.raises(BadArgument):
        log.consumer("billing", from_vlsn="middle")  # type: ignore[arg-type]


@story(seed=2)
async def test_a_worker_that_slept_through_its_replacement_does_no_harm(group: Group, log: Client) -> None:
    values = [f"{number}".encode() for number in range(10)]
    await log.append_many(values)
    sleeper = log.consumer("billing", from_vlsn="start")
    async for entry in sleeper:
        if entry.value == b"2":
            break
    assert await taken(log, 6) == values[:6]
    before = await log.durable_vlsn()
    with pytest.raises(StaleTerm):
        await sleeper.commit()
    assert await log.durable_vlsn() == before, "nothing was logged"
    assert (await anext(aiter(sleeper))).value == values[6], "it goes on from what the log says"


@story(seed=3)
async def test_a_commit_that_was_cancelled_is_known_as_its_own(group: Group, log: Client) -> None:
    await log.append_many([b"0", b"1", b"2", b"3"])
    consumer = log.consumer("billing", from_vlsn="start")
    reading = aiter(consumer)
    await anext(reading)
    committing = asyncio.create_task(consumer.commit())
    for _ in range(400):
        await asyncio.sleep(0.0005)
        if "consumer/billing" in group.nodes[group.master].opened().log.view.history.small:
            break
    committing.cancel()
    with suppress(asyncio.CancelledError):
        await committing
    assert (await anext(aiter(consumer))).value in (b"0", b"1")
    await consumer.commit()


@virtual
async def test_a_transaction_commits_no_position_that_lies_in_another_group() -> None:
    source_group, sink_group = await made(10), await made(11)
    async with client(source_group) as source, client(sink_group) as sink, client(sink_group) as another:
        await source.append(b"0")
        for kept_in, log in ((None, sink), (sink, source), (sink, another)):
            consumer = source.consumer("copier", from_vlsn="start", kept_in=kept_in)
            assert await consumer.poll(5.0) is not None
            txn = log.transaction()
            with pytest.raises(BadArgument, match="another group"):
                await txn.commit_position(consumer)
            await txn.abort()
        async with sink.transaction() as txn:
            await txn.commit_position(consumer)
        assert [each.name for each in await sink.positions.list()] == ["sim/copier"]
    await source_group.stop()
    await sink_group.stop()


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_consumers_see_every_entry_through_whatever_happens(seed: int) -> None:
    """Workers are dropped at random; each commits now and then.  Every entry is seen, in order after each commit."""
    group, rng = Group(seed, levels=LEVELS), Random(f"consumer/{seed}")
    seed_global(seed)
    group.net.cut_rate = 0.01
    await group.start()
    await group.serving()
    disturbing = asyncio.create_task(disturb(group, rng, []))
    values = [f"{number}".encode() for number in range(ENTRIES)]
    seen: list[bytes] = []
    committed = 0
    async with client(group) as log:

        async def write() -> None:
            for value in values:
                await log.append(value)

        writing = asyncio.create_task(write())
        while committed < ENTRIES:
            consumer = log.consumer("billing", from_vlsn="start")
            given: list[Entry] = []
            async for entry in consumer:
                given.append(entry)
                seen.append(entry.value)
                assert entry.value == values[committed + len(given) - 1], "it goes on where it was committed"
                if rng.random() < 0.3 or committed + len(given) == ENTRIES:
                    await consumer.commit()
                    committed += len(given)
                    given = []
                if rng.random() < 0.1 or committed == ENTRIES:
                    break  # the worker is gone
        await writing
    disturbing.cancel()
    await asyncio.wait([disturbing])
    assert set(seen) == set(values)
    await group.stop()


async def copied(source: Client, sink: Client, name: str, *, until: bytes, rng: Random) -> None:
    """Copies entries with the key ``in`` to entries with the key ``out``, each page with its position, up to ``until``.
    After any failure a new worker continues."""
    while True:
        consumer = source.consumer(name, from_vlsn="start", kept_in=sink)
        try:
            async for page in consumer.pages():
                entries = [entry for entry in page.entries if entry.key == b"in"][: rng.choice((1, 3, 1000))]
                if not entries:
                    continue
                async with sink.transaction() as txn:
                    for entry in entries:
                        await txn.append(b"copy of " + entry.value, key=b"out")
                    consumer.given(entries[-1])
                    await txn.commit_position(consumer)
                    if rng.random() < 0.05:
                        raise RuntimeError("the worker fails")
                if entries[-1].value == until:
                    return
                if len(entries) < len(page.entries):
                    break  # from the position on, by another worker
        except (VlsnLogError, RuntimeError):
            await asyncio.sleep(0.05)


async def outputs(log: Client) -> list[bytes]:
    return [entry.value async for entry in log.read(consistency="linearizable") if entry.key == b"out"]


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_pipeline_within_a_group_copies_each_entry_once_and_in_order(seed: int) -> None:
    """Two workers of one name run all the time; each believes that it is the only one."""
    group, rng = Group(seed, levels=LEVELS), Random(f"pipeline/{seed}")
    seed_global(seed)
    group.net.cut_rate = 0.01
    await group.start()
    await group.serving()
    disturbing = asyncio.create_task(disturb(group, rng, []))
    values = [f"{number}".encode() for number in range(60)]
    async with client(group) as log, client(group) as other:

        async def write() -> None:
            for value in values:
                await log.append(value, key=b"in")

        workers = [
            asyncio.create_task(copied(each, each, "copier", until=values[-1], rng=rng)) for each in (log, other)
        ]
        await write()
        await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        disturbing.cancel()
        await asyncio.wait([disturbing])
        group.net.heal()
        assert await outputs(log) == [b"copy of " + value for value in values]
    await group.stop()


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_a_pipeline_between_two_groups_copies_each_entry_once_and_the_inputs_hold_follows(seed: int) -> None:
    rng = Random(f"two/{seed}")
    seed_global(seed)
    source_group, sink_group = await made(seed), await made(seed + 100)
    disturbing = [
        asyncio.create_task(disturb(group, Random(f"{number}/{seed}"), []))
        for number, group in enumerate((source_group, sink_group))
    ]
    values = [f"{number}".encode() for number in range(40)]
    async with client(source_group) as source, client(sink_group) as sink:

        async def write() -> None:
            for value in values:
                await source.append(value, key=b"in")

        working = asyncio.create_task(copied(source, sink, "copier", until=values[-1], rng=rng))
        await write()
        await working
        for task in disturbing:
            task.cancel()
        await asyncio.wait(disturbing)
        source_group.net.heal()
        sink_group.net.heal()
        assert await outputs(sink) == [b"copy of " + value for value in values]
        [there] = await sink.positions.list()
        assert there.name == "sim/copier"
        later = source.consumer("copier", kept_in=sink)
        waiting = asyncio.ensure_future(anext(aiter(later)))  # a worker says where it begins
        small = source_group.nodes[source_group.master].opened().log.view.history.small

        def told() -> bool:
            placed = position_of(small.get("consumer/copier"))
            return placed is not None and placed.position.next == there.next

        await source_group.until(told, "the input's group is told")
        waiting.cancel()
    await source_group.stop()
    await sink_group.stop()


class Bad(Exception):
    """An error of the loop's own work."""


RAISED = ("before commit_position", "behind commit_position", "by abort", "by the commit")


async def fails(group: Group, log: Client, consumer: Consumer, raised: str) -> None:
    """Makes a transaction in the loop's body that fails."""
    async with log.transaction() as txn:
        await txn.append(b"never", key=b"out")
        if raised == "before commit_position":
            raise Bad
        if raised != "by the commit":
            await txn.commit_position(consumer)
        if raised == "behind commit_position":
            raise Bad
        if raised == "by abort":
            await txn.abort()
            raise Bad
        group.net.split(["client"], group.names)


@pytest.mark.parametrize("by_page", [False, True])
@pytest.mark.parametrize("raised", RAISED)
@story(seed=5, timeout_s=0.5)
async def test_an_entry_is_given_again_where_the_loop_caught_what_its_transaction_raised(
    group: Group, log: Client, raised: str, by_page: bool
) -> None:
    values = [b"0", b"1", b"2"]
    for value in values:
        await log.append(value)
    consumer = log.consumer("billing", from_vlsn="start")
    other = log.consumer("other", from_vlsn="start")
    beside = asyncio.create_task(consumed(other, log))
    given: list[bytes] = []
    async for entry in singly(consumer) if by_page else consumer:
        given.append(entry.value)
        if len(given) == 2:
            with pytest.raises((Bad, VlsnLogError)):
                await fails(group, log, consumer, raised)
            group.net.heal()
            continue
        async with log.transaction():
            pass  # nothing was logged, and nothing has failed
        async with log.transaction() as txn:
            await txn.append(entry.value, key=b"out")
            await txn.commit_position(consumer)
        if entry.value == values[-1]:
            break
    assert given == [b"0", b"1", b"1", b"2"]
    assert [each for each in await outputs(log) if each != b"never"] == values
    assert await beside == values, "nobody else's consumer goes back"


@pytest.mark.parametrize("by", ["poll", "task of poll", "wait_for poll", "wait_for anext"])
@story(seed=5, timeout_s=0.5)
async def test_an_entry_that_another_task_has_received_is_given_again_too(group: Group, log: Client, by: str) -> None:
    """``asyncio.wait_for`` runs what it waits for in a task of its own, up to Python 3.11."""
    for value in (b"0", b"1", b"2"):
        await log.append(value)
    consumer = log.consumer("billing", from_vlsn="start")
    entries = aiter(consumer)
    given: list[bytes] = []
    while given[-1:] != [b"2"]:
        if by.endswith("poll"):
            polling = consumer.poll(5.0)
            task = asyncio.create_task(polling) if by != "poll" else polling
            entry = await (asyncio.wait_for(task, 6.0) if by.startswith("wait_for") else task)
        else:
            entry = await asyncio.wait_for(anext(entries), 6.0)
        assert entry is not None
        given.append(entry.value)
        with suppress(Bad):
            async with log.transaction() as txn:
                await txn.append(entry.value, key=b"out")
                if len(given) == 2:
                    raise Bad
                await txn.commit_position(consumer)
    assert given == [b"0", b"1", b"1", b"2"]
    assert await outputs(log) == [b"0", b"1", b"2"]


async def singly(consumer: Consumer) -> AsyncIterator[Entry]:
    """Takes whole pages, and commits within each."""
    async for page in consumer.pages():
        for entry in page.entries:
            consumer.given(entry)
            yield entry
            if consumer.begins_anew:
                break


async def consumed(consumer: Consumer, log: Client) -> list[bytes]:
    """Takes all entries slowly, and commits at the end."""
    found: list[bytes] = []
    async for entry in consumer:
        found.append(entry.value)
        await asyncio.sleep(0.7)
        if len(found) == 3:
            break
    await consumer.commit()
    return found


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("by", ["commit", "a transaction"])
@story(seed=6, timeout_s=0.5)
async def test_a_bad_entry_is_passed_by_a_commit_where_its_transaction_has_failed(
    group: Group, log: Client, raised: str, by: str
) -> None:
    values = [b"0", b"1", b"2"]
    await log.append_many(values)
    consumer = log.consumer("billing", from_vlsn="start")
    given: list[bytes] = []
    async for entry in consumer:
        given.append(entry.value)
        if entry.value == b"1":
            with pytest.raises((Bad, VlsnLogError)):
                await fails(group, log, consumer, raised)
            group.net.heal()
            if by == "commit":
                await consumer.commit()
                continue
        async with log.transaction() as txn:
            await txn.append(entry.value, key=b"out")
            await txn.commit_position(consumer)
        if entry.value == values[-1]:
            break
    assert given == values
    wanted = [b"0", b"2"] if by == "commit" else values
    assert [each for each in await outputs(log) if each != b"never"] == wanted


@story(seed=7, timeout_s=0.5)
async def test_an_entry_is_given_again_where_the_loop_caught_what_its_commit_raised(group: Group, log: Client) -> None:
    await log.append_many([b"0", b"1", b"2"])
    consumer = log.consumer("billing", from_vlsn="start")
    given: list[bytes] = []
    async for entry in consumer:
        given.append(entry.value)
        if len(given) == 2:
            group.net.split(["client"], group.names)
            with pytest.raises(VlsnLogError):
                await consumer.commit()
            group.net.heal()
            continue
        await consumer.commit()
        if entry.value == b"2":
            break
    assert given == [b"0", b"1", b"1", b"2"]


@story(seed=8)
async def test_a_worker_goes_back_and_ahead_as_it_is_told(group: Group, log: Client) -> None:
    first, last = await log.append_many([b"%d" % number for number in range(6)])
    consumer = log.consumer("billing", from_vlsn="start")

    async def gives(*values: bytes) -> None:
        assert [entry.value for value in values if (entry := await consumer.poll(5.0))] == list(values)

    consumer.seek(first + 4)
    await gives(b"4")
    consumer.rewind()
    await gives(b"0", b"1")
    assert (await consumer.commit()).next == first + 2
    await gives(b"2", b"3")
    consumer.rewind()
    assert consumer.next_vlsn == (await consumer.commit()).next == first + 2
    await gives(b"2", b"3")
    consumer.seek(last)
    assert (await consumer.commit()).next == last, "what lies between is passed"
    await gives(b"5")
    consumer.seek(first)
    await gives(b"0")
    async for entry in consumer:
        assert entry.value == b"5", "a loop begins at the position"
        consumer.seek(first + 1)
        break
    async for entry in consumer:
        assert entry.value == b"1"
        break
    await consumer.commit()
    assert await taken(log, 4) == [b"2", b"3", b"4", b"5"]
    for bad in (0, -1, "start", None, 2**63):
        with pytest.raises(BadArgument):
            consumer.seek(bad)  # type: ignore[arg-type]


@virtual
async def test_a_poll_that_gave_nothing_in_time_is_asked_again_and_misses_nothing() -> None:
    group = await made(9)
    loop = asyncio.get_running_loop()
    async with client(group) as log:
        await log.append(b"0")
        consumer = log.consumer("billing", from_vlsn="start")
        for _ in range(3000):
            if (entry := await consumer.poll(0)) is not None:
                break
            await asyncio.sleep(0.001)  # of virtual time, which stands still while anything is to be done
        assert entry is not None and entry.value == b"0"
        began = loop.time()
        assert await consumer.poll(0.3) is None
        assert loop.time() - began == pytest.approx(0.3, abs=0.01)
        group.net.split(["client"], group.names)
        began = loop.time()
        assert await consumer.poll(3.0) is None, "nobody answers"
        assert loop.time() - began == pytest.approx(3.0, abs=0.01)
        group.net.heal()
        waiting = asyncio.create_task(consumer.poll())
        vlsn = await log.append(b"1")
        entry = await waiting
        assert entry is not None and (entry.vlsn, entry.value) == (vlsn, b"1")
        stream = aiter(consumer)
        assert (await anext(stream)).value == b"0", "nothing was committed"
        assert (await anext(stream)).value == b"1"
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.7)
        await log.append(b"2")
        assert (await asyncio.wait_for(anext(stream), 5.0)).value == b"2"
        assert await consumer.poll(0.1) is None
        with pytest.raises(BadArgument):
            await consumer.poll(-1)
    with pytest.raises(LogClosed):
        await consumer.poll()
    await group.stop()


@story(seed=5, timeout_s=5.0)
async def test_the_late_answer_of_a_commit_lets_nothing_be_committed_that_was_given_since(
    group: Group, log: Client
) -> None:
    """Simulation seed 20261128439: a commit is cancelled, the log is read before it is logged, then its answer
    arrives."""
    await log.append(b"0")
    consumer = log.consumer("late", from_vlsn="start")
    entry = await consumer.poll(timeout_s=5.0)
    _, change = consumer.change()
    consumer.not_committed()
    again = await consumer.poll(timeout_s=5.0)
    assert entry is not None and again is not None and entry.vlsn == again.vlsn
    consumer.committed_by(change, 1_000)
    assert consumer.change()[1].at == change.at, "what it commits now starts from the position before, and is refused"
