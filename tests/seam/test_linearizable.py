"""Linearizable reads of a group in one process: the entries that they return, and the nodes that must not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from repl import connect
from tests.fakes.loop import virtual
from tests.seam.nodes import Group


async def read(group: Group, name: str, *, timeout_s: float = 2.0, consistency: str = "linearizable") -> Any:
    """Returns status and answer: the values by VLSN, or the problem."""
    response = await group.client.request(
        "GET",
        f"{group.url(name)}/v1/entries?consistency={consistency}&timeout={timeout_s}",
        timeout_s=timeout_s + 5,
    )
    body = bytes(response.body)
    if response.status != 200:
        return response.status, msgspec.json.decode(body)["type"]
    entries = [msgspec.json.decode(line) for line in body.splitlines()]
    return 200, {entry["vlsn"]: entry["value"].encode() for entry in entries}


async def started(seed: int, size: int = 3) -> Group:
    group = Group(seed, size=size)
    await group.start()
    await group.serving()
    return group


@pytest.mark.parametrize("seed", range(1, 6))
@virtual
async def test_every_node_shows_at_once_what_was_acknowledged_to_anybody(seed: int) -> None:
    """A durable read of a replica may lag by a heartbeat; a linearizable one never does."""
    group = await started(seed)
    told: dict[int, bytes] = {}
    for number in range(20):
        value = b"%d" % number
        status, answer = await group.append(value)
        assert status == 200
        told[answer["first"]] = value
        name = group.names[number % 3]
        assert await read(group, name) == (200, told), name
    await group.stop()
    assert not group.fatal


@virtual
async def test_many_reads_share_rounds() -> None:
    group = await started(3)
    await group.append(b"one")
    lead = group.nodes[group.master].lead
    assert lead is not None
    before = lead.rounds._rounds.number
    answers = await asyncio.gather(*(read(group, name) for name in group.names * 50))
    assert all(status == 200 and list(found.values()) == [b"one"] for status, found in answers)
    assert lead.rounds._rounds.number - before < 30
    await group.stop()


@pytest.mark.parametrize("seed", range(1, 9))
@virtual
async def test_a_master_that_is_cut_off_never_answers_what_a_new_one_has_outdone(seed: int) -> None:
    """The old master believes that it leads: its own durable reads work, a linearizable one waits in vain. A replica
    cut off with it does not answer either."""
    group = await started(seed, size=5)
    await group.append(b"before")
    stale = group.master
    with_it = next(name for name in group.names if name != stale)
    await group.until(lambda: group.nodes[with_it].dtvlsn() == group.nodes[stale].dtvlsn(), "the replica has it")
    others = [name for name in group.names if name not in (stale, with_it)]
    # The client reaches everybody: only the nodes are cut off from one another.
    group.net.split([stale, with_it], others)
    asked = [asyncio.create_task(read(group, name, timeout_s=8.0)) for name in (stale, with_it)]
    await asyncio.sleep(0.2)  # of virtual time: the round has long begun, and nobody has stepped down
    assert group.nodes[stale].member.is_master()
    assert await read(group, stale, consistency="durable") == (200, {2 + 1: b"before"})
    await group.until(lambda: group.master in others, "a new master leads")
    await group.serving()
    successor = group.master
    status, answer = await group.append(b"after", to=successor)
    assert status == 200, answer
    for name in (stale, with_it):
        status, answer = await read(group, name)
        assert (status, answer) == (503, "no-master"), (name, answer)
    assert (await read(group, successor))[1][answer_of(group, successor)] == b"after"
    assert [await task for task in asked] == [(503, "no-master")] * 2
    group.net.heal()
    last = group.nodes[successor].dtvlsn()
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "healed")
    for name in group.names:
        status, found = await read(group, name)
        assert (status, list(found.values())) == (200, [b"before", b"after"])
    await group.stop()
    assert not group.fatal


def answer_of(group: Group, name: str) -> int:
    """Returns the VLSN of the last entry that ``name`` knows to be durable."""
    return group.nodes[name].dtvlsn()


@virtual
async def test_a_read_asked_before_the_terms_first_block_is_durable_waits_for_it() -> None:
    """Before that, a new master does not know which entries its predecessors made durable."""
    group = await started(11)
    told = {}
    for number in range(5):
        _, answer = await group.append(b"%d" % number)
        told[answer["first"]] = b"%d" % number
    group.kill(group.master)
    left = list(group.nodes)
    found: list[Any] = []
    while len(found) < 5:
        for name in left:
            status, answer = await read(group, name, timeout_s=0.5)
            if status == 200:
                assert answer == told
                found.append(name)
            else:
                assert answer == "no-master"
        await asyncio.sleep(0.05)
    await group.stop()


@virtual
async def test_a_replica_that_cannot_catch_up_in_time_says_so() -> None:
    group = await started(5)
    await group.append(b"one")
    master = group.master
    replica = next(name for name in group.names if name != master)
    # 0.1 s away it learns the index before it learns that this much is durable: quiet feeds carry that later.
    group.net.default_delay_s = (0.001, 0.001)
    group.net.delays_s[master, replica] = (0.1, 0.1)
    await group.append(b"two")
    assert await read(group, replica, timeout_s=0.112) == (503, "not-yet")
    group.net.delays_s.clear()
    status, found = await read(group, replica, timeout_s=5.0)
    assert (status, list(found.values())) == (200, [b"one", b"two"])
    await group.stop()


@virtual
async def test_the_client_reads_linearizably_through_whichever_node() -> None:
    group = await started(9)
    writer_url = group.url(group.master)
    reader_url = group.url(next(name for name in group.names if name != group.master))
    async with (
        connect(writer_url, network=group.net.host("writer")) as writer,
        connect(reader_url, network=group.net.host("reader")) as reader,
    ):
        for number in range(10):
            vlsn = await writer.append(b"%d" % number)
            found = [entry.vlsn async for entry in reader.read(consistency="linearizable")]
            assert found[-1] == vlsn and len(found) == number + 1
    await group.stop()
