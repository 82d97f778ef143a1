"""A search by time works on every node, although the clocks of the masters that sealed the log are hours apart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import pytest

from repl import connect
from repl.client.connect import Client
from repl.read import reads
from tests.fakes.loop import run, virtual
from tests.seam.nodes import BIG, CLEANS, Group
from vlsn.errors import BadArgument
from vlsn.limits import MIB

HOUR_US = 3_600_000_000
OFFSETS = {"n1": 3 * HOUR_US, "n2": -2 * HOUR_US, "n3": 0}


async def terms(group: Group, rounds: int, *, each: int = 8) -> None:
    """Appends under one master after the other: each is killed, and started again as a replica."""
    for number in range(rounds):
        await group.serving()
        for _ in range(each):
            await group.appended(BIG)
        gone = group.master
        group.kill(gone, power=bool(number % 2))
        await group.until(partial(_other_leads, group, gone), "another one leads")
        await group.start(gone)


def _other_leads(group: Group, gone: str) -> bool:
    return group.master != gone


async def settled(group: Group) -> int:
    """Waits until every node shows the last entry; returns its VLSN."""
    await group.serving()
    last = await group.appended(b"last")
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all of it everywhere")
    return last


def first_at(times: dict[int, int], time_us: int, last: int) -> int:
    return next((vlsn for vlsn, time in times.items() if time >= time_us), last + 1)


@pytest.mark.parametrize("ring", [16_384, 1 << 20])
@virtual
async def test_a_time_is_found_though_masters_have_clocks_hours_apart(ring: int) -> None:
    group = Group(4711, ring_bytes_max=ring, checkpoint_period_s=2.0)
    for name, offset in OFFSETS.items():
        group.machines[name].clock_offset_us = offset
    await group.start()
    await terms(group, 6)
    last = await settled(group)
    found = set()
    for name in group.names:
        async with connect(group.url(name), network=group.client) as log:
            times = {int(each.vlsn): each.time async for each in log.read(all_kinds=True)}
            assert list(times) == [*range(1, last + 1)]
            for time in sorted({*times.values(), *(time + 1 for time in times.values()), 0, max(times.values()) + 1}):
                assert await log.vlsn_at(time) == first_at(times, time, last), name
            found.add(tuple(times.items()))
    assert len(found) == 1
    clocks = [time for _, time in found.pop()]
    assert sum(later < earlier - HOUR_US for earlier, later in pairwise(clocks)) >= 2
    await group.stop()
    assert not group.fatal


@virtual
async def test_readers_begin_at_a_time_and_wait_at_the_end_for_a_later_one() -> None:
    group = Group(4712)
    await group.start()
    await group.serving()
    vlsns = []
    for number in range(6):
        vlsns.append(await group.appended(b"%d" % number))
        await asyncio.sleep(60.0)
    await settled(group)
    async with connect(group.url("n2"), network=group.client) as log:
        times = {int(each.vlsn): each.time async for each in log.read(all_kinds=True)}
        assert [each.value async for each in log.read(at=times[vlsns[3]], limit=2)] == [b"3", b"4"]
        when = datetime.fromtimestamp(times[vlsns[3]] / 1e6, UTC) + timedelta(seconds=1)
        assert [each.value async for each in log.read(at=when, limit=1)] == [b"4"]
        assert [each.value async for each in log.read(at=when.replace(tzinfo=None), limit=1)] == [b"4"]
        await check_over_http(group, log, when, times[vlsns[3]])
        tail = log.tail(at=when + timedelta(days=1))
        coming = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(1.0)
        await log.append(b"later")
        assert (await coming).value == b"later"
        for wrong in ({"at": when, "from_vlsn": 3}, {"at": -1}):
            with pytest.raises(BadArgument):
                log.read_pages(**wrong)
    await group.stop()
    assert not group.fatal


async def check_over_http(group: Group, log: Client, when: datetime, time_us: int) -> None:
    shift = (when + timedelta(hours=2)).replace(tzinfo=None).isoformat()
    for at in (f"{time_us + 1}", when.isoformat().replace("+", "%2B"), f"{shift}%2B02:00"):
        response = await group.client.request("GET", f"{group.url('n3')}/v1/entries?at={at}&limit=1", timeout_s=5.0)
        assert b'"value":"4"' in response.body, at
    for query in ("at=yesterday", "at=", "at=99999999999999999999", "at=1&from=1", f"at={time_us}&after_term=1"):
        response = await group.client.request("GET", f"{group.url('n3')}/v1/entries?{query}", timeout_s=5.0)
        assert response.status == 400, query


@virtual
async def test_a_time_in_a_log_that_was_cleaned_is_found_in_what_is_left() -> None:
    group = Group(4713, size=1, **{**CLEANS, "retention_bytes": 4 * 65_536})
    await group.start()
    await group.serving()
    for number in range(12):
        process = group.machines["n1"].process
        assert process is not None
        process.clock.offset_us = (number % 3) * HOUR_US
        for _ in range(12):
            await group.appended(BIG)
    await asyncio.sleep(5.0)
    async with connect(group.url("n1"), network=group.client) as log:
        times = {int(each.vlsn): each.time async for each in log.read(all_kinds=True)}
        assert min(times) > 1
        last = max(times)
        for time in sorted({*times.values(), 0, max(times.values()) + 1}):
            assert await log.vlsn_at(time) == first_at(times, time, last)
    await group.stop()


def test_a_search_in_a_log_of_an_earlier_version_goes_on_where_it_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SEEK_BYTES_MAX", 2 * MIB)
    monkeypatch.setattr(reads, "LOOK_BYTES", 32_768)

    async def main() -> None:
        group = Group(4714, size=1, segment_bytes=1 << 20)
        await group.start()
        await group.serving()
        for _ in range(1_200):
            last = await group.appended(BIG)
        await group.nodes["n1"].stop()
        group.kill("n1")
        index = group.machines["n1"].stores.contents["/n1/index"]
        for key in [key for key in index.keys if key.startswith(b"t")]:
            index.delete(key)
        await group.start()
        await group.serving()
        questions = 0
        while True:
            url = f"{group.url('n1')}/v1/entries?at=9000000000000000000&limit=1"
            response = await group.client.request("GET", url, timeout_s=5.0)
            questions += 1
            if response.status == 200:
                break
            assert (response.status, b"not-yet" in response.body) == (503, True)
        assert questions == 3
        assert int(response.headers["Vlsnlog-Next"]) > last
        await group.stop()

    run(main())
