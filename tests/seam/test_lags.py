"""How current a node must be for a read: a VLSN that it must have, and a maximal lag."""

from __future__ import annotations

import asyncio
from math import nan
from typing import Any

import msgspec
import pytest

from repl import connect
from repl.client.connect import Client
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import fed
from vlsn.errors import BadArgument, TooFarBehind
from vlsn.levels import LEVELS

FAR_S = 0.5
"""Seconds from the master to a replica that lags."""
ROUNDS = 100
PATHS = (
    "/v1/entries?",
    "/v1/entries?from={vlsn}&wait=1&",
    "/v1/entries/{vlsn}?",
    "/v1/tail?",
    "/v1/spans?",
    "/v1/consumers?",
)


async def started(seed: int, size: int = 3, **settings: Any) -> tuple[Group, str, str]:
    """Returns a group, its master, and a replica."""
    group = Group(seed, size, levels=LEVELS, **settings)
    await group.start()
    await group.serving()
    await fed(group, size - 1)
    return group, group.master, next(name for name in group.names if name != group.master)


def reader(group: Group, *names: str, timeout_s: float = 60.0) -> Client:
    return connect(",".join(map(group.url, names)), network=group.net.host("reader"), timeout_s=timeout_s)


async def asked(group: Group, name: str, path: str) -> tuple[int, str]:
    """Returns the status, and the type of the problem."""
    response = await group.client.request("GET", f"{group.url(name)}{path}", timeout_s=20.0)
    return response.status, msgspec.json.decode(bytes(response.body))["type"] if response.status >= 300 else ""


@virtual
async def test_the_end_is_behind_all_that_was_acknowledged_before_a_tail_was_asked_for() -> None:
    """A replica that lags is asked, after another client has appended."""
    group, master, lags = await started(41)
    group.net.delays_s[master, lags] = (FAR_S, FAR_S)
    early = 0
    async with connect(group.url(master), network=group.client) as log, reader(group, lags) as other:
        for number in range(ROUNDS):
            await log.append(b"before")
            consumer = other.consumer(f"c{number}", from_vlsn="end")
            waiting = asyncio.ensure_future(anext(aiter(consumer) if number % 3 == 0 else other.tail("end")))
            await asyncio.sleep(2 * FAR_S)  # of virtual time: the end was asked for
            behind = await log.append(b"behind")
            early += (await waiting).vlsn < behind
        assert [entry async for entry in other.read("end")] == []
    assert early == 0, f"{early} of {ROUNDS}"
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_read_of_a_vlsn_has_it_wherever_it_is_asked() -> None:
    group, master, lags = await started(42)
    group.net.delays_s[master, lags] = (FAR_S, FAR_S)
    async with connect(group.url(master), network=group.client) as log:
        for number in range(10):
            vlsn = await log.append(b"%d" % number)
            async with reader(group, lags) as other:
                assert [entry.vlsn async for entry in other.read(vlsn, at_least=vlsn)] == [vlsn]
            vlsn = await log.append(b"%d" % number)
            for path in PATHS:
                at_least = f"{path.format(vlsn=vlsn)}at_least={vlsn}"
                assert await asked(group, lags, f"{at_least}&timeout=0.01") == (503, "lagging"), path
            for path in PATHS[number % 5 :][:1]:
                assert await asked(group, lags, f"{path.format(vlsn=vlsn)}at_least={vlsn}") == (200, "")
    group.net.delays_s.clear()
    async with reader(group, *group.names, timeout_s=3.0) as other:
        began = asyncio.get_running_loop().time()
        reading = other.read(vlsn, at_least=vlsn + 9)
        assert (await anext(reading)).vlsn == vlsn
        with pytest.raises(TooFarBehind, match=f"VLSN {vlsn + 9} was called durable"):
            await anext(reading)
        with pytest.raises(TooFarBehind):
            await other.durable_vlsn(at_least=vlsn + 9)
        assert asyncio.get_running_loop().time() - began < 6.5
        assert await other.durable_vlsn(at_least=vlsn) >= vlsn
        wrong: tuple[Any, ...] = ({"at_least": -1}, {"at_least": 2**63}, {"lag_max_s": -1}, {"lag_max_s": nan})
        for bad in wrong:
            for call in (other.read, other.tail):
                with pytest.raises(BadArgument):
                    await anext(call(**bad))
            with pytest.raises(BadArgument):
                other.consumer("c", **bad)
    for query in ("at_least=0", "at_least=x", "lag_max=-1", "lag_max=86401", "lag_max="):
        assert await asked(group, lags, f"/v1/entries?{query}&wait=1") == (400, "bad-argument")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_is_cut_off_refuses_a_lag_once_it_is_past_it() -> None:
    """Wall clocks are hours apart, and no node reads one."""
    group, _, cut = await started(43)
    vlsn = await group.appended(b"one")
    await group.until(lambda: group.nodes[cut].dtvlsn() >= vlsn, "it has that")
    for path in PATHS:
        assert await asked(group, cut, f"{path.format(vlsn=vlsn)}lag_max=2") == (200, ""), path
    others = [name for name in group.names if name != cut]
    group.net.split([cut], others)
    later = await group.appended(b"later")
    for path in PATHS:
        assert await asked(group, cut, f"{path.format(vlsn=vlsn)}lag_max=2&timeout=1") == (200, ""), path
    await asyncio.sleep(3.0)
    for path in PATHS:
        refused = await asked(group, cut, f"{path.format(vlsn=vlsn)}lag_max=2&timeout=1")
        assert refused == (503, "lagging"), path
    assert await asked(group, cut, "/v1/entries?lag_max=60&timeout=1") == (200, "")
    assert await asked(group, cut, "/v1/entries") == (200, "")
    async with reader(group, cut, *others) as log:
        assert [entry.vlsn async for entry in log.read(lag_max_s=2.0)] == [vlsn, later], "another node serves it"
        assert await log.durable_vlsn(lag_max_s=2.0) >= later
    async with reader(group, cut, timeout_s=3.0) as log:
        began = asyncio.get_running_loop().time()
        with pytest.raises(TooFarBehind):
            await anext(log.read(lag_max_s=2.0))
        assert asyncio.get_running_loop().time() - began < 3.1
    group.net.heal()
    await group.until(lambda: group.nodes[cut].dtvlsn() >= later, "it has all")
    assert await asked(group, cut, "/v1/entries?lag_max=0") == (200, "")
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_unseated_master_and_its_replica_are_past_a_lag_though_they_hear_each_other() -> None:
    """Each receives an unchanged durable end from the other, ten times a second."""
    group, old, with_it = await started(44, 5, election_timeout_s=0.5)
    vlsn = await group.appended(b"one")
    await group.until(lambda: group.nodes[with_it].dtvlsn() >= vlsn, "it has that")
    for name in (old, with_it):
        assert await asked(group, name, "/v1/entries?lag_max=0.2") == (200, "")
    others = [name for name in group.names if name not in (old, with_it)]
    group.net.split([old, with_it], others)
    await asyncio.sleep(0.3)
    for name in (old, with_it):
        assert group.nodes[name].member.master_name() == old, "it has not stepped down"
        assert await asked(group, name, "/v1/entries?lag_max=0.2&timeout=0.1") == (503, "lagging"), name
    await group.stop()


