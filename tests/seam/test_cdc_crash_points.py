"""A consumer's commit, stopped at every disk call: after a restart its position is the last reported or the new one.

    on_events ─► True ─► stored ─► reported      n1's disk stops before, in or after each call from here to there
                    └────────────┘

The next life begins exactly at the position on the medium.  Stored events never come again, and no unpromised event is
skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvents
from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.seam.test_cdc import Captured, one
from tests.sim.captures import stored_in
from vlsn.errors import VlsnLogError
from vlsnlog.testing.fakes.disk import Call, Moment

POSITION = "/n1/cdc/orders.position"
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")
COMMITS = 4


class Notes:
    """The events of one consumer, over all its processes."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.given: list[list[int]] = []
        self.promised = [1]


class Noting(CdcConsumer):
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def start(self, context: CdcContext) -> None:
        self.notes.begins.append(context.next)
        self.notes.given.append([])

    def on_events(self, events: CdcEvents) -> bool:
        self.notes.given[-1] += [event.vlsn for event in events]
        self.notes.promised.append(events.next_vlsn)
        return True


async def made(seed: int, *, leads: bool, size: int) -> tuple[Captured, Notes]:
    """Makes a group whose consumers have a position and no events yet."""
    group = Captured(seed, one(run_on="master" if leads else "node", retries_max=1000), size=size)
    notes = Notes()
    for node in group.names:
        group.children[node].classes["test:orders"] = partial(Noting, notes if node == "n1" or leads else Notes())
    await group.start()
    await group.serving()
    await group.appended(b"first")
    await group.until(lambda: _stored(group) == notes.promised[-1] > 1, "the first one is stored")
    return group, notes


def _stored(group: Captured) -> int:
    """Returns the position that the master, or n1, reports; 0 while neither does."""
    records = [group.nodes[node].cdc.records["orders"] for node in group.names if node in group.nodes]
    return max((record.next for record in records if record.settings.run_on == "master"), default=0) or (
        records[0].next if records and "n1" in group.nodes else 0
    )


async def commits(group: Captured, notes: Notes, told: list[int]) -> None:
    """Lets a consumer commit several times; adds each position that is reported as stored to ``told``."""
    for number in range(COMMITS):
        with suppress(VlsnLogError, AssertionError):
            await group.appended(b"%d" % number)
        async with asyncio.timeout(20.0):
            while _stored(group) < notes.promised[-1] or len(notes.promised) < number + 3:
                if "n1" in group.nodes and group.machines["n1"].process is None:
                    return
                await asyncio.sleep(0.001)
        told.append(_stored(group))


def calls_of(leads: bool) -> int:
    """Counts the calls of n1's disk at which a commit may be stopped."""
    count = 0

    async def main() -> None:
        nonlocal count
        group, notes = await made(1, leads=leads, size=1)
        begins = len(group.machines["n1"].disk.calls)
        await commits(group, notes, [])
        of_commits: Callable[[Call], bool] = _is_of_log if leads else _is_of_position
        count = sum(of_commits(call) for call in group.machines["n1"].disk.calls[begins:])
        await group.stop()

    run(main())
    return count


def _is_of_position(call: Call) -> bool:
    return "/cdc/" in call.path


def _is_of_log(call: Call) -> bool:
    return call.path.endswith(".vlog") and call.name in ("write", "sync")


async def stopped(group: Captured, notes: Notes, stop: int, moment: Moment, of: Callable[[Call], bool]) -> list[int]:
    """Commits until n1's disk stops it; returns the positions that were reported as stored."""
    left = stop

    def strikes(call: Call) -> bool:
        nonlocal left
        left -= of(call)
        return left == 0 and of(call)

    told = [_stored(group)]
    group.machines["n1"].disk.stop_at(strikes, moment=moment)
    await commits(group, notes, told)
    group.machines["n1"].disk.mend()
    return told


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_commit_into_the_position_file_stopped_at_every_call(moment: Moment, power: bool) -> None:
    calls = calls_of(leads=False)
    assert calls >= 2 * COMMITS

    async def main(stop: int) -> None:
        group, notes = await made(stop, leads=False, size=1)
        told = await stopped(group, notes, stop, moment, _is_of_position)
        assert group.machines["n1"].process is None, "its disk has stopped it"
        group.kill("n1", power=power)
        lies = stored_in(group.machines["n1"].disk.on_medium(POSITION) if power else _content(group))
        assert told[-1] <= lies <= notes.promised[-1] and lies in notes.promised
        lives = len(notes.begins)
        await group.start()
        await group.serving()
        await group.appended(b"last")
        end = group.nodes["n1"].dtvlsn()
        await group.until(lambda: _stored(group) == end + 1, "all is stored")
        assert notes.begins[lives] == lies, "exactly what lies there"
        log = [vlsn for vlsn in await group.read("n1") if vlsn >= lies]
        assert [vlsn for life in notes.given[lives:] for vlsn in life] == log, "all from there on, once"
        await group.stop()

    for stop in range(1, calls + 1):
        run(main(stop))


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("size", [1, 3])
def test_a_commit_into_the_group_stopped_at_every_call(size: int, moment: Moment, power: bool) -> None:
    calls = calls_of(leads=True)
    assert calls >= 2 * COMMITS

    async def main(stop: int) -> None:
        group, notes = await made(stop, leads=True, size=size)
        told = await stopped(group, notes, stop, moment, _is_of_log)
        if group.machines["n1"].process is None:
            group.kill("n1", power=power)
            await group.start("n1")
        await group.serving()
        await group.appended(b"last")
        end = max(await group.read(group.master))
        await group.until(lambda: notes.promised[-1] > end and _stored(group) >= notes.promised[-1], "all is stored")
        assert set(notes.begins) <= set(notes.promised), "each life begins at what was promised"
        assert notes.begins == sorted(notes.begins), "and never before an earlier one"
        if len(notes.begins) > 1:
            assert notes.begins[1] >= told[-1], "what was told to be stored is not given again"
        wanted = [vlsn for vlsn in await group.read(group.master) if vlsn >= notes.begins[-1]]
        assert notes.given[-1] == wanted, "all from there on, once"
        await group.stop()

    for stop in range(1, calls + 1):
        run(main(stop))


@pytest.mark.parametrize("seed", [*seeds(2), 141, 144, 148])  # the last three have masters that know too little
@virtual
async def test_a_master_that_ends_as_a_commit_is_stored_leaves_it_to_the_next(seed: int) -> None:
    """The next master has the commit in its log, and may not know yet that it is durable."""
    group, notes = await made(seed, leads=True, size=3)
    for number in range(6):
        lives = len(notes.begins)
        await group.append(b"%d" % number)
        async with asyncio.timeout(20.0):
            while _stored(group) < notes.promised[-1] or len(notes.promised) < number + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.000_1)  # sooner than others hear that it is durable
        told, master = _stored(group), group.master
        group.kill(master)
        await group.serving()
        await group.until(partial(_has_begun, notes, lives), "the next one has begun")
        assert notes.begins[lives] >= told, "what was told to be stored is not given again"
        await group.start(master)
        await group.appended(b"between")
        await group.until(lambda: _stored(group) == notes.promised[-1], "all is stored")
    await group.stop()


def _has_begun(notes: Notes, lives: int) -> bool:
    return len(notes.begins) > lives


def _content(group: Captured) -> bytes:
    return group.machines["n1"].disk.content(POSITION)
