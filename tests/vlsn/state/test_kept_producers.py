"""Producers at checkpoints: from level 2 on each has a key of its own, and what changed is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable, Waiting
from tests.vlsn.state.test_producers_of_a_log import blocks_of
from tests.vlsn.write.test_rollback import rolled_back
from vlsn.errors import Damaged
from vlsn.format import block
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry, Settings
from vlsn.format.submission import Values
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCERS_AT_LEVEL_1, PRODUCERS_DEFAULT, PRODUCERS_MIN
from vlsn.state.history import History
from vlsn.state.producers import ProducersRecord
from vlsn.state.state_store import RECORD_KEY, StateRecord, StateStore
from vlsn.verify.verify import verify
from vlsn.write.queue import Pending
from vlsnlog.testing.fakes.disk import StopHere

STATE = f"{DIRECTORY}/state"
NAMES = PRODUCERS_MIN + 20


def log_settings(opened: Opened, settings: Settings) -> None:
    if settings.level is not None:
        opened.log.promises.store_level(settings.level, lambda _: None)
    opened.log.append_entries([EntryKind.COMMIT], [CommitEntry(set=settings).encode()], lambda _: None)


def raised(machine: Machine) -> Opened:
    opened = Opened(machine)
    log_settings(opened, Settings(level=2))
    return opened


def append(opened: Opened, producer: int, *, count: int = 1) -> None:
    life = opened.log.view.history.producers.find(producer, at=opened.log.view.allocated + 1)
    sequence = life.next if life is not None else 0
    pendings: list[Pending] = []
    for number in range(count):
        pending = Waiting([b"."])
        pending.submission = Values([b"."], None, (producer, sequence + number))
        pendings.append(pending)
        opened.log.append(pending)


def checkpointed(opened: Opened) -> None:
    done: list[object] = []
    opened.log.care.checkpointer.run(done=done.append, failed=done.append)
    assert done and not isinstance(done[0], BaseException)


def stored(machine: Machine) -> dict[bytes, bytes]:
    """Returns the lives under keys."""
    return {
        key: value for key, (value, _) in machine.stores.contents[STATE].values.items() if key[:1] == b"p" and key[1:]
    }


def record_of(machine: Machine) -> StateRecord:
    """Returns the record as it lies there."""
    return msgspec.json.decode(machine.stores.contents[STATE].values[RECORD_KEY][0], type=StateRecord)


def read_anew(opened: Opened, upto: int) -> ProducersRecord:
    """Returns what the visible blocks up to ``upto`` add up to, read from the first to the last."""
    history = History()
    blocks = [data for data in blocks_of(opened) if block.decode(data).last_vlsn <= upto]
    for data in blocks:
        header = block.decode(data)
        if any(entry.kind for entry in block.entries(data, header)):
            history.note_block(data)
        history.note_submissions(block.producers(data, header))
    return history.producers.snapshot(Vlsn(upto))()


def check_kept(opened: Opened) -> None:
    """The table in the store is that of the log up to the record's VLSN."""
    record = opened.log.care.state.record()
    assert record is not None
    whole = read_anew(opened, record.vlsn)
    assert (record.producers.lives, record.producers.forgotten_to) == (whole.lives, whole.forgotten_to)


def check_known(opened: Opened) -> None:
    last = opened.log.view.range.last
    assert opened.log.view.history.producers.snapshot(last)() == read_anew(opened, last)


def test_below_level_2_the_record_has_them_and_from_there_on_they_have_keys() -> None:
    machine = Machine()
    opened = Opened(machine)
    append(opened, 7, count=3)
    checkpointed(opened)
    assert record_of(machine).producers.lives and not stored(machine)
    log_settings(opened, Settings(level=2))
    checkpointed(opened)
    record = record_of(machine).producers
    assert (record.lives, record.keyed, record.count, len(stored(machine))) == (b"", True, 1, 1)
    check_kept(opened)
    machine.kill()
    again = Opened(machine)
    check_known(again)
    again.close()
    assert verify(machine.disk, machine.stores, DIRECTORY).ok


def test_a_checkpoint_writes_those_that_changed_and_no_other() -> None:
    machine = Machine()
    opened = raised(machine)
    for producer in range(1, 30):
        append(opened, producer, count=2)
    checkpointed(opened)
    before = stored(machine)
    append(opened, 5)
    append(opened, 40)
    checkpointed(opened)
    after = stored(machine)
    assert {key[-1] for key in after if after[key] != before.get(key)} == {5, 40}
    machine.kill()
    again = Opened(machine)
    check_known(again)
    image = dict(machine.stores.contents[STATE].values)
    append(again, 6)
    checkpointed(again)
    check_kept(again)
    changed = {key for key, value in machine.stores.contents[STATE].values.items() if image.get(key) is not value}
    assert {key for key in changed if len(key) == 9} == {b"p" + (6).to_bytes(8, "big")}, "the first after an open, too"


