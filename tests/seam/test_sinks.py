"""Sinks against real nodes in one process: every batch once, in its order, whatever happens to masters and writers."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from random import Random
from random import seed as seed_global

import msgspec
import pytest

from repl.api import SinkChange
from repl.client.batch_rows import BatchRows, chunk_of
from repl.client.connect import Client
from repl.client.sink_batch import Batch, Written, write_batch
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, CLEANS, SEGMENT, Group
from tests.seam.test_consumers import client
from tests.seam.test_once_client import disturb
from tests.seam.test_transactions import ask, begin, played, stage
from vlsn.errors import BadArgument, NotFound, SinkRefused, VlsnLogError
from vlsn.levels import LEVELS
from vlsn.state import sinks
from vlsn.state.sinks import SinkState

JSON = {"Content-Type": "application/json"}

Values = list[bytes]
STATE = {"query": "q", "batch": 3, "part": 1, "parts": 2, "rows": 1, "total": 2, "digest": "0" * 32}


def rows_of(values: Values, *, chunk: int = 7) -> BatchRows:
    """Makes rows of the values, each with its first byte as its key, in chunks."""
    some = [values[at : at + chunk] for at in range(0, len(values), chunk)]
    return BatchRows([chunk_of(each, [value[:1] for value in each]) for each in some])


async def write(
    log: Client, number: int, values: Values, *, query: str = "q", sink: str = "orders", **how: int
) -> Written:
    how.setdefault("part_entries_max", 5)
    return await write_batch(log, Batch(sink, query, number, len(values)), rows_of(values), **how)


async def logged(log: Client) -> Values:
    return [entry.value async for entry in log.read(consistency="linearizable")]


def numbered(batch: int, count: int) -> Values:
    return [f"{batch % 10}/{row}".encode() for row in range(count)]


def played_by_client(story: object, **settings: object) -> None:
    async def main(group: Group) -> None:
        async with client(group) as log:
            await story(log)  # type: ignore[operator]

    played(main, **settings)  # type: ignore[arg-type]


def test_a_state_is_set_with_its_part_and_replaced_by_whoever_names_it() -> None:
    async def story(group: Group) -> None:
        async def part(at: int, **state: object) -> tuple[int, dict[str, object]]:
            handle = await begin(group)
            await stage(group, handle, b"row")
            body = msgspec.json.encode({"sinks": {"orders": {"state": {**STATE, **state}, "at": at}}})
            return await ask(group, "POST", f"/{handle}/commit", body)

        status, said = await part(0)
        assert status == 200
        async with client(group) as log:
            placed = await log.sinks.get("orders")
            assert placed is not None
            assert (placed.at, placed.state) == (said["last"], SinkState(**STATE))  # type: ignore[arg-type]
            for at in (0, placed.at - 1, placed.at + 1):
                status, refused = await part(at)
                assert (status, refused["type"]) == (409, "stale-term")
            assert await logged(log) == [b"row"], "nothing was logged"
            assert (await part(placed.at, part=2, rows=2))[0] == 200
            assert [(each.name, each.state.part) for each in await log.sinks.list()] == [("orders", 2)]
            for bad in ({"query": ""}, {"part": 3}, {"parts": 0}, {"rows": 3}, {"batch": -1}, {"digest": "0"}):
                status, refused = await part(placed.at, **bad)
                assert (status, refused["type"]) == (400, "bad-argument"), bad
            with pytest.raises(BadArgument):
                await log.sinks.get("two words")
            now = await log.sinks.get("orders")
            assert now is not None
            for at in (placed.at, now.at + 1):
                url = f"{group.url(group.master)}/v1/sinks/orders?at={at}"
                answer = await group.client.request("DELETE", url, headers=JSON, timeout_s=5.0)
                assert (answer.status, msgspec.json.decode(bytes(answer.body))["type"]) == (409, "stale-term")
            assert await log.sinks.get("orders") == now, "who names another state deletes nothing"
            await log.sinks.delete("orders")
            assert await log.sinks.get("orders") is None
            with pytest.raises(NotFound):
                await log.sinks.delete("orders")

    played(story)


def test_a_batch_of_many_parts_is_written_once_however_often_it_comes() -> None:
    async def story(log: Client) -> None:
        values = numbered(0, 23)
        assert await write(log, 0, values) == Written(parts=5)
        assert await write(log, 0, values) == Written(done_before=True)
        assert await write(log, 1, []) == Written(), "nothing is logged of an empty one"
        assert await write(log, 2, numbered(2, 3)) == Written(parts=1), "one transaction if it fits"
        assert await logged(log) == values + numbered(2, 3)
        entries = [entry async for entry in log.read()]
        txns = [txn for txn, _ in pairwise([0, *(entry.txn for entry in entries)])]
        assert len(set(txns) - {0}) == 6
        with pytest.raises(SinkRefused, match=r"orders.*batch 2 .*batch 0 .*sinkReset"):
            await write(log, 0, values)
        with pytest.raises(SinkRefused, match="a new checkpoint"):
            await write(log, 0, values, query="new")
        assert await logged(log) == values + numbered(2, 3)
        placed = await log.sinks.get("orders")
        assert placed is not None
        assert (await write(log, 0, numbered(5, 2), query="new", reset=placed.at)).parts == 1
        with pytest.raises(SinkRefused, match="has replaced this one"):
            await write(log, 3, numbered(3, 2))

    played_by_client(story)


class _Dies(Exception):
    pass


async def write_until(log: Client, number: int, values: Values, parts: int) -> None:
    """Writes this number of parts of a batch, and dies."""
    commit = log.sinks.commit
    left = parts

    async def dying(name: str, batches: object, change: SinkChange) -> object:
        nonlocal left
        if not left:
            raise _Dies
        left -= 1
        return await commit(name, batches, change)  # type: ignore[arg-type]

    log.sinks.commit = dying  # type: ignore[method-assign,assignment]
    try:
        with pytest.raises(_Dies):
            await write(log, number, values)
    finally:
        log.sinks.commit = commit  # type: ignore[method-assign]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_repeat_goes_on_at_the_first_part_that_is_missing_in_whatever_order_it_comes(parts: int) -> None:
    async def story(log: Client) -> None:
        values = [*numbered(0, 20), b"0/7", b"0/7", b"0/19"]  # some rows are equal
        await log.append(b"another's")
        await write_until(log, 0, values, parts)
        await log.append(b"another's")
        found = await write(log, 0, values)
        assert found == Written(parts=5 - parts, read_back=0)
        assert [value for value in await logged(log) if value != b"another's"] == values
        await write_until(log, 1, values, parts)
        await log.append(b"another's")
        shuffled = list(values)
        Random(parts).shuffle(shuffled)
        found = await write(log, 1, shuffled)
        assert (found.parts, found.read_back) == (5 - parts, 5 * parts)
        second = [value for value in await logged(log) if value != b"another's"][len(values) :]
        assert Counter(second) == Counter(values)
        await write_until(log, 2, values, parts)
        for changed in ([*values[:-1], b"new"] if parts == 4 else [b"new", *values[1:]], values[1:], [*values, b"1"]):
            if changed[0] == b"new" or len(changed) != len(values):
                with pytest.raises(SinkRefused, match="the batch has changed"):
                    await write(log, 2, changed)

    played_by_client(story)


def test_parts_may_be_of_another_size_when_the_batch_is_repeated() -> None:
    async def story(log: Client) -> None:
        values = numbered(0, 23)
        await write_until(log, 0, values, 2)
        assert (await write(log, 0, values, part_entries_max=4)).parts == 4
        placed = await log.sinks.get("orders")
        assert placed is not None
        assert (placed.state.part, placed.state.parts, placed.state.rows) == (6, 6, 23)
        assert await logged(log) == values

    played_by_client(story)


@pytest.mark.parametrize("count", [5, 12])
def test_a_finished_batch_that_comes_again_is_compared(count: int) -> None:
    async def story(log: Client) -> None:
        values = [*numbered(0, count - 2), b"0/1", b"0/1"]  # some rows are equal
        await write(log, 0, values)
        await log.append(b"another's")
        before = await logged(log)
        for changed, why in (
            (numbered(7, 7), f"it had {count} rows when its first part was logged, and has 7"),
            ([], f"it had {count} rows when its first part was logged, and has 0"),
            ([b"new", *values[1:]], "rows of its . logged parts are not in it any more"),
            ([*values[:-1], values[0]], "rows of its . logged parts are not in it any more"),
        ):
            with pytest.raises(SinkRefused, match=f"sink 'orders' has batch 0 .* the batch has changed: .*{why}"):
                await write(log, 0, changed)
        assert await write(log, 0, values) == Written(done_before=True)
        assert await write(log, 0, values[::-1]) == Written(done_before=True, read_back=count)
        assert await logged(log) == before

    played_by_client(story)


def test_a_finished_batch_whose_rows_were_cleaned_away_is_known_in_its_own_order() -> None:
    async def story(group: Group) -> None:
        async with client(group) as log:
            values = numbered(0, 12)
            await write(log, 0, values)
            while await log.first_vlsn() <= 20:
                await log.append(BIG)
            assert await write(log, 0, values) == Written(done_before=True)
            with pytest.raises(SinkRefused, match=r"its logged rows are others, or came in another order, .*cleaned"):
                await write(log, 0, values[::-1])

    played(story, **CLEANS, retention_bytes=3 * SEGMENT)


def test_two_queries_of_one_sink_at_once_are_told_apart() -> None:
    async def story(log: Client) -> None:
        told = await asyncio.gather(
            *(write(log, number, numbered(number, 40), query=f"q{number}") for number in range(3)),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in told) == ["SinkRefused", "SinkRefused", "Written"]
        assert len(await logged(log)) == 40

    played_by_client(story)


def test_runs_are_remembered_and_the_oldest_finished_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "RUNS_MAX", 3)

    async def story(log: Client) -> None:
        for run_id in ("a", "b", "c", "d"):
            assert (await write(log, 0, [run_id.encode()], sink=f"nightly/{run_id}", query=run_id)).parts == 1
            assert (await write(log, 0, [run_id.encode()], sink=f"nightly/{run_id}", query=run_id)).done_before
        assert [each.name for each in await log.sinks.list()] == ["nightly/b", "nightly/c", "nightly/d"]
        await write_until_run(log)
        for run_id in ("f", "g", "h"):
            await write(log, 0, [run_id.encode()], sink=f"nightly/{run_id}", query=run_id)
        assert [each.name for each in await log.sinks.list()] == ["nightly/e", "nightly/f", "nightly/g", "nightly/h"]
        assert (await write(log, 0, numbered(0, 9), sink="nightly/e", query="e")).parts == 1

    async def write_until_run(log: Client) -> None:
        commit = log.sinks.commit

        async def dying(name: str, batches: object, change: SinkChange) -> object:
            if change.state.part > 1:
                raise _Dies
            return await commit(name, batches, change)  # type: ignore[arg-type]

        log.sinks.commit = dying  # type: ignore[method-assign,assignment]
        with pytest.raises(_Dies):
            await write(log, 0, numbered(0, 9), sink="nightly/e", query="e")
        log.sinks.commit = commit  # type: ignore[method-assign]

    played_by_client(story)


@pytest.mark.parametrize("seed", seeds(5))
@virtual
async def test_every_batch_is_there_once_and_in_order_through_whatever_happens(seed: int) -> None:
    """Two drivers of one query, each of which believes that it is the only one, repeat every batch until it is done.
    They are cancelled anywhere, masters are killed and cut off, and some repeats have the rows in another order."""
    group, rng = Group(seed, levels=LEVELS), Random(f"sink/{seed}")
    seed_global(seed)
    group.net.cut_rate = 0.01
    await group.start()
    await group.serving()
    disturbing = asyncio.create_task(disturb(group, rng, []))
    batches = [numbered(number, rng.randint(1, 30)) for number in range(8)]
    shuffled: set[int] = set()
    async with client(group) as log, client(group) as other:

        async def drive(of: Client) -> None:
            number = 0
            while number < len(batches):
                values = list(batches[number])
                if rng.random() < 0.2:
                    shuffled.add(number)
                    rng.shuffle(values)
                writing = asyncio.create_task(write(of, number, values, part_entries_max=rng.randint(1, 6)))
                if rng.random() < 0.4:
                    await asyncio.sleep(rng.random() * 0.2)
                    writing.cancel()
                try:
                    await writing
                except SinkRefused:
                    number += 1  # the other driver is further
                    continue
                except (VlsnLogError, asyncio.CancelledError):
                    continue
                number += 1

        async with asyncio.timeout(600):
            await asyncio.gather(drive(log), drive(other))
        disturbing.cancel()
        await asyncio.wait([disturbing])
        group.net.heal()
        if down := [name for name in group.names if name not in group.nodes]:
            await group.start(*down)  # killed as the disturbance ended
        found = await logged(log)
        assert Counter(found) == Counter(value for values in batches for value in values)
        assert [value[:1] for value in found] == [value[:1] for values in batches for value in values]
        for number, values in enumerate(batches):
            if number not in shuffled:
                assert [value for value in found if value in set(values)] == values
    assert not group.fatal
    await group.stop()
