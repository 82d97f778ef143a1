"""Inspects a sealed segment with its sidecar (a file with the segment's frame offsets and one checksum over all bytes).
The inspection needs no Python step for each frame.

The segment is read in windows, each of which has a number of complete frames, so only a few windows are in memory at a
time. A window stays in the processor's cache while its checksum is computed and its headers are checked by column.

    |header page|frame|frame|frame|frame|frame|…      crc32c runs over all windows: the sidecar's content_crc
    |------- window 1 ------|---- window 2 ---|

If anything deviates from the sidecar, this module gives up. ``inspection`` then goes through the segment frame by
frame, and names the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from vlsn.format import scan
from vlsn.format.block_heads import heads_good
from vlsn.format.checksum import crc
from vlsn.format.columns import PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.rows import Rows as BodyRows
from vlsn.format.scan import FRAME_DTYPE, Offsets
from vlsn.format.sidecar import Sidecar
from vlsn.limits import KIB
from vlsn.seams import Buffer, File, Reading, in_turn
from vlsn.verify.inspection import Inspected, fills_frame
from vlsn.verify.submissions import ROW, Submissions, submissions_of
from vlsn.verify.transactions import are_whole
from vlsn.verify.uniform_blocks import COLUMNS, Rows, take_plain

_FLAGS = FRAME_BYTES + 1
"""The offset of a block's byte of flags from the start of the block's frame."""
WINDOW_BYTES = 768 * KIB
"""The bytes of a window. A frame that is larger has a window of its own."""


class Columns:
    """Columns with the kept values of each block of a segment. The columns are overwritten for each segment, since
    touching new memory costs more than filling it. So the columns of one segment are valid only until the next segment
    is read."""

    def __init__(self) -> None:
        self._rows: Rows = np.empty((COLUMNS, 0), dtype=np.int64)
        self._unmarked = np.zeros(0, dtype=np.bool_)
        self._count = 0
        self._records: list[tuple[int, FrameKind, bytes]] = []
        self._submissions: list[Submissions] = []

    def start(self, frames: int) -> None:
        """Reserves space for ``frames`` rows in every column."""
        if self._rows.shape[1] < frames:
            self._rows = np.empty((COLUMNS, frames + frames // 8), dtype=np.int64)
            self._unmarked = np.zeros(self._rows.shape[1], dtype=np.bool_)
            self._unmarked.setflags(write=False)
        self._count = 0
        self._records = []
        self._submissions = []

    def add(self, buf: Buffer, window: Window, offsets: Offsets, *, before: int, salt: int) -> bool:
        """Adds the frames at ``offsets``, of one more window. Returns False if a frame is not valid, was abandoned by a
        rollback, or states something that it cannot know."""
        into = self._rows[:, self._count : self._count + len(offsets)]
        if take_plain(buf, window.start, offsets, end=window.stop, before=before, salt=salt, into=into):
            self._count += len(offsets)
            # if this is true, it is true of all blocks, since all have the same flags
            if buf[int(offsets[0]) - window.start + _FLAGS] & (TXNS | PRODUCERS):
                return self._add_bodies(buf, window.start, offsets, scan.block_headers(buf, window.start, offsets))
            return True
        found = scan.at_offsets(buf, base=window.start, offsets=offsets, end=window.stop, salt=salt)
        if len(found) != len(offsets) or found.end != window.stop or int(found.headers["prev"][0]) != before:
            return False
        return self._add_each(buf, window.start, found)

    def _add_each(self, buf: Buffer, base: int, found: scan.Walk) -> bool:
        headers = found.headers
        if headers["flag"].any() or (headers["synced"] > found.offsets).any():
            return False
        is_block = headers["kind"] == FrameKind.BLOCK
        if not is_block.all():
            self._add_records(buf, base, found.only(~is_block))
            found = found.only(is_block)
        heads = scan.block_headers(buf, base, found.offsets)
        if not (heads_good(heads) & fills_frame(heads, found.headers["length"].astype(np.int64))).all():
            return False
        start, self._count = self._count, self._count + len(found)
        places, firsts, lasts, terms, dtvlsns, clocks = self._rows[:, start : self._count]
        places[:] = found.offsets
        firsts[:] = heads["first_vlsn"]
        lasts[:] = heads["count"]
        lasts += firsts
        lasts -= 1
        terms[:] = heads["term"]
        dtvlsns[:] = heads["dtvlsn"]
        clocks[:] = heads["clock_us"]
        return self._add_bodies(buf, base, found.offsets, heads)

    def _add_bodies(self, buf: Buffer, base: int, offsets: Offsets, heads: scan.Headers) -> bool:
        """Adds the submissions of producers. Returns False if a block contains an incomplete transaction."""
        flags = heads["flags"]
        if not (flags & np.uint8(TXNS | PRODUCERS)).any():
            return True
        has = flags & np.uint8(PRODUCERS) != 0
        if has.any():
            self._submissions.append(submissions_of(buf, offsets[has], heads[has], base))
        has = flags & np.uint8(TXNS) != 0
        return not has.any() or are_whole(BodyRows(buf, offsets[has] - base + FRAME_BYTES, heads[has]))

    def _add_records(self, buf: Buffer, base: int, found: scan.Walk) -> None:
        kinds, lengths = found.headers["kind"].tolist(), found.headers["length"].tolist()
        for offset, kind, length in zip(found.offsets.tolist(), kinds, lengths, strict=True):
            begin = offset - base + FRAME_BYTES
            self._records.append((offset, FrameKind(kind), bytes(buf[begin : begin + length])))

    def inspected(self, offsets: Offsets, end: int) -> Inspected:
        """Returns the rows that were added. The rows are valid until the next ``start``."""
        places, firsts, lasts, terms, dtvlsns, clocks = self._rows[:, : self._count]
        return Inspected(
            offsets,
            np.zeros(0, dtype=FRAME_DTYPE),
            self._unmarked[: len(offsets)],
            [],
            end,
            False,
            block_offsets=places,
            firsts=firsts,
            lasts=lasts,
            terms=terms,
            dtvlsns=dtvlsns,
            clocks=clocks,
            marked=self._unmarked[: self._count],
            records=self._records,
            submissions=np.concatenate(self._submissions) if self._submissions else np.zeros(0, dtype=ROW),
            by_sidecar=True,
        )


def inspect_sealed(
    file: File, *, salt: int, end: int, sidecar: Sidecar, reading: Reading = in_turn, columns: Columns | None = None
) -> Inspected | None:
    """Inspects a segment. Returns None unless its sidecar proves every byte right and no rollback has abandoned any of
    its frames. If ``columns`` is passed, the result is stored in it."""
    if (sidecar.salt, sidecar.end) != (salt, end) or not len(sidecar.offsets):
        return None
    offsets = sidecar.offsets.astype(np.int64)
    columns = columns or Columns()
    columns.start(len(offsets))
    windows = list(_windows(offsets, end))
    checksum = before = 0
    ranges = [(window.start, window.stop - window.start) for window in windows]
    with closing(reading(file, ranges)) as pieces:
        for window, buf in zip(windows, pieces, strict=True):
            start, stop = window.start, window.stop
            if len(buf) != stop - start:
                return None
            checksum = crc(buf, checksum)
            frames = offsets[window.low : window.high]
            if not columns.add(buf, window, frames, before=before, salt=salt):
                return None
            before = stop - int(frames[-1])
    return columns.inspected(offsets, end) if checksum == sidecar.crc else None


class Window(NamedTuple):
    """A window: the frames ``low`` to ``high`` (exclusive) of a segment, and the range of their bytes. The first window
    also includes the header page."""

    low: int
    high: int
    start: int
    stop: int


def _windows(offsets: Offsets, end: int) -> Iterator[Window]:
    """Yields runs of frames, each with about ``WINDOW_BYTES`` bytes."""
    low = 0
    while low < len(offsets):
        high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + WINDOW_BYTES)))
        yield Window(low, high, int(offsets[low]) if low else 0, int(offsets[high]) if high < len(offsets) else end)
        low = high
