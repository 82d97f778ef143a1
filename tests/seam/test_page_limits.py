"""Pages at their limit: which appends are refused, and that the log is still cleaned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from repl.client.connect import Client
from repl.destinations.pager import Pager
from tests.fakes.loop import run, virtual
from tests.seam.nodes import BIG
from tests.seam.test_destinations import client, counted, values
from tests.seam.test_pages import filled, first, made, stored, taken, uncovered
from vlsn.errors import DestinationFull
from vlsn.limits import PAGE_BYTES_MIN, PAGES_FREE_BYTES_LOW
from vlsn.pages.page import PageContents, PageRow
from vlsn.pages.store import PagingStore
from vlsnlog.testing.fakes.disk import UNLIMITED_BYTES

LIMIT = 60_000


async def until_full(log: Client, held: dict[int, bytes], most: int = 400) -> str:
    """Appends messages of ``orders`` until one is refused; returns the reason."""
    for _ in range(most):
        value = b"%d" % len(held) + BIG
        try:
            held[await log.append(value, key=b"order-%d" % len(held))] = value
        except DestinationFull as full:
            return str(full)
        await asyncio.sleep(0.02)
    raise AssertionError(f"{most} messages were taken")


async def others(log: Client, count: int) -> None:
    for number in range(count):
        await log.append(b"%d" % number + BIG, key=b"other")


@virtual
async def test_at_the_limit_of_its_pages_a_destination_takes_no_more_and_the_log_is_cleaned() -> None:
    group = await made(21)
    async with client(group, 20.0) as log:
        told = await log.destinations.put("orders", prefix="order-", page_limit_bytes=LIMIT)
        uuid, held = told["uuid"], dict[int, bytes]()
        why = await until_full(log, held)
        assert "orders is full: its pages take" in why and f"of {LIMIT} bytes" in why
        before = {name: first(group, name) for name in group.names}
        await others(log, 60)
        await group.until(lambda: all(first(group, name) > before[name] + 40 for name in group.names), "cleaned")
        for name in group.names:
            assert uncovered(group, name, uuid, held) == []
        assert "its pages take" in await until_full(log, dict(held), 1)
        assert (await log.destinations.get("orders"))["refused"]["failed"] == 2
        assert await taken(log, len(held)) == sorted(held.items())
        await group.until(lambda: not stored(group, group.master, uuid).paging, "page mode is left", 60.0)
        await log.append(b"again", key=b"order-again")
        assert values(await log.destination("orders").take(10, 5.0)) == [b"again"]
    await group.stop()
    assert not group.fatal


@virtual
async def test_pages_have_a_limit_in_messages_too() -> None:
    group = await made(26)
    async with client(group, 20.0) as log:
        await log.destinations.put("orders", prefix="order-", page_limit_messages=20)
        held: dict[int, bytes] = {}
        why = await until_full(log, held)
        assert "orders is full: its pages have" in why and "of 20 messages" in why
        await log.append(b"beside", key=b"other")
        assert await taken(log, len(held)) == sorted(held.items())
        master = group.nodes[group.master].opened().pager.manager
        await group.until(lambda: not any(store.paging for store in master.stores.values()), "page mode is left")
        await log.append(b"again", key=b"order-again")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_destination_can_drop_what_comes_past_its_pages() -> None:
    group = await made(22)
    async with client(group, 20.0) as log:
        await log.destinations.put("orders", prefix="order-", page_limit_bytes=LIMIT, page_full_policy="drop")
        sent: dict[int, bytes] = {}
        dropped = 0
        while dropped < 20:
            value = b"%d" % len(sent) + BIG
            sent[await log.append(value, key=b"order-%d" % len(sent))] = value
            await asyncio.sleep(0.02)
            dropped = (await log.destinations.get("orders")).get("refused", {}).get("dropped", 0)
        events = group.nodes[group.master].member.events.counts
        assert events["destination.full"] >= 1
        found = await taken(log, len(sent) - dropped)
        assert found == sorted(sent.items())[: len(found)] and len(found) == len(sent) - dropped
        assert await log.destination("orders").take(1, 1.0) == []
    await group.stop()
    assert not group.fatal


@virtual
async def test_past_the_limit_of_all_pages_only_those_who_have_some_take_no_more() -> None:
    group = await made(23, pages_bytes_max=LIMIT)
    async with client(group, 20.0) as log:
        await log.destinations.put("orders", prefix="order-")
        await log.destinations.put("quick", prefix="quick")
        held: dict[int, bytes] = {}
        assert "the pages of all destinations take" in await until_full(log, held)
        await log.append(b"goes on", key=b"quick-1")
        assert values(await log.destination("quick").take(10, 5.0)) == [b"goes on"]
        assert await taken(log, len(held)) == sorted(held.items())
        await asyncio.sleep(3.0)
        await log.append(b"again", key=b"order-again")
    await group.stop()
    assert not group.fatal


@virtual
async def test_past_the_messages_of_all_pages_only_those_who_have_some_take_no_more() -> None:
    group = await made(28, pages_messages_max=30)
    async with client(group, 20.0) as log:
        for name in ("orders", "parts", "quick"):
            await log.destinations.put(name, prefix=name[:5])
        for number in range(15):
            await log.append(BIG, key=b"parts-%d" % number)
        held: dict[int, bytes] = {}
        why = await until_full(log, held)
        assert "the pages of all destinations have" in why and "of 30 messages (pages_messages_max)" in why
        assert 0 < stored(group, group.master, (await log.destinations.get("orders"))["uuid"]).messages < 30
        await log.append(b"goes on", key=b"quick-1")
        assert values(await log.destination("quick").take(10, 5.0)) == [b"goes on"]
        assert await taken(log, len(held)) == sorted(held.items())
        master = group.nodes[group.master].opened().pager
        await group.until(lambda: not master.pressed, "pages that are done have gone", 60.0)
        await log.append(b"again", key=b"order-again")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_page_is_as_large_as_its_node_says() -> None:
    size = PAGE_BYTES_MIN
    group = await made(29, page_bytes=size)
    async with client(group, 20.0) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        for name in group.names:
            pages = stored(group, name, uuid).pages
            assert len(pages) > 10 and all(row.end <= size for row in pages.values()), pages
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


@virtual
async def test_below_the_low_mark_of_the_disk_those_who_have_pages_take_no_more() -> None:
    group = await made(24)
    async with client(group, 20.0) as log:
        await log.destinations.put("orders", prefix="order-")
        held = await filled(group, log)
        disk = group.machines[group.master].disk
        disk.capacity_bytes = UNLIMITED_BYTES - disk.free() + PAGES_FREE_BYTES_LOW - (1 << 20)
        await asyncio.sleep(3.0)
        assert "too full for its pages" in await until_full(log, held, 3)
        await others(log, 3)
        disk.capacity_bytes = None
        await asyncio.sleep(3.0)
        value = b"again" + BIG
        held[await log.append(value, key=b"order-again")] = value
        assert await taken(log, len(held)) == sorted(held.items())
        events = group.nodes[group.master].member.events.counts
        assert (events["pages.no_space"], events["pages.has_space"]) == (1, 1)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize(("call", "where"), [("read", "/pages/"), ("open", ".vlog")])
@virtual
async def test_a_count_that_meets_an_error_of_the_disk_is_gone_on_with(call: str, where: str) -> None:
    group = await made(26)
    async with client(group, 20.0) as log:
        await log.destinations.put("orders", prefix="order-", full_policy="fail", max_messages=125)
        await log.destinations.put("others", prefix="other", full_policy="fail", max_messages=1000)
        await counted(group, log)
        held = await filled(group, log)
        group.kill(group.master, power=True)
        for name in group.names:
            group.machines[name].disk.fail_at(lambda each: each.name == call and where in each.path, times=4)
        await group.serving()
        await counted(group, log)
        assert (await log.destinations.get("orders"))["depth"]["messages"] == len(held)
    await group.stop()


def test_a_count_that_meets_a_page_which_goes_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[int] = []

    async def read(self: Pager, store: PagingStore, number: int, row: PageRow) -> PageContents | None:
        if not gone:
            gone.append(number)
            return None  # as where another page has taken its messages since
        return await reads(self, store, number, row)

    async def main() -> None:
        group = await made(27)
        async with client(group, 20.0) as log:
            await log.destinations.put("orders", prefix="order-", full_policy="fail", max_messages=125)
            await counted(group, log)
            held = await filled(group, log)
            group.kill(group.master, power=True)
            monkeypatch.setattr(Pager, "read", read)
            await group.serving()
            await counted(group, log)
            assert gone and (await log.destinations.get("orders"))["depth"]["messages"] == len(held)
        await group.stop()

    reads = Pager.read
    run(main())


@pytest.mark.parametrize("policy", ["fail", "drop", "block"])
@virtual
async def test_what_lies_in_pages_counts_for_every_policy_and_for_a_new_master(policy: str) -> None:
    group = await made(25)
    async with client(group, 20.0) as log:
        settings: dict[str, Any] = {"prefix": "order-", "full_policy": policy, "max_messages": 125}
        uuid = (await log.destinations.put("orders", **settings))["uuid"]
        await counted(group, log)
        held = await filled(group, log)
        assert stored(group, group.master, uuid).paging
        assert (await log.destinations.get("orders"))["depth"]["messages"] == len(held) == 120
        group.kill(group.master, power=True)
        await group.serving()
        await counted(group, log)
        assert (await log.destinations.get("orders"))["depth"]["messages"] == 120
        for number in range(5):
            held[await log.append(b"%d" % number, key=b"order-x%d" % number)] = b"%d" % number
        if policy == "fail":
            with pytest.raises(DestinationFull):
                await log.append(b"more", key=b"order-more")
        elif policy == "drop":
            await log.append(b"more", key=b"order-more")
            await asyncio.sleep(1.0)
            assert (await log.destinations.get("orders"))["refused"]["dropped"] == 1
        else:
            waiting = asyncio.ensure_future(log.append(b"more", key=b"order-more"))
            await asyncio.sleep(2.0)
            assert not waiting.done()
            found = await taken(log, 1)
            held[await waiting] = b"more"
            for vlsn, _ in found:
                held.pop(vlsn)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
