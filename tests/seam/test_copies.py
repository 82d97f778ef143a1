"""Copies that may be the only ones: a node discards nothing that it knows to be durable without an order."""

from __future__ import annotations

import asyncio

from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, CLEANS, Group
from tests.seam.test_membership import fed, has_all, told


async def moved(group: Group, to: str) -> None:
    answer = await group.client.request("POST", f"{group.url(group.master)}/v1/admin/transfer?to={to}", timeout_s=5.0)
    assert answer.status == 200, bytes(answer.body)
    await group.serving(to)


async def parted(seed: int, *, cleaned: bool = False, instead: int = 200) -> tuple[Group, dict[int, bytes]]:
    """Parts n1 and n2, restarted from images of term 1, from n3, which is down. They serve in the very term in which n3
    has durable entries. With ``cleaned``, in a later term, and n3 has cleaned all that it shares with them. Returns the
    entries of n3."""
    pad, count = (BIG, 100) if cleaned else (b"", 20)
    group = Group(seed, **(CLEANS if cleaned else {}))
    await group.start("n1", "n2")
    if cleaned:
        group.settings["retention_bytes"] = 3 * CLEANS["segment_bytes"]
    await group.start("n3")
    group.settings.pop("retention_bytes", None)
    await group.serving()
    await fed(group, 2)
    before = await told(group, 5)
    await has_all(group, before)
    images = {name: group.machines[name].image() for name in ("n1", "n2")}
    await moved(group, next(name for name in group.names if name != group.master))
    await fed(group, 2)
    precious: dict[int, bytes] = {}
    for number in range(count):
        value = b"precious %d" % number + pad
        precious[await group.appended(value)] = value
    log = group.nodes["n3"].opened().log
    await group.until(lambda: log.view.dtvlsn >= max(precious), "n3 has all")
    await group.until(lambda: not cleaned or log.view.range.first > max(before) + 2, "n3 has cleaned")
    precious = {vlsn: value for vlsn, value in precious.items() if vlsn >= log.view.range.first}
    group.kill(*group.names)
    for name, image in images.items():
        group.machines[name].put_back(image)
    await group.start(*images)
    if cleaned:
        await group.serving()
        await fed(group, 1)
        await moved(group, next(name for name in images if name != group.master))
    for number in range(instead if cleaned else 40):
        await group.appended(b"instead %d" % number + pad)
    await fed(group, 1)
    assert group.nodes["n1"].opened().log.node_file.record.term == (3 if cleaned else 2)
    return group, precious


def segments(group: Group, name: str) -> dict[str, bytes]:
    disk = group.machines[name].disk
    return {path: disk.content(path) for path in disk.files(f"/{name}") if path.endswith(".vlog")}


async def stays(group: Group, name: str, precious: dict[int, bytes], said: str) -> None:
    """Waits until the node halts; it serves reads, and keeps each of its entries, while the others serve."""
    await group.until(lambda: group.state(name) == "HALTED", f"{name} halts")
    await asyncio.sleep(20.0)
    node = group.nodes[name]
    assert node.state == "HALTED" and said in node.member.reason and "vlsnlog restore" in node.member.reason, (
        node.member.reason
    )
    assert node.restoration.count == 0
    kept = b"".join(segments(group, name).values())
    assert all(value in kept for value in precious.values())
    assert (await group.append(b"the others go on"))[0] == 200


async def given_up(group: Group, name: str) -> None:
    """Restores the node by an operator's order."""
    answer = await group.client.request("POST", f"{group.url(name)}/v1/admin/restore", headers=JSON, timeout_s=5.0)
    assert answer.status in (200, 202), bytes(answer.body)
    node = group.nodes[name]
    await group.until(lambda: node.restoration.count == 1 and node.state == "REPLICA", f"{name} is restored")
    await has_all(group, await told(group, 2, "afterwards "))


JSON = {"Content-Type": "application/json"}


@virtual
async def test_entries_known_durable_are_not_given_up_to_a_majority_that_has_forgotten_them() -> None:
    """Two nodes have sealed the same term again: one name has two contents, and the majority's is wrong."""
    group, precious = await parted(91)
    await group.start("n3")
    await stays(group, "n3", precious, "most members hold another block")
    await given_up(group, "n3")
    await group.stop()
    assert not group.fatal


@virtual
async def test_entries_known_durable_are_not_given_up_where_no_matchpoint_is_left() -> None:
    """n3 has cleaned the part that it shares with the others, which have other entries at its VLSNs."""
    group, precious = await parted(92, cleaned=True)
    await group.start("n3")
    await stays(group, "n3", precious, "up to which this node knows its log durable")
    await given_up(group, "n3")
    await group.stop()
    assert not group.fatal


@virtual
async def test_entries_known_durable_are_not_given_up_to_a_log_that_has_yet_to_pass_them() -> None:
    """The node waits while the others end below its durable end; past it the difference shows."""
    group, precious = await parted(93, cleaned=True, instead=80)
    node_of = group.nodes
    assert node_of["n1"].opened().log.view.range.last < max(precious)
    await group.start("n3")
    await asyncio.sleep(10.0)
    assert node_of["n3"].restoration.progress is None and node_of["n3"].state == "UNKNOWN"
    for number in range(60):
        await group.appended(b"more %d" % number + BIG)
    await stays(group, "n3", precious, "up to which this node knows its log durable")
    await group.stop()
    assert not group.fatal
