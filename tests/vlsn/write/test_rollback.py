"""Rollback by overmarking: refusals, the group entries, and a crash in the middle."""

from __future__ import annotations

import pytest

from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable
from vlsn.errors import Damaged, NotMaster, RollbackProhibited, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.records import GroupEntry, Member
from vlsn.format.segment import segment_name
from vlsn.ids import Vlsn, lsn_file, lsn_offset
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import StopHere


def rolled_back(opened: Opened, matchpoint: int) -> None:
    opened.log.stop_sealing(NotMaster("a rollback follows"))
    done: list[VlsnLogError | None] = []
    opened.log.rollback(Vlsn(matchpoint), lambda: done.append(None), done.append)
    assert len(done) == 1
    if done[0] is not None:
        raise done[0]


def test_a_rollback_below_what_became_durable_while_it_waited_is_refused() -> None:
    opened = Undurable(Machine(), durable=2)
    for number in range(4):
        opened.append(b"%d" % number)
    opened.log.stop_sealing(NotMaster("a rollback"))
    opened.log.care.checkpointer.hold(lambda: None)  # as another one would
    told: list[object] = []
    opened.log.rollback(Vlsn(2), lambda: told.append("done"), told.append)
    assert told == []
    opened.log.view.raise_dtvlsn(Vlsn(4))
    opened.log.care.checkpointer.release()
    assert [type(each) for each in told] == [RollbackProhibited]
    assert opened.log.view.range.last == 5
    assert sorted(opened.entries()) == [2, 3, 4, 5]


def test_a_group_that_is_rolled_back_gives_way_to_the_one_before_it_after_a_checkpoint_too() -> None:
    """The state record is of what stays for ever."""
    machine = Machine()
    opened = Undurable(machine, durable=2)
    groups = [GroupEntry("g", [Member("n1", url, "0" * 16)]) for url in ("http://a:1", "http://b:1")]
    for group in groups:
        opened.log.append_entries([EntryKind.GROUP], [group.encode()], lambda _: None)
    opened.log.care.checkpointer.run()
    assert (opened.log.view.history.group_vlsn, opened.log.view.history.group) == (3, groups[1])
    record = opened.log.care.state.record()
    assert record is not None
    assert (record.vlsn, record.group_vlsn) == (2, 2)
    opened.log.stop_sealing(NotMaster("a rollback"))
    opened.log.rollback(Vlsn(2), lambda: None, lambda error: pytest.fail(str(error)))
    assert (opened.log.view.history.group_vlsn, opened.log.view.history.group) == (2, groups[0])
    machine.kill()
    again = Undurable(machine, durable=2)
    assert (again.log.view.history.group_vlsn, again.log.view.history.group) == (2, groups[0])
    assert again.notes == []


def test_a_rollback_stopped_at_any_disk_call_is_finished_or_has_not_begun() -> None:
    def prepared(seed: int) -> Undurable:
        opened = Undurable(Machine(seed))
        for number in range(90):
            opened.append(str(number).encode() * 300)  # more than one segment
        return opened

    opened = prepared(1)
    begun = len(opened.machine.disk.calls)
    rolled_back(opened, 4)
    numbers = [call.number for call in opened.machine.disk.calls[begun:] if call.changes]
    assert len(numbers) >= 90
    ends = set()
    for number in numbers[::3]:
        opened = prepared(number)
        before = opened.entries()
        opened.machine.disk.stop_at(number)
        with pytest.raises(StopHere):
            rolled_back(opened, 4)
        opened.machine.power_cut(tear=True)
        again = Opened(opened.machine)
        found = again.entries()
        kept = {vlsn: value for vlsn, value in before.items() if vlsn <= 4}
        assert found in (before, kept), f"half a rollback is seen after a stop at call {number}"
        ends.add(found == kept)
        assert again.append(b"on").synced
    assert ends == {True, False}


@pytest.mark.parametrize("seed", range(8))
def test_marks_hold_when_an_open_no_longer_reads_their_record(seed: int) -> None:
    """Nothing sets a missing flag again after a checkpoint: by then each of them is on the medium."""
    machine = Machine(seed)
    opened = Undurable(machine)
    for number in range(90):
        opened.append(str(number).encode() * 900)  # three segments
    rolled_back(opened, 4)
    opened.durable = 1 << 40
    opened.take_term()
    opened.append(b"another life")
    opened.log.care.checkpointer.run()
    held = opened.entries()
    machine.power_cut(tear=True)
    assert Opened(machine).entries() == held
    assert verify(machine.disk, machine.stores, DIRECTORY, live=True).ok


def test_a_mark_that_no_record_explains_is_damage() -> None:
    machine = Machine()
    opened = Undurable(machine)
    for value in (b"a", b"b", b"c"):
        opened.append(value)
    at = opened.frames_after(2)[0]
    machine.kill()
    path = f"{DIRECTORY}/{segment_name(lsn_file(at))}"
    content = bytearray(machine.disk.content(path))
    content[lsn_offset(at) + 3] = 0xA5
    machine.disk.write_content(path, bytes(content))
    with pytest.raises(Damaged) as raised:
        Opened(machine)
    assert raised.value.vlsn == 3
