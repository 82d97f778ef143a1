"""Nodes whose logs an operator has cut: a replica gets it back from the master, a master does not lead with less."""

from __future__ import annotations

from random import Random

import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.loop import run
from tests.fakes.random import SeededRandom
from tests.fakes.threads import InlineThreads
from tests.seam.nodes import Group
from vlsn import nodefile
from vlsn.nodefile import NodeRecord
from vlsn.seams import Seams
from vlsn.truncate import Truncation, accept_floor, floor_of, loss_of
from vlsn.verify import verify


def cut(group: Group, name: str, after: int) -> None:
    """As ``vlsnlog truncate`` does on the machine of a node that is down."""
    machine = group.machines[name]
    directory = f"/{name}"
    loss = loss_of(machine.disk, machine.stores, directory, after)
    assert loss.durable > 0
    seams = Seams(machine.disk, FakeClock(), SeededRandom(Random(1)), InlineThreads(), machine.stores)
    ended: list[NodeRecord] = []
    errors: list[BaseException] = []
    Truncation(seams, directory, after, done=ended.append, failed=errors.append).close()
    assert (len(ended), errors) == (1, [])
    assert not verify(machine.disk, machine.stores, directory).findings


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
def test_a_replica_that_was_cut_gets_everything_back(seed: int) -> None:
    async def main() -> None:
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
        log = group.nodes["n3"].opened()
        assert log.history.term_runs == group.nodes["n1"].opened().history.term_runs
        assert not group.fatal
        await group.stop()
        machine = group.machines["n3"]
        assert verify(machine.disk, machine.stores, "/n3").findings == []
        assert not floor_of(machine.disk, machine.stores, "/n3").holds

    run(main())


def test_a_master_that_was_cut_leads_no_more_until_a_person_says_so() -> None:
    async def main() -> None:
        group = Group(4)
        told = await filled(group, 40)
        group.kill("n1")
        cut(group, "n1", 20)
        await group.start("n1")
        await group.until(lambda: group.nodes["n1"].reason.startswith("below-floor"), "n1 does not lead")
        assert nodefile.read(group.machines["n1"].disk, "/n1/node.id").floor_vlsn == max(told)
        status, answer = await group.append(b"no")
        assert (status, answer["type"]) == (503, "no-master")
        assert await group.read("n2") == told
        group.kill("n1")
        accept_floor(group.machines["n1"].disk, "/n1")
        await group.start("n1")
        # It leads with what it has; its replicas have more, and none of it is undone: it halts instead.
        await group.until(lambda: group.state("n1") == "HALTED", "n1 meets a replica with more")
        assert await group.read("n2") == told

    run(main())
