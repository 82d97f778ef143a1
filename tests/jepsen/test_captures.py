"""Consumers inside nodes under faults: the checks find each fault in a recording made to show it, none in a sound one;
records are read as they were written; and a short run of real nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from harness.captures.checks import check_captures, counts_of
from harness.captures.disk_log import DiskLog, read_disk_log, stored_position
from harness.captures.recorder import Recorder
from harness.captures.recording import Call, Life, Recording, Stored, Told, recording_of
from harness.ops import numbered
from harness.report.progress import Progress
from harness.report.results import table
from harness.run import Options, check_options, run
from harness.values import COMMIT, OWN, key_of, value_of

from repl.cdc.child.events import Events
from repl.cdc.consumer import CdcContext
from repl.cdc.position_file import PositionFile, StoredPosition
from tests.jepsen.appending import OPTIONS as LOG_OPTIONS
from tests.repl.cdc.test_events import TERM, blocks_of, message_of
from vlsn import Log
from vlsn.errors import BadArgument
from vlsn.real.disk import PosixDisk

SECOND = 1_000_000_000
ROWS = {1: (1, OWN, 0), 2: (1, OWN, 0), 3: (1, 11, 0), 4: (1, 12, 4), 5: (1, 13, 4), 6: (1, COMMIT, 4)}
ROWS |= {7: (2, OWN, 0), 8: (2, 14, 0), 9: (2, 15, 0)}
POSITIONS = [(2, 1), (6, 4), (7, 9), (9, 10)]


def call(at: float, *vlsns: int, next: int, said: bool = True) -> Call:
    rows = [ROWS[vlsn] for vlsn in vlsns]
    terms, numbers, txns = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    return Call(int(at * SECOND), list(vlsns), terms, txns, numbers, next, said)


def life(node: str, at: float, next: int, *calls: Call, leads: bool = False, term: int = 1, stop: float = 0.0) -> Life:
    name, run_on = ("leads", "master") if leads else ("each", "node")
    made = Life(name, node, run_on, next, term, int(at * 10), 1, int(at * SECOND), list(calls))
    made.stopped = int(stop * SECOND)
    return made


def told(at: float, node: str, name: str, next: int, *, term: int = 1, state: str = "running") -> Told:
    return Told(int(at * SECOND), node, "p1", term, name, state, "", next, "BUFFER", 2, 1)


def stored(at: float, next: int, *, clean: bool = False, node: str = "n1") -> Stored:
    return Stored(int(at * SECOND), node, "each", next, clean)


def sound() -> Recording:
    """Returns n1's consumer over a kill of n1, which gets an uncommitted event again, and the group's over a new
    master."""
    return Recording(
        lives=[
            life("n1", 1, 1, call(2, 3, next=4), call(3, 4, 5, next=8, said=False)),
            life("n1", 5, 4, call(6, 4, 5, next=8), call(7, 8, 9, next=10), stop=9),
            life("n1", 1, 1, call(2, 3, next=4), leads=True),
            life("n2", 4, 4, call(5, 4, 5, 8, next=9), call(6, 9, next=10), leads=True, term=2),
        ],
        told=[told(2.5, "n1", "each", 4), told(2.5, "n1", "leads", 4), told(5.5, "n2", "leads", 9, term=2)],
        stored=[stored(4, 4), stored(10, 10, clean=True)],
        logs={"n1": DiskLog(dict(ROWS), {"leads": list(POSITIONS)}), "n2": DiskLog(dict(ROWS), {"leads": POSITIONS})},
        upto=9,
    )


def rules(recording: Recording) -> set[str]:
    return {anomaly.rule for anomaly in check_captures(recording)}


def test_a_run_that_keeps_every_promise_shows_nothing() -> None:
    assert check_captures(sound()) == []
    counts = counts_of(sound())
    assert counts["events given to consumers"] == 12 and counts["of them given again"] == 2
    assert (counts["changes to BUFFER"], counts["changes to ARCHIVE"]) == (6, 3)
    assert (counts["of them behind a kill of a node"], counts["nodes on which the group's consumer ran"]) == (1, 2)


def test_an_old_masters_process_may_begin_where_it_knew_and_commits_nothing() -> None:
    recording = sound()
    recording.lives.append(life("n1", 8, 4, call(9, 4, 5, next=8), leads=True, term=1))
    assert check_captures(recording) == []


# Each fault, put into a sound recording.


def skipped(recording: Recording) -> None:
    recording.lives[1].calls[0] = call(6, 5, next=8)


def skipped_at_a_change_of_mode(recording: Recording) -> None:
    recording.lives[1].calls[1] = call(7, 9, next=10)


def twice_in_a_life(recording: Recording) -> None:
    recording.lives[1].calls.insert(1, call(6.5, 5, next=8))


def never_durable(recording: Recording) -> None:
    first = recording.lives[3].calls[1]
    recording.lives[3].calls[1] = replace(first, numbers=[99])


def of_a_term_that_was_rolled_back(recording: Recording) -> None:
    recording.lives[3].calls[1] = replace(recording.lives[3].calls[1], terms=[1])


def another_transaction(recording: Recording) -> None:
    recording.lives[1].calls[0] = replace(recording.lives[1].calls[0], txns=[0, 0])


def behind_the_end_of_the_log(recording: Recording) -> None:
    recording.lives[3].calls.append(Call(7 * SECOND, [10], [2], [0], [77], 11, True))


def a_position_past_the_next_event(recording: Recording) -> None:
    recording.lives[0].calls[1] = call(3, 4, 5, next=9, said=False)


def a_position_before_its_event(recording: Recording) -> None:
    recording.lives[0].calls[0] = call(2, 3, next=3)


def stored_before_it_was_promised(recording: Recording) -> None:
    recording.lives[1].next = 8
    recording.lives[1].calls = [call(7, 8, 9, next=10)]


def stored_before_on_events_returned(recording: Recording) -> None:
    recording.stored[0] = stored(4, 8)


def not_synced(recording: Recording) -> None:
    recording.lives[1].next = 1
    recording.lives[1].calls.insert(0, call(5.5, 3, next=4))


def not_what_the_disk_had(recording: Recording) -> None:
    recording.told = []
    not_synced(recording)
    recording.lives.insert(0, life("n1", 0.5, 1))


def begun_anew_in_silence(recording: Recording) -> None:
    recording.lives.append(life("n1", 9.5, 1, call(9.6, 3, next=4), stop=9.7))


def a_group_begun_anew(recording: Recording) -> None:
    recording.lives.append(life("n3", 8, 1, call(9, 3, next=4), leads=True, term=2))


def a_position_that_falls(recording: Recording) -> None:
    for log in recording.logs.values():
        log.positions["leads"] = [*POSITIONS, (10, 4)]


def an_old_master_that_commits(recording: Recording) -> None:
    recording.lives.append(life("n1", 4.5, 4, call(7, 4, 5, next=8), call(8, 8, 9, next=10), leads=True, term=1))
    recording.lives[3].calls.pop()
    recording.lives[3].calls[0] = call(5, 4, 5, 8, next=9)


def a_position_nobody_promised(recording: Recording) -> None:
    for log in recording.logs.values():
        log.positions["leads"] = [*POSITIONS[:2], (7, 8), *POSITIONS[2:]]


def nothing_can_be_read_of_it(recording: Recording) -> None:
    recording.stored[1] = stored(10, 0)


def lost_by_a_clean_stop(recording: Recording) -> None:
    recording.stored[1] = stored(10, 8, clean=True)


def two_processes(recording: Recording) -> None:
    recording.lives[0].calls.append(call(5.5, 8, next=9, said=False))


def left_behind(recording: Recording) -> None:
    recording.lives[2].calls.append(call(6, 4, next=5, said=False))


def left_at_the_end(recording: Recording) -> None:
    recording.left.append(4711)


def never_given(recording: Recording) -> None:
    recording.lives[1].calls.pop()
    recording.stored[1] = stored(10, 8, clean=True)


def never_committed(recording: Recording) -> None:
    recording.lives[1].calls[1] = call(7, 8, 9, next=10, said=False)
    recording.stored[1] = stored(10, 8, clean=True)


def parked(recording: Recording) -> None:
    recording.told.append(told(8, "n1", "each", 8, state="parked"))


def logs_that_differ(recording: Recording) -> None:
    recording.logs["n2"].rows[9] = (2, 16, 0)


def positions_that_differ(recording: Recording) -> None:
    recording.logs["n2"].positions["leads"] = [(2, 1), (6, 8)]


def a_file_of_something_else(recording: Recording) -> None:
    recording.broken.append("each-n1-1-1.jsonl: KeyError 'at'")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (skipped, {"cdc-skip"}),
        (skipped_at_a_change_of_mode, {"cdc-skip", "cdc-not-given"}),
        (twice_in_a_life, {"cdc-order"}),
        (never_durable, {"cdc-not-in-the-log"}),
        (of_a_term_that_was_rolled_back, {"cdc-not-in-the-log"}),
        (another_transaction, {"cdc-not-in-the-log"}),
        (behind_the_end_of_the_log, {"cdc-not-in-the-log", "cdc-position"}),
        (a_position_past_the_next_event, {"cdc-position"}),
        (a_position_before_its_event, {"cdc-position", "cdc-begins-ahead", "cdc-never-promised"}),
        (stored_before_it_was_promised, {"cdc-begins-ahead", "cdc-given-again"}),
        (stored_before_on_events_returned, {"cdc-never-promised", "cdc-given-again"}),
        (not_synced, {"cdc-given-again"}),
        (not_what_the_disk_had, {"cdc-given-again"}),
        (begun_anew_in_silence, {"cdc-falls", "cdc-given-again", "cdc-lost-by-a-stop"}),
        (a_group_begun_anew, {"cdc-falls", "cdc-given-again"}),
        (a_position_that_falls, {"cdc-falls"}),
        (an_old_master_that_commits, {"cdc-unfenced"}),
        (a_position_nobody_promised, {"cdc-never-promised", "cdc-unfenced"}),
        (nothing_can_be_read_of_it, {"cdc-never-promised"}),
        (lost_by_a_clean_stop, {"cdc-lost-by-a-stop"}),
        (two_processes, {"cdc-two-at-once", "cdc-outlives-its-node"}),
        (left_behind, {"cdc-outlives-its-node"}),
        (left_at_the_end, {"cdc-outlives-its-node"}),
        (never_given, {"cdc-not-given"}),
        (never_committed, {"cdc-not-given"}),
        (parked, {"cdc-parked"}),
        (logs_that_differ, {"cdc-logs-differ"}),
        (positions_that_differ, {"cdc-logs-differ"}),
        (a_file_of_something_else, {"cdc-unreadable"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_fault_is_found_and_named(fault: object, found: set[str]) -> None:
    recording = sound()
    fault(recording)  # type: ignore[operator]
    recording.lives.sort(key=lambda life: life.at)
    assert rules(recording) == found


# Records are read as they were written.


def test_a_directory_says_what_was_logged(tmp_path: Path) -> None:
    wanted: dict[int, tuple[int, int, int]] = {}
    with Log.open(tmp_path, LOG_OPTIONS) as log:
        for number in range(1, 600, 3):
            first, _ = log.append(value_of(number))
            wanted[first] = (1, number, 0)
            with log.transaction() as txn:
                txn.append([value_of(number + 1), value_of(number + 2)], keys=[key_of(number + 1), None])
            wanted |= {txn.first: (1, number + 1, txn.first), txn.first + 1: (1, number + 2, txn.first)}
            wanted[txn.last] = (1, COMMIT, txn.first)
    assert len(list(tmp_path.glob("*.vlog"))) > 2
    found = read_disk_log(tmp_path)
    assert {vlsn: row for vlsn, row in found.rows.items() if vlsn in wanted} == wanted
    assert {row[1] for vlsn, row in found.rows.items() if vlsn not in wanted} <= {OWN, COMMIT}
    assert list(found.rows) == list(range(1, max(wanted) + 1))
    name = sorted(tmp_path.glob("*.vlog"))[0]
    data = bytearray(name.read_bytes())
    data[4200] ^= 1
    name.write_bytes(data)
    with pytest.raises(ValueError, match="no frame at"):
        read_disk_log(tmp_path)


def test_a_position_file_says_what_was_stored_last(tmp_path: Path) -> None:
    path = tmp_path / "cdc" / "each.position"
    assert stored_position(path) == (0, 0)
    file = PositionFile.create(PosixDisk(), str(tmp_path), StoredPosition(group="g", name="each", next=1))
    for position in (5, 9, 12):
        file.store(position, 1)
    file.close()
    assert stored_position(path) == (12, 4)
    data = bytearray(path.read_bytes())
    data[4096 * 1 + 200] ^= 1
    path.write_bytes(data)
    assert stored_position(path) in ((12, 4), (9, 3))
    path.write_bytes(bytes(8192))
    assert stored_position(path) == (0, 0)


def test_a_recorder_writes_down_what_it_is_given_before_it_answers(tmp_path: Path) -> None:
    consumer = Recorder()
    consumer.start(CdcContext("each", "n1", "g", 3, {"directory": str(tmp_path), "seed": 1}, term=2))
    (path,) = tmp_path.glob("each-n1-*.jsonl")
    (tmp_path / "settled").touch()
    blocks, _ = blocks_of([[(b"", value_of(11))], [(b"", value_of(12)), (b"", b"nobody sent this")]], 3)
    events = Events(message_of(blocks), 3)
    assert consumer.on_events(events) is True
    written = path.read_bytes()
    path.write_bytes(written + b'{"f":"events","at":1,"vls')  # killed as it wrote
    found = recording_of(numbered([]), tmp_path, 0, {}, upto=0)
    (one,) = found.lives
    assert (one.name, one.node, one.next, one.term, one.place) == ("each", "n1", 3, 2, ("each", "n1"))
    (said,) = one.calls
    assert (said.vlsns, said.terms, said.numbers, said.next, said.said) == (
        [3, 4, 5],
        [TERM] * 3,
        [11, 12, -1],
        6,
        True,
    )
    path.write_bytes(b"{}\n" + written)
    assert [each.split(":")[0] for each in recording_of(numbered([]), tmp_path, 0, {}, upto=0).broken] == [path.name]


def test_disks_that_lose_positions_are_no_fault_of_this_workload() -> None:
    with pytest.raises(BadArgument, match="leave out disk"):
        check_options(replace(SHORT, kinds=("kill", "disk"), disk_ways=("wipe",)))


SHORT = Options(
    workload="cdc",
    kinds=("kill", "pause", "partition"),
    nodes=3,
    seconds=9.0,
    seed=3,
    rate=300.0,
    writers=8,
    interval_s=9.0,
    audit=False,
)


@pytest.mark.real
def test_a_short_run_of_consumers_under_faults_finds_nothing_wrong(tmp_path: Path) -> None:
    outcome = asyncio.run(run(SHORT, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join(table(outcome))
    assert not outcome.found, lines
    assert min(outcome.faults.values()) > 0, lines
    counts = outcome.captures
    assert counts["events given to consumers"] > 4 * outcome.ops["ok"] > 40, lines
    assert counts["processes of consumers"] >= 4 and counts["positions promised"] >= 4, lines
    assert counts["changes to BUFFER"] > 0, lines
