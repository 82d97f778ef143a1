"""Verdicts on a window by words are those by its fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlsn.format.block import BLOCK, KIND_COLUMN, EntryKind
from vlsn.format.columns import KEYS, KINDS, PRODUCERS, TXNS, layout
from vlsn.format.frame import FRAME_BYTES, FrameKind, build_header, padded
from vlsn.format.scan import Offsets
from vlsn.verify import by_sidecar
from vlsn.verify.by_sidecar import Columns, Window
from vlsn.verify.uniform_blocks import COLUMNS, Rows, take_plain

SALT = 0x5A17_C0DE
HEADERS_BYTES = FRAME_BYTES + BLOCK.size


class Made(NamedTuple):
    entries: int
    value_bytes: int
    key_bytes: int
    submissions: int


class Frames(NamedTuple):
    """Frames that follow on one another from ``base`` on, the first of them on one of ``before`` bytes."""

    buf: bytearray
    base: int
    offsets: Offsets
    before: int

    @property
    def end(self) -> int:
        return self.base + len(self.buf)

    def plain(self, into: Rows) -> bool:
        return take_plain(self.buf, self.base, self.offsets, end=self.end, before=self.before, salt=SALT, into=into)

    def by_field(self) -> Rows | None:
        columns = Columns()
        columns.start(len(self.offsets))
        window = Window(0, len(self.offsets), self.base, self.end)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(by_sidecar, "take_plain", lambda *_, **__: False)
            patch.setattr(by_sidecar, "are_whole", lambda _: True)  # bodies are zeros
            if not columns.add(self.buf, window, self.offsets, before=self.before, salt=SALT):
                return None
        found = columns.inspected(self.offsets, self.end)
        return np.array([found.block_offsets, found.firsts, found.lasts, found.terms, found.dtvlsns, found.clocks])


def frames(made: Sequence[Made], *, flags: int, kind: int, base: int = 4096, before: int = 0) -> Frames:
    buf, offsets, prev, first = bytearray(), [], before, 7
    for each in made:
        key_bytes = each.key_bytes + 1 if flags & KEYS else 0
        submissions = min(each.submissions + bool(flags & PRODUCERS), each.entries)
        end = layout(flags, each.entries, key_bytes, each.value_bytes, submissions).end
        column = KIND_COLUMN if flags & KINDS else kind
        sizes = (submissions, key_bytes, each.value_bytes, end - BLOCK.size, 0, 0)
        block = BLOCK.pack(1, flags, column, 0, each.entries, 3, first, first - 1, first * 7, *sizes).ljust(end, b"\0")
        offsets.append(base + len(buf))
        head = build_header(FrameKind.BLOCK, block, offset=offsets[-1], prev=prev, synced=base, salt=SALT)
        buf += (head + block).ljust(prev := FRAME_BYTES + padded(end), b"\0")
        first += each.entries
    return Frames(buf, base, np.array(offsets, dtype=np.int64), before)


makes = st.builds(Made, st.integers(1, 70), st.integers(0, 300), st.integers(0, 40), st.integers(0, 5))
windows = st.builds(
    frames,
    st.lists(makes, min_size=1, max_size=12) | st.integers(1, 12).map(lambda count: [Made(1, 100, 3, 1)] * count),
    flags=st.sampled_from([0, 0, KEYS, KINDS, TXNS, PRODUCERS, KEYS | PRODUCERS, KINDS | TXNS | PRODUCERS | KEYS]),
    kind=st.sampled_from(EntryKind),
    base=st.sampled_from([4096, 65_544]),
    before=st.sampled_from([0, 200]),
).filter(lambda made: made.base > 4096 or not made.before)


@settings(max_examples=100, deadline=None)
@given(windows)
def test_blocks_of_one_make_are_known_by_words_alone(made: Frames) -> None:
    into = np.zeros((COLUMNS, len(made.offsets)), dtype=np.int64)
    assert made.plain(into)
    fields = made.by_field()
    assert fields is not None
    assert np.array_equal(into, fields)


@settings(max_examples=300, deadline=None)
@given(windows, st.data())
def test_whatever_stands_in_the_headers_words_say_no_more_than_fields(made: Frames, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        offset = int(data.draw(st.sampled_from(made.offsets.tolist())))
        at = offset - made.base + data.draw(st.integers(0, HEADERS_BYTES - 1))
        written = data.draw(st.binary(min_size=1, max_size=8) | st.sampled_from([b"\0", b"\xff" * 4, b"\xff" * 8]))
        made.buf[at : at + len(written)] = written[: len(made.buf) - at]
    into = np.zeros((COLUMNS, len(made.offsets)), dtype=np.int64)
    if made.plain(into):
        fields = made.by_field()
        assert fields is not None
        assert np.array_equal(into, fields)


def test_every_bit_of_the_headers_that_fields_miss_is_missed_by_words() -> None:
    """Checksums alone tell such a bit: one that fields find is never taken for right."""
    made = frames([Made(1, 100, 0, 1)] * 3, flags=0, kind=EntryKind.DATA)
    into = np.zeros((COLUMNS, 3), dtype=np.int64)
    unseen = set()
    for offset in made.offsets.tolist():
        for at in range(HEADERS_BYTES):
            for bit in range(8):
                made.buf[offset - made.base + at] ^= 1 << bit
                said = made.plain(into)
                assert said <= (made.by_field() is not None), (offset, at, bit)
                if said:
                    unseen.add(at)
                made.buf[offset - made.base + at] ^= 1 << bit
    clock_and_crcs = {*range(20, 24), *range(24 + 32, 24 + 40), *range(24 + 56, 24 + 64)}
    synced, vlsns = {*range(12, 16)}, {*range(24 + 8, 24 + 32)}  # another value of these may be right
    assert clock_and_crcs <= unseen
    assert unseen <= clock_and_crcs | synced | vlsns | {24 + 2, 24 + 40}, sorted(unseen)
