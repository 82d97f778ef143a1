"""Destinations whose place, limits or pages change while something waits for them."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.loop import virtual
from tests.seam.test_destinations import client, counted, made, policed
from vlsn.errors import DestinationFull


@virtual
async def test_moved_back_it_is_as_full_as_what_is_wanted_again() -> None:
    group = await made(65)
    async with client(group, 20.0) as log:
        await policed(group, log, "fail", max_messages=5)
        await counted(group, log)
        for number in range(5):
            await log.append(b"%d" % number, key=b"order-%d" % number)
        with pytest.raises(DestinationFull):
            await log.append(b"5", key=b"order-5")
        held = await log.destination("orders").take(10, 5.0)
        await log.destinations.ack("orders", [message.vlsn for message in held])
        await asyncio.sleep(3.0)
        assert (await log.destinations.get("orders"))["refused"]["failed"] == 1, "counted since this node leads"
        await log.destinations.move("orders", "start")
        await counted(group, log)
        with pytest.raises(DestinationFull):
            await log.append(b"5", key=b"order-5")
    await group.stop()
    assert not group.fatal


@virtual
async def test_one_whose_time_is_over_holds_up_none_behind_it_that_has_room() -> None:
    group = await made(66)
    async with client(group, 30.0) as log, client(group, 2.0) as hasty:
        await policed(group, log, "block", max_messages=5)
        await counted(group, log)
        for number in range(3):
            await log.append(b"%d" % number, key=b"order-%d" % number)

        async def too_many() -> None:
            with pytest.raises(DestinationFull):
                await hasty.append_many([b"a", b"b", b"c", b"d"], keys=[b"order-a"] * 4)

        large = asyncio.create_task(too_many())
        await asyncio.sleep(0.5)
        small = asyncio.create_task(log.append(b"small", key=b"order-small"))
        await large
        async with asyncio.timeout(5.0):
            await small
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_destination_that_was_made_is_there_though_the_masters_disk_is_slow() -> None:
    """The others make its COMMIT durable before the master has synced it."""
    group = await made(88)
    async with client(group) as log:
        disk = group.machines[group.master].disk
        disk.latency = lambda call: 0.3 if call.name in ("sync", "write") else 0.0
        settings = await log.destinations.put("slow", prefix="order-")
        assert (await log.destinations.get("slow"))["uuid"] == settings["uuid"]
        changed = await log.destinations.put("slow", attempts_max=7)
        assert changed["attempts_max"] == 7, "what is answered is what was asked for"
        disk.latency = None
    await group.stop()
    assert not group.fatal
