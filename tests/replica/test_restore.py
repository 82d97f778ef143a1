"""A restore of one directory from one provider's log: the blocks that come along, those that do not, and every disk
call cut."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.restore import Disagrees, agree, choose
from tests.replica.restores import HeldWorker, Provider, open_restoring, restart_of, restore, run_restore, transfer
from tests.vlsn.logs import SMALL, Machine, Opened, Undurable, Waiting, put
from vlsn.errors import BadBody, NotFound, NotYet, QueueFull, Restoring, Trimmed, VlsnLogError
from vlsn.format.feed_messages import TermRun
from vlsn.format.segment import segment_name
from vlsn.format.submission import Values
from vlsn.ids import Vlsn, lsn_offset
from vlsn.repair.restore import End
from vlsn.repair.restore_messages import Offer, RestoreAsk
from vlsn.seams import Worker
from vlsn.segments.restore_marker import MARKER_NAME
from vlsn.verify.verify import verify
from vlsn.write.cleaner import CleaningReport
from vlsnlog.testing.fakes.disk import StopHere

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long" or "SEEDS" in os.environ
ENDS = ("kill", "power_cut", "torn")
RETAINED = 3 * SMALL.segment_bytes
CLEANED = replace(SMALL, retention_bytes=RETAINED)


def provider_log(held: dict[int, bytes], *, seed: int = 77) -> Opened:
    """Three terms, segments cleaned away before, and a rolled back life in it; producers in each term."""
    machine = Machine(seed)
    opened = Opened(machine, CLEANED)
    for life in range(3):
        for producer, sequence in ((7, life), (20 + life, 0)):
            pending = Waiting([b"of producer %d" % producer])
            pending.submission = Values(pending.values, None, (producer, sequence))
            opened.log.append(pending)
            held[pending.first] = pending.values[0]
        put(opened, held, 90, 900)
        opened.close()
        opened = Opened(machine, CLEANED)
    opened.log.care.checkpointer.run()
    reports: list[CleaningReport] = []
    opened.log.care.cleaner.run(reports.append)
    assert reports[0].segments, reports
    for vlsn in [vlsn for vlsn in held if vlsn < opened.log.view.range.first]:
        del held[vlsn]
    put(opened, held, 20, 900)
    return opened


def old_log(machine: Machine) -> tuple[int, int]:
    """Gives the restoring node a few entries of term 1, and returns their end."""
    held: dict[int, bytes] = {}
    opened = Opened(machine)
    put(opened, held, 10, 300)
    end = opened.log.view.history.last_term, opened.log.view.range.last
    opened.close()
    return end


def test_a_restored_log_is_the_providers_in_frames_of_its_own() -> None:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    machine = Machine(5)
    end = old_log(machine)
    run_restore(machine, Provider(source), end=end)
    opened = Opened(machine, take_term=False)
    log, theirs = opened.log, source.log
    assert opened.entries() == held
    assert (log.view.range.first, log.view.range.last, log.view.dtvlsn) == (
        theirs.view.range.first,
        theirs.view.range.last,
        theirs.view.dtvlsn,
    )
    assert log.view.history.term_runs == theirs.view.history.term_runs
    last, at = log.view.range.last, Vlsn(log.view.range.last + 1)
    producers = log.view.history.producers
    assert producers.snapshot(last)() == theirs.view.history.producers.snapshot(theirs.view.range.last)()
    assert [life.next for life in (producers.find(7, at=at), producers.find(20, at=at)) if life] == [3, 1]
    assert log.node_file.record.term >= theirs.view.history.last_term
    assert (log.node_file.record.floor_term, log.node_file.record.floor_vlsn) == end
    record = log.care.state.record()
    assert record is not None
    assert (record.trimmed_to, record.first_segment) == (theirs.view.range.first - 1, min(log.view.segments()))
    names = machine.disk.list(machine.directory)
    assert MARKER_NAME not in names
    assert f"{min(log.view.segments()) - 1:08}.vlog" not in names  # what was here before went
    report = verify(machine.disk, machine.stores, machine.directory, live=True)
    assert not report.findings, report.findings
    opened.close()
    report = verify(machine.disk, machine.stores, machine.directory)
    assert not report.findings, report.findings


def test_nothing_past_the_providers_durable_end_comes_along() -> None:
    source = Undurable(Machine(3), durable=8)
    held: dict[int, bytes] = {}
    put(source, held, 12, 300)
    machine = Machine(5)
    run_restore(machine, Provider(source))
    opened = Opened(machine, take_term=False)
    assert opened.log.view.range.last == 8 < source.log.view.range.last
    assert opened.entries() == {vlsn: value for vlsn, value in held.items() if vlsn <= 8}


def test_a_rolled_back_life_at_the_provider_does_not_come_along() -> None:
    source = Undurable(Machine(3), durable=4)
    held: dict[int, bytes] = {}
    put(source, held, 12, 300)
    source.log.stop_sealing(VlsnLogError("over"))
    source.log.rollback(Vlsn(6), lambda: None, lambda error: None)
    assert source.log.view.range.last == 6 and source.log.view.rollbacks == 2
    held = {vlsn: value for vlsn, value in held.items() if vlsn <= 6}
    source.take_term()
    source.durable = 1 << 60
    put(source, held, 12, 300)
    machine = Machine(5)
    run_restore(machine, Provider(source))
    opened = Opened(machine, take_term=False)
    assert opened.entries() == held
    assert opened.log.view.history.term_runs == source.log.view.history.term_runs


def test_a_rollback_at_the_provider_aborts_a_restore() -> None:
    source = Undurable(Machine(3), durable=60)
    put(source, {}, 90, 900)
    provider = Provider(source)
    machine = Machine(5)

    def roll_back() -> None:
        if provider.ranges == 1:
            source.log.stop_sealing(VlsnLogError("over"))
            source.log.rollback(Vlsn(70), lambda: None, lambda error: None)

    provider.before = roll_back
    with pytest.raises(NotFound, match="rolled back"):
        run_restore(machine, provider)
    machine.kill()
    with pytest.raises(Restoring):
        Opened(machine)
    provider.before = lambda: None
    run_restore(machine, provider)
    assert Opened(machine, take_term=False).log.view.range.last == 60


def test_a_restore_that_was_cut_goes_on_behind_its_last_block_also_from_another_provider() -> None:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    provider = Provider(source)
    machine = Machine(5)
    old_log(machine)

    def stop() -> None:
        if provider.ranges == 3:
            raise BadBody("gone")

    provider.before = stop
    with pytest.raises(BadBody, match="gone"):
        run_restore(machine, provider)
    machine.kill()
    log = open_restoring(machine)
    have = log.view.range.last
    assert source.log.view.range.first < have < source.log.view.range.last
    other = Provider(source, "n3")
    asyncio.run(transfer(log, other).run())
    assert other.ranges <= 4  # what it has not is in two segments
    assert (log.view.range.first, log.view.range.last) == (source.log.view.range.first, source.log.view.range.last)


@pytest.mark.parametrize("ranges", [2, 3])
def test_a_restore_that_was_cut_before_its_first_block_goes_on_wherever_it_is_cut_next(ranges: int) -> None:
    """Each open makes a standby, and the next burns its number: the log begins past its record's."""
    held: dict[int, bytes] = {}
    source = provider_log(held)
    provider = Provider(source)
    machine = Machine(5)
    old_log(machine)
    restart_of(machine).begin(Vlsn(source.log.view.range.first - 1), "a test", end=None)
    open_restoring(machine)
    machine.kill()

    def stop() -> None:
        if provider.ranges == ranges:
            raise BadBody("gone")

    provider.before = stop
    with pytest.raises(BadBody, match="gone"):
        run_restore(machine, provider)
    machine.kill()
    assert restart_of(machine).begun() is not None
    log = open_restoring(machine)
    assert log.view.range.last > log.view.trimmed_to == source.log.view.range.first - 1
    machine.kill()
    run_restore(machine, Provider(source))
    assert not [path for path in machine.stores.contents if "aside" in path]
    assert Opened(machine, take_term=False).entries() == held


