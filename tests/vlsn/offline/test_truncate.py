"""Truncation by an operator: what it shows, what it refuses, and a disk that stops at every call of it."""

from __future__ import annotations

import pytest

from tests.vlsn.logs import DIRECTORY, Machine, Opened, put
from tests.vlsn.write.test_cleaning import clean, filled, last_of, numbers
from vlsn.errors import BadArgument, Damaged, LogInUse, VlsnLogError
from vlsn.format.segment import segment_name
from vlsn.ids import Vlsn, lsn_file, lsn_offset
from vlsn.offline.truncate import Floor, Loss, Truncation, accept_floor, floor_of, loss_of
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import StopHere


class Alone(Opened):
    """A log whose group acknowledges nothing."""

    def synced(self, last_vlsn: Vlsn) -> None:
        pass


def machine_with(
    held: dict[int, bytes], *, seed: int = 0, count: int = 60, size: int = 2500, clean: bool = True
) -> Machine:
    """VLSN 1 is a TERM entry, then ``count`` entries, a checkpoint in the middle; all durable, over three segments."""
    machine = Machine(seed)
    opened = Opened(machine)
    put(opened, held, count // 2, size=size)
    opened.log.care.checkpointer.run()
    put(opened, held, count - count // 2, size=size)
    if clean:
        opened.close()
    machine.kill()
    return machine


def loss(machine: Machine, after: int) -> Loss:
    return loss_of(machine.disk, machine.stores, DIRECTORY, after)


def truncated(machine: Machine, after: int) -> NodeRecord:
    ended: list[NodeRecord] = []
    errors: list[BaseException] = []
    truncation = Truncation(machine.seams(), DIRECTORY, after, done=ended.append, failed=errors.append)
    truncation.close()
    if errors:
        raise errors[0]
    (record,) = ended
    return record


def record_of(machine: Machine) -> NodeRecord:
    return node_file.read(machine.disk, f"{DIRECTORY}/node.id")


def test_what_would_be_lost_is_told_exactly_and_nothing_is_written() -> None:
    machine = Machine()
    opened = Opened(machine)
    put(opened, {}, 5)
    opened.close()
    machine.kill()
    opened = Opened(machine)  # a second term: its TERM entry is VLSN 7
    put(opened, {}, 3)
    opened.close()
    machine.kill()
    calls = len(machine.disk.calls)
    found = loss(machine, 4)
    assert (found.first, found.last, found.entries, found.blocks) == (5, 10, 6, 6)
    assert [(run.term, run.first, run.last) for run in found.terms] == [(1, 5, 6), (2, 7, 10)]
    assert (found.dtvlsn, found.durable) == (10, 6)
    assert 5 * 700 < found.bytes < 5 * 900
    assert not [call for call in machine.disk.calls[calls:] if call.changes]
    whole = loss(machine, 10)
    assert (whole.first, whole.entries, whole.durable) == (0, 0, 0)


@pytest.mark.parametrize("after", [45, 20, 2])
def test_the_log_ends_there_and_goes_on_and_the_rest_stays_in_the_dump(after: int) -> None:
    held: dict[int, bytes] = {}
    machine = machine_with(held)
    record = truncated(machine, after)
    machine.kill()
    assert (record.floor_term, record.floor_vlsn) == (1, 61)
    report = verify(machine.disk, machine.stores, DIRECTORY)
    (given_up,) = report.findings  # what was durable: a person's matter, and said
    assert (given_up.rule, given_up.vlsn) == (Rule.OVERMARKED_DURABLE, after + 1)
    assert (report.last, report.torn_tail) == (after, False)
    again = Opened(machine, take_term=False)
    assert again.log.view.dtvlsn == after
    assert again.entries() == {vlsn: value for vlsn, value in held.items() if vlsn <= after}
    again.take_term()
    more = again.append(b"after")
    assert (more.synced, more.first) == (True, after + 2)
    assert again.entries()[after + 2] == b"after"
    assert record_of(machine).floor_vlsn == 61  # not reached yet: it stays


def test_what_was_durable_before_is_not_taken_for_durable_after_a_crash() -> None:
    machine = machine_with({}, clean=False)  # its checkpoint says that VLSN 31 is durable
    machine.disk.stop_at(lambda call: call.name == "write" and call.size == 1)  # the first flag
    with pytest.raises(StopHere):
        truncated(machine, 20)
    machine.kill()
    opened = Alone(machine)
    for number in range(30):
        opened.append(b"nobody has acknowledged this %d" % number)
    machine.kill()
    again = Opened(machine, take_term=False)
    assert again.log.view.range.last > 45
    assert again.log.view.dtvlsn <= 20


def test_a_disk_that_fails_at_any_call_ends_it_once_and_leaves_no_half() -> None:
    held: dict[int, bytes] = {}
    machine = machine_with(held)
    begun = len(machine.disk.calls)
    truncated(machine, 20)
    numbers = [call.number for call in machine.disk.calls[begun:] if call.changes or call.name == "read"]
    kept = {vlsn: value for vlsn, value in held.items() if vlsn <= 20}
    outcomes = set()
    for number in numbers:
        machine = machine_with({}, seed=number)
        machine.disk.fail_at(number)
        told: list[object] = []
        try:
            Truncation(machine.seams(), DIRECTORY, 20, done=told.append, failed=told.append).close()
        except OSError:
            told.append("before it began")
        assert len(told) == 1, f"{len(told)} ends at disk call {number}: {told}"
        machine.kill()
        again = Opened(machine, take_term=False)
        found = again.entries()
        assert found in (held, kept), f"half a truncation is seen after an error at disk call {number}"
        if isinstance(told[0], NodeRecord):
            assert found == kept, number
        outcomes.add((isinstance(told[0], NodeRecord), found == kept))
    assert {(False, False), (False, True)} <= outcomes


def test_what_cannot_be_is_refused_and_nothing_is_written() -> None:
    machine = Machine()
    opened = Opened(machine)
    opened.append(b"a", b"b", b"c")  # VLSN 2 to 4, one block
    opened.append(b"d")
    with pytest.raises(LogInUse):
        loss(machine, 4)
    with pytest.raises(LogInUse):
        truncated(machine, 4)
    opened.close()
    machine.kill()
    calls = len(machine.disk.calls)
    for after, said in ((0, "it holds VLSN 1 to 5"), (6, "it holds VLSN 1 to 5"), (3, "cut after 1 or 4")):
        with pytest.raises(BadArgument, match=said):
            loss(machine, after)
    assert not [call for call in machine.disk.calls[calls:] if call.changes]
    for after in (3, 6):
        with pytest.raises(VlsnLogError):
            truncated(machine, after)
        machine.kill()
        assert loss(machine, 4).last == 5
        assert record_of(machine).floor_vlsn == 0
    with pytest.raises(FileNotFoundError):
        loss_of(machine.disk, machine.stores, "/nowhere", 3)


def test_a_damaged_log_is_not_cut() -> None:
    machine = machine_with({}, clean=False)
    opened = Opened(machine, take_term=False)
    at = opened.frames_after(40)[0]
    opened.close()
    machine.kill()
    path = f"{DIRECTORY}/{segment_name(lsn_file(at))}"
    content = bytearray(machine.disk.content(path))
    content[lsn_offset(at) + 300] ^= 1
    machine.disk.write_content(path, bytes(content))
    with pytest.raises(Damaged) as raised:
        loss(machine, 20)
    assert raised.value.vlsn == 41
    assert loss(machine, 45).entries == 16


def test_a_cleaned_log_begins_where_it_did_also_when_the_index_is_lost_on_the_way() -> None:
    machine = Machine()
    opened, held = filled(machine)
    clean(opened)
    first = opened.log.view.range.first
    after = last_of(opened, numbers(machine)[1])
    opened.close()
    machine.kill()
    with pytest.raises(BadArgument, match=f"it holds VLSN {first} to"):
        loss(machine, first - 1)
    machine.disk.stop_at(lambda call: call.name == "write" and call.size == 1)  # the first flag
    with pytest.raises(StopHere):
        truncated(machine, after)
    machine.kill()
    machine.stores.contents.pop(f"{DIRECTORY}/index")
    report = verify(machine.disk, machine.stores, DIRECTORY)
    assert [each.rule for each in report.findings] == [Rule.OVERMARKED_DURABLE]
    assert (report.first, report.last) == (first, after)
    again = Opened(machine, take_term=False)
    assert again.log.view.range.first == first
    assert again.entries() == {vlsn: value for vlsn, value in held.items() if first <= vlsn <= after}


def test_a_floor_not_yet_reached_is_not_lowered_and_a_person_lifts_it() -> None:
    machine = machine_with({})
    truncated(machine, 40)
    machine.kill()
    truncated(machine, 20)
    machine.kill()
    floor = floor_of(machine.disk, machine.stores, DIRECTORY)
    assert floor == Floor(1, 61, 1, 20)
    assert floor.holds
    before = record_of(machine)
    accept_floor(machine.disk, DIRECTORY)
    after = record_of(machine)
    assert (after.floor_term, after.floor_vlsn) == (0, 0)
    assert (after.incarnation, after.term) == (before.incarnation, before.term + 1)
    assert not floor_of(machine.disk, machine.stores, DIRECTORY).holds
    lock = machine.disk.lock(f"{DIRECTORY}/LOCK")
    with pytest.raises(LogInUse):
        accept_floor(machine.disk, DIRECTORY)
    lock.release()


def test_a_floor_that_the_log_has_reached_does_not_hold() -> None:
    machine = machine_with({})
    truncated(machine, 55)
    machine.kill()
    put(Opened(machine), {}, 10)
    machine.kill()
    assert not floor_of(machine.disk, machine.stores, DIRECTORY).holds
