"""The tables of a cut log (names, settings, producers, transactions, acknowledgements) are those of a log that only
ever had the entries that are left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Waiting, contents
from tests.vlsn.offline.test_truncate import loss, record_of, truncated
from tests.vlsn.state.test_producers_of_a_log import blocks_of
from tests.vlsn.write.test_cleaning import KEEPING, clean, fill
from vlsn.durability import SYNCED, GroupDurability
from vlsn.errors import BadArgument
from vlsn.format import block
from vlsn.format.block import EntryKind
from vlsn.format.feed_messages import Position, blocks_message, split_blocks
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.records import AckNote, CommitEntry, Settings
from vlsn.format.submission import Transaction, Values
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCERS_MIN
from vlsn.state.options import LogOptions
from vlsn.state.state_store import StateRecord
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import StopHere

NAMES: Final = ("consumer/a", "consumer/b", "dest/c", "sink/d")
UUIDS: Final = ("00000000000000aa", "00000000000000bb")
LEVEL_AT: Final = 2
"""The VLSN that sets the level, behind the TERM entry."""


@dataclass(slots=True)
class Story:
    """A log of one node that sets all that a log can, and checkpoints."""

    machine: Machine
    options: LogOptions = SMALL
    opened: Opened = field(init=False)
    names: dict[str, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    """The values of each name, with the VLSNs that set them: the plain model of the small state."""
    _handles: int = 0

    def __post_init__(self) -> None:
        self.opened = Opened(self.machine, self.options)
        self.commit(CommitEntry(set=Settings(level=3)))

    def commit(self, commit: CommitEntry) -> None:
        if commit.set.level is not None:
            self.opened.log.promises.store_level(commit.set.level, lambda _: None)
        self.opened.log.append_entries([EntryKind.COMMIT], [commit.encode()], lambda _: None)

    def entry(self) -> None:
        self.opened.append(b"plain")

    def submission(self, producer: int, *, anew: bool = False) -> None:
        life = self.opened.log.view.history.producers.find(producer, at=self.opened.log.view.allocated + 1)
        sequence = life.next if life is not None and not anew else 0
        self.opened.log.append(Waiting([b"."], submission=Values([b"."], None, (producer, sequence))))

    def crowd(self) -> None:
        """More producers than the log may be set to know."""
        for producer in range(100, 100 + PRODUCERS_MIN + 6):
            self.submission(producer)

    def put(self, name: str, value: int | None) -> None:
        self._handles += 1
        told = CommitEntry.putting({name: value}).encode()
        whole = Transaction([Values([b"of it"])], told, (self._handles, HANDLE_SEQUENCE))
        self.opened.log.append(Waiting([], submission=whole))
        text = msgspec.json.encode(value) if value is not None else None
        self.names.setdefault(name, []).append((self.opened.log.view.range.last, text))

    def settings(self, producers: int | None, durability: GroupDurability | None) -> None:
        self.commit(CommitEntry(set=Settings(producers=producers, durability=durability)))

    def note(self, uuid: str, kind: str) -> None:
        last = int(self.opened.log.view.range.last)
        note = {
            "begin": AckNote(begin=1),
            "done": AckNote(done=VlsnSet.of([max(1, last - 3), last]).pack()),
            "over": AckNote(over=True),
        }[kind]
        whole = Transaction((), CommitEntry(acks={uuid: note}).encode())
        self.opened.log.append(Waiting([], submission=whole))

    def checkpoint(self) -> None:
        self.opened.log.care.checkpointer.run()

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.opened.close()
        self.machine.kill()
        self.opened = Opened(self.machine, self.options)

    def stop(self) -> list[bytes]:
        """Stops the node; returns its blocks."""
        blocks = blocks_of(self.opened)
        self.opened.close()
        self.machine.kill()
        return blocks

    def set_at(self, vlsn: int) -> dict[str, tuple[int, bytes]]:
        found = {}
        for name, puts in self.names.items():
            at, value = [(0, None), *(put for put in puts if put[0] <= vlsn)][-1]
            if value is not None:
                found[name] = (at, value)
        return found


def summed(blocks: list[bytes], last: int) -> StateRecord:
    """Returns the sum of a log that only ever had these blocks up to ``last``, and never a state record."""
    replica = Opened(Machine(99), take_term=False)
    for data in blocks:
        header = block.decode(data)
        if header.last_vlsn <= last:
            position = Position(last_vlsn=1, dtvlsn=0, clock_us=0, term=header.term)
            message = blocks_message(position, [data])
            run = split_blocks(message, expected_first=header.first_vlsn, term_min=1, term_max=header.term)
            replica.log.append_blocks(run, lambda error: None)
    return tables(replica, last)


def tables(opened: Opened, last: int) -> StateRecord:
    assert opened.log.view.range.last == last
    return msgspec.structs.replace(opened.log.view.snapshot(Vlsn(last))(), trimmed_to=Vlsn(0), first_segment=0)


def ends_of(blocks: list[bytes]) -> list[int]:
    return [int(block.decode(data).last_vlsn) for data in blocks]


STEPS: Final = st.one_of(
    st.just(Story.entry),
    st.builds(
        lambda producer, anew: lambda on: on.submission(producer, anew=anew), st.sampled_from((7, 8)), st.booleans()
    ),
    st.just(Story.crowd),
    st.builds(
        lambda name, value: lambda on: on.put(name, value),
        st.sampled_from(NAMES),
        st.one_of(st.none(), st.integers(1, 9)),
    ),
    st.builds(
        lambda producers, durability: lambda on: on.settings(producers, durability),
        st.sampled_from((PRODUCERS_MIN, PRODUCERS_MIN + 3, None)),
        st.sampled_from((None, SYNCED, GroupDurability("write_no_sync", "sync"))),
    ),
    st.builds(
        lambda uuid, kind: lambda on: on.note(uuid, kind),
        st.sampled_from(UUIDS),
        st.sampled_from(("begin", "done", "done", "over")),
    ),
    st.just(Story.checkpoint),
    st.builds(lambda clean: lambda on: on.reopen(clean=clean), st.booleans()),
)


@given(steps=st.lists(STEPS, min_size=1, max_size=25), data=st.data())
def test_a_cut_logs_tables_are_those_of_a_log_that_only_ever_had_what_is_left(
    steps: list[Callable[[Story], None]], data: st.DataObject
) -> None:
    story = Story(Machine())
    for step in steps:
        step(story)
    blocks = story.stop()
    # What sets the level is not cut away.
    after = data.draw(st.sampled_from([end for end in ends_of(blocks) if end >= LEVEL_AT]), "the last VLSN to be kept")
    truncated(story.machine, after)
    story.machine.kill()
    found = tables(Opened(story.machine, take_term=False), after)
    assert found == summed(blocks, after)
    assert found.small.values == story.set_at(after)


def tell(story: Story, turn: int) -> None:
    """Changes everything once."""
    story.put(NAMES[0], turn)
    story.submission(7)
    story.settings(PRODUCERS_MIN + turn, GroupDurability("write_no_sync", "sync") if turn > 1 else None)
    story.note(UUIDS[0], "done")


def told(machine: Machine) -> tuple[Story, list[bytes], int]:
    """A stopped log whose checkpoint lies behind changes of everything that it had before: its blocks, and the VLSN
    that lies between."""
    story = Story(machine)
    for uuid in UUIDS:
        story.note(uuid, "begin")
    tell(story, 1)
    after = int(story.opened.log.view.range.last)
    tell(story, 2)
    story.put(NAMES[1], 5)
    story.note(UUIDS[1], "over")
    story.checkpoint()
    return story, story.stop(), after


@pytest.mark.parametrize("end", ["kill", "power_cut", "torn"])
def test_a_cut_stopped_at_any_disk_call_leaves_the_tables_of_the_log_that_is_there(end: str) -> None:
    machine = Machine()
    _, blocks, after = told(machine)
    begun, last = len(machine.disk.calls), ends_of(blocks)[-1]
    truncated(machine, after)
    numbers = [call.number for call in machine.disk.calls[begun:] if call.changes]
    assert len(numbers) >= 40
    wanted = {length: summed(blocks, length) for length in (after, last)}
    ends = set()
    for number in (*numbers, 0):
        told(machine := Machine())
        if number:
            machine.disk.stop_at(number)
        with pytest.raises(StopHere) if number else nullcontext():
            truncated(machine, after)
        machine.end(end)
        note, floor = f"{end} at disk call {number}", record_of(machine)
        report = verify(machine.disk, machine.stores, DIRECTORY)
        assert {each.rule for each in report.findings} <= {Rule.OVERMARKED_DURABLE}, note
        for _ in range(2):  # what the open has read it keeps at its end
            again = Opened(machine, take_term=False)
            length = int(again.log.view.range.last)
            assert tables(again, length) == wanted[length], note
            if length == after:
                assert floor.floor_vlsn == last and again.log.view.dtvlsn <= after, note
            again.close()
            machine.kill()
        ends.add(length)
    assert ends == {after, last}


def cleaned(machine: Machine, *, changed: bool) -> tuple[Opened, list[bytes], int]:
    """A log that begins behind what it was told; ``changed``: some of it is told anew, behind the VLSN that comes with
    it and before the state record's."""
    story = Story(machine, KEEPING)
    story.put(NAMES[0], 1)
    story.put(NAMES[2], 2)
    story.submission(7)
    story.settings(PRODUCERS_MIN, None)
    story.note(UUIDS[0], "begin")
    fill(story.opened, 8)
    after = int(story.opened.log.view.range.last)
    if changed:
        story.put(NAMES[2], None)
        story.submission(7)
        story.settings(PRODUCERS_MIN + 1, None)
        story.note(UUIDS[0], "done")
    fill(story.opened, 9)
    story.checkpoint()
    blocks = blocks_of(story.opened)
    clean(story.opened)
    assert story.opened.log.view.range.first > LEVEL_AT + 6
    return story.opened, blocks, after