def test_another_provider_goes_on_behind_what_the_one_before_has_left_in_the_queue() -> None:
    """The disk is slow; a run waits behind the group that is written, and has its VLSNs."""
    held_there: dict[int, bytes] = {}
    source = provider_log(held_there)
    put(source, held_there, 90, 900)
    machine = Machine(5)
    old_log(machine)
    restart_of(machine).begin(Vlsn(source.log.view.range.first - 1), "a test", end=None)
    writers: list[HeldWorker] = []

    def held(worker: Worker) -> Worker:
        writers.append(HeldWorker(worker))
        return writers[0]

    log = open_restoring(machine, held)
    first, other = Provider(source), Provider(source, "n3")

    def gone() -> None:
        if first.ranges == 1:
            writers[0].hold()
        elif first.ranges == 4:
            raise BadBody("gone")

    first.before = gone

    async def main() -> None:
        with pytest.raises(BadBody, match="gone"):
            await transfer(log, first).run()
        going_on = asyncio.create_task(transfer(log, other).run())
        for _ in range(20):
            await asyncio.sleep(0)
        writers[0].release()
        async with asyncio.timeout(30):
            await going_on

    asyncio.run(main())
    assert (log.view.range.first, log.view.range.last) == (source.log.view.range.first, source.log.view.range.last)


