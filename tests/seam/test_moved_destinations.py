"""Destinations that are moved back below acknowledged messages while pages have some: log and pages of every node have
everything that is wanted again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from repl.client.connect import Client
from repl.web.slices import at_once
from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, Group
from tests.seam.test_copies import moved
from tests.seam.test_destinations import client
from tests.seam.test_membership import electable
from tests.seam.test_pages import KEPT, first, made, stored, taken, uncovered
from vlsn.errors import Trimmed
from vlsn.ids import Vlsn

UNLIMITED = 64 << 20


async def mostly_acknowledged(log: Client, count: int = 120) -> dict[int, bytes]:
    """Appends messages, and acknowledges all but every tenth; returns all of them."""
    held: dict[int, bytes] = {}
    for number in range(count):
        value = b"%d" % number + BIG
        held[await log.append(value, key=b"order-%d" % number)] = value
    done = [vlsn for number, vlsn in enumerate(held) if number % 10]
    await log.destinations.ack("orders", done)
    return held


async def restarted(group: Group, name: str, **settings: Any) -> None:
    group.settings |= settings
    group.kill(name)
    await group.start(name)


def has_all(group: Group, name: str, told: dict[str, Any], held: dict[int, bytes]) -> bool:
    """Says whether a node has received the move, has all messages and reports none as missing."""
    uuid = told["uuid"]
    if not first(group, name) or group.state(name) not in ("MASTER", "REPLICA"):
        return False
    store = stored(group, name, uuid)
    knows = store is not None and store.row is not None and store.row.since == told["since"]
    return knows and not store.missing and not uncovered(group, name, uuid, held)


@virtual
async def test_a_node_whose_log_is_shorter_fetches_what_is_wanted_again_beside_its_pages() -> None:
    group = await made(61, retention_bytes=UNLIMITED)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await mostly_acknowledged(log)
        name = next(each for each in group.names if each != group.master)
        await restarted(group, name, retention_bytes=KEPT)
        await group.until(lambda: first(group, name) > 30 and stored(group, name, uuid).paging, "it has cleaned")
        assert first(group, group.master) == 1
        told = await log.destinations.move("orders", "start")
        await group.until(lambda: has_all(group, name, told, held), "it holds all of it", 60.0)
        assert first(group, name) > 30
        await electable(group, name)
        await moved(group, name)
        assert await taken(log, len(held)) == sorted(held.items())
        await group.until(lambda: not stored(group, name, uuid).paging, "page mode is left")
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("at_once", [False, True])
@virtual
async def test_what_was_paged_before_a_move_and_is_in_the_log_yet_is_paged_again(at_once: bool) -> None:
    """A pass has committed, and the log is not cleaned there yet, as a destination moves back below it. With
    ``at_once`` it moves while the pass is under way."""
    group = await made(62, retention_bytes=UNLIMITED)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await mostly_acknowledged(log)
        paged: list[Vlsn] = []
        for name in group.names:
            group.nodes[name].opened().pager.page(Vlsn(90), lambda vlsn, _: paged.append(vlsn))
        if not at_once:
            await group.until(lambda: len(paged) == len(group.names), "all have paged")
        told = await log.destinations.move("orders", "start")
        await group.until(lambda: len(paged) == len(group.names), "all have paged")
        for name in group.names:
            node = group.nodes[name].opened()
            # A pass that ends after the move counts for nothing.
            assert at_once or stored(group, name, uuid).paged_to >= 90
            assert node.log.view.range.first == 1
            await restarted(group, name, retention_bytes=KEPT)
            await group.serving()
        await group.until(lambda: all(first(group, name) > 30 for name in group.names), "all have cleaned", 60.0)
        for name in group.names:
            await group.until(lambda: has_all(group, name, told, held), f"{name} holds all of it")  # noqa: B023
        await asyncio.sleep(2.0)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


@virtual
async def test_nothing_is_moved_to_what_left_the_log_though_pages_have_some_of_it() -> None:
    group = await made(63)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await mostly_acknowledged(log)
        await group.until(lambda: first(group, group.master) > 30, "the log was cleaned")
        begins, paged = first(group, group.master), stored(group, group.master, uuid).pages
        vlsn = min(row.first for row in paged.values())
        assert vlsn < begins
        for call in (log.destinations.move("orders", vlsn), log.destinations.put("others", from_=vlsn)):
            with pytest.raises(Trimmed) as refused:
                await call
            assert refused.value.first == begins
        url = f"{group.url(group.master)}/v1/destinations/orders/move"
        body, headers = msgspec.json.encode({"to": vlsn}), {"Content-Type": "application/json"}
        answer = await group.client.request("POST", url, headers=headers, body=body, timeout_s=5.0)
        told = msgspec.json.decode(bytes(answer.body))
        assert (answer.status, told["type"], told["first"]) == (410, "trimmed", begins)
        left = {each: value for number, (each, value) in enumerate(held.items()) if number % 10 == 0}
        assert await taken(log, len(left)) == sorted(left.items()), "nothing has changed"
    await group.stop()


@virtual
async def test_a_master_tells_how_much_comes_and_how_long_the_oldest_message_has_waited() -> None:
    group = await made(64)
    async with client(group) as log:
        await log.destinations.put("orders", prefix="order-")
        for number in range(120):
            await log.append(BIG, key=b"order-1" if number % 2 else b"other")
            await asyncio.sleep(0.05)
        told = await log.destinations.get("orders")
        assert 5.0 < told["in_per_s"] < 11.0, "half of what is appended, some 17 a second"
        assert first(group, group.master) > told["oldest_vlsn"] > 0, "it lies in a page"
        assert 5.0 < told["oldest_age_s"] < 20.0
        metrics = at_once(group.nodes[group.master].services.monitoring.metrics_text()).decode()
        assert 'vlsnlog_destination_oldest_age_seconds{destination="orders"} ' in metrics
        assert 'vlsnlog_destination_in_per_second{destination="orders"} ' in metrics
        assert len(await taken(log, 60)) == 60
        await asyncio.sleep(5.0)
        told = await log.destinations.get("orders")
        assert (told["in_per_s"], told["oldest_vlsn"], told["oldest_age_s"]) == (0.0, 0, 0.0)
    await group.stop()


@virtual
async def test_a_node_that_had_cleaned_what_a_new_destination_begins_at_fetches_it_and_delivers_nothing_before() -> (
    None
):
    """Simulation seed 206: such a node leads before its pager has read the destination."""
    group = await made(67, retention_bytes=UNLIMITED)
    async with client(group) as log:
        held: dict[int, bytes] = {}
        for number in range(120):
            value = b"%d" % number + BIG
            held[await log.append(value, key=b"order-%d" % number)] = value
        name = next(each for each in group.names if each != group.master)
        await restarted(group, name, retention_bytes=KEPT)
        await group.until(lambda: first(group, name) > 30, "it has cleaned")
        await electable(group, name)
        pager = group.nodes[name].opened().pager
        async with pager.alone:
            told = await log.destinations.put("orders", prefix="order-", from_="start")
            await moved(group, name)
            assert await taken(log, 1, 5.0) == []
            assert stored(group, name, told["uuid"]) is None, "it has said nothing yet"

        def said() -> bool:
            store = stored(group, name, told["uuid"])
            return store is not None and store.missing != []

        await group.until(said, "it says what it lacks", 2.0)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal
