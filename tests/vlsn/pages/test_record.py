"""A record gives back the messages that were chosen, entry for entry, and nothing that its bytes do not say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.format.test_rows import START, Story, stories
from vlsn.errors import BadBody
from vlsn.format.block import Entry, EntryKind
from vlsn.pages.record import (
    HEAD_BYTES,
    WHOLE,
    Record,
    check_crc,
    gathered,
    head_at,
    messages_of,
    record_of,
)

SALT, PLACE = 0xDEAD_BEEF, 4096


def windows_of(story: Story) -> list[tuple[object, list[Entry]]]:
    reader, at, upto = story.reader(), 1, story.entries[-1].vlsn
    start, found = START, []
    while at <= upto:
        run = reader.rows(at, start=start, upto_vlsn=upto)
        for rows in run.windows:
            last = rows.first_vlsn + rows.rows - 1
            found.append((rows, [each for each in story.entries if rows.first_vlsn <= each.vlsn <= last]))
        at, start = run.next_vlsn, run.next_lsn
    return found  # type: ignore[return-value]


def written(record: Record, place: int = PLACE) -> bytes:
    return b"".join(bytes(piece) for piece in record.placed(place, SALT))


@settings(max_examples=80, deadline=None)
@given(stories(), st.data())
def test_a_record_gives_back_what_was_chosen(story: Story, data: st.DataObject) -> None:
    for rows, entries in windows_of(story):
        every = data.draw(st.booleans())
        keep = [
            entry for entry in entries if entry.kind == EntryKind.DATA and (every or data.draw(st.integers(0, 2)) == 0)
        ]
        vlsns = {entry.vlsn for entry in keep}
        wanted = np.array([entry.vlsn in vlsns for entry in entries])
        record = record_of(rows, wanted, covers_from=entries[0].vlsn, covers_to=entries[-1].vlsn)  # type: ignore[arg-type]
        if not keep:
            assert record is None
            continue
        assert record is not None
        raw = written(record)
        assert len(raw) == record.size
        assert len(raw) % 8 == 0
        head = head_at(raw, 0, offset=PLACE, salt=SALT)
        check_crc(raw, 0, head)
        messages = messages_of(raw, 0, head)
        assert messages.entries(slice(None)) == keep
        assert bool(head.flags & WHOLE) == (not record.flags & ~WHOLE and record.flags == WHOLE)
        if every:
            assert head.flags & WHOLE
        assert messages.sizes().tolist() == [len(each.key or b"") + len(each.value) for each in keep]
        assert head.key_bytes + head.value_bytes == int(messages.sizes().sum())
        some = np.flatnonzero(np.arange(len(keep)) % 2 == 0)
        assert messages.entries(some) == keep[::2]


@settings(max_examples=60, deadline=None)
@given(stories(), st.data())
def test_any_flipped_bit_of_a_record_is_seen(story: Story, data: st.DataObject) -> None:
    rows, entries = windows_of(story)[0]
    wanted = np.array([entry.kind == EntryKind.DATA for entry in entries])
    wanted &= np.arange(len(entries)) % data.draw(st.integers(1, 2)) == 0
    record = record_of(rows, wanted, covers_from=entries[0].vlsn, covers_to=entries[-1].vlsn)  # type: ignore[arg-type]
    if record is None:
        return
    raw = bytearray(written(record))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadBody):
        check_crc(bytes(raw), 0, head_at(bytes(raw), 0, offset=PLACE, salt=SALT))


def test_a_record_of_another_place_is_none() -> None:
    raw = bytes(HEAD_BYTES)
    with pytest.raises(BadBody):
        head_at(raw, 0, offset=PLACE, salt=SALT)


@given(st.binary(max_size=300), st.data())
def test_pieces_are_gathered_as_they_are_cut(raw: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), min_size=2, max_size=20)))
    pairs = [pair for pair in pairwise(cuts) if data.draw(st.booleans())]
    if not pairs:
        return
    starts, ends = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    assert gathered(raw, starts, ends) == b"".join(raw[start:end] for start, end in pairs)
