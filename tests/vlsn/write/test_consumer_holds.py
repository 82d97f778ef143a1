"""Consumers' positions hold cleaning back: of each log by itself, as far as the position is durable there."""

from __future__ import annotations

from dataclasses import replace

from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable, Waiting
from tests.vlsn.write.test_cleaning import KEEPING, clean, fill, last_of, place
from vlsn.format.records import CommitEntry
from vlsn.format.submission import Transaction
from vlsn.ids import Vlsn
from vlsn.offline.cleaning_forecast import forecast
from vlsn.state.options import LogOptions
from vlsn.state.retention import Retention


def put(opened: Opened, **positions: int | None) -> None:
    puts = {f"consumer/{name}": None if vlsn is None else {"next": vlsn} for name, vlsn in positions.items()}
    opened.log.append(Waiting([], submission=Transaction((), CommitEntry.putting(puts).encode())))


def held(options: LogOptions = KEEPING) -> tuple[Machine, Opened]:
    """Returns a log of eight segments, of which a consumer still needs all from the third one on."""
    machine = Machine()
    opened = Opened(machine, options)
    fill(opened, 8)
    put(opened, billing=last_of(opened, 2) + 1, early=1)
    put(opened, early=None)
    put(opened, **{"other/billing": 1})
    opened.log.care.checkpointer.run()
    return machine, opened


def test_nothing_that_a_consumer_reads_next_goes_and_it_is_told_by_name() -> None:
    _, opened = held()
    report = clean(opened, dry_run=True)
    assert [fate.number for fate in report.segments] == [1, 2]
    assert report.blocked[0].blocked_by == ["consumer billing"]
    clean(opened)
    assert place(opened, opened.log.view.range.first) == 3
    put(opened, billing=int(opened.log.view.range.last))
    assert not clean(opened).blocked
    put(opened, billing=None)
    clean(opened)
    assert not [hold for hold in opened.log.care.holds if hold.name == "billing"]


def test_a_consumer_moved_back_holds_from_there() -> None:
    _, opened = held()
    put(opened, billing=int(opened.log.view.range.last))
    clean(opened, dry_run=True)
    vlsn = last_of(opened, 1) + 1
    put(opened, billing=vlsn)
    assert clean(opened).blocked[0].blocked_by == ["consumer billing"]
    assert opened.log.view.range.first == vlsn
    put(opened, billing=1)
    assert not clean(opened).blocked, "what is gone is held by nobody"


def test_a_position_that_may_be_rolled_back_lets_go_of_nothing() -> None:
    machine = Machine()
    opened = Undurable(machine, durable=10**9, options=KEEPING)
    fill(opened, 8)
    vlsn = last_of(opened, 2) + 1
    put(opened, billing=vlsn)
    opened.log.care.checkpointer.run()
    opened.durable = int(opened.log.view.dtvlsn)
    put(opened, billing=int(opened.log.view.range.last))
    assert opened.log.view.history.small["consumer/billing"].vlsn > opened.log.view.dtvlsn
    assert clean(opened).blocked[0].blocked_by == ["consumer billing"]
    assert opened.log.view.range.first == vlsn


def test_one_that_lies_too_far_behind_is_dropped_and_told() -> None:
    _, opened = held(replace(KEEPING, hold_bytes_max=KEEPING.segment_bytes * 2))
    dropped: list[tuple[str, int]] = []
    opened.log.care.consumer_holds.dropped = lambda name, first: dropped.append((name, int(first)))
    report = clean(opened)
    assert report.dropped == ["consumer billing"]
    assert dropped == [("billing", opened.log.view.range.first)]
    assert clean(opened).dropped == [], "once"


def test_a_table_that_was_lost_keeps_the_whole_log() -> None:
    _, opened = held()
    opened.log.view.history.small.lose_before(Vlsn(2))
    assert clean(opened).blocked[0].blocked_by[0] == "consumers whose positions are not known yet"


def test_the_forecast_of_a_stopped_log_names_its_consumers() -> None:
    machine, opened = held()
    opened.close()
    machine.kill()
    retention = Retention(KEEPING.retention_bytes)
    report = forecast(machine.disk, machine.stores, DIRECTORY, retention, now_us=0)
    assert [fate.number for fate in report.segments] == [1, 2]
    assert report.blocked[0].blocked_by == ["consumer billing"]