def test_what_was_restored_from_another_history_is_told_apart() -> None:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    provider = Provider(source)
    machine = Machine(5)
    provider.before = lambda: None
    stranger = Machine(9)
    other = Opened(stranger)
    put(other, {}, 200, 600)
    restart_of(machine).begin(Vlsn(0), "a test", end=None)
    log = open_restoring(machine)
    asyncio.run(transfer(log, Provider(other)).run())
    with pytest.raises(Disagrees):
        asyncio.run(transfer(log, provider).run())


class Mistaken(Provider):
    """A provider whose offer is not what its segments hold."""

    def __init__(self, opened: Opened, offered: Callable[[Offer], Offer]) -> None:
        super().__init__(opened)
        self.offered = offered

    async def open(self, from_vlsn: Vlsn) -> Offer:
        return self.offered(await super().open(from_vlsn))


def without_last_segment(offer: Offer) -> Offer:
    return msgspec.structs.replace(offer, segments=offer.segments[:-1])


def of_a_later_term(offer: Offer) -> Offer:
    assert offer.record is not None
    *runs, (term, first, last) = offer.record.term_runs
    record = msgspec.structs.replace(offer.record, term_runs=[*runs, (term + 1, first, last)])
    return msgspec.structs.replace(offer, record=record)


@pytest.mark.parametrize(
    ("offered", "error", "said"),
    [(without_last_segment, BadBody, "end at VLSN"), (of_a_later_term, Disagrees, "than its state record")],
)
def test_what_is_not_as_it_was_offered_does_not_become_a_log(
    offered: Callable[[Offer], Offer], error: type[VlsnLogError], said: str
) -> None:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    machine = Machine(5)
    end = old_log(machine)
    with pytest.raises(error, match=said):
        run_restore(machine, Mistaken(source, offered), end=end)
    machine.kill()
    with pytest.raises(Restoring):
        Opened(machine)


@pytest.mark.parametrize("byte", [100, 5000, 9000])
def test_rot_at_the_provider_is_never_restored(byte: int) -> None:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    provider = Provider(source)

    def spoil(data: bytes) -> bytes:
        return data[:byte] + bytes([data[byte] ^ 4]) + data[byte + 1 :] if len(data) > byte else data

    provider.spoil = spoil
    machine = Machine(5)
    with pytest.raises(BadBody):
        run_restore(machine, provider)
    machine.kill()
    provider.spoil = lambda data: data
    run_restore(machine, provider)
    assert Opened(machine, take_term=False).entries() == held


