"""Three nodes clean independently: never past their replicas' needs, and by age only with clocks that agree."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from repl.web.slices import at_once
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, CLEANS, SEGMENT, Group
from vlsnlog.testing.fakes.disk import FakeDisk


async def append(group: Group, count: int) -> list[int]:
    return [await group.appended(b"%d" % number + BIG) for number in range(count)]


def first(group: Group, name: str) -> int:
    return group.nodes[name].opened().log.view.range.first


def status(group: Group, name: str) -> dict[str, Any]:
    return group.nodes[name].services.monitoring.status()


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_every_node_cleans_and_all_read_on_from_where_they_begin(seed: int) -> None:
    group = Group(seed, **CLEANS, retention_bytes=5 * SEGMENT)
    await group.start()
    await group.serving()
    vlsns = await append(group, 150)
    await group.until(lambda: all(first(group, name) > 40 for name in group.names), "all have cleaned")
    for name in group.names:
        begins = first(group, name)
        answer = await group.client.request("GET", f"{group.url(name)}/v1/entries?from=5", timeout_s=5.0)
        assert (answer.status, b'"type":"trimmed"' in bytes(answer.body)) == (410, True)
        assert f'"first":{begins}'.encode() in bytes(answer.body)
        at, found = begins, []
        while at <= vlsns[-1]:
            answer = await group.client.request("GET", f"{group.url(name)}/v1/entries?from={at}", timeout_s=5.0)
            assert answer.status == 200
            found += bytes(answer.body).splitlines()
            at = int(answer.headers["Vlsnlog-Next"])
        assert len(found) == len([vlsn for vlsn in vlsns if vlsn >= begins])
        gone = await group.client.request("GET", f"{group.url(name)}/v1/segments/1", timeout_s=5.0)
        assert gone.status == 410
        said = status(group, name)["cleaning"]
        assert said["segments"] >= 2
        assert said["bytes"] == said["segments"] * SEGMENT
    assert {hold["owner"] for hold in status(group, "n1")["holds"]} == {"feeder", "checkpoint"}
    held = {hold["name"] for hold in status(group, "n2")["holds"] if hold["owner"] == "feeder"}
    assert held == {"n1", "n3"}  # as the master has told it
    metrics = at_once(group.nodes["n1"].services.monitoring.metrics_text()).decode()
    assert 'vlsnlog_hold_vlsn{name="n2",owner="feeder"}' in metrics
    assert "vlsnlog_cleaned_segments_total" in metrics
    group.kill("n1", "n2", "n3")
    await group.start()
    await group.serving()
    assert all(first(group, name) > 40 for name in group.names)
    await append(group, 5)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(2))
@virtual
async def test_a_replica_that_is_away_holds_the_others_logs_and_catches_up(seed: int) -> None:
    group = Group(seed, **CLEANS, retention_bytes=5 * SEGMENT)
    await group.start()
    await group.serving()
    await append(group, 10)
    await group.until(lambda: status(group, "n1")["feeders"] != [], "fed")
    group.kill("n3")
    await append(group, 150)
    for name in ("n1", "n2"):
        await group.until(
            lambda name=name: status(group, name)["cleaning"]["blocked_by"] == ["feeder n3"],  # type: ignore[misc]
            f"{name} is held",
        )
        assert first(group, name) < 12
    await group.start("n3")
    await group.until(lambda: group.nodes["n3"].dtvlsn() >= group.nodes["n1"].dtvlsn() > 150, "n3 has all of it")
    await group.until(lambda: first(group, "n1") > 40, "n1 has cleaned")
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(2))
@virtual
async def test_a_replica_over_the_cap_is_trimmed_and_says_so(seed: int) -> None:
    group = Group(seed, **CLEANS, retention_bytes=4 * SEGMENT, hold_bytes_max=6 * SEGMENT)
    await group.start()
    await group.serving()
    await append(group, 10)
    group.kill("n3")
    await append(group, 180)
    await group.until(lambda: first(group, "n1") > 40, "n1 has cleaned past what n3 has")
    said = status(group, "n1")
    assert said["cleaning"]["holds_dropped"] == 1
    assert "n3" not in {hold["name"] for hold in said["holds"]}
    await group.start("n3")
    await group.until(lambda: "trimmed" in group.nodes["n3"].member.reason, "n3 is told")
    await append(group, 3)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(2))
@virtual
async def test_age_is_judged_by_clocks_that_agree(seed: int) -> None:
    group = Group(seed, **CLEANS, retention_age_s=3600.0)
    await group.start()
    await group.serving()
    await append(group, 100)
    n1 = group.nodes["n1"].member.seams.clock
    n1.offset_us += 7200_000_000  # type: ignore[attr-defined]
    await group.until(lambda: "differs by 7" in status(group, "n1")["cleaning"]["paused"], "n1 has asked")
    assert first(group, "n1") == 1
    n1.offset_us -= 7200_000_000  # type: ignore[attr-defined]
    await group.until(lambda: status(group, "n1")["cleaning"]["paused"] == "", "nothing is due")
    for node in group.nodes.values():
        node.member.seams.clock.offset_us += 7200_000_000  # type: ignore[attr-defined]
    await group.until(lambda: all(first(group, name) > 40 for name in group.names), "all agree that it is late")
    group.kill("n2", "n3")
    cleaning = group.nodes["n1"].opened().cleaning
    assert cleaning is not None
    assert await cleaning._clocks() == "only 0 of 2 members have reported their clocks"
    await group.stop()


@pytest.mark.parametrize("seed", seeds(2))
@virtual
async def test_nearly_full_disks_refuse_appends_serve_reads_and_go_on_by_themselves(seed: int) -> None:
    group = Group(seed, **{**CLEANS, "checkpoint_period_s": 60.0}, free_bytes_min=SEGMENT)
    await group.start()
    await group.serving()
    vlsns = await append(group, 3)
    for machine in group.machines.values():
        nearly_fill(machine.disk)
    await group.until(lambda: all(status(group, name)["log"]["no_space"] for name in group.names), "all looked")
    leads = group.master
    await asyncio.sleep(3.0)
    assert group.master == leads  # nobody has more
    code, answer = await group.append(b"x")
    assert (code, answer["type"]) == (503, "no-space")
    assert any(reason.startswith("no-space") for reason in group.nodes[leads].services.monitoring.readiness())
    one = await group.client.request("GET", f"{group.url('n1')}/v1/entries/{vlsns[0]}", timeout_s=5.0)
    assert one.status == 200
    for machine in group.machines.values():
        machine.disk.capacity_bytes = None
    await group.until(lambda: not status(group, leads)["log"]["no_space"], "it has looked again")
    assert group.master == leads
    code, answer = await group.append(b"y")
    assert code == 200, answer
    assert group.nodes[leads].services.monitoring.readiness() == []
    await group.stop()
    assert not group.fatal


def nearly_fill(disk: FakeDisk) -> None:
    disk.capacity_bytes = 1 << 40
    disk.capacity_bytes += SEGMENT // 2 - disk.free()


@virtual
async def test_a_master_whose_disk_is_nearly_full_makes_way() -> None:
    group = Group(4, **{**CLEANS, "checkpoint_period_s": 60.0}, free_bytes_min=SEGMENT)
    await group.start()
    await group.serving()
    await append(group, 3)
    nearly_fill(group.machines["n1"].disk)
    await group.until(lambda: group.master != "n1", "another one leads")
    await append(group, 3)
    assert group.state("n1") == "REPLICA"
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_nodes_that_clean_and_are_killed_at_any_moment_keep_what_they_acknowledged(seed: int) -> None:
    rng = Random(seed)
    group = Group(seed, **CLEANS, retention_bytes=5 * SEGMENT)
    await group.start()
    await group.serving()
    told: dict[int, bytes] = {}
    for _ in range(8):
        for number in range(rng.randrange(10, 40)):
            value = b"%d" % number + BIG
            code, answer = await group.append(value)
            if code == 200:
                told[answer["first"]] = value
        await asyncio.sleep(rng.uniform(0, 0.6))
        name = rng.choice(group.names)
        group.kill(name, power=rng.random() < 0.5)
        await asyncio.sleep(rng.uniform(0, 1.0))
        await group.start(name)
        await group.serving()
    last = group.nodes[group.master].opened().log.view.range.last
    await group.until(lambda: all(node.dtvlsn() == last for node in group.nodes.values()), "all have all of it")
    for name in group.names:
        begins = first(group, name)
        found: dict[int, bytes] = {}
        at = begins
        while at <= last:
            page = await group.client.request("GET", f"{group.url(name)}/v1/entries?from={at}", timeout_s=5.0)
            if page.status == 410:  # it goes on cleaning meanwhile
                begins = at = first(group, name)
                continue
            for line in bytes(page.body).splitlines():
                entry = msgspec.json.decode(line)
                found[entry["vlsn"]] = entry["value"].encode()
            at = int(page.headers["Vlsnlog-Next"])
        begins = first(group, name)
        assert {vlsn: value for vlsn, value in told.items() if vlsn >= begins and found.get(vlsn) != value} == {}
        runs = group.nodes[name].opened().log.view.history.term_runs
        assert (runs[0].first, runs[-1].last) == (begins, last)
    assert any(first(group, name) > 40 for name in group.names)
    await group.stop()
    assert not group.fatal
