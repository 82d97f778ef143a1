"""A planned transfer under load: the successor has the whole log before it stands, and wins at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import fed

STALL_S = 0.2


@pytest.mark.parametrize("seed", seeds(6))
@virtual
async def test_what_waits_to_be_logged_when_a_master_hands_over_reaches_its_heir_first(seed: int) -> None:
    """The master's disk is slow: its replicas have acknowledged everything logged while more entries are queued."""
    group = Group(seed)
    await group.start()
    await group.serving()
    old = group.master
    node = group.nodes[old]
    log = node.opened().log
    term = log.node_file.record.term
    group.machines[old].disk.latency = lambda call: STALL_S if "sync" in call.name else 0.0
    first = asyncio.create_task(group.append(b"logged", to=old))
    await group.until(lambda: log.cycle.writing_s > 0, "the disk is busy")
    others = [asyncio.create_task(group.append(b"waits", to=old)) for _ in range(20)]
    # Its disk is free again while the successor is asked to stand.
    await asyncio.sleep(STALL_S - (seed + 1) * 0.001 - log.cycle.writing_s)
    assert log.queue.entries == 20
    assert all(feeder.acked == log.view.allocated for feeder in node.member.role.feeders.values())  # type: ignore[union-attr]
    began = group.loop.time()
    heir = group.nodes[str((await node.services.administration.transfer(None))["to"])]
    await group.until(heir.member.is_master, "the heir leads")
    assert heir.opened().log.node_file.record.term == term + 1, "it was not elected at once"
    assert group.loop.time() - began < node.member.config.election_timeout_s
    told = [reply["first"] for status, reply in await asyncio.gather(first, *others) if status == 200]
    await group.serving()
    assert told and set(told) <= set(await group.read(heir.name))
    await group.stop()
    assert not group.fatal


@virtual
async def test_what_is_on_its_way_when_a_master_hands_over_is_waited_for() -> None:
    """A large append on narrow links: no replica has all of it when the transfer is ordered."""
    group = Group(45)
    await group.start()
    await group.serving()
    await fed(group, 2)
    old = group.master
    others = [name for name in group.names if name != old]
    for name in others:
        group.net.bytes_per_s[old, name] = 100_000.0
    append = asyncio.create_task(group.append(50_000 * b".", to=old))
    log = group.nodes[old].opened().log
    at = log.view.allocated + 1
    await group.until(lambda: log.view.allocated >= at, "it is logged")
    assert all(group.nodes[name].opened().log.view.allocated < at for name in others)
    answer = await group.client.request("POST", f"{group.url(old)}/v1/admin/transfer", timeout_s=5.0)
    assert answer.status == 200
    status, answered = await append
    assert (status, answered.get("durable")) == (200, True), answered
    await group.serving()
    assert group.master in others
    assert (await group.read(group.master))[at] == 50_000 * b"."
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_hand_over_whose_caller_goes_away_is_announced_no_more() -> None:
    """Otherwise nodes asked for a vote would be told for ever that this term has ended, while it continues."""
    group = Group(46)
    await group.start()
    await group.serving()
    await fed(group, 2)
    node = group.nodes[group.master]
    transfer = asyncio.create_task(node.services.administration.transfer(None))
    while not node.opened().opened.announced[1]:
        assert not transfer.done()
        await asyncio.sleep(1e-5)
    transfer.cancel()
    await asyncio.wait([transfer])
    assert transfer.cancelled()
    assert node.opened().opened.announced == (0, "")
    await group.serving()
    await group.stop()
    assert not group.fatal