def begun_story(machine: Machine) -> tuple[dict[int, bytes], Opened, tuple[int, int]]:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    end = old_log(machine)
    machine.begin()
    return held, source, end


def test_every_disk_call_of_a_restore_cut_leaves_the_old_log_or_a_restore_that_goes_on_or_the_new_log() -> None:
    machine = Machine(5)
    held, source, end = begun_story(machine)
    run_restore(machine, Provider(source), end=end)
    points = [call.number for call in machine.disk.calls[machine.begun :] if call.changes]
    machine.kill()
    print(f"restore: {len(points)} disk calls that change something")
    assert len(points) >= 75
    seen = {"old": 0, "begun": 0, "new": 0}
    old = Machine(5)
    old_log(old)
    before = Opened(old, take_term=False).entries()
    for turn, number in enumerate(points):
        for kind in ENDS if LONG else (ENDS[turn % 3],):
            machine = Machine(5)
            old_log(machine)
            machine.stop_at(number)
            with pytest.raises(StopHere):
                asyncio.run(restore(machine, Provider(source), end=end))
            if kind == "kill":
                machine.kill()
            else:
                machine.power_cut(tear=kind == "torn")
            note = f"{kind} at disk call {number}"
            seen[_reopened(machine, source, before, held, end, note)] += 1
    print(seen)
    assert seen["old"] >= 3 and seen["begun"] >= 50 and seen["new"] >= 1, seen


def _reopened(
    machine: Machine,
    source: Opened,
    before: dict[int, bytes],
    held: dict[int, bytes],
    end: tuple[int, int],
    note: str,
) -> str:
    """Opens what the cut has left."""
    try:
        opened = Opened(machine, take_term=False)
    except Restoring:
        run_restore(machine, Provider(source), end=None)
        opened = Opened(machine, take_term=False)
        assert opened.entries() == held, note
        floor = opened.log.node_file.record
        assert (floor.floor_term, floor.floor_vlsn) >= end, note
        return "begun"
    found = opened.entries()
    if found == held:
        floor = opened.log.node_file.record
        assert (floor.floor_term, floor.floor_vlsn) >= end, note
        return "new"
    assert found == before, note
    return "old"


def test_the_marker_rotten_shuts_the_log_all_the_same_and_the_restore_begins_again() -> None:
    held: dict[int, bytes] = {}
    source = provider_log(held)
    machine = Machine(5)
    end = old_log(machine)
    restart_of(machine).begin(Vlsn(source.log.view.range.first - 1), "a test", end=end)
    machine.disk.flip_bit(f"{machine.directory}/{MARKER_NAME}", 20)
    with pytest.raises(Restoring):
        Opened(machine)
    with pytest.raises(Restoring):
        verify(machine.disk, machine.stores, machine.directory)
    assert restart_of(machine).begun() is None
    run_restore(machine, Provider(source))
    assert Opened(machine, take_term=False).entries() == held


# The provider's side.


def ask(sender: str = "n1", from_vlsn: int = 0) -> RestoreAsk:
    return RestoreAsk(group="g", sender=sender, incarnation="0" * 16, to="n2", purpose="open", from_vlsn=from_vlsn)


