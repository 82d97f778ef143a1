"""A group whose nodes' background work fails: the master leads on, and reports the failures."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from repl.web.slices import at_once
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, CLEANS, Group
from vlsnlog.testing.fakes.disk import FakeDisk

FOREVER = 1 << 30


def status(group: Group, name: str) -> dict[str, Any]:
    return group.nodes[name].services.monitoring.status()


def events(group: Group, name: str, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in group.nodes[name].member.events.since(1, 10_000)["events"] if event["event"] in kinds]


def fail_all_background(disk: FakeDisk) -> None:
    """Makes all background work on the disk fail, except the standby."""
    disk.fail_at(lambda call: call.name in ("rename", "allocated", "free_bytes"), times=FOREVER)
    disk.fail_at(lambda call: call.name == "remove" and call.path.endswith(".vlog"), times=FOREVER)


def fail_standbys(disk: FakeDisk) -> None:
    disk.fail_at(lambda call: call.name == "create" and call.path.endswith(".vlog"), code=errno.EMFILE, times=FOREVER)


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_a_master_whose_background_work_fails_leads_on_and_says_so(seed: int) -> None:
    group = Group(seed, **CLEANS, retention_bytes=5 * CLEANS["segment_bytes"])
    await group.start()
    await group.serving()
    leads = group.master
    term = group.nodes[leads].opened().log.node_file.record.term
    fail_all_background(group.machines[leads].disk)
    held = {await group.appended(b"%d" % number + BIG): number for number in range(120)}
    await asyncio.sleep(20.0)
    assert not group.fatal and group.master == leads
    assert group.nodes[leads].opened().log.node_file.record.term == term, "nobody stood against it"
    failing = {each["work"] for each in status(group, leads)["log"]["failing"]}
    assert failing == {"sidecar", "space", "hole", "removal"}
    assert "are not removed yet" in status(group, leads)["cleaning"]["paused"]
    said = events(group, leads, "background.failed")
    assert {each["errno"] for each in said} == {"EIO"} and {each["level"] for each in said} == {"warning"}
    assert any("00000001.vidx.new" in each["why"] for each in said)
    space = [each for each in said if each["work"] == "space"]
    assert len(space) == 1 and space[0]["count"] > 3, "what is only repeated is counted"
    metrics = at_once(group.nodes[leads].services.monitoring.metrics_text()).decode()
    assert 'vlsnlog_background_failing{work="space"} 1.0' in metrics
    assert 'vlsnlog_background_failures_total{work="sidecar"}' in metrics
    assert group.nodes[leads].services.monitoring.readiness() == []
    group.machines[leads].disk.mend()
    await group.until(lambda: not status(group, leads)["log"]["failing"], "all of it is done")
    await group.until(
        lambda: {each["work"] for each in events(group, leads, "background.works")} == failing, "and told of"
    )
    held |= {await group.appended(b"%d" % number + BIG): number for number in range(120, 130)}
    await group.until(lambda: all(group.nodes[name].dtvlsn() >= max(held) for name in group.names), "all have it")
    for name in group.names:
        found = await group.read(name, begins=group.nodes[name].opened().log.view.range.first)
        assert all(found[vlsn].startswith(b"%d" % held[vlsn]) for vlsn in found)
        assert max(found) == max(held)
    await group.stop()
    assert not group.fatal


async def patient(group: Group, number: int, limit_s: float = 60.0) -> int:
    """Returns the VLSN of an append that is repeated while it is refused as safe to repeat."""
    deadline = group.loop.time() + limit_s
    while True:
        code, answer = await group.append(b"%d" % number + BIG)
        if code == 200:
            return int(answer["first"])
        assert answer["type"] in ("no-master", "insufficient-replicas", "no-segment"), answer
        assert group.loop.time() < deadline, answer
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_a_master_that_cannot_make_a_segment_hands_over_to_one_that_can(seed: int) -> None:
    group = Group(seed, **CLEANS)
    await group.start()
    await group.serving()
    first = group.master
    fail_standbys(group.machines[first].disk)
    held = {await patient(group, number): number for number in range(80)}
    assert not group.fatal
    assert group.master != first
    (event,) = events(group, first, "background.failed")
    assert (event["work"], event["errno"]) == ("standby", "EMFILE")
    assert event["why"] == f"/{first}/00000003.vlog: Too many open files" and event["count"] > 2
    group.machines[first].disk.mend()
    await group.until(lambda: group.nodes[first].dtvlsn() >= max(held), "it follows")
    assert not status(group, first)["log"]["failing"]
    found = await group.read(first)
    assert {vlsn: found[vlsn] for vlsn in held} == {vlsn: b"%d" % number + BIG for vlsn, number in held.items()}
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_group_in_which_nobody_can_make_a_segment_refuses_and_goes_on_by_itself() -> None:
    group = Group(7, **CLEANS)
    await group.start()
    await group.serving()
    for machine in group.machines.values():
        fail_standbys(machine.disk)
    held, refused = dict[int, int](), 0
    for number in range(80):
        code, answer = await group.append(b"%d" % number + BIG)
        if code == 200:
            held[int(answer["first"])] = number
            continue
        refused += 1
        assert answer["type"] in ("no-segment", "no-master", "insufficient-replicas", "outcome-unknown"), answer
        if answer["type"] == "no-segment":
            break
    assert refused and not group.fatal
    leads = group.master
    said = status(group, leads)["log"]
    assert said["refuses"] == "no-segment" and not said["no_space"]
    assert any(reason.startswith("no-segment") for reason in group.nodes[leads].services.monitoring.readiness())
    found = await group.read(leads)
    assert all(found[vlsn] == b"%d" % number + BIG for vlsn, number in held.items()), "reads go on"
    await asyncio.sleep(30.0)
    for machine in group.machines.values():
        machine.disk.mend()
    held |= {await patient(group, number): number for number in range(100, 130)}
    await group.until(lambda: all(group.nodes[name].dtvlsn() >= max(held) for name in group.names), "all have it")
    for name in group.names:
        found = await group.read(name)
        assert all(found[vlsn] == b"%d" % number + BIG for vlsn, number in held.items())
        assert not status(group, name)["log"]["failing"]
    await group.stop()
    assert not group.fatal
