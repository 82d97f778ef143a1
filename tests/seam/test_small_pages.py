"""Pages of a few records each: full ones are synced beside the pass, set aside and fetched; the disk is stopped at each
call."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from random import Random
from urllib.parse import urlencode

import msgspec
import pytest

from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.seam import test_pages
from tests.seam.nodes import BIG, Group
from tests.seam.test_copies import moved
from tests.seam.test_destinations import client
from tests.seam.test_membership import electable
from tests.seam.test_pages import filled, first, stored, taken, uncovered
from vlsn.ids import Vlsn
from vlsn.limits import PAGES_FREE_BYTES_LOW
from vlsnlog.testing.fakes.disk import UNLIMITED_BYTES, Call, Moment

PAGE_BYTES = 20_000
"""Four or five messages."""
made = partial(test_pages.made, page_bytes=PAGE_BYTES)


def is_of_pages(call: Call) -> bool:
    return call.changes and "/pages" in call.path


def whole(group: Group, name: str, uuid: str, held: dict[int, bytes]) -> bool:
    """Says whether a node follows or leads, misses nothing, and reports nothing as missing."""
    if not first(group, name) or group.state(name) not in ("MASTER", "REPLICA"):
        return False
    store = stored(group, name, uuid)
    return store is not None and not store.missing and not uncovered(group, name, uuid, held)


@virtual
async def test_full_pages_are_synced_while_others_are_written() -> None:
    group = await made(31)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        for name in group.names:
            assert len(stored(group, name, uuid).pages) > 5
            assert whole(group, name, uuid, held)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@virtual
async def test_a_page_that_cannot_be_synced_ends_the_pass_and_the_next_one_writes_it_again(code: int) -> None:
    group = await made(32)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        for name in group.names:
            disk = group.machines[name].disk
            disk.fail_at(lambda call: call.name == "sync" and call.path.endswith(".page"), code=code, times=3)
        held = await filled(group, log)
        for name in group.names:
            assert whole(group, name, uuid, held)
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


class Story:
    """One damaged page on the master: a consumer finds it, it is set aside, and the missing messages are fetched."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def begin(self) -> None:
        self.group = await made(self.seed)
        self.held: dict[int, bytes] = {}
        async with client(self.group) as log:
            self.uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
            self.held = await filled(self.group, log)
        self.master = self.group.master
        self.disk = self.group.machines[self.master].disk
        store = stored(self.group, self.master, self.uuid)
        number = sorted(store.pages)[1]
        self.disk.flip_bit(store.path(number), Random(self.seed).randrange(store.pages[number].end))
        self.begun = len(self.disk.calls)

    async def take(self) -> list[tuple[int, bytes]]:
        async with client(self.group) as log:
            return await taken(log, len(self.held), 30.0)

    async def mended(self) -> None:
        await self.group.until(
            lambda: all(whole(self.group, name, self.uuid, self.held) for name in self.group.names), "all hold all", 60
        )


def calls_of_a_story() -> list[Call]:
    found: list[Call] = []

    async def main() -> None:
        story = Story(33)
        await story.begin()
        assert await story.take() == sorted(story.held.items())
        await story.mended()
        await asyncio.sleep(3.0)
        found.extend(call for call in story.disk.calls[story.begun :] if is_of_pages(call))
        await story.group.stop()

    run(main())
    return found


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.long
def test_a_damaged_page_put_aside_and_fetched_stopped_at_any_call_loses_nothing(moment: Moment, power: bool) -> None:
    """Every call on pages from the flip until the last page went: renaming, salvage, the fetched page, removal."""
    calls = calls_of_a_story()
    kinds = {(call.name, call.path.rpartition(".")[2]) for call in calls}
    assert {("rename", "page"), ("create", "page"), ("sync", "page"), ("remove", "page")} <= kinds, kinds
    chosen = [number for number, call in enumerate(calls) if number < 14 or number % 9 == 0]
    for number in chosen[power::2]:

        async def main() -> None:
            story = Story(33)
            await story.begin()
            group, seen = story.group, 0

            def when(call: Call) -> bool:
                nonlocal seen
                seen += is_of_pages(call)
                return seen == number + 1 and is_of_pages(call)  # noqa: B023

            story.disk.stop_at(when, moment=moment)
            taking = asyncio.create_task(story.take())
            await group.until(lambda: story.disk.stopped or taking.done(), "it stops, or all is taken", 60)
            await asyncio.sleep(2.0)
            group.kill(story.master, power=power)
            await group.start(story.master)
            await group.serving()
            await story.mended()
            found = await taking
            if len({vlsn for vlsn, _ in found}) < len(story.held):
                found += await story.take()
            assert dict(found) == story.held, call_of(calls, number)  # noqa: B023
            await group.until(
                lambda: not any(stored(group, name, story.uuid).paging for name in group.names), "page mode left", 60
            )
            await group.stop()

        run(main())


