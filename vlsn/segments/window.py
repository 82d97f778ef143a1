"""A reader's window of a segment: verified, consecutive blocks, up to the size that the caller wants.

A window has the bytes of some complete frames of one segment. A block in a window is used if it is visible, continues
the block before it, has wanted entries and a correct checksum. At the first block that is not used, the window ends.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct

import numpy as np
import numpy.typing as npt

from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, BlockHeader
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.rows import EntryRows
from vlsn.format.scan import Offsets, Walk
from vlsn.format.segment import segment_name
from vlsn.ids import NULL_VLSN, Lsn, Vlsn, lsn
from vlsn.limits import KIB, MIB
from vlsn.segments.gathering import Gathering

WINDOW_BYTES_MIN = 16 * KIB
WINDOW_BYTES_MAX = MIB
BLOCKS_FEW = 4
_HEADER = Struct("<BBBxIQQQQIIIIII")


class Stopped(Enum):
    LIMIT = auto()
    DAMAGED = auto()


class Taking:
    """The state of one call of a reader: the blocks that were read so far, and what is still wanted."""

    def __init__(self, from_vlsn: int, start: Lsn, upto_vlsn: int, bytes_max: int) -> None:
        self.want = from_vlsn
        self.at = start
        self.upto = upto_vlsn
        self.room = bytes_max
        self.first = NULL_VLSN
        """The first VLSN of the first block; 0 if no block was read yet."""
        self.expected = 0
        """The VLSN with which the next visible block must begin; 0 before the first block."""
        self.stopped: Stopped | None = None
        self._window = WINDOW_BYTES_MIN

    def window_bytes(self) -> int:
        """Returns the size of the next window: the remaining size with headers. The size is small soon after a mapping
        of the index, and then grows."""
        size = min(max(self.room + self.room // 4, self._window), WINDOW_BYTES_MAX)
        self._window *= 4
        return size

    def take(self, buf: bytes, base: int, found: Walk, number: int) -> Window | None:
        """Reads the wanted blocks of one window, and moves ``at`` to the position after them. Raises ``WrongVersion``
        for a block of a later version."""
        window = None
        if not len(found):
            self.stopped = Stopped.DAMAGED
        visible = found.visible()
        if not len(visible):
            self.at = lsn(number, found.end)
            return None
        heads = scan.block_headers(buf, base, visible.offsets)
        firsts = heads["first_vlsn"].astype(np.int64)
        lasts = firsts + heads["count"] - 1
        good = self._follows_on(visible, heads, firsts, lasts)
        low = int(np.searchsorted(lasts[:good], self.want))
        ends = int(np.searchsorted(lasts[:good], self.upto, side="right"))
        high = low + self._fitting(visible, low, ends)
        if high < good:
            self.stopped = Stopped.LIMIT
        if low >= ends and low < good and not self.first and not self._verified(buf, base, visible, low, low + 1):
            # The header says that the block ends past the readable end, so the header must be wrong.
            self.stopped = Stopped.DAMAGED
        verified = low + self._verified(buf, base, visible, low, high)
        scan.check_versions(heads[low:verified], visible.offsets[low:verified], segment_name(number))
        if verified < high or (high == good and good < len(visible)):
            self.stopped = Stopped.DAMAGED
        if verified > low:
            window = Window(buf, base, number, visible.offsets[low:verified], heads[low:verified])
            self.room -= int(visible.headers["length"][low:verified].sum())
            self.first = self.first or Vlsn(int(firsts[low]))
            self.want = int(lasts[verified - 1]) + 1
        if verified:
            self.expected = int(lasts[verified - 1]) + 1
        self.at = lsn(number, found.end if verified == len(visible) else int(visible.offsets[verified]))
        return window

    def _follows_on(self, visible: Walk, heads: npt.NDArray[np.void], firsts: Offsets, lasts: Offsets) -> int:
        """Returns how many of the first blocks are consecutive, fill their frames and do not begin after the wanted
        VLSN."""
        good = visible.headers["length"] == heads["body_bytes"] + np.uint32(BLOCK_BYTES)
        good &= (heads["count"] > 0) & (firsts > 0)
        good[1:] &= firsts[1:] == lasts[:-1] + 1
        good[0] &= firsts[0] == self.expected if self.expected else firsts[0] <= self.want
        return len(good) if good.all() else int(good.argmin())

    def _fitting(self, visible: Walk, low: int, high: int) -> int:
        """Returns how many blocks from ``low`` on fit the remaining size. The very first block of a call is always
        included."""
        totals = np.cumsum(visible.headers["length"][low:high], dtype=np.int64)
        fitting = int(np.searchsorted(totals, self.room, side="right"))
        return max(fitting, min(1, high - low)) if not self.first else fitting

    def _verified(self, buf: bytes, base: int, visible: Walk, low: int, high: int) -> int:
        """Returns how many of the chosen blocks come before the first one with a wrong checksum."""
        chosen = Walk(visible.offsets[low:high], visible.headers[low:high], visible.end, visible.reason)
        bad = scan.check_crcs(buf, base, chosen)
        return high - low if bad is None else bad


class Window:
    """Verified, consecutive blocks, and the buffer with their bytes."""

    def __init__(self, buf: bytes, base: int, number: int, offsets: Offsets, heads: npt.NDArray[np.void]) -> None:
        self._buf = buf
        self._at = offsets - base + FRAME_BYTES
        self._lsns = offsets + (number << 32)
        self._heads = heads

    def blocks(self) -> list[bytes]:
        buf = self._buf
        sizes = (self._heads["body_bytes"].astype(np.int64) + BLOCK_BYTES).tolist()
        return [buf[at : at + size] for at, size in zip(self._at.tolist(), sizes, strict=True)]

    def lsns(self) -> list[Lsn]:
        lsns: list[Lsn] = self._lsns.tolist()
        return lsns

    def first_reaching(self, clock_us: int) -> Vlsn | None:
        """Returns the first VLSN of the first block that was sealed at ``clock_us`` or later."""
        late = self._heads["clock_us"] >= clock_us
        return Vlsn(int(self._heads["first_vlsn"][late.argmax()])) if late.any() else None

    @property
    def highest_clock(self) -> int:
        return int(self._heads["clock_us"].max())

    def rows(self) -> EntryRows:
        return EntryRows(self._buf, self._at, self._heads)

    def gather(self, found: Gathering) -> Lsn | None:
        """Adds as many entries to ``found`` as its limits allow. Returns the LSN of the block with the first entry that
        was left out, or None. A few blocks are decoded one by one, only as far as they are wanted. Many blocks are
        decoded by column."""
        if len(self._at) > BLOCKS_FEW or found.keys is not None:
            left_out = found.add_rows(self.rows())
            return Lsn(int(self._lsns[left_out])) if left_out is not None else None
        for block, at in zip(self.blocks(), self.lsns(), strict=True):
            # the checksum of the block's frame was found correct before
            header = BlockHeader(*_HEADER.unpack_from(block))
            if not found.add(block, header):
                return at
        return None
