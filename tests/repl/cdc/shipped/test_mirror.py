"""How a mirror cuts what it appends: in order, nothing left out, no transaction cut, and within limits."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from repl.cdc.shipped.mirror import _parts
from repl.client.batch_rows import ROW_OVERHEAD_BYTES
from vlsn.format.block import Entry
from vlsn.ids import Term, Vlsn

RUNS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), min_size=1, max_size=9)), min_size=1, max_size=20)


def events_of(runs: list[tuple[bool, list[int]]]) -> list[Entry]:
    """Makes events: each run is a transaction, or plain entries; an entry of the log's own ends a transaction."""
    events: list[Entry] = []
    vlsn = 1
    for is_transaction, sizes in runs:
        first = vlsn
        for size in sizes:
            events.append(Entry(Vlsn(vlsn), Term(1), 1, 0, first if is_transaction else 0, None, bytes(size)))
            vlsn += 1
        vlsn += is_transaction
    return events


def size(events: list[Entry]) -> int:
    return sum(len(event.value) + ROW_OVERHEAD_BYTES for event in events)


@given(RUNS, st.integers(1, 400), st.integers(1, 12))
def test_parts_are_the_events_and_cut_no_transaction(
    runs: list[tuple[bool, list[int]]], bytes_max: int, entries_max: int
) -> None:
    events = events_of(runs)
    parts = list(_parts(events, bytes_max, entries_max))
    assert [event for part in parts for event in part] == events and all(parts)
    whole = [{event.txn for event in part if event.txn} for part in parts]
    assert sum(map(len, whole)) == len(set().union(*whole)), "no transaction is in two parts"
    for part in parts:
        alone = len(list(groupby(part, lambda event: event.txn or -event.vlsn))) == 1
        assert alone or (size(part) <= bytes_max and len(part) <= entries_max)
    for one, other in pairwise(parts):  # and none is smaller than it had to be
        head = [event for event in other if event.txn and event.txn == other[0].txn] or other[:1]
        assert size(one) + size(head) > bytes_max or len(one) + len(head) > entries_max