def test_sessions_are_few_hold_the_log_and_end_when_nobody_asks() -> None:
    async def main() -> None:
        source = provider_log({})
        provider = Provider(source)
        restores, log = provider.restores, source.log
        one = restores.open(ask("n1"), feeders=0)()
        restores.open(ask("n3"), feeders=0)
        assert restores.look(feeders=0).full
        with pytest.raises(QueueFull):
            restores.open(ask("n4"), feeders=0)
        again = restores.open(ask("n1"), feeders=0)()
        assert again.session != one.session and len(restores) == 2
        with pytest.raises(NotFound):
            await restores.read(one.session, again.segments[0].number, 0, 4096, have=0)
        holds = {hold.name: hold.vlsn for hold in log.care.holds if hold.owner == "restore"}
        assert holds == {"n1": log.view.range.first, "n3": log.view.range.first}
        await restores.read(again.session, again.segments[0].number, 0, 4096, have=log.view.range.first + 40)
        assert {hold.vlsn for hold in log.care.holds if hold.name == "n1"} == {log.view.range.first + 41}
        restores.close(again.session)
        assert [hold.name for hold in log.care.holds if hold.owner == "restore"] == ["n3"]
        restores.close_all("over")
        with pytest.raises(Trimmed):
            restores.open(ask(from_vlsn=1), feeders=0)
        with pytest.raises(NotYet):
            restores.open(ask(from_vlsn=log.view.range.last + 2), feeders=0)
        whole = restores.open(ask(from_vlsn=log.view.range.last + 1), feeders=0)()
        assert whole.segments == [] and whole.record is not None and whole.record.vlsn == log.view.range.last
        restores.close_all("over")

    asyncio.run(main())


# Pure parts.


def offer(
    name: str, first: int, dtvlsn: int, restores: int = 0, feeders: int = 0, full: bool = False, term: int = 0
) -> Offer:
    return Offer(
        group="g",
        name=name,
        incarnation="0" * 16,
        first=first,
        dtvlsn=dtvlsn,
        dtvlsn_term=term,
        restores=restores,
        feeders=feeders,
        full=full,
    )


def test_no_bytes_are_given_past_what_is_synced() -> None:
    source = provider_log({})
    provider = Provider(source)

    async def main() -> None:
        offer = await provider.open(Vlsn(source.log.view.range.first))
        number, end = offer.segments[-1].number, offer.segments[-1].end
        assert len(await provider.read(offer.session, number, end - 64, end, have=Vlsn(0))) == 64
        with pytest.raises(NotYet):
            await provider.read(offer.session, number, end - 64, end + 64, have=Vlsn(0))

    asyncio.run(main())


def test_the_least_loaded_of_those_fresh_enough_is_chosen() -> None:
    far, busy, master, idle = (
        offer("a", 1, 10),
        offer("b", 1, 100_000, restores=1),
        offer("c", 1, 100_000, feeders=2),
        offer("d", 500, 99_000),
    )
    full, empty = offer("e", 1, 100_000, full=True), offer("f", 0, 0)
    everyone = [far, busy, master, idle, full, empty]
    names = [each.name for each in choose(everyone, have=Vlsn(0), durable=End(0, 0))]
    assert names == ["d", "c", "b"]
    assert [each.name for each in choose(everyone, have=Vlsn(300), durable=End(0, 0))] == ["c", "b", "d"]
    assert [each.name for each in choose(everyone, have=Vlsn(0), durable=End(0, 99_500))] == ["c", "b"]
    assert choose([far], have=Vlsn(0), durable=End(0, 11)) == []
    assert [each.name for each in choose([far], have=Vlsn(0), durable=End(4, 10))] == ["a"]  # it tells of no term
    later, older = offer("g", 1, 90, term=5), offer("h", 1, 200, term=3)
    assert [each.name for each in choose([later, older], have=Vlsn(0), durable=End(4, 90))] == ["g"]
    assert choose([later, older], have=Vlsn(0), durable=End(5, 91)) == []
    # The master of term 5 has every entry of term 4 or earlier that was ever durable.
    assert [each.name for each in choose([later, older], have=Vlsn(0), durable=End(4, 500, newest=4))] == ["g"]
    assert choose([later, older], have=Vlsn(0), durable=End(4, 500, newest=5)) == []
    assert choose([later], have=Vlsn(91), durable=End(4, 500, newest=4)) == []


