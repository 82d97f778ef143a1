"""Nodes whose logs an operator has cut: they get back what the others have, and none leads with less."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.loop import virtual
from tests.fakes.random import SeededRandom
from tests.fakes.threads import InlineThreads
from tests.seam.nodes import Group
from tests.seam.test_consumers import client, taken
from tests.seam.test_group_settings import asked
from vlsn.levels import LEVELS
from vlsn.offline.truncate import Truncation, accept_floor, floor_of, loss_of
from vlsn.seams import Seams
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify


def cut(group: Group, name: str, after: int) -> None:
    """Cuts as ``vlsnlog truncate`` does on the machine of a node that is down."""
    machine = group.machines[name]
    directory = f"/{name}"
    loss = loss_of(machine.disk, machine.stores, directory, after)
    assert loss.durable > 0
    seams = Seams(machine.disk, FakeClock(), SeededRandom(Random(1)), InlineThreads(), machine.stores)
    ended: list[NodeRecord] = []
    errors: list[BaseException] = []
    Truncation(seams, directory, after, done=ended.append, failed=errors.append).close()
    assert (len(ended), errors) == (1, [])
    findings = verify(machine.disk, machine.stores, directory).findings
    assert [(each.rule, each.vlsn) for each in findings] == [(Rule.OVERMARKED_DURABLE, after + 1)]


async def filled(group: Group, count: int) -> dict[int, bytes]:
    await group.start()
    await group.serving()
    told: dict[int, bytes] = {}
    for number in range(count):
        value = b"entry %d" % number
        status, answer = await group.append(value)
        assert status == 200, answer
        told[answer["first"]] = value
    last = max(told)
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have all of it")
    return told


@pytest.mark.parametrize("seed", range(1, 4))
@virtual
async def test_a_replica_that_was_cut_gets_everything_back(seed: int) -> None:
    group = Group(seed)
    told = await filled(group, 60)
    group.kill("n3", power=seed == 2)
    cut(group, "n3", 20)
    await group.start("n3")
    status, answer = await group.append(b"after")
    assert status == 200
    told[answer["first"]] = b"after"
    await group.until(lambda: group.nodes["n3"].dtvlsn() >= answer["first"], "n3 has all of it again")
    assert await group.read("n3") == told
    log = group.nodes["n3"].opened().log
    assert log.view.history.term_runs == group.nodes["n1"].opened().log.view.history.term_runs
    assert not group.fatal
    await group.stop()
    machine = group.machines["n3"]
    findings = verify(machine.disk, machine.stores, "/n3").findings
    assert [each.rule for each in findings] == [Rule.OVERMARKED_DURABLE]  # it was cut, whatever it has again
    assert not floor_of(machine.disk, machine.stores, "/n3").holds


@pytest.mark.parametrize("accepted", [False, True])
def test_a_master_that_was_cut_does_not_lead_before_it_has_everything_back(accepted: bool) -> None:
    async def main() -> None:
        group = Group(4)
        told = await filled(group, 40)
        group.kill("n1")
        cut(group, "n1", 20)
        assert node_file.read(group.machines["n1"].disk, "/n1/node.id").floor_vlsn == max(told)
        if accepted:  # the floor is gone: it votes, and stands, with its present log; the others' logs are longer
            accept_floor(group.machines["n1"].disk, "/n1")
        await group.start("n1")
        await group.serving()
        assert group.master != "n1"
        await group.until(lambda: group.nodes["n1"].dtvlsn() > max(told), "n1 has everything back")
        for name in group.names:
            assert await group.read(name) == told
        await group.stop()
        assert not group.fatal


@virtual
async def test_where_a_majority_was_cut_nobody_leads_until_every_member_has_told_its_end() -> None:
    group = Group(5)
    told = await filled(group, 40)
    group.kill(*group.names)
    cut(group, "n1", 20)
    cut(group, "n2", 25)
    await group.start("n1", "n2")
    await group.until(
        lambda: "waits for n3" in group.nodes["n1"].member.reason + group.nodes["n2"].member.reason, "they wait"
    )
    await asyncio.sleep(20.0)
    assert not any(node.member.is_master() for node in group.nodes.values())
    await group.start("n3")
    await group.serving("n3")
    await group.until(lambda: all(node.dtvlsn() > max(told) for node in group.nodes.values()), "all have it")
    assert await group.read("n1") == told
    await group.stop()
    assert not group.fatal


@virtual
async def test_copies_that_are_cut_alike_know_the_names_and_settings_that_were_set_before() -> None:
    """Each copy's state record is as of a VLSN after the cut, when all of them had been set again."""
    group = Group(6, levels=LEVELS)
    await filled(group, 20)
    async with client(group) as log:
        assert len(await taken(log, 5, from_vlsn="start")) == 5
        assert (await asked(group, {"producers": 70}))[0] == 200
        before = await group.appended(b"the last that stays")
        assert len(await taken(log, 9)) == 9
        assert (await asked(group, {"producers": 80}))[0] == 200
        last = await group.appended(b"the last that goes")
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have all")
    for node in group.nodes.values():
        await node.services.administration.checkpoint()
    group.kill(*group.names)
    for name in group.names:
        cut(group, name, before)
    await group.start()
    await group.serving()
    logs = [node.opened().log for node in group.nodes.values()]
    await group.until(lambda: all(log.view.dtvlsn > before for log in logs), "all have the next term's first entry")
    for each in logs:
        assert each.view.history.set.producers == each.view.history.producers.limit == 70
        assert each.view.snapshot(each.view.dtvlsn)().small == logs[0].view.snapshot(each.view.dtvlsn)().small
    async with client(group) as log:
        assert await taken(log, 3) == [b"entry 5", b"entry 6", b"entry 7"], "it goes on behind the fifth"
    await group.stop()
    assert not group.fatal