@virtual
async def test_what_was_put_aside_when_a_process_ended_is_salvaged_though_nobody_reads() -> None:
    story = Story(34)
    await story.begin()
    group, uuid = story.group, story.uuid
    name = next(name for name in group.names if name != story.master)
    number = sorted(stored(group, name, uuid).pages)[1]
    path = stored(group, name, uuid).path(number)
    group.kill(name)
    group.machines[name].disk.rename(path, path + ".damaged")
    await group.start(name)
    await group.until(lambda: whole(group, name, uuid, story.held), "its readable records lie in another page")
    assert number not in stored(group, name, uuid).pages
    await group.stop()


@pytest.mark.parametrize("of_page", [True, False])
@virtual
async def test_a_node_with_a_rotten_row_in_its_page_table_lacks_no_message(of_page: bool) -> None:
    """Simulation seed 66: a page without a readable row in the table was removed, but not listed as missing."""
    story = Story(34)
    await story.begin()
    group, uuid = story.group, story.uuid
    name = next(name for name in group.names if name != story.master)
    number = sorted(stored(group, name, uuid).pages)[1]
    group.kill(name)
    key = b"g" + bytes.fromhex(uuid) + (number.to_bytes(4, "big") if of_page else b"")
    group.machines[name].stores.corrupt(f"/{name}/state", key, bit=13)
    await group.start(name)
    await group.until(lambda: whole(group, name, uuid, story.held), "it holds all")
    await electable(group, name)
    await moved(group, name)
    assert await story.take() == sorted(story.held.items())
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_page_that_cannot_be_read_for_a_moment_is_not_put_aside() -> None:
    """Reads of it fail with EIO, like a bad sector, and succeed a moment later: nothing is missing, and nothing
    twice."""
    group = await made(35)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        disk = group.machines[group.master].disk
        disk.fail_at(lambda call: call.name == "read" and call.path.endswith(".page"), times=6)
        assert await taken(log, len(held)) == sorted(held.items())
        names = disk.files(stored(group, group.master, uuid).directory)
        assert not [each for each in names if "damaged" in each]
        assert group.nodes[group.master].member.events.counts["page.damaged"] == 0
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_that_cannot_read_a_page_for_now_says_so_and_another_one_gives() -> None:
    """A node whose log was lost requests messages; reads of pages on others fail for a moment, like a bad sector."""
    group = await made(36, keyed=False)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        lost, *others = sorted(group.names, key=lambda name: name == group.master)
        answers: list[str] = []
        for name in others:
            disk = group.machines[name].disk
            disk.fail_at(lambda call: call.name == "open" and call.path.endswith(".page"), times=3)
            asked = {"group": group.config(name).group, "sender": lost, "to": name, "uuid": uuid}
            asked |= {"since": stored(group, name, uuid).row.since, "first": 5, "last": 9}
            url = f"{group.url(name)}/v1/peer/messages?{urlencode(asked)}"
            answer = await group.client.request("GET", url, timeout_s=5.0)
            answers.append(msgspec.json.decode(bytes(answer.body))["type"])
        assert answers == ["damaged", "damaged"]
        group.kill(lost)
        group.machine(lost)
        await group.start(lost)
        await group.until(lambda: whole(group, lost, uuid, held), "it holds everything", 120.0)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("trouble", ["full", "unread"])
