"""The events of BLOCKS messages, against a plain list of the blocks' entries."""

from __future__ import annotations

import gc
import weakref
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.cdc import messages
from repl.cdc.child.events import AT_ONCE, Events
from vlsn.errors import BadBody
from vlsn.format import block as block_format
from vlsn.format.block import Entry, EntryKind
from vlsn.format.columns import columns_of
from vlsn.format.records import TermEntry
from vlsn.format.rows import EntryRows
from vlsn.ids import Term, Vlsn

CLOCK_US = 1_800_000_000_000_000
TERM = Term(3)
DATA = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=12)), min_size=1, max_size=6)
RUNS = st.lists(st.none() | DATA, min_size=1, max_size=8)
"""Blocks of keys and values; None: the log's own, of one entry."""


def blocks_of(runs: list[list[tuple[bytes, bytes]] | None], first: int) -> tuple[list[bytes], list[Entry]]:
    """Builds blocks that follow on one another from VLSN ``first`` on, and lists the entries of users in them."""
    blocks, entries, at = [], [], first
    for number, rows in enumerate(runs):
        kind, values, keys = EntryKind.DATA, [value for _, value in rows or []], [key for key, _ in rows or []]
        if rows is None:
            kind, values, keys = EntryKind.TERM, [TermEntry(TERM, "n1", "0" * 15 + "1").encode()], [b""]
        columns = columns_of(values, keys if any(keys) else None)
        blocks.append(
            block_format.build(
                term=TERM,
                first_vlsn=at,
                dtvlsn=0,
                clock_us=CLOCK_US + number,
                kind=kind,
                columns=columns,
                submissions=1,
            )
        )
        if rows is not None:
            entries += [
                Entry(Vlsn(at + row), TERM, CLOCK_US + number, 0, 0, key or None, value)
                for row, (key, value) in enumerate(rows)
            ]
        at += len(values)
    return blocks, entries


def message_of(blocks: list[bytes]) -> bytes:
    last = block_format.decode_header(blocks[-1]).last_vlsn
    return messages.blocks(last + 1, last, blocks)


@given(RUNS, st.integers(1, 1 << 40), st.data())
def test_events_are_the_users_entries_from_the_next_one_on(
    runs: list[list[tuple[bytes, bytes]] | None], first: int, data: st.DataObject
) -> None:
    blocks, entries = blocks_of(runs, first)
    last = block_format.decode_header(blocks[-1]).last_vlsn
    begin = data.draw(st.integers(first, last))
    events = Events(message_of(blocks), begin)
    wanted = [entry for entry in entries if entry.vlsn >= begin]
    assert events.next_vlsn == (begin if wanted else last + 1)
    taken = []
    while not events.over:
        taken.append(next(events))
        left = [entry.vlsn for entry in wanted[len(taken) :]]
        assert events.next_vlsn == (taken[-1].vlsn + 1 if left else last + 1)
        assert events.term == TERM
    assert taken == wanted
    assert list(events) == []
    assert (events.last_time, events.bytes) == (CLOCK_US + len(runs) - 1, len(message_of(blocks)))


@pytest.mark.parametrize("count", [AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_many_entries_are_cut_a_part_at_a_time(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, entries = blocks_of([[(b"", b"%d" % number) for number in range(count)]], 7)
    cut: list[int] = []
    whole = EntryRows.entries

    def entries_of(self: EntryRows, chosen: slice) -> list[Entry]:
        found = whole(self, chosen)
        cut.append(len(found))
        return found

    monkeypatch.setattr(EntryRows, "entries", entries_of)
    events = Events(message_of(blocks), 7)
    assert next(events) == entries[0] and sum(cut) == min(count, AT_ONCE)
    assert list(events) == entries[1:] and sum(cut) == count and max(cut) <= AT_ONCE


@pytest.mark.long
@given(RUNS, st.data())
def test_the_position_is_right_however_events_are_taken(
    runs: list[list[tuple[bytes, bytes]] | None], data: st.DataObject
) -> None:
    """By ``next``, by loops that break off, and by slices, in parts of two."""
    blocks, entries = blocks_of(runs, 1)
    last = block_format.decode_header(blocks[-1]).last_vlsn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repl.cdc.child.events.AT_ONCE", 2)
        events = Events(message_of(blocks), 1)
        taken: list[Entry] = []
        while not events.over:
            wanted = data.draw(st.integers(0, 4))
            match data.draw(st.sampled_from(["next", "loop", "slice"])):
                case "next":
                    taken += [event for _ in range(wanted) if (event := next(events, None)) is not None]
                case "loop":
                    for event in events:
                        taken.append(event)
                        if data.draw(st.booleans()):
                            break
                case _:
                    taken += islice(events, wanted)
            assert taken == entries[: len(taken)]
            left = entries[len(taken) :]
            assert events.over is not bool(left)
            assert events.given == (taken[-1].vlsn if taken else 0)
            assert events.next_vlsn == (last + 1 if not left else taken[-1].vlsn + 1 if taken else 1)
        assert taken == entries


def test_blocks_are_let_go_of_though_nothing_was_asked_for_behind_the_last_event() -> None:
    blocks, entries = blocks_of([[(b"", b"a"), (b"", b"b")]], 10)
    events = Events(message_of(blocks), 10)
    assert [next(events), next(events)] == entries and events.over
    gone = weakref.ref(events)
    events.close()
    gc.disable()
    try:
        del events
        assert gone() is None, "it waits for no garbage collection"
    finally:
        gc.enable()


@pytest.mark.parametrize("begin", [1, 9, 12, 100])
def test_a_message_that_is_not_the_next_one_is_refused(begin: int) -> None:
    blocks, _ = blocks_of([[(b"", b"a"), (b"", b"b")]], 10)
    with pytest.raises(BadBody):
        Events(message_of(blocks), begin)


@given(st.data())
def test_a_message_with_any_bit_of_its_blocks_flipped_is_refused(data: st.DataObject) -> None:
    blocks, _ = blocks_of([[(b"k", b"value"), (b"", b"")], None], 10)
    message = bytearray(message_of(blocks))
    at = data.draw(st.integers(40 * 8, len(message) * 8 - 1))
    message[at // 8] ^= 1 << at % 8
    with pytest.raises(BadBody):
        Events(bytes(message), 10)
