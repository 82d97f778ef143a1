"""Logs too damaged to open: which of them are replaced by another node's log, and when."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, Group
from tests.seam.test_peer_block import block
from tests.seam.test_restore import SETTINGS, append, caught_up


@virtual
async def test_a_damaged_log_that_does_not_open_is_restored_when_a_person_asks() -> None:
    told: dict[int, bytes] = {}
    group = Group(36, **{**SETTINGS, "checkpoint_period_s": 60.0, "checkpoint_bytes": 1 << 30})
    await group.start()
    await group.serving()
    await append(group, 30, told)
    await asyncio.sleep(3.0)
    group.kill("n2")
    disk = group.machines["n2"].disk
    name = max(each for each in disk.list("/n2") if each.endswith(".vlog") and any(disk.content(f"/n2/{each}")[4096:]))
    disk.flip_bit(f"/n2/{name}", 20)  # its header page, which is nobody else's
    await group.start("n2")
    await group.until(lambda: group.state("n2") == "DAMAGED", "n2 is damaged")
    answer = await group.client.request("POST", f"{group.url('n2')}/v1/admin/restore", timeout_s=5.0)
    assert answer.status == 200
    await caught_up(group, "n2", told)
    assert f"{name}.old" in disk.list("/n2")
    assert group.nodes["n2"].opened().log.node_file.record.floor_vlsn >= max(told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_damaged_log_whose_disk_fails_refuses_a_block_and_sends_it_later() -> None:
    group = Group(40, **{**SETTINGS, "checkpoint_period_s": 60.0, "checkpoint_bytes": 1 << 30})
    await group.start()
    await group.serving()
    await append(group, 30, {})
    await asyncio.sleep(3.0)
    group.kill("n2")
    disk, path = group.machines["n2"].disk, f"/n2/{newest(group, 'n2')}"
    disk.flip_bit(path, len(disk.content(path).rstrip(b"\0")) - 1)
    disk.flip_bit(path, 20)
    await group.start("n2")
    await group.until(lambda: group.state("n2") == "DAMAGED", "n2 is damaged")
    disk.fail_at(lambda call: call.name == "read" and call.path.endswith(".vlog"))
    status, refused = await block(group, "n2", term=0, first=1)
    assert (status, msgspec.json.decode(refused)["type"]) == (500, "damaged")
    status, _ = await block(group, "n2", term=0, first=1)
    assert status == 200
    await group.stop()


def newest(group: Group, name: str) -> str:
    """Returns a node's newest segment with frames."""
    disk = group.machines[name].disk
    named = [each for each in disk.list(f"/{name}") if each.endswith(".vlog")]
    return max(each for each in named if any(disk.content(f"/{name}/{each}")[4096:5000]))


