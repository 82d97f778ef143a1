"""Readers of real nodes that request some keys only, or later entries: from the ring and from segments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from repl import connect
from repl.client.connect import Client
from repl.read import reads
from tests.fakes.loop import run, virtual
from tests.seam.nodes import BIG, Group
from vlsn.errors import BadArgument
from vlsn.levels import LEVELS
from vlsn.limits import KIB

KEYS = [b"", b"order-1", b"order-22", b"orders", b"\x00\xff", b"order-" * 40]


async def fill(log: Client, rounds: int) -> list[tuple[int, bytes, bytes]]:
    """Appends entries with each of the keys in turn; returns VLSN, key and value of each."""
    told = []
    for number in range(rounds):
        values = [BIG if turn == 3 else b"%d/%d" % (number, turn) for turn in range(len(KEYS))]
        first, _ = await log.append_many(values, keys=KEYS)
        told += list(zip(range(first, first + len(KEYS)), KEYS, values, strict=True))
    return told


@pytest.mark.parametrize("ring", [pytest.param(16 * KIB, marks=pytest.mark.long), 1 << 20])
def test_each_node_gives_the_entries_of_a_key_and_no_others(ring: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LOOK_BYTES_AT_ONCE", 8 * KIB)
    monkeypatch.setattr(reads, "LOOK_BYTES_MAX", 32 * KIB)

    async def main() -> None:
        group = Group(77, ring_bytes_max=ring)
        await group.start()
        await group.serving()
        async with connect(group.url("n1"), network=group.client) as log:
            told = await fill(log, 60)
        for name in group.names:
            async with connect(group.url(name), network=group.client) as log:
                log.endpoints.durable = told[-1][0]
                for key in [*KEYS, b"none"]:
                    found = [(each.vlsn, each.key or b"", each.value) async for each in log.read(key=key)]
                    assert found == [each for each in told if each[1] == key]
                found = [(each.vlsn, each.key or b"", each.value) async for each in log.read(key_prefix=b"order-")]
                assert found == [each for each in told if each[1].startswith(b"order-")]
                limited = [each.vlsn async for each in log.read(told[10][0], key=KEYS[1], limit=3)]
                assert limited == [each[0] for each in told[10:] if each[1] == KEYS[1]][:3]
                every = [each.vlsn async for each in log.read(limit=7)]
                assert every == [each[0] for each in told[:7]]
                own = [each.kind async for each in log.read(key=b"", all_kinds=True)]
                assert {int(each) for each in own} == {0, 1, 2}
        await group.stop()
        assert not group.fatal

    run(main())


@virtual
async def test_a_key_is_read_by_the_word_that_it_was_appended_by() -> None:
    group = Group(79, size=1, levels=LEVELS)
    await group.start()
    await group.serving()
    url = group.url("n1")
    async with connect(url, codec="utf8", network=group.client) as log:
        await log.append("one", key="schlüssel")
        await log.append_many(["two", "three"], keys=["schlüssel", "schloss"])
        async with log.transaction() as txn:
            await txn.append("four", key="schlüssel")
            await txn.append_many(["five"], keys=["schloss"])
        for key in ("schlüssel", "schlüssel".encode()):
            assert [entry.text() async for entry in log.read(key=key)] == ["one", "two", "four"]
            assert [entry.text() async for entry in log.tail(key=key, limit=3)] == ["one", "two", "four"]
        assert [entry.text() async for entry in log.read(key_prefix="schlo")] == ["three", "five"]
    wrong: Any
    async with connect(url, network=group.client) as log_of_bytes:
        for wrong in ("schlüssel", 7):
            with pytest.raises(TypeError):
                await log_of_bytes.append(b"never", key=wrong)
            with pytest.raises(TypeError):
                log_of_bytes.read_pages(key=wrong)
            with pytest.raises(TypeError):
                log_of_bytes.tail_pages(key_prefix=wrong)
    await group.stop()
    assert not group.fatal


def test_a_read_that_finds_nothing_says_how_far_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LOOK_BYTES_AT_ONCE", 8 * KIB)
    monkeypatch.setattr(reads, "LOOK_BYTES_MAX", 32 * KIB)

    async def main() -> None:
        group = Group(78, size=1, ring_bytes_max=16 * KIB)
        await group.start()
        await group.serving()
        async with connect(group.url("n1"), network=group.client) as log:
            told = await fill(log, 60)
        at, questions = 1, 0
        while at <= told[-1][0]:
            url = f"{group.url('n1')}/v1/entries?from={at}&key=none&wait=5"
            response = await group.client.request("GET", url, timeout_s=6.0)
            assert (response.status, response.body) == (200, b"")
            assert int(response.headers["Vlsnlog-Next"]) > at
            assert response.headers["Vlsnlog-Term"] == "1"
            at, questions = int(response.headers["Vlsnlog-Next"]), questions + 1
        assert questions >= 5
        await group.stop()

    run(main())


@virtual
async def test_a_tail_from_the_end_gives_what_comes_with_its_keys() -> None:
    group = Group(79)
    await group.start()
    await group.serving()
    async with connect(",".join(map(group.url, group.names)), network=group.client, exactly_once=True) as log:
        await fill(log, 3)
        got: list[bytes] = []

        async def follow() -> None:
            got.extend([each.value async for each in log.tail("end", key_prefix=b"orders", limit=2)])

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.5)
        await log.append(b"no", key=b"order")
        await log.append(b"one", key=b"orders")
        await log.append(b"no", key=b"")
        group.kill(group.master)
        await log.append(b"two", key=b"orders/2")
        await following
        assert got == [b"one", b"two"]
        assert [each async for each in log.read("end")] == []
        first = [each.value async for each in log.read("start", limit=1)]
        assert first == [b"0/0"]
        with pytest.raises(BadArgument):
            log.read_pages("middle")  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            log.read_pages(1, key=b"a", key_prefix=b"b")
        with pytest.raises(BadArgument):
            log.tail_pages("end", after_term=1)
    await group.stop()
    assert not group.fatal
