"""Destinations whose messages left the log: log and pages have all unacknowledged messages, and all are delivered."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from repl.client.connect import Client
from repl.destinations.filling import PERIOD_S, RETRY_S, Filling
from repl.destinations.pager import NOT_OPEN
from repl.web.slices import at_once
from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, CLEANS, SEGMENT, Group
from tests.seam.test_destinations import client
from vlsn.errors import NotFound, VlsnLogError
from vlsn.ids import Vlsn
from vlsn.levels import LEVELS
from vlsn.pages.page import read_page
from vlsnlog.testing.fakes.disk import UNLIMITED_BYTES, FakeDisk

KEPT = 4 * SEGMENT


async def made(seed: int, **settings: Any) -> Group:
    group = Group(seed, levels=LEVELS, **(CLEANS | {"retention_bytes": KEPT} | settings))
    await group.start()
    await group.serving()
    return group


async def filled(group: Group, log: Client, count: int = 120, every: int = 1) -> dict[int, bytes]:
    """Appends until every node has cleaned; returns the messages, by VLSN."""
    held: dict[int, bytes] = {}
    for number in range(count):
        value = b"%d" % number + BIG
        key = b"order-%d" % number if number % every == 0 else b"other"
        vlsn = await log.append(value, key=key)
        if number % every == 0:
            held[vlsn] = value
    await group.until(lambda: all(first(group, name) > 30 for name in group.names), "all have cleaned", 60.0)
    return held


def first(group: Group, name: str) -> int:
    """The first VLSN of a node's log; 0 while that is not open."""
    node = group.nodes.get(name)
    log = node.member.log if node is not None else None
    return int(log.view.range.first) if log is not None and not log.life.closing else 0


_read: dict[tuple[bytes, str, int, int], dict[int, bytes]] = {}
"""Contents of pages by their bytes, since the same ones are read a hundred times a second of virtual time."""


def held_in_page(disk: FakeDisk, path: str, uuid: str, number: int, end: int) -> dict[int, bytes]:
    key = disk.content(path), uuid, number, end
    if key not in _read:
        if len(_read) > 500:
            _read.clear()
        pieces = read_page(disk, path, uuid, number, end).pieces
        _read[key] = {entry.vlsn: entry.value for piece in pieces for entry in piece.messages.entries(slice(None))}
    return _read[key]


def uncovered(group: Group, name: str, uuid: str, held: dict[int, bytes]) -> list[int]:
    """Lists the messages of ``held`` that one node's disk does not have: neither in its log, nor in valid pages, and
    neither durably acknowledged nor reported as missing."""
    opened = group.nodes[name].opened()
    log, disk = opened.log, group.machines[name].disk
    acked = log.view.history.acks.folded.get(uuid)
    rows = log.care.state.pages().read().get(uuid)
    paged: dict[int, bytes] = {}
    missing: list[tuple[int, int]] = []
    if rows is not None:
        missing = rows[0].missing if rows[0] is not None else []
        for number, row in rows[1].items():
            with suppress(FileNotFoundError):  # it is being put aside
                paged |= held_in_page(disk, f"{log.directory}/pages/{uuid}/{number:09d}.page", uuid, number, row.end)
    return [
        vlsn
        for vlsn, value in held.items()
        if vlsn < log.view.range.first
        and paged.get(vlsn) != value
        and not (acked is not None and acked.done.has([vlsn])[0])
        and not any(low <= vlsn <= high for low, high in missing)
    ]


async def taken(log: Client, count: int, limit_s: float = 60.0) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    until = asyncio.get_running_loop().time() + limit_s
    source = log.destination("orders")
    while len(found) < count and asyncio.get_running_loop().time() < until:
        with suppress(VlsnLogError):
            messages = await source.take(7, 1.0)
            if messages:
                found += [(message.vlsn, message.value) for message in messages]
                await source.ack(messages)
    return found


def stored(group: Group, name: str, uuid: str) -> Any:
    return group.nodes[name].opened().pager.manager.stores.get(uuid)


