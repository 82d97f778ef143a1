"""The feeder's source: BUFFER from the ring, ARCHIVE from the segments, and the change between them.

1. It starts in ARCHIVE.  2. ARCHIVE → BUFFER when its next VLSN is in the ring; BUFFER → ARCHIVE when the ring has
   dropped what it needs: by comparing positions, never by timing.  3. From the ring it reads all sealed blocks, synced
   here or not (a replica may be faster than this node's disk); from the segments only synced ones.  4. Each change is
   counted, and reported.

    next = 41, ring holds 60–90      ARCHIVE  reads 41–59 from segments, then changes
    position 7, ring head 9          BUFFER   was overtaken: changes back

A replica receives all sealed blocks. A reader that may see only durable entries passes their end (``upto``), and
receives whole blocks up to there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from vlsn.errors import Damaged, Trimmed
from vlsn.format.feed_messages import FEED_BYTES
from vlsn.ids import Lsn, Vlsn
from vlsn.seams import Buffer
from vlsn.segments.reader import ReadRun
from vlsn.write.local_log import LocalLog


class Mode(StrEnum):
    ARCHIVE = "ARCHIVE"
    BUFFER = "BUFFER"


class Offload(Protocol):
    """Runs a blocking read elsewhere; the future is done on the loop."""

    def __call__(self, job: Callable[[], ReadRun]) -> asyncio.Future[ReadRun]: ...


def _unheard(_: Mode) -> None:
    """Ignores a change of mode."""


class Source:
    """Blocks of one log from a VLSN on, for one reader."""

    def __init__(
        self,
        log: LocalLog,
        next_vlsn: Vlsn,
        offload: Offload,
        on_switch: Callable[[Mode], None] = _unheard,
        upto: Callable[[], Vlsn] | None = None,
    ) -> None:
        """Begins in ARCHIVE; ``on_switch`` is called with each change.  ``upto`` returns the last VLSN that may be read
        by now, which never falls; None: all there is."""
        self._on_switch = on_switch
        self._upto = upto
        self._log = log
        self._offload = offload
        self._reader = log.view.reader()
        self._at: Lsn | None = None
        self._position = 0
        self._ahead: asyncio.Future[ReadRun] | None = None
        self.next_vlsn = next_vlsn
        self.mode = Mode.ARCHIVE
        self.switches = 0
        self.archive_reads = 0

    def from_ring(self, bytes_max: int = FEED_BYTES) -> Sequence[Buffer]:
        """Takes what the ring has next, without waiting; empty when there is nothing more, or in ARCHIVE."""
        ring = self._log.view.ring
        if self.mode is Mode.BUFFER and self._position < ring.head:
            self._change(Mode.ARCHIVE)
        if self.mode is Mode.ARCHIVE:
            if self._ahead is not None:
                return ()
            position = ring.position_of(self.next_vlsn)
            if position is None:
                return ()
            self._position = position
            self._change(Mode.BUFFER)
        end = ring.end
        if self._upto is not None:
            upto = self._upto()
            within = ring.position_of(Vlsn(upto + 1)) if upto >= self.next_vlsn else self._position
            end = within if within is not None else end  # None: all of the ring
        if self._position >= end:
            return ()
        blocks = ring.take(self._position, end=end, bytes_max=bytes_max)
        self._position += len(blocks)
        self.next_vlsn = Vlsn(ring.last_at(self._position - 1) + 1)
        return blocks

    @property
    def behind(self) -> bool:
        """The ring has more that was not taken."""
        return self.mode is Mode.BUFFER and self._position < self._log.view.ring.end

    async def from_archive(self) -> Sequence[Buffer]:
        """Reads the next blocks of the segments and begins the read after them, so that disk and network overlap. Empty
        when nothing more is synced. Raises ``Damaged`` or ``Trimmed``."""
        ahead, self._ahead = self._ahead, None
        run = await (ahead or self._read())
        self.archive_reads += 1
        if ahead is not None and not run.data:  # there was nothing more when it was begun
            if blocks := self.from_ring():
                return blocks
            if self.mode is Mode.ARCHIVE:
                run = await self._read()
                self.archive_reads += 1
        if not run.data:
            return ()
        self._at, self.next_vlsn = run.next_lsn, run.next_vlsn
        if self._log.view.ring.position_of(self.next_vlsn) is None:
            self._ahead = self._read()
        return run.data

    def close(self) -> None:
        """Closes the reader, once a read under way has ended; no further change is reported."""
        self._on_switch = _unheard
        if self._ahead is not None and not self._ahead.done():
            self._ahead.add_done_callback(self._close_reader)
        else:
            self._close_reader(self._ahead)

    def _close_reader(self, ahead: asyncio.Future[ReadRun] | None) -> None:
        if ahead is not None and not ahead.cancelled():
            ahead.exception()  # looked at, so that it is not reported as forgotten
        self._reader.close()

    def _read(self) -> asyncio.Future[ReadRun]:
        log, vlsn = self._log, self.next_vlsn
        start = self._at
        if start is None:
            if vlsn < log.view.range.first:
                raise Trimmed(f"VLSN {vlsn} was cleaned away", first=log.view.range.first)
            mapping = log.view.index.at_or_before(vlsn)
            if mapping is None:
                raise Damaged(f"the index has nothing for VLSN {vlsn} of {log.view.range}", vlsn=vlsn)
            start = mapping[1]
        upto = log.view.range.last_sync if self._upto is None else min(log.view.range.last_sync, self._upto())
        return self._offload(lambda: self._reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=FEED_BYTES))

    def _change(self, mode: Mode) -> None:
        self.mode = mode
        self.switches += 1
        self._on_switch(mode)
        if mode is Mode.ARCHIVE:
            self._at = None
