"""A short, fixed part of ``make sim``."""

from __future__ import annotations

import asyncio
import typing
from collections import Counter
from collections.abc import Callable

import pytest

from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.sim.durability import EARLY
from tests.sim.group import SimGroup
from tests.sim.nemesis import Nemesis, Rot
from tests.sim.report import MET, SELDOM, STRUCK, Report, shortfalls
from tests.sim.stories import played
from tests.sim.ways import WIDTHS_BYTES_PER_S
from tests.sim.world import simulated


@pytest.mark.parametrize("seed", seeds(8))
def test_a_cluster_under_faults_keeps_what_it_acknowledged(seed: int) -> None:
    report = run(simulated(seed))
    assert not report.short_of
    assert report.acknowledged + report.met[EARLY] > 10
    assert 1.5 * report.durable_bytes / report.virtual_s <= min(filter(None, WIDTHS_BYTES_PER_S))


@pytest.mark.parametrize("seed", [11, 28])
def test_consumers_under_faults_are_given_everything(seed: int) -> None:
    """With every kind of consumer between them: of the node and of the master, with positions of their own."""
    report = run(simulated(seed))
    assert not report.short_of
    assert report.met["a consumer that changed to BUFFER"] > 10


def test_every_kind_of_fault_has_a_floor() -> None:
    async def main() -> set[str]:
        found: set[str] = set()
        for rot in typing.get_args(Rot):
            group = SimGroup(1, 3, lambda _: None)
            found |= Nemesis(group, Report(1), lambda _: None, rot=rot).faults.keys()
        return found

    assert run(main()) <= STRUCK.keys()


@virtual
async def test_who_is_struck_as_something_happens_in_it_is_back_soon() -> None:
    """A fault is drawn in the middle of a node's work; it outlives that node's process."""
    group = SimGroup(1, 3, lambda _: None)
    nemesis = Nemesis(group, Report(1), lambda _: None, rot="none")
    nemesis.ambush = 0.0
    await group.start()
    await group.serving()
    struck: dict[str, Callable[[str], object]] = {
        "killed": lambda name: nemesis.die(name, power=False),
        "stopped": lambda name: nemesis.stand_still(name, 4.0),
    }
    for what, strike in struck.items():
        name = group.master
        process = group.machines[name].process
        assert process is not None

        async def itself(name: str = name, strike: Callable[[str], object] = strike) -> None:
            strike(name)

        process.start(itself())

        def is_back(name: str = name) -> bool:
            return name in group.nodes and group.nodes[name].state == "REPLICA"

        await group.until(is_back, f"{name}, {what}, is back and follows")
    await group.stop()


@virtual
async def test_a_person_asks_for_a_restore_while_a_node_is_not_whole_and_no_longer() -> None:
    """A restore that begins as the end is judged would be the check's own."""
    group = SimGroup(1, 3, lambda _: None)
    nemesis = Nemesis(group, Report(1), lambda _: None, rot="none")
    nemesis.active = False
    await group.start()
    await group.serving()
    name, *others = sorted(group.names, key=lambda each: each == group.master)
    await group.until(lambda: group.nodes[name].state == "REPLICA", "it follows")
    for each in others:
        nemesis.die(each, power=False, back=False)
    person = asyncio.ensure_future(nemesis.ask_for_restore(name))
    await asyncio.sleep(1.0)
    assert not person.done(), "too few others are there"
    for each in others:
        nemesis.start(each)
    await person
    await asyncio.sleep(3.0)
    assert group.nodes[name].state == "REPLICA" and group.watch.restored == 0
    await group.stop()


def test_a_run_that_never_strikes_with_something_fails() -> None:
    def lived(seed: int) -> Report:
        faults = Counter({what: 30 for what in STRUCK if what != "old disk"})
        met = Counter(dict.fromkeys(MET, 1))
        return Report(seed, operations=300, faults=faults, met=met, virtual_s=60.0, masters=["n1", "n2"])

    assert not shortfalls([lived(seed) for seed in range(SELDOM - 1)])
    assert shortfalls([lived(seed) for seed in range(SELDOM)]) == ["0 of 1: old disk"]


@pytest.mark.parametrize(
    ("title", "events"),
    [
        ("An election", ["n1 is killed", "elected", "n1 is started again", "n1 state state=REPLICA"]),
        ("Syncup with a rollback", ["cut off", "steps_down", "elected", "rolled_back"]),
        ("A network restore", ["is killed", "cleaned", "restore.begin", "restore.from", "restore.done"]),
    ],
)
def test_the_stories_of_the_docs_go_as_they_are_told(title: str, events: list[str]) -> None:
    said = iter(run(played(title)))
    for event in events:
        assert any(event in line for line in said), event