def test_the_limit_is_that_of_the_level_or_what_the_group_sets() -> None:
    machine = Machine()
    opened = Opened(machine)
    table = opened.log.view.history.producers
    assert table.limit == PRODUCERS_AT_LEVEL_1
    log_settings(opened, Settings(level=2))
    assert table.limit == PRODUCERS_DEFAULT
    log_settings(opened, Settings(producers=PRODUCERS_MIN))
    assert table.limit == PRODUCERS_MIN
    for producer in range(1, NAMES):
        append(opened, producer)
    assert len(table) == PRODUCERS_MIN
    log_settings(opened, Settings(producers=PRODUCERS_MIN + 10))
    checkpointed(opened)
    assert len(stored(machine)) == PRODUCERS_MIN
    machine.kill()
    again = Opened(machine)
    assert again.log.view.history.producers.limit == PRODUCERS_MIN + 10
    assert again.log.view.history.set == Settings(producers=PRODUCERS_MIN + 10)
    for producer in range(NAMES, NAMES + 30):
        append(again, producer)
    assert len(again.log.view.history.producers) == PRODUCERS_MIN + 10
    check_known(again)


def test_a_rollback_takes_the_limit_back_and_whoever_was_put_out_by_it() -> None:
    machine = Machine()
    opened = Undurable(machine, durable=10**9)
    log_settings(opened, Settings(level=2))
    for producer in range(1, NAMES):
        append(opened, producer)
    checkpointed(opened)
    matchpoint = opened.durable = int(opened.log.view.range.last)
    log_settings(opened, Settings(producers=PRODUCERS_MIN))
    append(opened, 200)
    assert len(opened.log.view.history.producers) == PRODUCERS_MIN
    checkpointed(opened)
    assert len(stored(machine)) == NAMES - 1, "what may be rolled back is not kept"
    rolled_back(opened, matchpoint)
    assert opened.log.view.history.producers.limit == PRODUCERS_DEFAULT
    opened.take_term()
    append(opened, 201)
    opened.durable = 10**9
    opened.log.view.raise_dtvlsn(opened.log.view.range.last_sync)
    check_known(opened)
    checkpointed(opened)
    check_kept(opened)
    assert len(stored(machine)) == NAMES


def prepared(seed: int) -> Opened:
    """Returns a log whose next checkpoint has to write lives, cut some short, and take others away."""
    opened = raised(Machine(seed))
    log_settings(opened, Settings(producers=PRODUCERS_MIN))
    for producer in range(1, PRODUCERS_MIN):
        append(opened, producer, count=2)
    checkpointed(opened)
    for producer in range(PRODUCERS_MIN, NAMES):
        append(opened, producer)
    append(opened, PRODUCERS_MIN - 1, count=3)
    return opened


def stopped_checkpoints(prepared: Callable[[int], Opened], how: str) -> Iterator[Machine]:
    """Yields a machine for each call of such a checkpoint, of the disk or the stores, at which it ended."""
    opened = prepared(0)
    old = record_of(opened.machine).vlsn
    before = len(opened.machine.disk.calls)
    checkpointed(opened)
    calls = range(before + 1, len(opened.machine.disk.calls) + 1)
    assert len(calls) > 4
    for number in calls:
        opened = prepared(0)
        machine = opened.machine
        machine.disk.stop_at(number)
        with pytest.raises(StopHere):
            opened.log.care.checkpointer.run()
        machine.end(how)
        assert record_of(machine).vlsn == old, "the transaction is the last call, and has not come"
        yield machine
        assert verify(machine.disk, machine.stores, DIRECTORY).ok, number


@pytest.mark.parametrize("how", ["kill", "power cut", "torn"])
def test_a_checkpoint_stopped_at_any_call_leaves_the_one_before_or_all_of_it(how: str) -> None:
    for machine in stopped_checkpoints(prepared, how):
        again = Opened(machine)
        check_kept(again)
        check_known(again)
        append(again, 5)
        append(again, 300)
        checkpointed(again)
        check_kept(again)
        again.close()


def test_a_life_that_is_missing_or_under_anothers_key_is_damage() -> None:
    for damage in ("missing", "another"):
        machine = Machine()
        opened = raised(machine)
        append(opened, 7)
        append(opened, 8)
        checkpointed(opened)
        opened.close()
        store = machine.stores.open(STATE, map_bytes=1)
        seven, eight = (b"p" + producer.to_bytes(8, "big") for producer in (7, 8))
        value = store.get(eight)
        assert value is not None
        store.write([(seven, value)] if damage == "another" else [], [seven] if damage == "missing" else [])
        with pytest.raises(Damaged, match="under key"):
            StateStore(store).record()
        store.close()
        again = Opened(machine)
        assert any("set aside" in note for note in again.notes), again.notes
        check_known(again)