@virtual
async def test_a_damaged_log_is_restored_by_itself_once_all_that_it_held_is_durable_elsewhere() -> None:
    told: dict[int, bytes] = {}
    group = Group(37, **{**SETTINGS, "checkpoint_period_s": 60.0, "checkpoint_bytes": 1 << 30})
    await group.start()
    await group.serving()
    await append(group, 30, told)
    await asyncio.sleep(3.0)
    group.kill("n2")
    disk, path = group.machines["n2"].disk, f"/n2/{newest(group, 'n2')}"
    disk.flip_bit(path, 20)
    disk.flip_bit(path, len(disk.content(path).rstrip(b"\0")) - 1)
    await group.start("n2")
    await group.until(lambda: group.state("n2") == "DAMAGED", "n2 is damaged")
    await asyncio.sleep(40.0)
    assert group.state("n2") == "DAMAGED"  # its unreadable blocks may be nowhere else
    await append(group, 5, told)
    await caught_up(group, "n2", told)
    assert group.nodes["n2"].restoration.count == 1
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("further", [20, 0])
@virtual
async def test_damage_in_what_was_never_durable_is_nobodys_to_mend_and_ends_in_a_restore(further: int) -> None:
    """The group may log past the damaged log's end, or be idle: its durable end is of a later term."""
    told: dict[int, bytes] = {}
    group = Group(38, **{**SETTINGS, "checkpoint_period_s": 60.0, "checkpoint_bytes": 1 << 30})
    await group.start()
    await group.serving()
    await append(group, 10, told)
    group.net.split(["n1", "client"], ["n2", "n3"])
    lost = [await group.append(b"lost %d" % number + BIG, acks="none") for number in range(4)]
    assert all(status == 200 for status, _ in lost)
    path = newest(group, "n1")
    at = group.machines["n1"].disk.content(f"/n1/{path}").index(b"lost 1")
    await asyncio.sleep(3.0)
    group.kill("n1")
    group.net.heal()
    group.machines["n1"].disk.flip_bit(f"/n1/{path}", at)

    def leads() -> str:
        return next((name for name, node in group.nodes.items() if node.member.is_master()), "")

    await group.until(lambda: leads() != "", "another one leads")
    master = leads()
    for number in range(further):
        value = b"on %d" % number + BIG
        told[await group.appended(value, to=master)] = value
    log = group.nodes[master].opened().log
    assert (log.view.dtvlsn > lost[-1][1]["last"]) is bool(further)
    await group.start("n1")
    await caught_up(group, "n1", told)
    assert group.nodes["n1"].restoration.count == 1
    assert f"{path}.old" in group.machines["n1"].disk.list("/n1")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_damaged_log_is_not_given_up_for_less_of_a_term_that_it_may_have_acknowledged_in() -> None:
    """Its readable blocks are of the earlier term. It has acknowledged more of the last term than the running node
    has."""
    told: dict[int, bytes] = {}
    group = Group(39, **{**SETTINGS, "checkpoint_period_s": 60.0, "checkpoint_bytes": 1 << 30})
    await group.start()
    await group.serving()
    behind = group.master
    await append(group, 3, told)
    group.kill(behind)
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "another one leads")
    await group.serving()
    master = group.master
    damaged = next(name for name in group.names if name not in (master, behind))
    await group.start(behind)
    both = [group.nodes[name] for name in group.names]
    await group.until(lambda: len({node.dtvlsn() for node in both}) == 1, "all have all")
    group.net.split([behind], [master, damaged, "client"])
    told[vlsn := await group.appended(b"precious", to=master)] = b"precious"
    await asyncio.sleep(3.0)
    log = group.nodes[damaged].opened().log
    assert log.view.dtvlsn == vlsn and log.view.history.last_term == log.node_file.record.term == 2
    group.kill(master, damaged)
    disk, path = group.machines[damaged].disk, f"/{damaged}/{newest(group, damaged)}"
    data = disk.content(path)
    start = data.index(b'"term":2')  # in its TERM entry
    disk.write_content(path, data[: start - 120] + bytes(len(data) - start + 120))
    group.net.heal()
    await group.start(damaged)
    await group.until(lambda: group.state(damaged) == "DAMAGED", "it is damaged")
    await asyncio.sleep(40.0)
    assert group.state(damaged) == "DAMAGED" and group.nodes[behind].dtvlsn() < vlsn
    await group.start(master)
    await caught_up(group, damaged, told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_log_is_not_given_up_for_one_that_knows_less_durable() -> None:
    """One of the two others is down, and one was cut off before the last entries were acknowledged. The restoring
    node has the only running copy of them."""
    group = Group(28)
    await group.start()
    await group.serving()
    master = group.master
    name, lacks = (each for each in group.names if each != master)
    await group.appended(b"everywhere")
    group.net.split([lacks], [master, name])
    vlsn = await group.appended(b"precious", to=master)
    await group.until(lambda: group.nodes[name].dtvlsn() >= vlsn, "it knows that durable")
    group.kill(master)
    node = group.nodes[name]
    node.restoration.want("a person asked for it")
    await group.until(lambda: group.state(name) == "RESTORING", "it looks for a provider")
    group.net.heal()
    await asyncio.sleep(5.0)
    assert group.state(name) == "RESTORING" and group.nodes[lacks].opened().log.view.range.last < vlsn
    disk = group.machines[name].disk
    assert any(b"precious" in disk.content(path) for path in disk.files(f"/{name}") if path.endswith(".vlog"))
    await group.start(master)
    await group.until(lambda: node.restoration.count == 1 and node.state == "REPLICA", "it is restored", 60.0)
    assert (await group.read(name))[vlsn] == b"precious"
    await group.stop()
    assert not group.fatal
