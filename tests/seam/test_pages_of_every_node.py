"""The rule "log and pages have everything unacknowledged" on every node that may lead, after any loss of its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_copies import moved
from tests.seam.test_destinations import client
from tests.seam.test_membership import changed, electable, joined
from tests.seam.test_pages import filled, first, made, stored, taken, uncovered


def whole(group: Group, name: str, uuid: str, held: dict[int, bytes]) -> bool:
    """Says whether a node follows or leads, has a cleaned log, misses nothing, and reports nothing as missing."""
    if first(group, name) <= 30 or group.state(name) not in ("MASTER", "REPLICA"):
        return False
    store = stored(group, name, uuid)
    return store is not None and store.paging and not store.missing and not uncovered(group, name, uuid, held)


async def newcomer(group: Group, name: str) -> str:
    """Adds one more member."""
    await joined(group, "n4")
    await electable(group, "n4")
    return "n4"


async def replaced(group: Group, name: str) -> str:
    """Adds a member in the place of one that has left."""
    await joined(group, "n4")
    await electable(group, "n4")
    await changed(group, change="remove", name=name)
    return "n4"


async def emptied(group: Group, name: str) -> str:
    """Empties a disk; its log is restored."""
    group.kill(name)
    group.machine(name)
    await group.start(name)
    return name


async def without_state(group: Group, name: str) -> str:
    """Removes the state store, with its page table."""
    group.kill(name)
    del group.machines[name].stores.contents[f"/{name}/state"]
    await group.start(name)
    return name


def removed(group: Group, name: str) -> int:
    """Removes all pages on a disk, and returns how many there were."""
    disk, base = group.machines[name].disk, f"/{name}/pages"
    pages = [path for uuid in disk.list(base) for path in disk.files(f"{base}/{uuid}") if path.endswith(".page")]
    for path in pages:
        disk.remove(path)
    return len(pages)


async def without_pages(group: Group, name: str) -> str:
    """Removes all pages."""
    group.kill(name)
    gone = removed(group, name)
    assert gone
    await group.start(name)
    return name


WAYS: list[Callable[[Group, str], Awaitable[str]]] = [newcomer, replaced, emptied, without_state, without_pages]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@virtual
async def test_a_node_leads_with_all_that_is_not_acknowledged(way: Callable[[Group, str], Awaitable[str]]) -> None:
    group = await made(41)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        for vlsn, _ in await taken(log, 21):
            held.pop(vlsn)
        one = await way(group, next(name for name in group.names if name != group.master))
        await group.until(lambda: whole(group, one, uuid, held), f"{one} holds everything", 120.0)
        await electable(group, one)
        await moved(group, one)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_old_image_gets_what_was_paged_since() -> None:
    group = await made(42)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log, 80)
        name = next(each for each in group.names if each != group.master)
        image = group.machines[name].image()
        before = stored(group, name, uuid).paged_to
        held |= await filled(group, log, 120)
        await group.until(lambda: first(group, name) > before + 20, "more was paged")
        group.kill(name)
        group.machines[name].put_back(image)
        await group.start(name)
        await group.until(lambda: whole(group, name, uuid, held), f"{name} holds everything", 120.0)
        await electable(group, name)
        await moved(group, name)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_that_lacks_pages_delivers_nothing_behind_them_and_says_why() -> None:
    group = await made(43)
    async with client(group) as log:
        await log.destinations.put("orders", prefix="order-")
        held = await filled(group, log)
        group.kill(*group.names)
        assert [name for name in group.names if removed(group, name)] == group.names
        await group.start()
        await group.serving()
        await asyncio.sleep(12.0)
        assert await log.destination("orders").take(5, 2.0) == []
        told: dict[str, Any] = await log.destinations.get("orders")
        low, high = told["pages"]["missing"][0]
        assert f"VLSNs {low} to {high} are missing here" in told["pages"]["blocked_by"]
        assert "in neither log nor pages" in told["pages"]["blocked_by"]
        await log.destinations.move("orders", "start")  # a person gives them up
        left = [pair for pair in sorted(held.items()) if pair[0] >= first(group, group.master)]
        assert 0 < len(left) < len(held)
        assert await taken(log, len(left)) == left
    await group.stop()
    assert not group.fatal