@virtual
async def test_a_lag_that_is_allowed_is_confirmed_once_for_all_who_read() -> None:
    group, master, replica = await started(45)
    vlsn = await group.appended(b"one")
    await group.until(lambda: group.nodes[replica].dtvlsn() >= vlsn, "it has that")
    lead = group.nodes[master].lead
    assert lead is not None
    before, loop = lead.rounds._rounds.number, asyncio.get_running_loop()
    began = loop.time()
    while loop.time() < began + 10.0:
        assert await asked(group, replica, "/v1/entries?lag_max=2") == (200, "")
        await asyncio.sleep(0.01)
    assert 4 <= lead.rounds._rounds.number - before <= 6
    await group.stop()


@virtual
async def test_a_lag_counts_from_the_question_and_not_from_its_answer() -> None:
    """An entry acknowledged while the answer is under way is not in it."""
    group, master, lags = await started(47)
    one = await group.appended(b"one")
    await group.until(lambda: group.nodes[lags].dtvlsn() >= one, "it has that")
    group.net.delays_s[master, lags] = (2.0, 2.0)
    first = asyncio.create_task(asked(group, lags, "/v1/entries?lag_max=0.1&timeout=10"))
    await asyncio.sleep(0.5)  # the master has answered it
    later = await group.appended(b"later")
    assert await first == (200, "")
    assert group.nodes[lags].dtvlsn() < later, "it has heard of that since"
    assert await asked(group, lags, "/v1/entries?lag_max=1&timeout=0.1") == (503, "lagging")
    await group.stop()


@virtual
async def test_a_tail_and_a_consumer_leave_a_node_that_is_past_their_lag() -> None:
    group, _, cut = await started(46)
    others = [name for name in group.names if name != cut]
    vlsns = [await group.appended(b"%d" % number) for number in range(3)]
    await group.until(lambda: group.nodes[cut].dtvlsn() >= vlsns[-1], "it has all")
    async with reader(group, cut, *others) as log:
        tail = log.tail_pages(vlsns[0], lag_max_s=1.0)
        consumer = log.consumer("c", from_vlsn=vlsns[0], lag_max_s=1.0)
        assert (await anext(tail)).entries[-1].vlsn == vlsns[-1]
        assert [entry.vlsn for _ in vlsns if (entry := await consumer.poll(9.0))] == vlsns
        group.net.split([cut], others)
        await asyncio.sleep(2.0)
        log._reader._current = 0
        later = await group.appended(b"later")
        assert (await anext(tail)).entries[0].vlsn == later
        polled = await consumer.poll(9.0)
        assert polled is not None and polled.vlsn == later
    async with reader(group, cut) as log:
        waiting = asyncio.ensure_future(anext(log.tail(vlsns[0], lag_max_s=1.0)))
        await asyncio.sleep(20.0)
        assert not waiting.done(), "what it has is too old"
        group.net.heal()
        assert (await waiting).vlsn == vlsns[0]
    await group.stop()
    assert not group.fatal
