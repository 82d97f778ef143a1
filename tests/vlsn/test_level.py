"""The level of a log: kept by checkpoints, taken back by rollbacks, and unknown to old records."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.vlsn.logs import Machine, Opened, Undurable, contents
from vlsn.errors import BadArgument, BadBody, Damaged, WrongVersion
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry, Settings
from vlsn.format.segment import HEADER_PAGE, SegmentHeader, segment_name
from vlsn.levels import BRINGS, LEVEL_MAX, Levels
from vlsn.levels import LEVELS as SPOKEN
from vlsn.seams import Seams
from vlsn.state import node_file
from vlsn.state.state_store import RECORD_KEY, StateStore

MAP_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlsn.levels.LEVELS", Levels(1, 2))


class Later(Machine):
    """Runs a binary that speaks level 2."""

    levels = Levels(1, 2)

    def seams(self) -> Seams:
        return replace(super().seams(), levels=self.levels)


def raised(opened: Opened, level: int = 2) -> int:
    """Returns the VLSN of an entry that sets it, durable on return; the node file says it before."""
    log = opened.log
    stored: list[BaseException | None] = []
    log.promises.store_level(level, stored.append)
    assert stored == [None]
    at: list[int] = []
    log.append_entries([EntryKind.COMMIT], [CommitEntry(set=Settings(level=level)).encode()], at.append)
    assert log.view.history.level == level
    log.view.raise_dtvlsn(log.view.range.last_sync)
    return at[0]


def checkpointed(opened: Opened) -> None:
    done: list[object] = []
    opened.log.view.raise_dtvlsn(opened.log.view.range.last_sync)
    opened.log.care.checkpointer.run(done=done.append, failed=done.append)
    assert done and not isinstance(done[0], BaseException)


def header_levels(machine: Machine, opened: Opened) -> list[int]:
    found = []
    for number in opened.log.view.segments():
        file = machine.disk.open(f"/log/{segment_name(number)}")
        found.append(SegmentHeader.decode(file.read(0, HEADER_PAGE)).level)
        file.close()
    return found


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_level_outlives_checkpoints_and_opens(checkpoint: bool, clean: bool) -> None:
    machine = Later(1)
    opened = Opened(machine)
    opened.append(b"a")
    assert (opened.log.view.level, opened.log.view.history.level) == (1, 1)
    at = raised(opened)
    opened.append(b"b")
    assert opened.log.view.level == 2
    if checkpoint:
        checkpointed(opened)
        record = opened.log.care.state.record()
        assert record is not None and (record.level, record.level_vlsn) == (2, at)
    if clean:
        opened.close()
    else:
        machine.kill()
    again = Opened(machine)
    assert again.log.view.history.level == 2 and again.log.view.history.levels == [(at, 2)]
    assert sorted(again.entries().values()) == [b"a", b"b"]
    assert again.log.node_file.record.level == 2
    again.close()


def test_what_is_not_durable_may_not_be_used_yet_and_goes_with_a_rollback() -> None:
    machine = Later(2)
    opened = Undurable(machine, durable=2)
    opened.append(b"a")
    log = opened.log
    matchpoint = log.view.range.last
    log.promises.store_level(2, lambda _: None)
    log.append_entries([EntryKind.COMMIT], [CommitEntry(set=Settings(level=2)).encode()], lambda _: None)
    assert (log.view.history.level, log.view.level) == (2, 1)
    log.stop_sealing(BadArgument("this node leads no more"))
    log.rollback(matchpoint, lambda: None, lambda _: None)
    assert (log.view.history.level, log.view.level) == (1, 1)
    machine.kill()
    again = Opened(machine)
    assert (again.log.view.history.level, again.log.view.level) == (1, 1)
    assert again.log.node_file.record.level == 2, "what was promised stays promised"
    again.close()


def test_segments_that_are_prepared_from_then_on_bear_the_level() -> None:
    machine = Later(3)
    opened = Opened(machine)
    opened.append(b"a")
    raised(opened)
    for _ in range(3):
        opened.log.cycle.rotate("request")
        opened.append(b"more")
    assert header_levels(machine, opened) == [1, 1, 2, 2]
    opened.close()
    machine.levels = Levels(1, 1)
    machine.disk.remove("/log/node.id")  # lost: nothing else says what was promised
    before = contents(machine)
    with pytest.raises(WrongVersion, match=r"00000003\.vlog: a segment of version 2"):
        Opened(machine)
    assert contents(machine) == before


def test_an_older_binary_that_meets_the_entry_alone_refuses_and_touches_nothing() -> None:
    """The node file and the state record are lost: all that says it is the entry."""
    machine = Later(4)
    opened = Opened(machine)
    raised(opened)
    machine.kill()
    machine.disk.remove("/log/node.id")
    machine.stores.contents.clear()
    machine.levels = Levels(1, 1)
    before = contents(machine)
    with pytest.raises(WrongVersion, match="/log is of level 2; this vlsnlog speaks level 1: run a later one"):
        Opened(machine)
    assert contents(machine) == before
    machine.levels = Levels(1, 2)
    again = Opened(machine)
    assert again.log.view.history.level == 2 and again.log.node_file.record.level == 2
    again.close()


def test_a_log_below_what_a_binary_speaks_is_refused_too() -> None:
    machine = Later(5)
    opened = Opened(machine)
    opened.append(b"a")
    opened.close()
    machine.levels = Levels(2, 2)
    with pytest.raises(WrongVersion, match="raise the level with the release before this one first"):
        Opened(machine)


def lossy(machine: Machine) -> None:
    """The state record as a binary writes it that does not know its newer fields."""
    store = machine.stores.open("/log/state", map_bytes=MAP_BYTES)
    record = StateStore(store).record()
    assert record is not None and record.level == 2
    fields = msgspec.to_builtins(record)
    del fields["level"], fields["level_vlsn"]
    store.write([(RECORD_KEY, msgspec.json.encode(fields))])
    store.close()


def made_lossy(machine: Machine, *, rolls: int) -> None:
    opened = Opened(machine)
    opened.append(b"a")
    raised(opened)
    for _ in range(rolls):
        opened.log.cycle.rotate("request")
        opened.append(b"more")
    checkpointed(opened)
    opened.close()
    lossy(machine)


def test_a_state_record_below_the_logs_level_is_made_again_from_the_log() -> None:
    machine = Later(6)
    made_lossy(machine, rolls=3)
    again = Opened(machine)
    assert again.log.view.history.level == 2
    assert any("is of level 1, the log of level 2" in note for note in again.notes), again.notes
    checkpointed(again)
    record = again.log.care.state.record()
    assert record is not None and record.level == 2
    again.close()
    third = Opened(machine)
    assert third.log.view.history.level == 2 and not any("level" in note for note in third.notes)
    third.close()


def test_a_state_record_below_the_level_of_a_cleaned_log_is_damage_and_nothing_is_touched() -> None:
    """The sum of the entries that are gone is known elsewhere alone: the node is restored."""
    machine = Later(7)
    made_lossy(machine, rolls=3)
    store = machine.stores.open("/log/state", map_bytes=MAP_BYTES)
    record = StateStore(store).record()
    assert record is not None
    StateStore(store).save(record=msgspec.structs.replace(record, first_segment=1))
    store.close()
    before = contents(machine)
    with pytest.raises(Damaged, match="the state record is of level 1, the log of level 2, and the log was cleaned"):
        Opened(machine)
    assert contents(machine) == before


def test_a_node_file_that_promises_more_than_the_log_has_is_no_reason_to_doubt_it() -> None:
    """The node file is written first: a crash may come between."""
    machine = Later(8)
    opened = Opened(machine)
    opened.append(b"a")
    checkpointed(opened)
    opened.log.promises.store_level(2, lambda _: None)
    machine.kill()
    again = Opened(machine)
    assert again.log.view.history.level == 1 and again.log.node_file.record.level == 2
    assert again.notes == []
    again.close()


def test_the_node_file_keeps_its_level_and_its_sequence_through_other_changes() -> None:
    machine = Later(9)
    opened = Opened(machine)
    before = opened.log.node_file.record
    opened.log.promises.store_level(2, lambda _: None)
    record = opened.log.node_file.record
    assert (record.level, record.sequence) == (2, before.sequence), "an old image must not pass for a newer one"
    opened.log.node_file.replace(replace(record, term=record.term + 1))
    assert opened.log.node_file.record.level == 2
    opened.close()
    assert node_file.read(machine.disk, "/log/node.id").level == 2


@pytest.mark.parametrize("value", [b"", b"{}", b'{"set":{}}', b'{"set":{"quota":7},"handle":"9"}'])
def test_a_commit_that_sets_no_level_leaves_it(value: bytes) -> None:
    assert CommitEntry.decode(value).set.level is None


def test_a_level_is_a_number_in_its_range() -> None:
    assert CommitEntry.decode(CommitEntry(set=Settings(level=LEVEL_MAX)).encode()).set.level == LEVEL_MAX
    for level in (0, -1, LEVEL_MAX + 1, "2", 1.5):
        with pytest.raises(BadBody):
            CommitEntry.decode(msgspec.json.encode({"set": {"level": level}}))


def test_each_level_of_this_binary_says_what_it_brings() -> None:
    assert sorted(BRINGS) == list(range(2, SPOKEN.max + 1)) and all(BRINGS.values())
