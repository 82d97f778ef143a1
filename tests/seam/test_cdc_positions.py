"""Positions of CDC consumers that are gone, unreadable or of another log."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from repl.cdc.consumer import CdcPosition
from repl.cdc.position_file import SLOT_BYTES
from tests.fakes.loop import virtual
from tests.seam.test_cdc import KIB, Captured, Recorder, _has_begun, one, started


@virtual
async def test_a_position_that_cannot_be_read_parks_it_and_never_begins_anew() -> None:
    group = await started(9, one(options={"moved": True}), size=1)
    await group.appended(b"one")
    await group.everything()
    await group.stop()
    group.kill(*group.names)
    for slot in (0, 1):
        group.machines["n1"].disk.flip_bit("/n1/cdc/orders.position", SLOT_BYTES * slot + 100, 1)
    await group.start()
    told = await group.state("n1", "parked")
    assert "neither slot" in told["reason"] and len(group.sinks["orders", "n1"].lives) == 1
    assert (await group.cdc("n1", "/orders/reset", to="start"))[0] == 200
    await group.state("n1", "running")
    await group.stop()


@pytest.mark.parametrize("lost", ["disk", "file"])
@virtual
async def test_a_position_that_is_gone_parks_it_and_never_begins_anew(lost: str) -> None:
    """The node gets another disk, or the file is removed: the group has a record that the consumer has begun there."""
    group = await started(13, one(options={"moved": True}))
    vlsns = [await group.appended(b"%d" % number) for number in range(5)]
    await group.everything()
    node = next(each for each in group.names if each != group.master)
    sink = group.sinks["orders", node]
    group.kill(node)
    if lost == "disk":
        group.machine(node)
        group.children[node].classes["test:orders"] = partial(Recorder, sink)
    else:
        group.machines[node].disk.remove(f"/{node}/cdc/orders.position")
    await group.start(node)
    for _ in range(2):  # it stays so, whatever is tried and restarted
        told = await group.state(node, "parked")
        assert "its position is gone" in told["reason"] and "vlsnlog cdc move orders --to" in told["reason"]
        assert (told["next"], told["lag_vlsns"]) == (None, None) and len(sink.lives) == 1
        status, said = await group.cdc(node, "/orders/skip", to=vlsns[2])
        assert (status, said["type"]) == (400, "bad-argument"), "there is nothing to skip from"
        await group.cdc(node, "/orders/resume")
        await group.state(node, "parked")
        group.kill(node)
        await group.start(node)
    await group.state(node, "parked")
    for other in set(group.names) - {node}:
        assert (await group.told(other))["state"] == "running"
    status, said = await group.cdc(node, "/orders/reset", to=vlsns[3])
    assert (status, said["next"]) == (200, vlsns[3])
    await group.until(partial(_has_begun, sink, 2), "it goes on where it was told to")
    assert sink.lives[1][0] == vlsns[3]
    await group.appended(b"more")
    await group.everything(node)
    await group.until(lambda: group.nodes[node].cdc.records["orders"].next == sink.committed, "that is stored")
    group.kill(node)
    await group.start(node)
    await group.state(node, "running")
    assert sink.lives[2][0] == sink.committed, "the group knows the new file"
    await group.stop()


@virtual
async def test_a_position_that_is_gone_is_not_taken_for_one_that_was_cleaned_away() -> None:
    """A new disk begins with an empty log from VLSN 1; then its log is restored from one that begins later."""
    group = await started(
        16, one(options={"moved": True}), retention_bytes=100 * KIB, hold_bytes_max=200 * KIB, cleaning_period_s=0.5
    )
    await group.appended(b"first")
    await group.everything()
    node = next(each for each in group.names if each != group.master)
    sink = group.sinks["orders", node]
    log = group.nodes[group.master].opened().log
    group.kill(node)
    while log.view.range.first <= 1:
        await group.appended(bytes(10 * KIB))
    group.machine(node)
    group.children[node].classes["test:orders"] = partial(Recorder, sink)
    await group.start(node)
    for _ in range(3):
        told = await group.state(node, "parked")
        if "its position is gone" in told["reason"]:
            break
        await asyncio.sleep(1)
    assert "its position is gone" in told["reason"] and told["lost"] is None, told["reason"]
    await group.cdc(node, "/orders/resume")
    await asyncio.sleep(1)
    told = await group.state(node, "parked")
    assert "its position is gone" in told["reason"] and len(sink.lives) == 1
    await group.stop()


@virtual
async def test_a_position_outlives_a_restore_and_a_lost_state() -> None:
    group = await started(10, one())
    for number in range(30):
        await group.appended(b"%d" % number)
    await group.everything()
    await asyncio.sleep(2.0)  # until the position of the last entry is stored, too
    node = next(each for each in group.names if each != group.master)
    response = await group.client.request(
        "POST", f"{group.url(node)}/v1/admin/restore", headers={"Content-Type": "application/json"}, timeout_s=10.0
    )
    assert response.status == 200
    sink = group.sinks["orders", node]
    await group.until(lambda: len(sink.lives) == 2, "it goes on with the new log")
    await group.appended(b"after")
    await group.everything(node)
    assert len(sink.lives[1][1]) == 1, "nothing was given twice"
    await group.stop()


@virtual
async def test_a_position_that_a_consumer_keeps_of_another_log_parks_it() -> None:
    group = Captured(13, one(), size=1)
    sink = group.sinks["orders", "n1"]
    sink.own = CdcPosition(3, 77)
    await group.start()
    await group.serving()
    await group.appended(b"one")
    await group.appended(b"two")
    if (child := group.children["n1"].alive.get("orders")) is not None:
        child.exit(1)  # it began before there was anything to compare its position with
    told = await group.state("n1", "parked")
    assert "term 77 was read before, but is not in the log" in told["reason"]
    await group.stop()
