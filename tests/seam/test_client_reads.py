"""The client's reads against real nodes in one process: what it was told is durable is in them, and they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from repl import connect
from repl.api import SinkChange
from repl.client.connect import Client
from tests.fakes.loop import run
from tests.seam.nodes import Group
from tests.seam.test_membership import fed
from vlsn.format.batch import encode
from vlsn.levels import LEVELS
from vlsn.limits import MIB
from vlsn.state.sinks import SinkState

ROUNDS = 100
FAR_S = 0.5
"""Seconds from the master to a replica that lags."""
Story = Callable[[Group, Client, int], Awaitable[int]]
"""Has something made durable, and returns its VLSN."""


async def by_append(group: Group, log: Client, number: int) -> int:
    return await log.append(b"%d" % number)


async def by_batch(group: Group, log: Client, number: int) -> int:
    return (await log.append_batch([b"%d" % number])).last


async def by_transaction(group: Group, log: Client, number: int) -> int:
    async with log.transaction() as txn:
        await txn.append(b"%d" % number)
    assert txn.appended is not None
    return txn.appended.last


async def by_stage(group: Group, log: Client, number: int) -> int:
    staged = await log.sinks.commit("", [(encode([b"%d" % number], None), 1)], None)
    return staged.last


async def by_position(group: Group, log: Client, number: int) -> int:
    consumer = log.consumer(f"of-{number}", from_vlsn=1)
    await anext(aiter(consumer))
    async with log.transaction() as txn:
        await txn.append(b"%d" % number)
        await txn.commit_position(consumer)
    assert txn.appended is not None
    return txn.appended.last


async def by_commit(group: Group, log: Client, number: int) -> int:
    consumer = log.consumer(f"of-{number}", from_vlsn=1)
    await anext(aiter(consumer))
    return (await consumer.commit()).at


async def by_sink(group: Group, log: Client, number: int) -> int:
    placed = await log.sinks.get("s")
    state = SinkState(query="q", batch=number, part=1, parts=1, rows=1, total=1, digest="0" * 32)
    change = SinkChange(state, placed.at if placed is not None else 0)
    return (await log.sinks.commit("s", [(encode([b"%d" % number], None), 1)], change)).last


async def by_destination(group: Group, log: Client, number: int) -> int:
    master = group.nodes[group.master]
    if number % 3 == 0:
        await log.destinations.put(f"d{number}")
    elif number % 3 == 1:
        await log.destinations.pause(f"d{number - 1}")
    else:
        await log.destinations.drop(f"d{number - 2}")
    return int(master.dtvlsn())


async def by_deletion(group: Group, log: Client, number: int) -> int:
    async with connect(group.url(group.master), network=group.net.host("another")) as other:
        consumer = other.consumer("gone", from_vlsn=1)
        await anext(aiter(consumer))
    await log.positions.delete("gone")
    return int(group.nodes[group.master].dtvlsn())


async def by_reading(group: Group, log: Client, number: int) -> int:
    """Another client appends, and this one reads that at the master before it asks the replica again."""
    async with connect(group.url(group.master), network=group.net.host("another")) as other:
        vlsn = await other.append(b"%d" % number)
    log._reader._current = 1
    assert [entry.vlsn async for entry in log.read(vlsn, vlsn)] == [vlsn]
    return vlsn


STORIES = (
    by_append,
    by_batch,
    by_transaction,
    by_stage,
    by_position,
    by_commit,
    by_sink,
    by_destination,
    by_deletion,
    by_reading,
)


@pytest.mark.parametrize("story", STORIES)
def test_a_read_of_a_replica_that_lags_has_what_its_client_was_told_is_durable(story: Story) -> None:
    async def main() -> None:
        group = Group(21, levels=LEVELS, segment_bytes=8 * MIB)
        await group.start()
        await group.serving()
        await fed(group, 2)
        lags = next(name for name in group.names if name != group.master)
        group.net.delays_s[group.master, lags] = (FAR_S, FAR_S)
        missing = 0
        urls = f"{group.url(lags)},{group.url(group.master)}"
        async with connect(urls, network=group.client, timeout_s=60.0) as log:
            await log.append(b"before")
            for number in range(ROUNDS):
                vlsn = await story(group, log, number)
                log._reader._current = 0
                found = [entry.vlsn async for entry in log.read(max(vlsn - 3, 1), all_kinds=True)]
                missing += not found or found[-1] < vlsn
        assert missing == 0, f"{missing} of {ROUNDS}"
        await group.stop()
        assert not group.fatal

    run(main())
