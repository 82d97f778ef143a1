"""What an answer says is so when it is given: replicas give up what they acknowledged while the master's disk works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.disk import Call
from tests.fakes.loop import run
from tests.seam.nodes import Group
from tests.seam.test_membership import fed, told
from vlsn.ids import Vlsn

SLOW_S = 0.8


def holders(group: Group, value: bytes) -> set[str]:
    """In whose segments ``value`` lies."""
    return {
        name
        for name, machine in group.machines.items()
        if any(value in machine.disk.content(path) for path in machine.disk.files(f"/{name}") if path.endswith(".vlog"))
    }


async def acknowledged(group: Group, master: str, replica: str) -> asyncio.Task[tuple[int, dict[str, Any]]]:
    """An append under way that ``replica`` has acknowledged; the disk of ``master`` takes seconds for it."""
    (third,) = (name for name in group.names if name not in (master, replica))
    group.kill(third)
    await fed(group, 1)
    group.machines[master].disk.latency = _slow
    append = asyncio.create_task(group.append(b"precious"))
    lead = group.nodes[master].lead
    assert lead is not None
    at = group.nodes[master].opened().range.last + 1
    await group.until(lambda: lead.feeders[replica].acked >= Vlsn(at), "the replica has it")
    return append


def _slow(call: Call) -> float:
    return SLOW_S if call.name == "sync" and call.path.endswith(".vlog") else 0.0


@pytest.mark.parametrize("way", ["wiped", "restores"])
def test_an_answer_does_not_count_a_replica_that_has_given_its_log_up(way: str) -> None:
    async def main() -> None:
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
        assert (status, answer.get("type")) == (504, "outcome-unknown"), (
            f"{answer}; {holders(group, b'precious')} hold it"
        )
        group.net.heal()
        await group.stop()
        assert not group.fatal

    run(main())
