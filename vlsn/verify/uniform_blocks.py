"""Checks many blocks with the same columns at once, by words of 8 bytes. The module is the fast path when a segment is
checked with its sidecar (``by_sidecar``).

The header of a frame has three words, and the header of a block has eight. Each word is read for all frames of a window
at once, and conditions on several fields of a word are checked together:

    0                 8              16            24                        32     40     48
    |magic kind 0|len | prev | synced | salt | crc |version flags kind 0|count| term | first | dtvlsn | …
     └ one step, to the next frame      └ ^ offset   └ one value, or two

If the fast path finds a window right, the window is right. For any other window the fields are checked one by one. The
fast path gives up if the window has a local record, a rolled back block, blocks with different columns, or a fault.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, SUPPORTED, VERSION, EntryKind
from vlsn.format.columns import KEYS, KINDS, PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES, MAGIC, FrameKind
from vlsn.format.scan import Offsets
from vlsn.ids import NUMBER_MAX, U32_MAX
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX
from vlsn.seams import Buffer

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
COLUMNS = 6
"""The number of values that are kept for each block: offset, first and last VLSN, term, DTVLSN, clock."""

_LOW = np.uint64(U32_MAX)
_HIGH = np.uint64(32)
_EIGHTS = np.uint64(2**64 - 8)
_BLOCK = np.uint64(MAGIC | FrameKind.BLOCK << 16)
_STEP = np.uint64(31 << 32)
"""The part of a frame's length word that stands for its header, and for rounding up to the padding."""
_STEP_EIGHTS = np.uint64(2**64 - 1 ^ 7 << 32)
_FIRST_MAX = NUMBER_MAX - BATCH_ENTRIES_MAX


def take_plain(buf: Buffer, base: int, offsets: Offsets, *, end: int, before: int, salt: int, into: Rows) -> bool:
    """Returns whether the frames at ``offsets`` are blocks with the same columns, and correct in everything that
    checksums do not show. The frames end at ``end``, and the first frame's ``prev`` must lead to ``before``. On return,
    ``into`` has the kept values of each frame."""
    if end - int(offsets[-1]) < FRAME_BYTES + BLOCK_BYTES:
        return False
    words: Words = np.frombuffer(buf, "<u8", len(buf) // 8)
    window = _Window(words, (offsets - base) >> 3, offsets.view(np.uint64), end)
    return window.frames_right(salt, before) and window.blocks_right(into)


class _Window:
    def __init__(self, words: Words, at: Offsets, offsets: Words, end: int) -> None:
        self._words = words
        self._at = at
        self._offsets = offsets
        self._steps = np.empty_like(offsets)
        np.subtract(offsets[1:], offsets[:-1], out=self._steps[:-1])
        self._steps[-1] = end - int(offsets[-1])
        self._lengths = self._steps

    def frames_right(self, salt: int, before: int) -> bool:
        offsets, steps = self._offsets, self._steps
        kinds, prevs = self._word(0), self._word(1)
        kinds -= _BLOCK  # the remainder is the length, if all other fields are right
        good = ((kinds + _STEP) & _STEP_EIGHTS) == steps << _HIGH
        good[1:] &= (prevs[1:] & _LOW) == steps[:-1]
        good &= prevs <= (offsets << _HIGH | _LOW)  # ``synced`` is in the upper half
        good &= ((self._word(2) ^ offsets) & _LOW) == np.uint64(salt)
        self._lengths = kinds >> _HIGH
        return bool(good.all()) and int(prevs[0] & _LOW) == before

    def blocks_right(self, into: Rows) -> bool:
        heads, sizes, data = self._word(3), self._word(8), self._word(9)
        makes = heads & _LOW
        make = int(makes[0])
        if make & 0xFF != VERSION or not _is_make(flags := make >> 8 & 0xFF, make >> 16):
            return False
        if (heads == heads[0]).all():
            heads = heads[:1]
        counts, submissions = heads >> _HIGH, sizes & _LOW
        places, firsts, lasts, terms, dtvlsns, clocks = into.view(np.uint64)
        places[:] = self._offsets
        for column, number in (terms, 4), (firsts, 5), (dtvlsns, 6), (clocks, 7):
            self._words[number:].take(self._at, out=column, mode="clip")
        good = makes == makes[0]
        good &= counts - np.uint64(1) < np.uint64(BATCH_ENTRIES_MAX)
        good &= terms - np.uint64(1) < np.uint64(NUMBER_MAX)
        good &= (dtvlsns < firsts) & (firsts <= np.uint64(_FIRST_MAX)) & (submissions <= counts)
        keys = sizes >> _HIGH
        good &= (keys != 0) if flags & KEYS else (keys == 0)
        if flags & PRODUCERS:
            good &= submissions != 0
        good &= (data & _LOW) + _values_at(flags, counts, submissions, keys) == self._lengths
        good &= (data >> _HIGH) + np.uint64(BLOCK_BYTES) == self._lengths
        good &= self._lengths <= np.uint64(BLOCK_BYTES + BODY_BYTES_MAX)
        good &= clocks <= np.uint64(NUMBER_MAX)
        np.add(firsts, counts - np.uint64(1), out=lasts)
        return bool(good.all())

    def _word(self, number: int) -> Words:
        """Returns word ``number`` of each frame. All indices are in range; "clip" is used only because it costs
        less."""
        word: Words = self._words[number:].take(self._at, mode="clip")
        return word


def _is_make(flags: int, kind: int) -> bool:
    if flags & ~SUPPORTED:
        return False
    return kind == KIND_COLUMN if flags & KINDS else kind <= max(EntryKind)


def _values_at(flags: int, counts: Words, submissions: Words, keys: Words) -> Words:
    """Computes the offset of the values from each block's start."""
    at = ((np.uint64(4) * counts + np.uint64(11)) & _EIGHTS) + np.uint64(BLOCK_BYTES)
    if flags & KEYS:
        at = at + ((np.uint64(4) * counts + np.uint64(11)) & _EIGHTS) + ((keys + np.uint64(7)) & _EIGHTS)
    if flags & KINDS:
        at = at + ((counts + np.uint64(7)) & _EIGHTS)
    if flags & TXNS:
        at = at + np.uint64(8) * counts
    if flags & PRODUCERS:
        at = at + ((np.uint64(20) * submissions + np.uint64(7)) & _EIGHTS)
    return at
