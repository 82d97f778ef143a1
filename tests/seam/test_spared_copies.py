"""Restores that a person asks for: a copy is given up only while most other members are whole."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fakes.loop import run
from tests.fakes.seeds import seeds
from tests.seam.nodes import SEGMENT, Group
from tests.seam.test_floors import acknowledged, opened, rot


async def asked(group: Group, name: str) -> tuple[int, dict[str, Any]]:
    response = await group.client.request("POST", f"{group.url(name)}/v1/admin/restore", timeout_s=10.0)
    return response.status, msgspec.json.decode(bytes(response.body))


async def served(seed: int, size: int = 3, **settings: Any) -> Group:
    """A group with an entry that everybody has, and knows durable."""
    group = Group(seed, size, segment_bytes=SEGMENT, **settings)
    await group.start()
    await group.serving()
    vlsn = await group.appended(b"everywhere")
    await group.until(lambda: all(node.dtvlsn() >= vlsn for node in group.nodes.values()), "all have all")
    return group


@pytest.mark.parametrize("seed", seeds(5))
def test_an_acknowledged_entry_outlives_two_restores_asked_for_at_once(seed: int) -> None:
    """Two of three hold it.  Both have restarted since, and have forgotten that it is durable: the third would do as a
    provider, and nobody else would be left that has it."""

    async def main() -> None:
        group = await served(seed)
        master = group.master
        name, lacks = (each for each in group.names if each != master)
        group.net.split([lacks], [master, name, "client"])
        vlsn = await group.appended(b"precious", to=master)
        group.kill(master, name, power=True)
        group.kill(lacks)
        group.net.heal()
        await group.start()

        def opened() -> bool:
            return all(node.log is not None and node.member.recognised for node in group.nodes.values())

        await group.until(opened, "they are back")
        answers = await asyncio.gather(asked(group, master), asked(group, name))
        assert sum(status == 200 for status, _ in answers) < 2, answers
        await group.serving()

        def known() -> bool:
            return all(node.state in ("MASTER", "REPLICA") and node.dtvlsn() > vlsn for node in group.nodes.values())

        await group.appended(b"later")
        await group.until(known, "all serve again", 60.0)
        for each in group.names:
            assert (await group.read(each))[vlsn] == b"precious", each
        await group.stop()
        assert not group.fatal

    run(main())


def test_a_restore_is_refused_while_too_few_others_answer() -> None:
    async def main() -> None:
        group = await served(3)
        name, other = (each for each in group.names if each != group.master)
        group.kill(other)
        status, said = await asked(group, name)
        assert (status, said["type"]) == (503, "not-ready") and other in said["detail"], said
        assert group.state(name) == "REPLICA" and group.nodes[name].member.events.counts["restore.refused"] == 1
        await group.start(other)
        await group.until(lambda: group.state(other) == "REPLICA", f"{other} is back")
        assert (await asked(group, name))[0] == 200
        await group.until(lambda: group.nodes[name].restoration.count == 1, f"{name} is restored")
        await group.stop()
        assert not group.fatal

    run(main())


def test_whoever_is_to_be_restored_itself_counts_for_nobody_else() -> None:
    """The node counts for nobody else from the moment on that it is asked to. That is before anybody can see that it
    has begun, until it is at its floor."""

    async def main() -> None:
        group = await served(4)
        name, other = (each for each in group.names if each != group.master)
        statuses = [status for status, _ in await asyncio.gather(asked(group, name), asked(group, other))]
        assert statuses.count(200) <= 1, statuses
        taken = 0
        for _ in range(100):
            for each in group.rng.sample((name, other), 2):
                status, _ = await asked(group, each)
                taken += status == 200
                at_it = [node for node in group.nodes.values() if node.state == "RESTORING"]
                assert len(at_it) <= 1, at_it
            await asyncio.sleep(0.05)
        assert taken > 3 and all(group.nodes[each].restoration.count for each in (name, other))
        await group.stop()
        assert not group.fatal

    run(main())


def test_of_five_two_copies_are_given_up_at_once_and_no_third() -> None:
    async def main() -> None:
        group = await served(6, 5)
        replicas = [each for each in group.names if each != group.master]
        group.kill(replicas[0])
        assert (await asked(group, replicas[1]))[0] == 200
        status, said = await asked(group, replicas[2])
        assert (status, said["type"]) == (503, "not-ready") and replicas[1] in said["detail"], said
        await group.stop()
        assert not group.fatal

    run(main())


def test_a_copy_below_its_floor_is_not_whole() -> None:
    """n2 has lost what it acknowledged, follows, and is on its way to it: n1 and n3 alone have that."""

    async def main() -> None:
        group = Group(23, checkpoint_period_s=60.0)
        first, places = await acknowledged(group)
        group.machines["n2"].stores.contents.pop("/n2/state")
        rot(group, places)
        await opened(group, first)
        process = group.machines["n2"].process
        assert process is not None
        process.threads.latency_s = (3.0, 3.0)  # nothing that comes is written soon
        await group.start("n3")
        await group.until(lambda: group.state("n2") == group.state("n3") == "REPLICA", "they are fed")
        assert group.nodes["n2"].opened().log.range.last_sync == first
        status, said = await asked(group, "n3")
        assert (status, said["type"]) == (503, "not-ready") and "n2 lacks" in said["detail"], said
        process.threads.latency_s = (0.0, 0.0)
        log = group.nodes["n2"].opened().log
        await group.until(lambda: log.node_file.record.floor_vlsn <= log.range.last_sync, "n2 is at its floor")
        assert (await asked(group, "n3"))[0] == 200
        await group.until(lambda: group.nodes["n3"].restoration.count == 1, "n3 is restored")
        await group.stop()
        assert not group.fatal

    run(main())


def test_a_member_with_damage_is_not_whole() -> None:
    async def main() -> None:
        group = await served(7, checkpoint_period_s=60.0)
        name, other = (each for each in group.names if each != group.master)
        disk = group.machines[other].disk
        path = next(path for path in sorted(disk.files(f"/{other}")) if path.endswith(".vlog"))
        disk.flip_bit(path, 20)  # its header page, which is nobody else's
        group.kill(other)
        await group.start(other)
        await group.until(lambda: group.state(other) == "DAMAGED", f"{other} is damaged")
        status, said = await asked(group, name)
        assert (status, said["type"]) == (503, "not-ready") and other in said["detail"], said
        assert (await asked(group, other))[0] == 200  # the other two are whole
        await group.until(lambda: group.state(other) == "REPLICA", f"{other} is restored")
        await group.stop()
        assert not group.fatal

    run(main())
