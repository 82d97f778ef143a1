"""The ring: the most recent sealed blocks, in memory once for all readers.

1. The blocks are in VLSN order without a gap. Each block has a *position*, a number from 0 on that never changes.
2. ``synced_end`` is the position after the last block that this node has synced. Blocks at or after ``synced_end`` are
   sealed, but this node may still lose them.
3. If the ring has more than ``bytes_max`` bytes, it drops the oldest blocks, but only blocks that are synced.
4. A reader keeps its own position. ``position < head`` means that the ring has dropped the block at the reader's
   position. The reader must then read the segments (ARCHIVE) until its position is in the ring again. Nothing here
   depends on timing.

    head = 2        synced_end = 4   end = 5
      |b2|b3|            |b4|            take(2, end=4) -> [b2, b3]

Only the thread that owns the log uses the ring (``seams.Worker``), under the log's latch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import RING_BYTES_MAX
from vlsn.seams import Buffer

_COMPACT_AT = 4096
"""Dropped slots are cut off the lists in portions of this size, so that dropping one block costs O(1)."""


class Ring:
    """Recent blocks by position. ``bytes_max`` limits the bytes of the kept blocks."""

    def __init__(self, bytes_max: int = RING_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.head = 0
        self.synced_end = 0
        self._base = 0
        self._blocks: list[Buffer] = []
        self._lasts: list[int] = []
        self._before: Vlsn = NULL_VLSN
        self.end = 0
        """The position that the next block will get."""
        self.last_vlsn: Vlsn = NULL_VLSN
        """The last VLSN assigned. The block with the last VLSN is in the ring, unless the ring is empty."""

    @property
    def first_vlsn(self) -> Vlsn:
        """The first VLSN in the ring. If the ring is empty, the value is the VLSN after the last assigned one."""
        return Vlsn(self._before + 1)

    def restart(self, last_vlsn: Vlsn) -> None:
        """Empties the ring. The next block begins after ``last_vlsn``."""
        self._base = self.head = self.synced_end = self.end
        self._blocks.clear()
        self._lasts.clear()
        self.bytes = 0
        self._before = self.last_vlsn = last_vlsn

    def extend(self, blocks: Sequence[Buffer], lasts: Sequence[int]) -> None:
        """Adds blocks that follow ``last_vlsn`` exactly. ``lasts`` has the last VLSN of each block."""
        self._blocks.extend(blocks)
        self._lasts.extend(lasts)
        self.end = self._base + len(self._blocks)
        self.last_vlsn = Vlsn(self._lasts[-1])
        self.bytes += sum(map(len, blocks))
        if self.bytes > self.bytes_max:
            self._drop()

    def set_synced(self, last_vlsn: Vlsn) -> None:
        """Notes that all blocks up to ``last_vlsn`` are synced here."""
        index = bisect_left(self._lasts, last_vlsn + 1, max(0, self.synced_end - self._base))
        self.synced_end = self._base + index
        if self.bytes > self.bytes_max:
            self._drop()

    def position_of(self, vlsn: Vlsn) -> int | None:
        """Returns the position of the block that contains ``vlsn``, or ``end`` if ``vlsn`` is the next VLSN to be
        assigned. Returns None if the ring has dropped the block, or for a VLSN after the next one."""
        if vlsn <= self._before or vlsn > self.last_vlsn + 1:
            return None
        return self._base + bisect_left(self._lasts, vlsn, self.head - self._base)

    def take(self, position: int, *, end: int, bytes_max: int) -> list[Buffer]:
        """Returns blocks from ``position`` (at or past ``head``) up to ``end``. At least one block is returned, and as
        many as fit ``bytes_max``."""
        assert self.head <= position <= end <= self.end
        taken: list[Buffer] = []
        total = 0
        blocks = self._blocks
        for index in range(position - self._base, end - self._base):
            block = blocks[index]
            total += len(block)
            if taken and total > bytes_max:
                break
            taken.append(block)
        return taken

    def through(self, position: int, last: int, *, bytes_max: int) -> list[Buffer]:
        """Takes blocks from ``position`` as ``take`` does, but only blocks that end at VLSN ``last`` or before. The
        result may be empty."""
        end = self._base + bisect_right(self._lasts, last, position - self._base)
        return self.take(position, end=end, bytes_max=bytes_max) if end > position else []

    def last_at(self, position: int) -> Vlsn:
        """Returns the last VLSN of the block at ``position``."""
        return Vlsn(self._lasts[position - self._base])

    def truncate(self, last_vlsn: Vlsn) -> None:
        """Forgets every block after ``last_vlsn``, which is the end of a block, or is before the ring."""
        if last_vlsn < self._before:
            self.restart(last_vlsn)
            return
        keep = bisect_left(self._lasts, last_vlsn + 1, self.head - self._base)
        self.bytes -= sum(map(len, self._blocks[keep:]))
        del self._blocks[keep:]
        del self._lasts[keep:]
        self.end = self._base + keep
        self.last_vlsn = Vlsn(self._lasts[-1]) if self.end > self.head else self._before
        self.synced_end = min(self.synced_end, self.end)

    def _drop(self) -> None:
        index = self.head - self._base
        limit = self.synced_end - self._base
        while self.bytes > self.bytes_max and index < limit:
            self.bytes -= len(self._blocks[index])
            self._blocks[index] = b""
            self._before = Vlsn(self._lasts[index])
            index += 1
        self.head = self._base + index
        if index >= _COMPACT_AT:
            del self._blocks[:index]
            del self._lasts[:index]
            self._base = self.head
