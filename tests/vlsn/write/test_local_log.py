"""The local log: appends, rolls, checkpoints, clean and unclean stops, failures of the disk."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Undurable
from vlsn.errors import LogInUse, NoSpace, NotMaster, WrongDirectory
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
