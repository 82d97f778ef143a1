"""Full destinations: appends refused, delayed or dropped, and counts that stay right after moves and changes of
master."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import SEGMENT
from tests.seam.test_destinations import acked, client, counted, made, policed, values
from vlsn.errors import DestinationFull, OutcomeUnknown, VlsnLogError


@virtual
async def test_a_full_destination_refuses_until_there_is_room() -> None:
    group = await made(11)
    async with client(group, 20.0) as log:
        await policed(group, log, "fail", max_messages=3)
        await log.append_many([b"a", b"b"], keys=[b"o1", b"o2"])
        with pytest.raises(DestinationFull, match="orders is full") as refused:
            await log.append_many([b"c", b"d"], keys=[b"o3", b"o4"])
        assert refused.value.retry_safe
        await log.append(b"c", key=b"o3")
        with pytest.raises(DestinationFull):
            await log.append(b"d", key=b"o4")
        await log.append(b"of another", key=b"p")
        with pytest.raises(DestinationFull):
            async with log.transaction() as txn:
                await txn.append(b"d", key=b"o4")
        told = await log.destinations.get("orders")
        assert told["depth"]["messages"] == 3 and told["refused"]["failed"] == 4
        dest = log.destination("orders")
        messages = await dest.take(10, 0.0)
        assert values(messages) == [b"a", b"b", b"c"]
        await messages[0].ack()
        await log.append(b"d", key=b"o4")
        assert values(await dest.take(10, 0.0)) == [b"d"]
    await group.stop()


@virtual
async def test_a_full_destination_blocks_who_appends_to_it_and_nobody_else() -> None:
    group = await made(12)
    async with client(group) as log, client(group) as other:
        await policed(group, log, "block", max_messages=1)
        await log.append(b"a", key=b"o1")
        waiting = asyncio.ensure_future(log.append(b"b", key=b"o2"))
        await asyncio.sleep(2.0)
        assert not waiting.done()
        await other.append(b"of another", key=b"p")
        dest = other.destination("orders")
        (message,) = await dest.take(10, 0.0)
        await message.ack()
        await waiting
        assert values(await dest.take(10, 5.0)) == [b"b"]
    async with client(group, 3.0) as log:
        with pytest.raises(VlsnLogError) as late:
            await log.append(b"c", key=b"o3")
        assert late.value.retry_safe or isinstance(late.value, OutcomeUnknown)
    await group.stop()


@virtual
async def test_a_full_destination_drops_what_comes_and_the_log_has_it() -> None:
    group = await made(13)
    async with client(group) as log:
        await policed(group, log, "drop", max_bytes=10)
        await log.append_many([b"12345", b"123"], keys=[b"o", b"o"])
        await log.append_many([b"1", b"other", b"2"], keys=[b"o", b"p", b"o"])
        entries = [entry.value async for entry in log.read()]
        assert entries == [b"12345", b"123", b"1", b"other", b"2"]
        dest = log.destination("orders")
        messages = await dest.take(10, 0.0)
        assert values(messages) == [b"12345", b"123"]
        await dest.ack(messages)
        assert (await log.destinations.get("orders"))["refused"]["dropped"] == 2
        await log.append(b"3", key=b"o")
        group.kill(group.master, power=True)
        assert values(await dest.take(10, 60.0)) == [b"3"]
    await group.stop()


@virtual
async def test_what_is_dropped_among_other_keys_costs_no_acknowledgement() -> None:
    """98,304 dropped messages, each between two of other keys, beside 25 that are delivered and acknowledged."""
    group = await made(1301, segment_bytes=64 * SEGMENT)
    async with client(group) as log:
        await policed(group, log, "drop", max_messages=25)
        await log.append_many([b"%d" % each for each in range(25)], keys=[b"o"] * 25)
        dest = log.destination("orders")
        messages = await dest.take(100, 0.0)
        assert len(messages) == 25
        for _ in range(3):
            await log.append_many([b"-"] * 65_536, keys=[b"o", b"p"] * 32_768)
        for message in messages[::2] + messages[1::2]:
            await message.ack()
        uuid = str((await log.destinations.get("orders"))["uuid"])
        assert acked(group, uuid).done.intervals == 1, "gaps of other keys are no intervals"
        group.kill(group.master, power=True)
        await group.serving()
        assert await dest.take(100, 5.0) == [], "what was answered durable never comes again"
    await group.stop()


@virtual
async def test_a_new_master_counts_what_was_there_before_it() -> None:
    group = await made(14)
    async with client(group, 20.0) as log:
        await policed(group, log, "fail", max_messages=2)
        await log.append_many([b"a", b"b"], keys=[b"o1", b"o2"])
        group.kill(group.master, power=True)
        await group.serving()
        await counted(group, log)
        with pytest.raises(VlsnLogError, match="orders is full: 2 messages"):
            await log.append(b"c", key=b"o3")
    await group.stop()


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
    """The replicas make its COMMIT durable before the master has synced it."""
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