@virtual
async def test_a_cleaning_waits_for_pages_that_are_not_open_though_nothing_had_to_be_paged_before() -> None:
    """The first destination is made while a pass runs, which had nothing to page when it asked."""
    group = await made(41)
    async with client(group) as log:
        last = await log.append(b"wanted", key=b"order-1")
        pagers = [group.nodes[name].opened().pager for name in group.names]
        paged: list[tuple[int, str]] = []
        for pager in pagers:
            pager.page(Vlsn(last), lambda vlsn, why: paged.append((vlsn, why)))
        await group.until(lambda: len(paged) == len(pagers), "all have answered")
        assert paged == [(last, "")] * 3
        assert [pager.uncovered(Vlsn(last + 1)) for pager in pagers] == ["", "", ""]
        await log.destinations.put("orders", prefix="order-", from_=1)
        await group.until(lambda: all(pager.subscriptions() for pager in pagers), "all know it")
        assert not any(pager.manager.stores for pager in pagers), "too late: pages are open"
        assert [pager.uncovered(Vlsn(last + 1)) for pager in pagers] == [NOT_OPEN] * 3
        assert await taken(log, 1) == [(last, b"wanted")]
    await group.stop()
    assert not group.fatal


@virtual
async def test_nothing_is_delivered_past_pages_that_cannot_be_opened_and_the_status_says_why() -> None:
    group = await made(42)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        group.kill(*group.names)
        for machine in group.machines.values():
            machine.disk.fail_at(lambda call: call.name == "open" and call.path.endswith(".page"), times=1 << 30)
        await group.start()
        await group.serving()
        pagers = {name: group.nodes[name].opened().pager for name in group.names}
        await group.until(
            lambda: all("cannot be opened: [Errno 5]" in each.told(uuid)["blocked_by"] for each in pagers.values()),
            "each says why it delivers nothing",
        )
        assert await taken(log, 1, limit_s=8.0) == []
        for machine in group.machines.values():
            machine.disk.mend()
        assert await taken(log, len(held)) == sorted(held.items())
        assert not any(each.told(uuid)["blocked_by"] for each in pagers.values())
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_the_log_is_cleaned_though_nobody_takes_and_all_is_delivered_in_order(seed: int) -> None:
    group = await made(seed)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log, every=2)
        for name in group.names:
            assert uncovered(group, name, uuid, held) == []
            assert stored(group, name, uuid).paging
            (told,) = group.nodes[name].services.monitoring.status()["destinations"]
            assert told["pages"]["mode"] == "paged" and told["pages"]["messages"] > 10
            metrics = at_once(group.nodes[name].services.monitoring.metrics_text()).decode()
            assert 'vlsnlog_destination_paging{destination="orders"} 1.0' in metrics
            assert stored(group, name, uuid).missing == []
        assert await taken(log, len(held)) == sorted(held.items())
        await group.until(
            lambda: not any(stored(group, name, uuid).paging for name in group.names), "page mode is left", 60.0
        )
        for name in group.names:
            directory = f"{group.nodes[name].opened().log.directory}/pages/{uuid}"
            assert [each for each in group.machines[name].disk.files(directory) if each.endswith(".page")] == []
        assert await log.destination("orders").take(1, 0.0) == []
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_new_master_delivers_from_its_own_pages_what_is_not_acknowledged(seed: int) -> None:
    rng = Random(seed)
    group = await made(seed)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        done = await taken(log, 40)
        assert done == sorted(held.items())[: len(done)]
        dead = group.master
        group.kill(dead, power=rng.random() < 0.5)
        rest = await taken(log, len(held) - len(done), 120.0)
        assert {vlsn for vlsn, _ in done + rest} == held.keys()
        assert [pair for pair in rest if pair not in done] == sorted(held.items())[len(done) :]
        await group.start(dead)
        await group.serving()
        await group.until(
            lambda: all(first(group, name) and not uncovered(group, name, uuid, held) for name in group.names),
            "all hold what is left",
            60.0,
        )
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_a_damaged_page_is_put_aside_and_the_rest_of_it_fetched(seed: int) -> None:
    rng = Random(seed)
    group = await made(seed)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        master = group.master
        store = stored(group, master, uuid)
        number = min(store.pages)
        group.machines[master].disk.flip_bit(store.path(number), rng.randrange(store.pages[number].end))
        assert await taken(log, len(held)) == sorted(held.items())
        names = group.machines[master].disk.files(store.directory)
        assert any(each.endswith(f"{number:09d}.page.damaged") for each in names)
        events = group.nodes[master].member.events.counts
        assert events["page.damaged"] == 1 and events["pages.filled"] >= 1
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("vanished", [True, False])
@virtual
async def test_a_short_page_or_a_vanished_row_of_one_loses_no_message(short: bool, vanished: bool) -> None:
    """All nodes stop; two restart with a short page, or without its row, or both."""
    group = await made(8)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        stores = {name: stored(group, name, uuid) for name in group.names}
        for name in group.names:
            group.kill(name)
        for name in ("n1", "n2"):
            machine, (number, row) = group.machines[name], next(iter(stores[name].pages.items()))
            if vanished:
                key = b"g" + bytes.fromhex(uuid) + number.to_bytes(4, "big")
                machine.stores.contents[f"/{name}/state"].delete(key)
            if short:
                path = stores[name].path(number)
                machine.disk.write_content(path, machine.disk.content(path)[: row.end // 2])
        for name in group.names:
            await group.start(name)
        await group.serving()
        events = [group.nodes[name].member.events.counts for name in ("n1", "n2")]
        if short and not vanished:
            await group.until(lambda: all(each["page.damaged"] == 1 for each in events), "they are salvaged")
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_page_that_cannot_be_opened_for_now_is_neither_damaged_nor_passed_over() -> None:
    group = await made(4)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        disk = group.machines[group.master].disk
        disk.fail_at(lambda call: call.name == "open" and call.path.endswith(".page"), code=errno.EMFILE, times=3)
        assert await taken(log, len(held)) == sorted(held.items())
        assert not [each for each in disk.files(stored(group, group.master, uuid).directory) if "damaged" in each]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_transaction_lies_whole_in_one_record() -> None:
    group = await made(7)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        sizes: dict[int, int] = {}
        for number in range(30):
            async with log.transaction() as txn:
                for each in range(1 + number % 4):
                    await txn.append(b"%d" % each + BIG, key=b"order-%d" % each)
                await txn.append(b"beside", key=b"other")
            assert txn.appended is not None
            sizes[txn.appended.first] = 1 + number % 4
        await filled(group, log)
        for name in group.names:
            store, disk = stored(group, name, uuid), group.machines[name].disk
            seen: set[int] = set()
            for number, row in store.pages.items():
                for piece in read_page(disk, store.path(number), uuid, number, row.end).pieces:
                    found = Counter(txn for txn in piece.messages.txns.tolist() if txn)
                    assert all(sizes[txn] == count for txn, count in found.items())
                    assert not seen & found.keys()
                    seen |= found.keys()
            assert len(seen) > 10
    await group.stop()


@virtual
async def test_what_is_missing_in_many_pieces_is_fetched_one_after_another() -> None:
    """Acknowledgements are between the pieces: with one piece a second, deliveries would wait for as many seconds."""
    group = await made(7)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-", from_="start"))["uuid"]
        held = await filled(group, log)
        dest = log.destination("orders")
        batch = await dest.take(60, 1.0)
        await dest.ack([message for number, message in enumerate(batch) if number % 2])
        lost = next(name for name in group.names if name != group.master)
        group.kill(lost)
        group.machine(lost)
        await group.start(lost)
        await group.until(lambda: len(missing_of(group, lost, uuid)) > 20, "it misses many pieces", 60.0)
        await group.until(lambda: not missing_of(group, lost, uuid), "they are there", 10.0)
        open_ = {vlsn: held[vlsn] for vlsn in held if vlsn not in {each.vlsn for each in batch[1::2]}}
        assert not uncovered(group, lost, uuid, open_)
    await group.stop()
    assert not group.fatal


def test_members_that_have_nothing_of_what_is_missing_are_not_asked_at_once_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        group = await made(8)
        async with client(group) as log:
            uuid = (await log.destinations.put("orders", prefix="order-", from_="start"))["uuid"]
            await filled(group, log)
            asked = 0

            async def ask(*_: object) -> None:
                nonlocal asked
                asked += 1
                raise NotFound("nothing of that is here")

            monkeypatch.setattr(Filling, "_ask", ask)
            lost = next(name for name in group.names if name != group.master)
            group.kill(lost)
            group.machine(lost)
            await group.start(lost)
            await group.until(lambda: asked > 0, "it asks", 60.0)
            await asyncio.sleep(4 * (PERIOD_S + RETRY_S))
            assert len(group.names) - 1 <= asked <= 6 * (len(group.names) - 1)
            assert missing_of(group, lost, uuid)
        await group.stop()

    run(main())


def missing_of(group: Group, name: str, uuid: str) -> list[tuple[int, int]]:
    """Lists the VLSNs that a node reports as missing from its pages; none while its log is not open."""
    store = stored(group, name, uuid) if first(group, name) else None
    return list(store.missing) if store is not None else []


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_a_node_whose_disk_is_gone_gets_log_and_pages_again(seed: int) -> None:
    group = await made(seed)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        lost = next(name for name in group.names if name != group.master)
        group.kill(lost)
        group.machine(lost)
        await group.start(lost)

        def whole() -> bool:
            if not first(group, lost) or group.state(lost) != "REPLICA":
                return False
            store = stored(group, lost, uuid)
            return store is not None and not store.missing and not uncovered(group, lost, uuid, held)

        await group.until(whole, "its pages are there again", 120.0)
        assert first(group, lost) > 30
        assert stored(group, lost, uuid).paging
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_kills_beside_cleanings_lose_no_message(seed: int) -> None:
    rng = Random(seed)
    group = await made(seed)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held: dict[int, bytes] = {}
        for number in range(160):
            value = b"%d" % number + BIG
            held[await log.append(value, key=b"order-%d" % number)] = value
            if rng.random() < 0.05:
                name = rng.choice(group.names)
                group.kill(name, power=rng.random() < 0.5)
                await asyncio.sleep(rng.random())
                await group.start(name)
        await group.serving()
        await group.until(lambda: all(first(group, name) > 30 for name in group.names), "all have cleaned", 90.0)
        for name in group.names:
            assert uncovered(group, name, uuid, held) == []
        found = await taken(log, len(held), 120.0)
        assert dict(found) == held
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_disk_too_full_for_pages_keeps_the_log_and_says_so() -> None:
    group = await made(5)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        disks = [group.machines[name].disk for name in group.names]
        for disk in disks:
            disk.capacity_bytes = UNLIMITED_BYTES - disk.free() + (24 << 20)
        held: dict[int, bytes] = {}
        for number in range(120):
            value = b"%d" % number + BIG
            held[await log.append(value, key=b"order-%d" % number)] = value
        await asyncio.sleep(15.0)
        for name in group.names:
            assert first(group, name) == 1
            assert "too full for pages" in group.nodes[name].services.monitoring.status()["cleaning"]["paused"]
        for disk in disks:
            disk.capacity_bytes = None
        await group.until(lambda: all(first(group, name) > 30 for name in group.names), "all have cleaned", 60.0)
        for name in group.names:
            assert uncovered(group, name, uuid, held) == []
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()


@virtual
async def test_a_group_without_destinations_has_no_pages() -> None:
    group = await made(6)
    async with client(group) as log:
        await filled(group, log)
        for name in group.names:
            opened = group.nodes[name].opened()
            assert not group.machines[name].disk.exists(f"{opened.log.directory}/pages")
            assert opened.log.care.state.pages().read() == {}
    await group.stop()
