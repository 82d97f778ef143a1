"""Cleaning: the segments that go and those that stay. A log whose cleaning was stopped anywhere opens with the same
range."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened
from vlsn.errors import Damaged, LogFailed, LogInUse
from vlsn.format.block import EntryKind
from vlsn.format.records import AckNote, CommitEntry
from vlsn.ids import Vlsn
from vlsn.limits import RETRY_S_MAX
from vlsn.offline.cleaning_forecast import forecast
from vlsn.state.holds import Owner
from vlsn.state.options import LogOptions
from vlsn.state.retention import Retention
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify
from vlsn.write.cleaner import CleaningReport
from vlsnlog.testing.fakes.disk import StopHere

SEGMENT = SMALL.segment_bytes
KEEPING = replace(SMALL, retention_bytes=4 * SEGMENT)


def filled(machine: Machine, *, segments: int = 8, options: LogOptions = KEEPING) -> tuple[Opened, dict[int, bytes]]:
    """Returns a log of so many segments with a checkpoint at its end, and its values by VLSN."""
    opened = Opened(machine, options)
    held = fill(opened, segments)
    opened.log.care.checkpointer.run()
    return opened, held


def fill(opened: Opened, segments: int, held: dict[int, bytes] | None = None) -> dict[int, bytes]:
    held = {} if held is None else held
    while len(opened.log.view.segments()) < segments:
        value = f"{opened.log.view.range.last}:".encode().ljust(4000, b".")
        pending = opened.append(value)
        assert pending.synced
        held[pending.first] = value
    return held


def clean(opened: Opened, *, dry_run: bool = False) -> CleaningReport:
    reports: list[CleaningReport] = []
    opened.log.care.cleaner.run(reports.append, dry_run=dry_run)
    assert len(reports) == 1
    return reports[0]


def files(machine: Machine) -> list[str]:
    return [name for name in machine.disk.list(DIRECTORY) if name[:1].isdigit()]


def numbers(machine: Machine, ending: str = ".vlog") -> list[int]:
    return [int(name[:8]) for name in files(machine) if name.endswith(ending)]


def last_of(opened: Opened, number: int) -> int:
    """Returns the last VLSN of a segment: every value here is one block."""
    found = [
        vlsn
        for vlsn in range(opened.log.view.range.first, opened.log.view.range.last + 1)
        if place(opened, vlsn) <= number
    ]
    return max(found)


def place(opened: Opened, vlsn: int) -> int:
    from vlsn.segments.reader import LogReader

    log = opened.log
    mapping = log.view.index.at_or_before(Vlsn(vlsn))
    assert mapping is not None
    reader = LogReader(opened.machine.disk, DIRECTORY, log.view.synced_end)
    run = reader.blocks(vlsn, start=mapping[1], upto_vlsn=log.view.range.last, bytes_max=1)
    reader.close()
    return run.lsns[0] >> 32


def check_whole(machine: Machine, held: dict[int, bytes], first_max: int, options: LogOptions = KEEPING) -> Opened:
    """The directory opens: one range, read back whole; its index, history and files agree; it takes appends."""
    opened = Opened(machine, options)
    span = opened.log.view.range
    assert 1 <= span.first <= first_max
    found = opened.entries()
    expected = {vlsn: value for vlsn, value in held.items() if vlsn >= span.first}
    assert {vlsn: value for vlsn, value in found.items() if vlsn in held} == expected
    runs = opened.log.view.history.term_runs
    assert (runs[0].first, runs[-1].last) == (span.first, span.last)
    lives = sorted(opened.log.view.segments())
    assert lives == numbers(machine)[: len(lives)]
    assert opened.log.view.index.at_or_before(span.first) is not None
    more = opened.append(b"after")
    assert more.synced
    assert opened.entries()[more.first] == b"after"
    return opened


def test_the_oldest_segments_go_until_the_files_take_what_is_to_be_kept() -> None:
    machine = Machine()
    opened, held = filled(machine)
    assert len(numbers(machine)) == 9  # the standby too
    cut = last_of(opened, 5)
    report = clean(opened)
    assert [fate.number for fate in report.segments] == [1, 2, 3, 4, 5]
    assert {fate.reason for fate in report.segments} == {"bytes"}
    assert report.bytes == 5 * SEGMENT
    assert report.total_bytes == 9 * SEGMENT
    assert not report.blocked
    assert numbers(machine) == [6, 7, 8, 9]
    assert numbers(machine, ".vidx") == [6, 7]
    assert opened.log.view.range.first == report.first == cut + 1
    assert opened.entries() == {vlsn: value for vlsn, value in held.items() if vlsn > cut}
    assert opened.log.view.history.term_runs[0].first == cut + 1
    assert not clean(opened).segments


def test_nothing_goes_without_a_checkpoint_behind_it() -> None:
    machine = Machine()
    opened = Opened(machine, KEEPING)
    fill(opened, 8)
    report = clean(opened)
    assert not report.segments
    assert all("checkpoint recovery" in fate.blocked_by for fate in report.blocked)
    assert [fate.number for fate in report.blocked] == [1, 2, 3, 4, 5]
    opened.log.care.checkpointer.run()
    assert len(clean(opened).segments) == 5


def test_the_checkpoints_own_segment_and_what_follows_it_stay() -> None:
    machine = Machine()
    opened, _ = filled(machine, segments=3)
    fill(opened, 9)
    # Its state record may lie segments further: entries synced during the checkpoint are in it.
    opened.log.care.checkpointer.settled(opened.log.view.range.last)
    report = clean(opened)
    assert [fate.number for fate in report.segments] == [1, 2]
    assert [fate.number for fate in report.blocked] == [3, 4, 5, 6]
    assert all("checkpoint recovery" in fate.blocked_by for fate in report.blocked)


def test_nothing_goes_that_is_not_durable() -> None:
    machine = Machine()
    opened = Opened(machine, KEEPING)
    opened.synced = lambda last: None  # type: ignore[method-assign,assignment]
    while len(opened.log.view.segments()) < 8:
        opened.append(b"." * 900)
    durable = last_of(opened, 2)
    opened.log.view.raise_dtvlsn(Vlsn(durable))
    opened.log.care.checkpointer.run()
    report = clean(opened)
    assert [fate.number for fate in report.segments] == [1]  # the block that ends at the DTVLSN stays whole
    assert "durable end" in report.blocked[0].blocked_by


def test_what_a_destination_begins_at_stays_though_its_making_is_not_known_to_be_durable() -> None:
    """A majority may have its COMMIT, and have answered it: nobody could give what was cleaned meanwhile."""
    machine = Machine()
    opened = Opened(machine, KEEPING)
    opened.synced = lambda last: None  # type: ignore[method-assign,assignment]
    while len(opened.log.view.segments()) < 8:
        opened.append(b"." * 900)
    begin, durable = last_of(opened, 2), last_of(opened, 4)
    note = CommitEntry(acks={"0123456789abcdef": AckNote(begin=begin)})
    opened.log.append_entries([EntryKind.COMMIT], [note.encode()], lambda _: None)
    opened.log.view.raise_dtvlsn(Vlsn(durable))
    opened.log.care.checkpointer.run()
    report = clean(opened)
    assert [fate.number for fate in report.segments] == [1]
    assert "a destination that is being made, or moved" in report.blocked[0].blocked_by
    assert "durable end" not in report.blocked[0].blocked_by


def test_a_hold_keeps_its_segment_and_is_named() -> None:
    machine = Machine()
    opened, _ = filled(machine)
    at = last_of(opened, 3)
    hold = opened.log.care.holds.place(Owner.BACKUP, "nightly", Vlsn(at))
    dry = clean(opened, dry_run=True)
    assert numbers(machine) == list(range(1, 10))
    report = clean(opened)
    assert (report.segments, report.blocked) == (dry.segments, dry.blocked)
    assert [fate.number for fate in report.segments] == [1, 2]
    assert [fate.blocked_by for fate in report.blocked] == [["backup nightly"]] * 3
    hold.advance(Vlsn(at + 1))
    assert [fate.number for fate in clean(opened).segments] == [3]
    opened.log.care.holds.release(hold)
    assert [fate.number for fate in clean(opened).segments] == [4, 5]


def test_a_hold_over_its_cap_is_dropped_and_its_owner_told() -> None:
    machine = Machine()
    opened, _ = filled(machine, options=replace(KEEPING, hold_bytes_max=6 * SEGMENT))
    told: list[int] = []
    far = opened.log.care.holds.place(Owner.FEEDER, "n2", Vlsn(5), on_dropped=told.append)
    near = opened.log.care.holds.place(Owner.FEEDER, "n3", Vlsn(last_of(opened, 4)), on_dropped=told.append)
    report = clean(opened)
    assert report.dropped == ["feeder n2"]
    assert [fate.number for fate in report.segments] == [1, 2, 3]
    assert [fate.blocked_by for fate in report.blocked] == [["feeder n3"], ["feeder n3"]]
    assert (far.live, near.live) == (False, True)
    assert told == [report.first]
    assert opened.log.care.cleaner.drops == 1


HOUR = replace(SMALL, retention_age_s=3600.0)
YEAR_US = 365 * 86400 * 1_000_000


def test_age_takes_what_was_sealed_long_enough_ago() -> None:
    machine = Machine()
    opened = Opened(machine, HOUR)
    for segments in range(2, 21):  # one every five minutes
        fill(opened, segments)
        machine.clock.advance(300.0)
    opened.log.care.checkpointer.run()
    report = clean(opened)
    # The end of segment N is sealed before the N-th five minutes are over; 19 ends before the 19th, which is now.
    assert [(fate.number, fate.reason) for fate in report.segments] == [(number, "age") for number in range(1, 8)]
    assert not report.blocked
    paused: list[CleaningReport] = []
    machine.clock.advance(7200.0)
    opened.log.care.cleaner.run(paused.append, pause_age="clocks differ")
    assert (paused[0].segments, paused[0].paused) == ([], "clocks differ")


def test_exactly_as_old_as_is_kept_is_not_older() -> None:
    machine = Machine()
    opened = Opened(machine, HOUR)
    fill(opened, 4)
    machine.clock.advance(3600.0)
    opened.log.cycle.rotate("request")
    opened.append(b"later")
    opened.log.care.checkpointer.run()
    report = clean(opened)
    assert not report.segments + report.blocked
    machine.clock.advance(0.000001)
    assert [fate.number for fate in clean(opened).segments] == [1]


@pytest.mark.parametrize("appends", [False, True], ids=["idle", "appends go on"])
def test_a_clock_that_leaps_by_a_year_takes_an_eighth_a_run_and_not_the_log(appends: bool) -> None:
    machine = Machine()
    opened = Opened(machine, HOUR)
    held = fill(opened, 17)
    opened.log.care.checkpointer.run()
    machine.clock.offset_us += YEAR_US
    if appends:
        fill(opened, 20, held)  # by the clock that has leapt
        opened.log.care.checkpointer.run()
    report = clean(opened)
    assert [fate.number for fate in report.segments] == [1, 2]
    assert report.blocked[0].blocked_by == ["age allowance"]
    assert {fate.reason for fate in report.blocked} == {"age"}
    for _ in range(5):  # asked however often
        assert not clean(opened).segments
    first = opened.log.view.range.first
    machine.kill()
    again = check_whole(machine, held, first, HOUR)  # another run, which takes a term by that clock
    again.log.care.checkpointer.run()
    assert len(clean(again).segments) == (2 if appends else 1)
    assert not clean(again).segments
    assert [fate.number for fate in clean(again, dry_run=True).blocked][:1] == [min(again.log.view.segments())]


def test_a_clock_that_others_agree_with_is_believed() -> None:
    machine = Machine()
    opened, _ = filled(machine, segments=17, options=HOUR)
    machine.clock.offset_us += YEAR_US
    reports: list[CleaningReport] = []
    opened.log.care.cleaner.run(reports.append, clocks_agree=True)
    assert [fate.number for fate in reports[0].segments] == list(range(1, 17))


def test_what_bytes_want_gone_goes_whatever_the_clock_says() -> None:
    machine = Machine()
    opened, _ = filled(machine, segments=17, options=replace(HOUR, retention_bytes=10 * SEGMENT))
    machine.clock.offset_us += YEAR_US
    report = clean(opened)
    assert [(fate.number, fate.reason) for fate in report.segments] == [
        *[(number, "bytes") for number in range(1, 9)],
        *[(number, "age") for number in (9, 10)],
    ]


def test_a_log_that_stands_still_is_cleaned_as_time_goes_by() -> None:
    machine = Machine()
    opened, held = filled(machine, segments=17, options=HOUR)
    clean(opened)  # has seen them
    machine.clock.advance(3600.0)
    machine.clock.offset_us += YEAR_US
    fill(opened, 20, held)
    opened.log.care.checkpointer.run()
    report = clean(opened)
    assert [fate.number for fate in report.segments] == list(range(1, 17))
    assert not report.blocked  # blocks sealed since are young by that clock


def test_a_log_that_was_just_opened_is_cleaned_little_by_little() -> None:
    machine = Machine()
    _, held = filled(machine, segments=17, options=HOUR)
    machine.kill()
    machine.clock.offset_us += YEAR_US  # as if it had been away so long
    again = check_whole(machine, held, 1, HOUR)
    again.log.care.checkpointer.run()
    left = []
    for _ in range(5):
        clean(again)
        left.append(len(again.log.view.segments()))
        machine.clock.advance(3600.0 / 16)
    assert left == [16, 15, 14, 13, 12]


def test_a_log_that_is_opened_now_and_then_is_cleaned_by_what_its_entries_say() -> None:
    machine = Machine()
    options = replace(SMALL, retention_age_s=10 * 3600.0)
    for run in range(30):
        opened = Opened(machine, options)
        opened.append(b"once an hour")
        opened.log.cycle.rotate("request")
        opened.log.care.checkpointer.run()
        clean(opened)
        opened.close()
        machine.clock.offset_us += 3600_000_000  # no process ran
        if run > 12:
            assert len(opened.log.view.segments()) <= 13


@pytest.mark.parametrize("options", [KEEPING, replace(SMALL, retention_age_s=3600.0)], ids=["bytes", "age"])
def test_the_forecast_of_a_stopped_log_is_what_its_next_pass_does(options: LogOptions) -> None:
    machine = Machine()
    opened = Opened(machine, options)
    for segments in range(2, 19):
        fill(opened, segments)
        machine.clock.offset_us += 400_000_000
    fill(opened, 26)
    machine.clock.offset_us += 2000_000_000
    with pytest.raises(LogInUse, match="by its URL"):
        forecast(machine.disk, machine.stores, DIRECTORY, options.retention, now_us=0)
    opened.close()
    calls = len(machine.disk.calls)
    told = forecast(machine.disk, machine.stores, DIRECTORY, options.retention, now_us=machine.clock.wall_us())
    assert not [call for call in machine.disk.calls[calls:] if call.changes]
    again = Opened(machine, options, take_term=False)
    again.log.view.raise_dtvlsn(again.log.view.range.last)
    report = clean(again)
    assert told.segments
    assert (told.segments, told.blocked) == (report.segments, report.blocked)
    assert told.total_bytes == report.total_bytes
    assert told.first <= report.first


# Stopped anywhere.


def prepared(seed: int) -> tuple[Machine, Opened, dict[int, bytes], int]:
    """A log with five segments to go, one of them with bytes that were cut; the first VLSN that stays."""
    machine = Machine(seed)
    opened, held = filled(machine)
    machine.disk.write_content(f"{DIRECTORY}/00000002.cut-8192", b"torn")
    return machine, opened, held, last_of(opened, 5) + 1


def end(machine: Machine, how: str) -> None:
    if how == "kill":
        machine.kill()
    else:
        machine.power_cut(tear=how == "torn")


def cleaning_calls() -> list[int]:
    machine, opened, _, _ = prepared(0)
    begun = len(machine.disk.calls)
    clean(opened)
    numbers = [call.number for call in machine.disk.calls[begun:] if call.changes]
    assert len(numbers) >= 16  # five segments, five sidecars, one file of cut bytes, a synced directory each
    return numbers


def decided(machine: Machine, begun: int) -> bool:
    """Says whether the cleaning's commit point was passed: the state's transaction."""
    return any(call.name == "commit" and call.path.endswith("/state") for call in machine.disk.calls[begun:-1])


@pytest.mark.parametrize("how", ["kill", "power_cut", "torn"])
def test_a_cleaning_stopped_at_any_disk_call_is_finished_by_the_next_open(how: str) -> None:
    for number in cleaning_calls():
        machine, opened, held, first = prepared(number)
        begun = len(machine.disk.calls)
        machine.disk.stop_at(number)
        with pytest.raises(StopHere):
            clean(opened)
        if not decided(machine, begun):
            first = 1
        end(machine, how)
        left = numbers(machine)
        assert left == list(range(left[0], left[-1] + 1)), f"a hole: {left}, stopped at {number}"
        again = check_whole(machine, held, first)
        assert again.log.view.range.first == first
        if first == 1:
            assert left[0] == 1
            continue
        assert [each for each in numbers(machine, ".vidx") if each < 6] == []
        assert not machine.disk.exists(f"{DIRECTORY}/00000002.cut-8192")
        again.log.care.checkpointer.run()
        clean(again)  # the open has begun a segment: the one after those may go now
        assert again.log.view.range.first >= first
        again.close()
        assert verify(machine.disk, machine.stores, DIRECTORY).ok


@pytest.mark.parametrize("writes", [0, 1])
def test_no_file_goes_before_the_record_and_the_index_say_so_durably(writes: int) -> None:
    """The state's transaction, then the index's: each may be the one that fails."""
    machine, opened, held, first = prepared(1)
    before = files(machine)
    machine.stores.fail_writes_after = machine.stores.writes + writes
    reports: list[CleaningReport] = []
    opened.log.care.cleaner.run(reports.append)
    assert isinstance(opened.failure, LogFailed)
    assert [(report.segments, bool(report.paused)) for report in reports] == [([], True)]
    assert files(machine) == before
    machine.stores.fail_writes_after = None
    machine.kill()
    again = check_whole(machine, held, first)
    assert again.log.view.range.first == (first if writes else 1)


@pytest.mark.parametrize("store", ["index", "state"])
def test_a_store_that_is_lost_while_a_cleaning_is_under_way_leaves_a_log_that_opens(store: str) -> None:
    for number in cleaning_calls()[::2]:
        machine, opened, held, first = prepared(number)
        begun = len(machine.disk.calls)
        machine.disk.stop_at(number)
        with pytest.raises(StopHere):
            clean(opened)
        if not decided(machine, begun):
            first = 1
        machine.power_cut(tear=True)
        machine.stores.set_aside(f"{DIRECTORY}/{store}")
        again = check_whole(machine, held, first)
        assert (again.log.view.range.first == first) or store == "state"


def test_an_older_state_or_index_leaves_a_cleaned_log_as_it_is() -> None:
    for store in ("index", "state"):
        machine, opened, held, first = prepared(4)
        image = machine.stores.snapshot(f"{DIRECTORY}/{store}")
        clean(opened)
        machine.kill()
        machine.stores.restore(f"{DIRECTORY}/{store}", image)
        assert check_whole(machine, held, first).log.view.range.first == first, store


def test_a_first_segment_that_was_lost_is_damage_and_no_cleaning() -> None:
    for cleaned in (False, True):
        machine, opened, _, _ = prepared(5)
        if cleaned:
            clean(opened)
        lost = min(numbers(machine))
        machine.kill()
        machine.disk.remove(f"{DIRECTORY}/{lost:08}.vlog")
        found = verify(machine.disk, machine.stores, DIRECTORY)
        assert (Rule.GAP, f"{lost:08}.vlog") in {(each.rule, each.file) for each in found.findings}
        for _ in range(2):  # an open that refuses changes nothing that the next one would believe
            with pytest.raises(Damaged, match=f"{lost:08}.vlog is missing"):
                Opened(machine, KEEPING)
            machine.kill()


def test_a_checkpoint_after_a_cleaning_keeps_where_the_log_begins() -> None:
    machine, opened, held, first = prepared(6)
    clean(opened)
    fill(opened, 6, held)
    opened.log.care.checkpointer.run()
    record = opened.log.care.state.record()
    assert record is not None
    assert (record.trimmed_to, record.first_segment) == (first - 1, 6)
    assert record.term_runs[0][1] == first
    assert [fate.number for fate in clean(opened).segments] == [6, 7, 8]
    machine.kill()
    check_whole(machine, held, opened.log.view.range.first)


def test_a_pass_that_meets_the_end_of_the_log_is_told_so() -> None:
    machine, opened, held, first = prepared(8)
    opened.close()
    report = clean(opened)
    assert (report.segments, report.paused) == ([], "the log was closed")
    assert check_whole(machine, held, first).log.view.range.first == 1


def test_what_cannot_be_read_is_left_where_it_is() -> None:
    machine, opened, _, _ = prepared(9)
    machine.disk.flip_bit(f"{DIRECTORY}/00000006.vlog", 4096 + 24 + 70)
    before = files(machine)
    report = clean(opened)
    assert "00000006.vlog" in report.paused
    assert not report.segments
    assert files(machine) == before
    opened.log.care.holds.place(Owner.CONSUMER, "c", Vlsn(1))  # nothing is about to go
    assert opened.failure is None
    assert opened.append(b"more").synced
    opened.log.care.checkpointer.run()
    assert opened.failure is None


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("name", ["remove", "sync_directory"])
def test_a_removal_that_fails_is_tried_again_and_ends_nothing(name: str, times: int) -> None:
    """The first time at once; then the pass says what is left, and it goes when it can."""
    machine, opened, held, first = prepared(10)
    whole = files(machine)
    machine.disk.fail_at(lambda call: call.name == name, times=times)
    report = clean(opened)
    assert opened.failure is None
    assert opened.log.life.background.failures["removal"] == min(times, 2)
    assert ("are not removed yet" in report.paused) == (times > 1)
    assert report.first == opened.log.view.range.first == first
    assert clean(opened).paused == report.paused, "the next pass has the same to say"
    for _ in range(times):
        machine.clock.advance(RETRY_S_MAX)
        opened.log.tick()
    assert not opened.log.life.background.faults()
    assert not clean(opened).paused
    gone = {name for name in whole if int(name[:8]) < opened.log.view.first_segment and ".v" in name}
    assert gone and not gone & set(files(machine))
    machine.kill()
    assert check_whole(machine, held, first).log.view.range.first == first


def test_a_removal_that_never_works_is_finished_by_the_next_open() -> None:
    machine, opened, held, first = prepared(10)
    machine.disk.fail_at(lambda call: call.name == "remove" and call.path.endswith(".vlog"), times=1 << 30)
    clean(opened)
    for _ in range(9):
        machine.clock.advance(RETRY_S_MAX)
        opened.log.tick()
    assert opened.log.life.background.failures["removal"] == 11
    assert opened.append(b"more").synced
    opened.close()
    assert opened.failure is None
    machine.kill()
    assert check_whole(machine, held, first).log.view.range.first == first


def test_who_asks_while_a_pass_is_under_way_shares_the_next() -> None:
    machine, opened, _, _ = prepared(11)
    reports: list[CleaningReport] = []
    cleaner = opened.log.care.cleaner

    def ask(times: int) -> None:
        for _ in range(times):
            cleaner.run(reports.append)

    def start() -> None:
        cleaner.run(lambda _: ask(5))
        ask(5)

    begun = len(machine.disk.calls)
    opened.log.life.keeper.submit(start, lambda _: None, lambda _: None)
    looks = [call for call in machine.disk.calls[begun:] if call.name == "free_bytes"]
    assert len(looks) == 2
    assert [id(report) for report in reports] == [id(reports[0])] * 10


def test_a_cleaning_of_segments_without_a_block_does_not_look_like_a_loss() -> None:
    """Failures left the first segments empty; when the first of them goes, the log begins at VLSN 1 still."""
    machine = Machine()
    opened = Opened(machine)
    held = {}
    for number in range(3):
        machine.disk.fail_at(lambda call: call.name == "sync" and opened.log.cycle.group is not None)
        held[opened.append(f"{number}".encode()).first] = f"{number}".encode()
    opened.log.care.checkpointer.run()
    opened.log.cycle.rotate("request")
    held[opened.append(b"next").first] = b"next"
    opened.log.care.checkpointer.run()
    numbers = list(opened.log.view.segments())
    opened.log.care.cleaner.retention = Retention(bytes=(len(numbers) + 1) * SEGMENT - 1)
    opened.log.care.cleaner.run()
    assert list(opened.log.view.segments()) == numbers[1:]
    assert opened.log.view.range.first == 1
    opened.log.care.checkpointer.run()
    machine.kill()
    again = Opened(machine)
    assert again.entries() == held
    again.close()
    report = verify(machine.disk, machine.stores, DIRECTORY)
    assert report.ok, report.findings
