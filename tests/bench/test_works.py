"""The works on a real cluster, one for all of them: the log has the entries that they count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from repl.bench.report import Outcome
from repl.bench.target import Own
from repl.bench.works import WORKS, Load
from repl.client.connect import connect
from tests.bench.by_turns import WORKS as BY_TURNS
from vlsn.errors import Unreachable

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own() -> AsyncIterator[Own]:
    """Yields a cluster; the works run in the order of the tests: ``catchup`` is of an empty one."""
    async with Own(dict(WORKS["recover"].settings)) as own:
        yield own
    assert not own.directory.exists()


async def _run(own: Own, work: str, *, writers: int, batch: int = 1) -> Outcome:
    load = Load(seconds=0.5, writers=writers, size=100, batch=batch, acks="majority", bytes_max=1 << 30)
    return await asyncio.wait_for((WORKS | BY_TURNS)[work].run(own, load), 120)


async def _count(own: Own) -> int:
    async with connect(own.urls) as client:
        return sum([len(page.entries) async for page in client.read_pages()])


async def test_catchup_is_measured_until_the_late_replica_has_everything(own: Own) -> None:
    done = await _run(own, "catchup", writers=8, batch=100)
    assert done.entries >= await _count(own)
    assert (await own.status(own.last.url))["range"]["last_sync"] == (await own.master())["range"]["last_sync"]


async def test_recover_is_measured_until_the_killed_replica_has_its_log_again(own: Own) -> None:
    done = await _run(own, "recover", writers=8, batch=100)
    assert done.seconds > 0
    # It was killed while it may have been some batches behind the majority that had acknowledged them.
    assert done.entries >= 0.9 * await _count(own)


async def test_works_count_exactly_what_the_log_then_holds(own: Own) -> None:
    before = await _count(own)
    done = [await _run(own, "append", writers=8), await _run(own, "bulk", writers=4, batch=100)]
    counted = before + sum(outcome.entries for outcome in done)
    assert await _count(own) == counted > before
    assert done[1].entries % 100 == 0
    assert len(done[0].latencies_ms) == done[0].entries
    assert [outcome.errors for outcome in done] == [0, 0]

    http = await _run(own, "http", writers=4)
    assert await _count(own) >= counted + http.entries  # wrk leaves with answers under way
    assert http.errors == 0
    tail = await _run(own, "tail", writers=4)
    assert tail.entries > 0
    assert tail.percentile(50) is not None


async def test_a_log_that_could_not_be_filled_is_not_measured(own: Own) -> None:
    before = await _count(own)
    load = Load(seconds=0.1, writers=1, size=100, batch=100, acks="majority", bytes_max=1)
    with pytest.raises(Unreachable, match=r"no batch of 100 entries .* --bytes-max"):
        await WORKS["scan"].run(own, load)
    assert await _count(own) == before


async def test_works_by_turns_count_their_own_side(own: Own) -> None:
    before = await _count(own)
    whole = await _run(own, "transactions", writers=4, batch=10)
    assert whole.errors == 0 and whole.entries % 10 == 0 and whole.entries > 0
    assert await _count(own) > before + whole.entries, "the plain batches beside them, too"
    assert whole.more["ratio"] > 0 and whole.more["plain_entries_per_s"] > 0

    placed = await _run(own, "positions", writers=4, batch=10)
    assert placed.errors == 0 and placed.entries % 10 == 0 and placed.entries > 0
    assert placed.more["ratio"] > 0 and placed.more["transaction_ratio"] > 0 and placed.more["commits_per_s"] > 0

    before = await _count(own)
    read = await _run(own, "linearizable", writers=3, batch=20)
    assert read.errors == 0 and read.entries > 0 and len(read.latencies_ms) == read.entries
    assert read.more["p50_ms_without"] > 0 and read.more["ratio"] > 0
    assert (await own.master())["transactions"]["open"] == 0, "all are taken back"
    assert await _count(own) == before + 1, "the entry that is read"
