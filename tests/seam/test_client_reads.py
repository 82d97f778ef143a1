"""The client's reads against real nodes in one process: they return every entry that it knows to be durable, and
end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from repl import connect
from repl.api import SinkChange
from repl.client.connect import Client
from repl.client.endpoints import LOOK_EVERY_S, LOOK_IDLE_S
from repl.node.gateway import Gateway
from tests.fakes.loop import virtual
from tests.repl.read.test_tail_http import tail_of
from tests.seam.nodes import PORT, Group
from tests.seam.test_membership import changed, electable, fed
from vlsn.errors import Lagging, NotListed, Unreachable
from vlsn.format.batch import encode
from vlsn.levels import LEVELS
from vlsn.limits import MIB
from vlsn.state.sinks import SinkState

ROUNDS = 100
FAR_S = 0.5
"""Seconds from the master to a replica that lags."""
Story = Callable[[Group, Client, int], Awaitable[int]]
"""Makes an entry durable, and returns its VLSN."""


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
    """Lets another client append; this one reads the entry at the master before it asks the replica again."""
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


@pytest.mark.parametrize("story", [STORIES[0], *(pytest.param(each, marks=pytest.mark.long) for each in STORIES[1:])])
@virtual
async def test_a_read_of_a_replica_that_lags_has_what_its_client_was_told_is_durable(story: Story) -> None:
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


async def asked(group: Group, name: str, path: str) -> tuple[int, str]:
    """Returns the status, and the type of the problem."""
    response = await group.client.request("GET", f"{group.url(name)}{path}", timeout_s=5.0)
    return response.status, msgspec.json.decode(bytes(response.body))["type"] if response.status >= 300 else ""


async def started(seed: int, **settings: Any) -> tuple[Group, str, list[str]]:
    """Returns a group, a replica of it, and the others."""
    group = Group(seed, levels=LEVELS, **settings)
    await group.start()
    await group.serving()
    await fed(group, 2)
    gone = next(name for name in group.names if name != group.master)
    return group, gone, [name for name in group.names if name != gone]


READS = (
    "/v1/entries",
    "/v1/entries?from=999&wait=60",
    "/v1/entries/{vlsn}",
    "/v1/entries?at=0",
    "/v1/tail",
    "/v1/spans",
    "/v1/consumers",
)


@virtual
async def test_a_node_that_learned_of_its_removal_says_so_and_serves_no_reads() -> None:
    group, gone, others = await started(31)
    vlsn = await group.appended(b"before")
    await group.until(lambda: group.nodes[gone].dtvlsn() >= vlsn, "it has that")
    waiting = asyncio.create_task(asked(group, gone, "/v1/entries?from=999&wait=60"))
    reads = [path.format(vlsn=vlsn) for path in READS]
    for path in reads:
        if "wait" not in path:
            assert (await asked(group, gone, path))[0] == 200, path
    tail = await tail_of(Gateway(group.nodes[gone].services), f"/v1/tail?from={vlsn + 1}")
    assert (await tail.next()).startswith(b":"), "nothing but a comment yet"
    await changed(group, change="remove", name=gone)
    assert await waiting == (403, "not-listed"), "who waits is told, too"
    last = await tail.next()
    assert last.startswith(b"event: error") and b"not-listed" in last and await tail.next() == b"", last
    for path in reads:
        assert await asked(group, gone, path) == (403, "not-listed"), path
    said = group.nodes[gone].services.monitoring.status()
    assert (said["state"], said["listed"]) == ("UNKNOWN", False) and said["reason"].startswith("not-listed")
    # Cut off it does not forget, though its own log does not say so.
    group.net.split([gone], others)
    await asyncio.sleep(30.0)
    assert await asked(group, gone, "/v1/entries") == (403, "not-listed")
    assert group.nodes[gone].member.reason.startswith("not-listed")
    group.net.heal()
    later = await group.appended(b"later")
    async with connect(group.url(gone), network=group.client, timeout_s=5.0) as log:
        assert [entry.vlsn async for entry in log.read()] == [vlsn, later], "members show it"
    await changed(group, change="add", name=gone, url=group.url(gone))
    await electable(group, gone)
    await group.until(lambda: group.nodes[gone].dtvlsn() >= later, "it is fed again")
    assert (await asked(group, gone, "/v1/entries"))[0] == 200
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("knows_more", [False, True])
@pytest.mark.parametrize("urls", ["all", "of the removed node"])
@virtual
async def test_what_a_removed_node_that_does_not_know_it_has_is_not_taken_for_the_log(
    urls: str, knows_more: bool
) -> None:
    group, gone, others = await started(32)
    loop = asyncio.get_running_loop()
    first = await group.appended(b"before")
    await group.until(lambda: group.nodes[gone].dtvlsn() >= first, "it has that")
    group.net.split([gone], others)
    await changed(group, change="remove", name=gone)
    later = [await group.appended(b"later") for _ in range(3)]
    assert await asked(group, gone, "/v1/entries") == (200, ""), "it does not know"
    names = [gone, *others] if urls == "all" else [gone]
    async with connect(",".join(map(group.url, names)), network=group.client, timeout_s=5.0) as log:
        if knows_more:
            later.append(await log.append(b"mine"))
        async with asyncio.timeout(60.0):
            assert [entry.vlsn async for entry in log.read()] == [first, *later]
        assert [entry.vlsn async for entry in log.read(later[0])] == later
        assert await log.vlsn_at(2**60) > later[-1]
        # Where no member is to be reached that it would have to be read from, that is an error, in time.
        group.net.split(["client"], others)
        began = loop.time()
        with pytest.raises((Unreachable, NotListed)):
            [entry async for entry in log.read()]
        assert loop.time() - began < 5.1
    await group.stop()


@pytest.mark.parametrize("by", ["tail", "consumer"])
@virtual
async def test_a_reader_that_waits_leaves_a_node_that_was_removed_unknown_to_it(by: str) -> None:
    group, gone, others = await started(35)
    first = await group.appended(b"before")
    await group.until(lambda: group.nodes[gone].dtvlsn() >= first, "it has that")
    async with connect(group.url(gone), network=group.client, timeout_s=5.0) as log:
        reading = log.tail(first) if by == "tail" else aiter(log.consumer("c", from_vlsn=first))
        assert (await anext(reading)).vlsn == first
        group.net.split([gone], others)
        await changed(group, change="remove", name=gone)
        later = await group.appended(b"later")
        async with asyncio.timeout(LOOK_IDLE_S + 10.0):
            assert (await anext(reading)).vlsn == later
    await group.stop()


@virtual
async def test_a_client_that_has_read_from_a_node_before_its_removal_reads_on_elsewhere() -> None:
    group, gone, others = await started(36)
    first = await group.appended(b"before")
    await group.until(lambda: group.nodes[gone].dtvlsn() >= first, "it has that")
    async with connect(group.url(gone), network=group.client, timeout_s=5.0) as log:
        for _ in range(2):
            assert [entry.vlsn async for entry in log.read()] == [first]
            await asyncio.sleep(LOOK_EVERY_S)
        group.net.split([gone], others)
        await changed(group, change="remove", name=gone)
        later = await group.appended(b"later")
        await asyncio.sleep(LOOK_EVERY_S)
        assert [entry.vlsn async for entry in log.read()] == [first, later]
    await group.stop()


@virtual
async def test_a_read_that_knows_more_than_any_node_shows_ends_in_time() -> None:
    group, lags, others = await started(33)
    loop = asyncio.get_running_loop()
    async with connect(",".join(map(group.url, group.names)), network=group.client, timeout_s=5.0) as log:
        first = await log.append(b"one")
        await group.until(lambda: group.nodes[lags].dtvlsn() >= first, "it has that")
        group.net.split([lags], others)
        last = await log.append(b"two")
        group.net.split(["client"], others)
        for bound in (None, last, last + 5):
            reading = log.read(to_vlsn=bound)
            assert (await anext(reading)).value == b"one"
            began = loop.time()
            with pytest.raises(Lagging, match=f"VLSN {last} was called durable"):
                await asyncio.wait_for(anext(reading), 60.0)
            assert loop.time() - began == pytest.approx(5.0, abs=0.1)
        assert [entry.value async for entry in log.read(to_vlsn=first)] == [b"one"]
    await group.stop()


@virtual
async def test_a_client_that_reaches_a_member_elsewhere_than_its_group_does_reads_on() -> None:
    """The member's name is in the list, and no other member can be reached from here."""
    group, _, _ = await started(34, hosts=("proxy",))
    vlsn = await group.appended(b"one")
    master = group.master
    await group.until(lambda: group.nodes[master].dtvlsn() >= vlsn, "it has that")
    listener = group.net.listeners[master, PORT]
    group.net.listeners["proxy", 9999] = listener
    group.net.split(["client"], group.names)
    group.net.unblock([("client", master), (master, "client")])
    async with connect("http://proxy:9999", network=group.client, timeout_s=5.0) as log:
        for _ in range(3):
            assert [entry.vlsn async for entry in log.read()] == [vlsn]
            await asyncio.sleep(10.0)
    await group.stop()
