"""Founding, stopped at every disk call of the founder and of a member: one group, or none yet."""

from __future__ import annotations

import asyncio

import pytest

from repl.group.hello import answer_of
from tests.fakes.loop import run, virtual
from tests.seam.nodes import Group
from vlsn.errors import Unreachable
from vlsn.format.block import EntryKind


async def founded(seed: int, victim: str, stop_at: int | None, *, power: bool) -> int:
    """Founds a group whose ``victim`` dies at that disk call, and restarts.  Returns the number of its disk calls."""
    group = Group(seed)
    machine = group.machines[victim]
    died = False

    def dies() -> None:
        nonlocal died
        died = True
        node = group.nodes.pop(victim, None)
        for task in node._tasks if node is not None else ():
            task.cancel()
        if power:
            machine.power_cut(tear=True)
        else:
            machine.kill()

    machine.disk.on_stop = dies
    if stop_at is not None:
        machine.disk.stop_at(stop_at)
    await group.start()
    for _ in range(400):
        await asyncio.sleep(0.01)
        if died or (stop_at is None and all(node.dtvlsn() >= 2 for node in group.nodes.values())):
            break
    calls = len(machine.disk.calls)
    if died:
        await asyncio.sleep(0.2)
        await group.start(victim)
    await group.serving()
    status, answer = await group.append(b"first")
    assert status == 200, answer
    last = group.nodes["n1"].opened().log.view.range.last
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have it")
    blocks = {name: await kinds(group, name) for name in group.names}
    assert blocks["n1"] == blocks["n2"] == blocks["n3"]
    assert [kind for _, kind in blocks["n1"]].count(EntryKind.GROUP) == 1
    assert blocks["n1"][:2] == [(1, EntryKind.TERM), (2, EntryKind.GROUP)]
    runs = group.nodes["n1"].opened().log.view.history.term_runs
    assert runs[0].first == 1
    assert not group.fatal
    await group.stop()
    return calls


async def kinds(group: Group, name: str) -> list[tuple[int, int]]:
    page = await group.nodes[name].opened().reads.page(1, limit=100, bytes_max=1 << 20, all_kinds=True)
    return [(entry.vlsn, entry.kind) for entry in page.entries]


@pytest.mark.parametrize("victim", ["n1", "n2"])
@pytest.mark.parametrize("power", [False, True])
def test_founding_cut_at_every_disk_call(victim: str, power: bool) -> None:
    calls = run(founded(1, victim, None, power=False))
    assert calls >= 25
    for number in range(1, calls + 1):
        run(founded(1, victim, number, power=power))


@virtual
async def test_an_empty_node_takes_its_first_feed_from_whom_it_told_that_it_is_empty() -> None:
    """Another leader may not have counted this node: blocks from it could be overwritten by a second founding."""
    group = Group(17)
    await group.start()
    node = group.nodes["n3"]
    await group.until(lambda: node.member.founder is not None, "it has told n1")
    group.net.split(["n3"], ["n1", "n2"])
    await group.serving("n1")
    following = node.following
    assert following is not None and not node.opened().log.view.allocated
    with pytest.raises(Unreachable, match="n2 is not the process that this empty node answered"):
        await following._connect(answer_of(group.nodes["n2"].member))
    group.net.heal()
    await group.until(lambda: group.state("n3") == "REPLICA", "it is fed by n1")
    await group.stop()
    assert not group.fatal
