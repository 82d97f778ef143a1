"""The local log: appends, rolls, checkpoints, clean and unclean stops, failures of the disk."""

from __future__ import annotations

import errno
from dataclasses import fields, replace

import pytest

from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Undurable
from vlsn.errors import LogFailed, LogInUse, NoSpace, NotMaster, QueueFull, WrongDirectory
from vlsn.format.segment import segment_name
from vlsn.recover.recovery import recover
from vlsn.state.options import _BOUNDS, LogOptions


def filled(opened: Opened, count: int = 200, size: int = 1000) -> dict[int, bytes]:
    """Appends ``count`` values and gives them by VLSN."""
    held = {}
    for number in range(count):
        pending = opened.append(f"{number}:".encode().ljust(size, b"."))
        assert pending.synced
        held[pending.first] = pending.values[0]
    return held


def test_appends_get_the_next_vlsns_and_are_read_back() -> None:
    opened = Opened(Machine())
    one, two = opened.append(b"a"), opened.append(b"b", b"c")
    assert (one.first, one.last, two.first, two.last) == (2, 2, 3, 4)  # VLSN 1 is the TERM entry
    assert opened.entries() == {2: b"a", 3: b"b", 4: b"c"}
    assert opened.log.view.range.last == opened.log.view.range.last_sync == 4


def test_a_full_segment_rolls_onto_the_standby_and_leaves_a_sidecar() -> None:
    machine = Machine()
    opened = Opened(machine)
    held = filled(opened)
    names = machine.disk.list(DIRECTORY)
    assert opened.log.stats.rolls["size"] >= 3
    assert segment_name(1) in names
    assert "00000001.vidx" in names
    assert opened.entries() == held
    assert len(opened.log.placement.active_files()) == 2


def test_after_a_clean_stop_the_log_goes_on_in_the_same_segment() -> None:
    machine = Machine()
    opened = Opened(machine)
    held = filled(opened, 20)
    current = opened.log.placement.active_files()[0]
    opened.close()
    again = Opened(machine)
    assert again.log.placement.active_files()[0] == current
    assert again.log.node_file.record.term == 2
    assert again.entries() == held
    held |= filled(again, 100)
    assert again.entries() == held


def test_after_a_kill_the_log_goes_on_in_a_new_segment() -> None:
    machine = Machine()
    opened = Opened(machine)
    held = filled(opened, 20)
    current = opened.log.placement.active_files()[0]
    machine.kill()
    again = Opened(machine)
    assert again.log.placement.active_files()[0] > current
    assert again.entries() == held


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_kill_loses_nothing_that_was_synced_whether_or_not_there_was_a_checkpoint(checkpoint: bool) -> None:
    machine = Machine()
    held: dict[int, bytes] = {}
    for _ in range(4):
        opened = Opened(machine)
        assert opened.entries() == held
        held |= filled(opened, 60)
        if checkpoint:
            opened.log.care.checkpointer.run()
            held |= filled(opened, 10)
        machine.kill()


def test_a_lost_index_is_rebuilt_from_the_log() -> None:
    machine = Machine()
    opened = Opened(machine)
    held = filled(opened, 50)
    opened.log.care.checkpointer.run()
    held |= filled(opened, 5)
    machine.kill()
    del machine.stores.contents[f"{DIRECTORY}/index"]
    again = Opened(machine)
    assert any("the VLSN index is built anew" in note for note in again.notes)
    assert again.entries() == held


def test_a_corrupt_state_is_set_aside_and_rebuilt_from_a_log_that_begins_at_1() -> None:
    machine = Machine()
    opened = Opened(machine)
    held = filled(opened, 50)
    opened.log.care.checkpointer.run()
    machine.kill()
    machine.stores.corrupt(f"{DIRECTORY}/state", b"checkpoint", bit=3)
    again = Opened(machine)
    assert any("set aside" in note for note in again.notes)
    assert again.entries() == held
    assert [run.term for run in again.log.view.history.term_runs] == [1, 2]


def test_a_lost_node_file_makes_a_new_incarnation_whose_term_is_above_the_log() -> None:
    machine = Machine()
    opened = Opened(machine)
    before = opened.log.node_file.record
    held = filled(opened, 5)
    machine.kill()
    machine.disk.write_content(f"{DIRECTORY}/node.id", bytes(8192))
    again = Opened(machine)
    after = again.log.node_file.record
    assert after.incarnation != before.incarnation
    assert after.term == 2
    assert again.entries() == held


def test_the_queue_refuses_past_its_limit_and_sheds_before_it() -> None:
    opened = Opened(Machine(), LogOptions(segment_bytes=64 << 10, queue_entries_max=10))
    with pytest.raises(QueueFull):
        opened.append(*[b"x"] * 11)
    assert opened.append(b"y").synced


def test_a_log_that_is_not_sealing_takes_no_appends() -> None:
    opened = Opened(Machine(), take_term=False)
    with pytest.raises(NotMaster):
        opened.append(b"x")


def test_what_waits_when_sealing_stops_is_refused_and_nothing_of_it_logged() -> None:
    opened = Opened(Machine())
    opened.log.stop_sealing(NotMaster("over"))
    with pytest.raises(NotMaster):
        opened.append(b"x")
    assert opened.log.view.allocated == 1


