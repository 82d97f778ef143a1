"""An answer is true when it is sent: replicas lose acknowledged blocks while the master's disk is busy."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from repl.api import FeedHello
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import fed, told
from vlsn.format.feed_messages import Ack
from vlsn.ids import Incarnation, NodeName, Vlsn
from vlsn.seams import Buffer, Channel
from vlsnlog.testing.fakes.disk import Call

SLOW_S = 0.8


def holders(group: Group, value: bytes) -> set[str]:
    """Returns the nodes whose segments contain ``value``."""
    return {
        name
        for name, machine in group.machines.items()
        if any(value in machine.disk.content(path) for path in machine.disk.files(f"/{name}") if path.endswith(".vlog"))
    }


async def acknowledged(group: Group, master: str, replica: str) -> asyncio.Task[tuple[int, dict[str, Any]]]:
    """Returns a pending append that ``replica`` has acknowledged; the disk of ``master`` takes seconds for it."""
    (third,) = (name for name in group.names if name not in (master, replica))
    group.kill(third)
    await fed(group, 1)
    group.machines[master].disk.latency = _slow
    append = asyncio.create_task(group.append(b"precious"))
    lead = group.nodes[master].lead
    assert lead is not None
    at = group.nodes[master].opened().log.view.range.last + 1
    await group.until(lambda: lead.feeders[replica].acked >= Vlsn(at), "the replica has it")
    return append


def _slow(call: Call, seconds: float = SLOW_S) -> float:
    return seconds if call.name == "sync" and call.path.endswith(".vlog") else 0.0


@pytest.mark.parametrize("way", ["wiped", "restores"])
@virtual
async def test_an_answer_does_not_count_a_replica_that_has_given_its_log_up(way: str) -> None:
    group = Group(81)
    await group.start()
    await group.serving()
    await told(group, 3)
    master = group.master
    replica, third = (name for name in group.names if name != master)
    append = await acknowledged(group, master, replica)
    if way == "wiped":
        group.kill(replica)
        group.machine(replica)
    else:
        node = group.nodes[replica]
        node.restoration.want("a person asked for it")
        await group.until(lambda: node.restoration.log is not None, "its log is given up")
        group.net.split([replica], [master, third, "client"])
    assert not append.done()
    assert replica not in holders(group, b"precious")
    status, answer = await append
    assert (status, answer.get("type")) == (504, "outcome-unknown"), f"{answer}; {holders(group, b'precious')} hold it"
    group.net.heal()
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_answer_does_not_count_a_replica_that_is_silent() -> None:
    """The replica's machine is gone silently, with its disk; its connection is not closed yet."""
    group = Group(82, 5)
    group.net.stall_s = 60.0
    await group.start()
    await group.serving()
    await told(group, 3)
    master = group.master
    gone, slow, slower, dead = (name for name in group.names if name != master)
    group.kill(dead)
    await fed(group, 3)
    lead = group.nodes[master].lead
    assert lead is not None
    for name, seconds in ((master, 4.0), (slow, 4.0), (slower, 8.0)):
        group.machines[name].disk.latency = partial(_slow, seconds=seconds)
    append = asyncio.create_task(group.append(b"precious"))
    at = group.nodes[master].opened().log.view.range.last + 1
    await group.until(lambda: lead.feeders[gone].acked >= Vlsn(at), "one replica has it")
    group.kill(gone, power=True)
    group.machine(gone)
    status, answer = await append
    assert gone in lead.feeders  # half open
    synced = {name for name, node in group.nodes.items() if node.opened().log.view.range.last_sync >= at}
    assert (status, answer["synced"], synced) == (200, 3, {master, slow, slower})
    group.net.stall_s = 2.0
    await group.stop()
    assert not group.fatal


class Mute(Channel):
    """A connection on which nothing arrives."""

    async def send(self, message: Buffer) -> None:
        pass

    def send_now(self, message: Buffer) -> bool:
        return True

    def received_bytes(self) -> int:
        return 0

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self, code: int = 1000) -> None:
        pass


@pytest.mark.parametrize("late", [False, True])
@virtual
async def test_an_answer_does_not_count_what_a_feed_that_was_replaced_has_brought(late: bool) -> None:
    """Another store has the replica's name now, while the old connection is half open. With ``late``, an
    acknowledgement under way on the old connection is read after that."""
    group = Group(83)
    await group.start()
    await group.serving()
    await told(group, 3)
    master = group.master
    replica = next(name for name in group.names if name != master)
    append = await acknowledged(group, master, replica)
    node, lead = group.nodes[master], group.nodes[master].lead
    assert lead is not None
    old = lead.feeders[replica]
    hello = FeedHello(
        group="sim",
        node=NodeName(replica),
        incarnation=Incarnation(old.incarnation + 1),
        to=NodeName(master),
        to_incarnation=Incarnation(node.member.incarnation),
        term=lead.term,
        process=1,
    )
    feed = asyncio.create_task(node.services.feeds.serve_feed(hello, Mute()))
    await group.until(lambda: lead.feeders[replica] is not old, "it is replaced")
    if late:
        lead.acknowledged(old, Ack(lead.term, old.acked, old.acked))
    group.kill(replica)
    group.machine(replica)
    assert not append.done()
    status, answer = await append
    assert holders(group, b"precious") == {master}
    assert (status, answer.get("type")) == (504, "outcome-unknown"), answer
    feed.cancel()
    await group.stop()
    assert not group.fatal