def ended(machine: Machine, *, stored: int) -> tuple[Opened, str]:
    """A log of two terms whose node has stored a later one, and the path of its one segment."""
    opened = Opened(machine)
    opened.append(b"of term 1".ljust(900, b"."))
    opened.close()
    machine.kill()
    opened = Opened(machine)
    for number in range(3):
        opened.append(b"%d of term 2" % number)
    opened.log.node_file.replace(replace(opened.log.node_file.record, term=stored))
    return opened, f"{machine.directory}/{segment_name(max(opened.log.view.segments()))}"


def blank(machine: Machine, path: str, start: int, end: int) -> None:
    data = machine.disk.content(path)
    machine.disk.write_content(path, data[:start] + bytes(end - start) + data[end:])


@pytest.mark.parametrize(
    ("damage", "newest"),
    [
        ("nothing", 2),
        ("before a block that can be read", 2),
        ("the last block", 5),
        ("the last block, a record behind it", 5),
        ("the end is gone, and was not known to be synced", 2),
        ("the end is gone, and was known to be synced", 5),
        ("the floor is of a later term", 4),
        ("a later segment without a header", 5),
    ],
)
def test_the_newest_term_of_what_a_damaged_log_can_have_acknowledged(damage: str, newest: int) -> None:
    """It is the stored one wherever something may lie behind the last block that can be read."""
    machine = Machine()
    opened, path = ended(machine, stored=5)
    record = opened.log.node_file.record
    *_, before, last = map(lsn_offset, opened.frames_after(3))
    if damage == "the last block, a record behind it":
        opened.log.care.checkpointer.run()
    if damage == "the end is gone, and was known to be synced":
        for _ in range(2):
            machine.clock.advance(2.0)
            opened.log.tick()
        assert opened.log.care.state.idle_end() is not None
    if damage == "the floor is of a later term":
        opened.log.node_file.replace(replace(record, floor_term=4, floor_vlsn=40))
    opened.log.node_file.close()
    machine.kill()
    size = len(machine.disk.content(path))
    if damage.startswith("before"):
        machine.disk.flip_bit(path, before + 30)
    elif damage == "the last block":
        machine.disk.flip_bit(path, last)  # of its frame; its own header still says what it is
        machine.disk.flip_bit(path, last + 30)  # nor does that
    elif damage == "the last block, a record behind it":
        machine.disk.flip_bit(path, last + 30)
    elif damage.startswith("the end is gone"):
        blank(machine, path, last, size)
    elif damage.startswith("a later segment"):
        later = f"{machine.directory}/{segment_name(9)}"
        machine.disk.write_content(later, bytes(4096) + b"rubbish" + bytes(4096))
    found = restart_of(machine).end()
    assert found is not None
    assert (found.term, found.newest) == (2, newest)
    assert found.vlsn >= (5 if damage.startswith("the end is gone, and was not") else 6)


Runs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=6)


@given(Runs, st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_logs_agree_where_both_have_something(steps: list[tuple[int, int]], low: int, high: int, spoil: bool) -> None:
    """The model: a term for each VLSN."""
    terms: list[int] = []
    term = 0
    for rise, length in steps:
        term += rise
        terms += [term] * length
    mine = {vlsn: term for vlsn, term in enumerate(terms, 1) if vlsn > low}
    theirs = {vlsn: term for vlsn, term in enumerate(terms, 1) if vlsn > high}
    if spoil and mine:
        at = max(mine)
        mine[at] = mine[at] + 1
    same = all(mine[vlsn] == theirs[vlsn] for vlsn in mine.keys() & theirs.keys())
    if mine and theirs:
        assert agree([TermRun(*run) for run in runs(mine)], runs(theirs)) == same


def runs(terms: dict[int, int]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for vlsn, term in sorted(terms.items()):
        if found and found[-1][0] == term:
            found[-1] = (term, found[-1][1], vlsn)
        else:
            found.append((term, vlsn, vlsn))
    return found
