"""A filter by key chooses by column what a look at each entry would, and looks no further than it may."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder
from tests.vlsn.format.test_rows import KINDS, START, Story, stories
from vlsn.errors import BadArgument
from vlsn.format import block as block_format
from vlsn.format.block import Entry
from vlsn.format.frame import FrameKind
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import EntryRows
from vlsn.limits import KEY_BYTES_MAX
from vlsnlog.testing.fakes.disk import FakeDisk


def wanted(entry: Entry, keys: KeyFilter) -> bool:
    key = entry.key or b""
    return key.startswith(keys.key) if keys.prefix else key == keys.key


@st.composite
def filters(draw: st.DrawFn, entries: list[Entry]) -> KeyFilter:
    """Filters by keys of the log, by pieces of them, and by others; binary and empty ones too."""
    some = draw(st.sampled_from(entries)).key or b""
    key = draw(st.sampled_from([some, some[:3], some[:-1], some + b"\0", b"", b"\xff\x00"]) | st.binary(max_size=3))
    return KeyFilter(key, prefix=draw(st.booleans()))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(stories(), KINDS, st.integers(1, 50), st.integers(1, 4_000), st.integers(1, 3_000), st.data())
def test_pages_with_a_filter_are_the_entries_that_it_wants(
    story: Story, kinds: frozenset[int] | None, limit: int, bytes_max: int, look: int, data: st.DataObject
) -> None:
    upto = story.entries[-1].vlsn
    at = data.draw(st.integers(1, upto))
    keys = data.draw(filters(story.entries))
    expected = [
        each
        for each in story.entries
        if each.vlsn >= at and (kinds is None or each.kind in kinds) and wanted(each, keys)
    ]
    reader, start, found = story.reader(), story.frame_of(at), []
    while at <= upto:
        run = reader.entries(
            at,
            start=start,
            upto_vlsn=upto,
            limit=limit,
            bytes_max=bytes_max,
            kinds=kinds,
            keys=keys,
            look_bytes_max=look,
        )
        assert run.next_vlsn > at
        assert len(run.entries) <= limit
        found += run.entries
        at, start = run.next_vlsn, run.next_lsn
    assert found == expected


@settings(max_examples=100, deadline=None)
@given(stories(), st.data())
def test_blocks_that_lie_apart_are_filtered_as_those_of_a_segment(story: Story, data: st.DataObject) -> None:
    keys = data.draw(filters(story.entries))
    blocks = [each.payload for each in story.built.frames if each.kind == FrameKind.BLOCK]
    rows = EntryRows.joined([memoryview(block) for block in blocks])
    assert keys.mask(rows).tolist() == [wanted(each, keys) for each in story.entries]
    assert [keys.has(each.key) for each in story.entries] == [wanted(each, keys) for each in story.entries]
    assert rows.entries(slice(0, rows.rows)) == story.entries


def test_long_keys_that_differ_in_one_byte_anywhere_are_told_apart() -> None:
    key = bytes(range(256)) * 2
    others = [key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :] for at in range(0, len(key), 7)]
    held = [key, *others, key[:-1], key + b"\0"]
    columns = block_format.columns_of([b""] * len(held), held)
    block = block_format.build(term=1, first_vlsn=1, dtvlsn=0, clock_us=1, kind=0, columns=columns, submissions=1)
    rows = EntryRows.joined([block])
    assert KeyFilter(key).mask(rows).nonzero()[0].tolist() == [0]
    assert KeyFilter(key, prefix=True).mask(rows).nonzero()[0].tolist() == [0, len(held) - 1]
    almost = KeyFilter(key[:-1], prefix=True).mask(rows).nonzero()[0].tolist()
    assert almost == [at for at, each in enumerate(held) if each.startswith(key[:-1])]


def test_a_scan_that_finds_nothing_stops_where_it_was_told_to() -> None:
    built = LogBuilder(FakeDisk(), "/d", segment_bytes=1 << 20)
    for _ in range(200):
        built.block(b"x" * 1_000, keys=[b"key"])
    built.write()
    reader = Story(built, []).reader()
    run = reader.entries(
        1, start=START, upto_vlsn=200, limit=10, bytes_max=1 << 20, keys=KeyFilter(b"none"), look_bytes_max=20_000
    )
    assert not run.entries
    assert 18 <= run.next_vlsn <= 22
    reader.close()


def test_what_no_entry_can_have_or_two_filters_at_once_are_refused() -> None:
    assert KeyFilter.of(None, None) is None
    assert KeyFilter.of(None, b"") is None
    assert KeyFilter.of(b"", None) == KeyFilter(b"")
    assert KeyFilter.of(None, b"a") == KeyFilter(b"a", prefix=True)
    with pytest.raises(BadArgument):
        KeyFilter.of(b"a", b"a")
    with pytest.raises(BadArgument):
        KeyFilter.of(bytes(KEY_BYTES_MAX + 1), None)
