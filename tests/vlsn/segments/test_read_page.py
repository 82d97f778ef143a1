"""Gathering entries against a plain list, and what one entry of many costs."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import blocks
from vlsn.format import block
from vlsn.format.block import Entry, EntryKind
from vlsn.format.seal import seal
from vlsn.format.submission import Values
from vlsn.limits import BATCH_ENTRIES_MAX
from vlsn.segments.gathering import Gathering

KINDS = st.none() | st.frozensets(st.sampled_from([int(kind) for kind in EntryKind]))


def size(entry: Entry) -> int:
    return len(entry.value) + len(entry.key or b"")


@given(blocks(), st.integers(0, 100), st.integers(1, 100), st.integers(-1, 300), KINDS)
def test_take_gives_a_run_of_what_entries_gives(
    data: bytes, skip: int, limit: int, bytes_max: int, kinds: frozenset[int] | None
) -> None:
    header = block.decode(data)
    start = header.first_vlsn + skip % header.count
    found, after, taken = block.take(
        memoryview(data), header, from_vlsn=start, limit=limit, bytes_max=bytes_max, kinds=kinds
    )
    every = {entry.vlsn: entry for entry in block.entries(data, header)}
    looked_at = [every[vlsn] for vlsn in range(start, after)]  # type: ignore[index]
    assert looked_at
    assert found == [entry for entry in looked_at if kinds is None or entry.kind in kinds]
    if not found and kinds is not None and header.kind not in (*kinds, block.KIND_COLUMN):
        assert (after, taken) == (header.last_vlsn + 1, 0)  # none of it was looked into
        return
    assert len(looked_at) <= limit
    assert taken == sum(map(size, looked_at))
    assert taken <= bytes_max or len(looked_at) == 1
    if after <= header.last_vlsn and len(looked_at) < limit:
        assert taken + size(every[after]) > bytes_max  # one more had no room


def chain(counts: list[list[int]]) -> tuple[list[bytes], list[Entry]]:
    """Returns blocks that follow on one another, each of values of so many bytes, and all their entries."""
    found, first = [], 3
    for lengths in counts:
        sealed = seal([Values([b"v" * each for each in lengths])], term=2, first_vlsn=first, dtvlsn=1, clock_us=9)
        found += [each.data for each in sealed]
        first += len(lengths)
    return found, [entry for data in found for entry in block.entries(data, block.decode(data))]


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=90), min_size=1, max_size=5),
    st.integers(0, 300),
    st.integers(1, 120),
    st.integers(1, 1500),
)
def test_an_answer_holds_what_a_walk_over_all_entries_would_give(
    counts: list[list[int]], skip: int, limit: int, bytes_max: int
) -> None:
    data, every = chain(counts)
    start = 3 + skip % len(every)
    gathered = Gathering(start, limit=limit, bytes_max=bytes_max, kinds=None)
    for each in data:
        header = block.decode(each)
        if header.last_vlsn >= start and not gathered.add(each, header):
            break
    expected: list[Entry] = []
    room = bytes_max
    for entry in every[start - 3 :]:
        if expected and (len(expected) >= limit or room <= 0 or size(entry) > room):
            break
        expected.append(entry)
        room -= size(entry)
    assert gathered.entries == expected
    assert gathered.next_vlsn == start + len(expected)


def test_one_entry_of_the_largest_block_costs_one_entry() -> None:
    (sealed,) = seal([Values([b"v" * 8] * BATCH_ENTRIES_MAX)], term=1, first_vlsn=2, dtvlsn=1, clock_us=1)
    header = block.decode(sealed.data)
    tracemalloc.start()
    try:
        gathered = Gathering(40_000, limit=1, bytes_max=1, kinds=None)
        assert not gathered.add(sealed.data, header)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [entry.vlsn for entry in gathered.entries] == [40_000]
    assert peak < 16 << 10
