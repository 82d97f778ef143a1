"""Acknowledgements at checkpoints: each destination has a key of its own, and only what changed is written."""

from __future__ import annotations

import json

import pytest

from tests.sim.destinations import unpacked
from tests.vlsn.logs import Machine, Opened
from tests.vlsn.state.test_kept_producers import STATE, checkpointed, log_settings, stopped_checkpoints
from tests.vlsn.state.test_producers_of_a_log import blocks_of
from vlsn.format import block
from vlsn.format.block import EntryKind
from vlsn.format.records import AckNote, CommitEntry, Settings
from vlsn.format.vlsn_set import VlsnSet
from vlsn.state.state_store import PREFIXES
from vlsnlog.testing.fakes.disk import StopHere

KEPT, CHANGED, DROPPED, MADE = (f"{number:016x}" for number in range(1, 5))
Plain = dict[str, tuple[set[int], set[int]]]
"""Sets of what is acknowledged, and of what is dead, by uuid."""


def note(opened: Opened, **notes: AckNote) -> None:
    """Logs one COMMIT, durable on return."""
    acks = {uuid.removeprefix("_"): each for uuid, each in notes.items()}
    opened.log.append_entries([EntryKind.COMMIT], [CommitEntry(acks=acks).encode()], lambda _: None)
    opened.log.view.raise_dtvlsn(opened.log.view.range.last_sync)
    opened.log.view.fold_acks()


def done(*vlsns: int, dead: tuple[int, ...] = ()) -> AckNote:
    return AckNote(done=VlsnSet.of(vlsns).pack(), dead=VlsnSet.of(dead).pack() if dead else b"")


def in_log(opened: Opened, upto: int) -> Plain:
    """Returns what the COMMITs of the log up to ``upto`` add up to, read by nothing of the product but its blocks."""
    found: Plain = {}
    for data in blocks_of(opened):
        for entry in block.entries(data, block.decode(data)):
            if entry.kind != EntryKind.COMMIT or entry.vlsn > upto:
                continue
            for uuid, told in json.loads(entry.value).get("acks", {}).items():
                if told.get("over"):
                    found.pop(uuid, None)
                    continue
                if told.get("begin") is not None:
                    found[uuid] = set(range(1, told["begin"])), set()
                found[uuid][0].update(unpacked(told.get("done", "")))
                found[uuid][1].update(unpacked(told.get("dead", "")))
    return found


def known(opened: Opened) -> Plain:
    opened.log.view.raise_dtvlsn(opened.log.view.range.last_sync)
    opened.log.view.fold_acks()
    found = {}
    for uuid in (KEPT, CHANGED, DROPPED, MADE):
        acked = opened.log.view.history.acks.folded.get(uuid)
        if acked is not None:
            found[uuid] = set(acked.done.vlsns().tolist()), set(acked.dead.vlsns().tolist())
    return found


def kept(machine: Machine) -> set[str]:
    """Returns the uuids under keys of their own."""
    keys = machine.stores.contents[STATE].values
    return {key[1:].hex() for key in keys if key.startswith(PREFIXES["acks"]) and len(key) > 1}


def check(opened: Opened) -> None:
    assert known(opened) == in_log(opened, opened.log.view.range.last)
    record = opened.log.care.state.record()
    assert record is not None
    stored = {
        uuid: (set(VlsnSet.unpack(table.done).vlsns().tolist()), set(VlsnSet.unpack(table.dead).vlsns().tolist()))
        for uuid, table in record.acks.tables.items()
    }
    assert stored == in_log(opened, record.vlsn)


def prepared(seed: int) -> Opened:
    """Returns a log whose next checkpoint has to write two destinations, leave one alone, and take one away."""
    opened = Opened(Machine(seed))
    log_settings(opened, Settings(level=3))
    for _ in range(8):
        opened.append(b".")
    note(opened, **{f"_{uuid}": AckNote(begin=1) for uuid in (KEPT, CHANGED, DROPPED)})
    note(opened, **{f"_{uuid}": done(1, 2, 5) for uuid in (KEPT, CHANGED, DROPPED)})
    checkpointed(opened)
    note(opened, **{f"_{CHANGED}": done(3, 7, dead=(7,)), f"_{DROPPED}": AckNote(over=True)})
    note(opened, **{f"_{MADE}": AckNote(begin=4)})
    note(opened, **{f"_{MADE}": done(6), f"_{CHANGED}": done(4)})
    return opened


def test_a_checkpoint_keeps_what_changed_and_takes_away_what_was_dropped() -> None:
    opened = prepared(0)
    assert kept(opened.machine) == {KEPT, CHANGED, DROPPED}
    checkpointed(opened)
    assert kept(opened.machine) == {KEPT, CHANGED, MADE}
    check(opened)
    opened.machine.kill()
    check(Opened(opened.machine))


@pytest.mark.parametrize("how", ["kill", "power cut", "torn"])
def test_a_checkpoint_stopped_at_any_call_leaves_the_one_before_or_all_of_it(how: str) -> None:
    for machine in stopped_checkpoints(prepared, how):
        assert kept(machine) == {KEPT, CHANGED, DROPPED}
        again = Opened(machine)
        check(again)
        note(again, **{f"_{MADE}": done(8), f"_{KEPT}": done(3)})
        checkpointed(again)
        check(again)
        again.close()


@pytest.mark.parametrize("how", ["kill", "power cut", "torn"])
def test_an_ack_whose_log_call_is_stopped_is_whole_or_not_there_and_an_answered_one_stays(how: str) -> None:
    """From the note's first disk call to the one behind its answer: the table after a reopen is that of the log."""
    opened = prepared(0)
    before = len(opened.machine.disk.calls)
    note(opened, **{f"_{KEPT}": done(3, 4), f"_{CHANGED}": done(5)})
    whole = known(opened)
    calls = range(before + 1, len(opened.machine.disk.calls) + 1)
    assert len(calls) >= 2
    seen = []
    for number in (*calls, None):
        opened = prepared(0)
        without = known(opened)
        machine = opened.machine
        if number is None:
            note(opened, **{f"_{KEPT}": done(3, 4), f"_{CHANGED}": done(5)})
        else:
            machine.disk.stop_at(number)
            with pytest.raises(StopHere):
                note(opened, **{f"_{KEPT}": done(3, 4), f"_{CHANGED}": done(5)})
        machine.end(how)
        again = Opened(machine)
        check(again)
        assert known(again) in (without, whole)
        seen.append(known(again) == whole)
    assert seen[-1], "what was answered is there"
    assert not seen[0]