def test_a_cleaned_log_is_not_cut_where_only_what_is_gone_would_tell() -> None:
    opened, _, after = cleaned(machine := Machine(), changed=True)
    settled, first = opened.log.care.state.record(), opened.log.view.range.first
    assert settled is not None and settled.vlsn > after
    opened.close()
    machine.kill()
    before = contents(machine), dict(machine.stores.contents[f"{DIRECTORY}/state"].values)
    for cut in (loss, truncated):
        with pytest.raises(BadArgument, match=f"cleaned up to VLSN {first - 1}") as raised:
            cut(machine, after)
        machine.kill()
        said = str(raised.value)
        for name in (NAMES[2], f"{7:016x}", "settings", UUIDS[0], str(settled.vlsn)):
            assert name in said, said
        assert NAMES[0] not in said
        assert (contents(machine), machine.stores.contents[f"{DIRECTORY}/state"].values) == before
    truncated(machine, int(settled.vlsn))


def test_a_cleaned_log_is_cut_where_nothing_has_changed_since() -> None:
    opened, blocks, after = cleaned(machine := Machine(), changed=False)
    opened.close()
    machine.kill()
    assert loss(machine, after).first == after + 1
    truncated(machine, after)
    machine.kill()
    again = Opened(machine, KEEPING, take_term=False)
    first = again.log.view.range.first
    wanted = summed(blocks, after)
    runs = [(term, max(first, begin), last) for term, begin, last in wanted.term_runs if last >= first]
    found = tables(again, after)
    assert found == msgspec.structs.replace(wanted, term_runs=runs, txn_end=found.txn_end)
    assert {name: value for name, (_, value) in found.small.values.items()} == {NAMES[0]: b"1", NAMES[2]: b"2"}
