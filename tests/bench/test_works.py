"""The works on a real cluster: what they count is in the log."""

from __future__ import annotations

import asyncio

import pytest

from repl.bench.report import Outcome
from repl.bench.target import Own
from repl.bench.works import WORKS, Load
from repl.client.connect import connect
from tests.bench.by_turns import WORKS as BY_TURNS

pytestmark = pytest.mark.real


def _load(*, writers: int, batch: int = 1) -> Load:
    return Load(seconds=0.5, writers=writers, size=100, batch=batch, acks="majority", bytes_max=1 << 30)


async def _count(own: Own) -> int:
    async with connect(own.urls) as client:
        return sum([len(page.entries) async for page in client.read_pages()])


async def test_works_count_exactly_what_the_log_then_holds() -> None:
    async with Own() as own:
        done: dict[str, Outcome] = {}
        done["append"] = await WORKS["append"].run(own, _load(writers=8))
        done["bulk"] = await WORKS["bulk"].run(own, _load(writers=4, batch=100))
        counted = sum(outcome.entries for outcome in done.values())
        assert await _count(own) == counted > 0
        assert done["bulk"].entries % 100 == 0
        assert len(done["append"].latencies_ms) == done["append"].entries
        assert [outcome.errors for outcome in done.values()] == [0, 0]

        whole = await BY_TURNS["transactions"].run(own, _load(writers=4, batch=10))
        assert whole.errors == 0 and whole.entries % 10 == 0 and whole.entries > 0
        counted += whole.entries
        assert await _count(own) > counted, "the plain batches beside them, too"
        assert whole.more["ratio"] > 0 and whole.more["plain_entries_per_s"] > 0
        counted = await _count(own)

        placed = await BY_TURNS["positions"].run(own, _load(writers=4, batch=10))
        assert placed.errors == 0 and placed.entries % 10 == 0 and placed.entries > 0
        assert placed.more["ratio"] > 0 and placed.more["transaction_ratio"] > 0 and placed.more["commits_per_s"] > 0
        counted = await _count(own)

        read = await BY_TURNS["linearizable"].run(own, _load(writers=3, batch=20))
        assert read.errors == 0 and read.entries > 0 and len(read.latencies_ms) == read.entries
        assert read.more["p50_ms_without"] > 0 and read.more["ratio"] > 0
        assert (await own.master())["transactions"]["open"] == 0, "all are taken back"
        assert await _count(own) == counted + 1, "the entry that is read"
        counted += 1

        http = await WORKS["http"].run(own, _load(writers=4))
        assert await _count(own) >= counted + http.entries  # wrk leaves with answers under way
        assert http.errors == 0
        tail = await WORKS["tail"].run(own, _load(writers=4))
        assert tail.entries > 0
        assert tail.percentile(50) is not None
    assert not own.directory.exists()


async def test_catchup_is_measured_until_the_late_replica_has_everything() -> None:
    async with Own() as own:
        done = await asyncio.wait_for(WORKS["catchup"].run(own, _load(writers=8, batch=100)), 120)
        assert done.entries >= await _count(own)
        assert (await own.status(own.last.url))["range"]["last_sync"] == (await own.master())["range"]["last_sync"]


async def test_recover_is_measured_until_the_killed_replica_has_its_log_again() -> None:
    async with Own(dict(WORKS["recover"].settings)) as own:
        done = await asyncio.wait_for(WORKS["recover"].run(own, _load(writers=8, batch=100)), 120)
        assert done.seconds > 0
        # It was killed while it may have been some batches behind the majority that had acknowledged them.
        assert done.entries >= 0.9 * await _count(own)