def test_every_option_has_bounds_and_the_least_of_each_is_enough_for_an_append() -> None:
    names = {each.name for each in fields(LogOptions)} - {"durable_when_synced"}
    assert names == set(_BOUNDS)
    for name in sorted(names):
        least = _BOUNDS[name][0]
        opened = Opened(Machine(), replace(SMALL, **{name: least if name.endswith("_s") else int(least)}))  # type: ignore[arg-type]
        for number in range(40):
            assert opened.append(b"%d" % number * 500).synced, name
        opened.log.tick()
        opened.close()
        assert opened.log.life.closed and opened.failure is None, name


def test_no_space_refuses_before_anything_is_logged_and_goes_on_when_there_is_space() -> None:
    machine = Machine()
    machine.disk.capacity_bytes = 17 << 20  # what must stay free, and a little
    opened = Opened(machine)
    held: dict[int, bytes] = {}
    error: Exception | None = None
    for number in range(2000):
        try:
            pending = opened.append(str(number).encode().ljust(1000, b"."))
        except NoSpace as refused:
            error = refused
            break
        if pending.error is not None:
            error = pending.error
            break
        assert pending.synced
        held[pending.first] = str(number).encode().ljust(1000, b".")
    assert isinstance(error, NoSpace)
    assert opened.failure is None
    assert opened.entries() == held
    machine.disk.capacity_bytes = 40 << 20
    opened.log.tick()
    pending = opened.append(b"again")
    assert pending.synced
    assert opened.entries() == held | {pending.first: b"again"}


@pytest.mark.parametrize("name", ["write", "sync"])
def test_writes_or_syncs_that_keep_failing_end_the_log_and_the_next_open_has_what_was_acknowledged(name: str) -> None:
    machine = Machine()
    opened = Opened(machine)
    held = filled(opened, 10)
    machine.disk.fail_at(lambda call: call.name == name and call.path.endswith(".vlog"), code=errno.EIO, times=99)
    pending = opened.append(b"lost")
    assert not pending.synced
    assert opened.failure is not None
    with pytest.raises(LogFailed):
        opened.append(b"more")
    machine.disk.mend()
    machine.kill()
    again = Opened(machine)
    assert {vlsn: value for vlsn, value in again.entries().items() if value != b"lost"} == held


def test_a_directory_is_for_one_process_and_one_node() -> None:
    machine = Machine()
    opened = Opened(machine)
    with pytest.raises(LogInUse):
        recover(DIRECTORY, machine.seams(), group="g", node="n1", segment_bytes=64 << 10)
    opened.close()
    machine.kill()
    with pytest.raises(WrongDirectory):
        recover(DIRECTORY, machine.seams(), group="other", node="n1", segment_bytes=64 << 10)
    with pytest.raises(WrongDirectory):
        recover(DIRECTORY, machine.seams(), group="g", node="n2", segment_bytes=64 << 10)


def test_a_quiet_log_states_its_synced_end_once() -> None:
    opened = Opened(Machine())
    filled(opened, 3)
    clock = opened.log.seams.clock
    opened.log.tick()
    clock.advance(1.5)  # type: ignore[attr-defined]
    opened.log.tick()
    idle = opened.log.care.state.idle_end()
    assert idle is not None
    assert (idle.vlsn, idle.term) == (4, 1)
    assert idle.lsn & 0xFFFFFFFF == opened.log.view.synced_end(1)


def test_a_checkpoint_comes_after_its_bytes_and_after_its_period() -> None:
    opened = Opened(Machine(), LogOptions(segment_bytes=64 << 10, checkpoint_bytes=20_000, checkpoint_period_s=5))
    filled(opened, 30)
    first = opened.log.care.checkpointer.last
    assert first is not None
    opened.append(b"x")
    opened.log.tick()
    opened.log.seams.clock.advance(6)  # type: ignore[attr-defined]
    opened.log.tick()
    second = opened.log.care.checkpointer.last
    assert second is not None
    assert second.id == first.id + 1


def test_a_quiet_log_is_checkpointed_once_and_again_only_when_more_of_it_is_durable() -> None:
    opened = Undurable(Machine(), 1, LogOptions(segment_bytes=64 << 10, checkpoint_period_s=5))
    log = opened.log

    def ids() -> list[int]:
        """Returns the id of the last checkpoint, as each of five periods has passed."""
        found = []
        for _ in range(5):
            log.tick()
            log.seams.clock.advance(6)  # type: ignore[attr-defined]
            log.tick()
            found.append(log.care.checkpointer.last.id if log.care.checkpointer.last is not None else 0)
        return found

    opened.append(b"x")
    assert ids() == [1] * 5
    end = log.view.synced_end(1)
    assert ids() == [1] * 5
    assert log.view.synced_end(1) == end
    log.view.raise_dtvlsn(log.view.range.last)
    assert ids() == [2] * 5
    opened.append(b"y")
    log.view.raise_dtvlsn(log.view.range.last)
    assert ids() == [3] * 5
