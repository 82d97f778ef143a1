"""Dead letters of destinations: retried, deleted, and delivered by other destinations."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.fakes.loop import virtual
from tests.seam.test_destinations import acked, client, counted, made, values
from vlsn.errors import BadArgument, NotFound


@virtual
async def test_a_dead_one_that_is_acknowledged_after_all_is_not_tried_again() -> None:
    """Its first consumer acknowledges it late: a durable acknowledgement ends every delivery."""
    group = await made(17)
    async with client(group) as log:
        await log.destinations.put("orders", attempts_max=1, ack_timeout_s=3.0)
        await log.append_many([b"a", b"b"])
        dest = log.destination("orders")
        late, _ = await dest.take(10, 0.0)
        await asyncio.sleep(4.0)
        assert (await log.destinations.get("orders"))["dead"] == 2
        await late.ack()
        assert (await log.destinations.get("orders"))["dead"] == 1
        await log.destinations.retry_dead("orders")
        assert values(await dest.take(10, 0.0)) == [b"b"]
    await group.stop()


@virtual
async def test_single_dead_ones_are_tried_again_or_deleted_and_the_others_stay() -> None:
    group = await made(36)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", attempts_max=1))["uuid"]
        await log.append_many([b"a", b"b", b"c", b"d"])
        dest = log.destination("orders")
        dead = await dest.take(10, 0.0)
        a, b, c, d = (message.vlsn for message in dead)
        await dest.nack(dead)
        await group.until(lambda: acked(group, uuid).dead.count == 4, "all are dead")
        assert (await log.destinations.retry_dead("orders", [b]))["dead"] == 3
        (again,) = await dest.take(10, 1.0)
        assert (again.value, again.attempt) == (b"b", 1)
        assert acked(group, uuid).kept_floor == a - 1, "a may be tried again"
        assert (await log.destinations.delete_dead("orders", [c, a]))["dead"] == 1
        assert acked(group, uuid).kept_floor == b - 1
        for strange in ([a], [b], [d, c], [d, d + 100], [d, 1 << 40]):
            for order in (log.destinations.retry_dead, log.destinations.delete_dead):
                with pytest.raises(NotFound, match="none of the dead messages that orders keeps"):
                    await order("orders", strange)
        with pytest.raises(BadArgument, match="delete-dead needs the VLSNs"):
            await log.destinations.delete_dead("orders", [])
        group.kill(group.master, power=True)
        await group.serving()
        assert (await log.destinations.get("orders"))["dead"] == 1
        await log.destinations.retry_dead("orders")
        assert values(await dest.take(10, 1.0)) == [b"b", b"d"], "b was out at the master before"
    await group.stop()


@virtual
async def test_a_dead_one_whose_acknowledgement_is_on_its_way_is_not_tried_again() -> None:
    group = await made(37)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", attempts_max=1))["uuid"]
        await log.append_many([b"a", b"b"])
        dest = log.destination("orders")
        late, other = await dest.take(10, 0.0)
        await dest.nack([late, other])
        await group.until(lambda: acked(group, uuid).dead.count == 2, "both are dead")
        lead = group.nodes[group.master].lead
        assert lead is not None
        group.net.split([group.master], [name for name in group.names if name != group.master])
        acking = asyncio.ensure_future(late.ack())
        await group.until(lambda: bool(lead.destinations.notes._under_way), "it is noted, and not durable")
        retrying = asyncio.ensure_future(log.destinations.retry_dead("orders"))
        await asyncio.sleep(0.1)
        assert not acking.done() and not retrying.done()
        group.net.heal()
        await acking
        assert (await retrying)["dead"] == 0
        assert values(await dest.take(10, 0.5)) == [b"b"], "a was acknowledged, durable"
    await group.stop()


@virtual
async def test_a_destination_takes_the_dead_letters_of_others_and_none_of_its_own() -> None:
    group = await made(94)
    async with client(group) as log:
        await log.destinations.put("orders", prefix="o", attempts_max=1)
        await log.destinations.put("dlq", prefix="dead_letter", attempts_max=1, full_policy="fail", max_messages=9)
        await counted(group, log, "dlq")
        await log.append_many([b"a", b"b"], keys=[b"o1", b"o2"])
        for message in await log.destination("orders").take(10, 5.0):
            await message.nack("no stock")
        dlq = log.destination("dlq")
        uuid = (await log.destinations.get("orders"))["uuid"]
        await group.until(lambda: acked(group, uuid).dead.count == 2, "both are dead, durable")
        letters = await dlq.take(10, 20.0)
        assert [msgspec.json.decode(each.value)["reason"] for each in letters] == ["no stock", "no stock"]
        await letters[0].nack("cannot be read")
        await letters[1].ack()
        await log.append(b"by hand", key=b"dead_letter")
        assert values(await dlq.take(10, 20.0)) == [b"by hand"], "its own letter is none of its messages"
        written = [entry async for entry in log.read() if entry.key == b"dead_letter"]
        assert [msgspec.json.decode(each.value)["destination"] for each in written[:3]] == [
            "orders",
            "orders",
            "dlq",
        ]
        assert (await log.destinations.get("dlq"))["depth"]["messages"] == 1
    await group.stop()