@virtual
async def test_what_the_disk_refuses_beside_a_look_at_the_pages_ends_no_node(trouble: str) -> None:
    """A page that was set aside is salvaged on a disk that is full, or whose files cannot be opened for a while."""
    story = Story(37)
    await story.begin()
    group, uuid = story.group, story.uuid
    name = next(name for name in group.names if name != story.master)
    disk, store = group.machines[name].disk, stored(group, name, uuid)
    number = sorted(store.pages)[1]
    path = store.path(number)
    group.kill(name)
    disk.rename(path, path + ".damaged")
    if trouble == "full":
        disk.capacity_bytes = UNLIMITED_BYTES - disk.free() + PAGES_FREE_BYTES_LOW // 2
    else:
        disk.fail_at(lambda call: call.name == "open" and call.path.endswith(".damaged"), times=20)
    await group.start(name)
    events = group.nodes[name].member.events.counts
    await group.until(lambda: events["pages.unread"] > 0, "it says what is wrong")
    disk.capacity_bytes = None
    await group.until(lambda: whole(group, name, uuid, story.held), "its readable records lie in another page", 60)
    assert number not in stored(group, name, uuid).pages
    await group.stop()
    assert not group.fatal


@virtual
async def test_the_pager_pages_up_to_the_end_of_the_block_that_it_is_asked_for() -> None:
    """After a rollback a segment's former last VLSN may be inside a block of the next one."""
    group = await made(38)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        first, last = await log.append_many([BIG] * 9, keys=[b"order-1"] * 9)
        await asyncio.sleep(2.0)
        told: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        pager = group.nodes[group.master].opened().pager
        pager.page(Vlsn(first + 3), lambda vlsn, why: told.set_result((vlsn, why)))
        assert await asyncio.wait_for(told, 10.0) == (last, "")
        assert stored(group, group.master, uuid).messages == 9
    await group.stop()


@pytest.mark.parametrize("rots", ["rot", "gone"])
@virtual
async def test_the_scrub_meets_a_rotten_page_before_it_is_needed(rots: str) -> None:
    group = await made(39, scrub_bytes_per_s=4 << 20, scrub_period_s=2.0)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        for name in group.names:
            store, disk = stored(group, name, uuid), group.machines[name].disk
            number = sorted(store.pages)[group.names.index(name) + 1]
            if rots == "rot":
                disk.flip_bit(store.path(number), Random(39).randrange(store.pages[number].end))
            else:
                disk.remove(store.path(number))
        events = {name: group.nodes[name].member.events.counts for name in group.names}
        await group.until(lambda: all(each["page.damaged"] == 1 for each in events.values()), "all are met", 60.0)
        await group.until(
            lambda: all(whole(group, name, uuid, held) for name in group.names), "and mended from a member", 60.0
        )
        for name in group.names:
            scrub = group.nodes[name].services.monitoring.status()["scrub"]
            assert scrub["found"] == 1 and scrub["pages"] > 5
        assert await taken(log, len(held)) == sorted(held.items())
    await group.stop()
    assert not group.fatal


def call_of(calls: list[Call], number: int) -> str:
    return f"call {number}: {calls[number].name} {calls[number].path}"


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("rots", ["rot", "gone"])
@virtual
async def test_pages_that_rot_on_every_node_in_other_places_are_put_together_again(seed: int, rots: str) -> None:
    rng = Random(seed)
    group = await made(seed)
    async with client(group) as log:
        uuid = (await log.destinations.put("orders", prefix="order-"))["uuid"]
        held = await filled(group, log)
        for at, name in enumerate(group.names):
            store, disk = stored(group, name, uuid), group.machines[name].disk
            numbers = sorted(store.pages)
            number = numbers[len(numbers) * at // len(group.names)]
            path, end = store.path(number), store.pages[number].end
            if rots == "rot":
                disk.flip_bit(path, rng.randrange(end))
            else:
                disk.remove(path)
        for name in list(group.names):
            if name != group.master:
                group.kill(name)
                await group.start(name)
        await group.serving()
        assert await taken(log, len(held), 120.0) == sorted(held.items())
    await group.stop()
    assert not group.fatal
