"""The feeder's source of blocks: the ring (BUFFER), the segments (ARCHIVE), and the change between them.

1. A source starts in ARCHIVE.
2. A source changes to BUFFER when its next VLSN is in the ring (the recent blocks in memory). A source changes back to
   ARCHIVE when the ring has dropped its next VLSN. A source compares positions, never times.
3. In BUFFER a source reads all sealed blocks, even blocks that this node has not synced, because a replica may be
   faster than this node's disk. In ARCHIVE a source reads synced blocks only.
4. Each change between BUFFER and ARCHIVE is counted and reported.

    next = 41, ring holds 60–90      ARCHIVE  reads 41–59 from the segments, then changes to BUFFER
    position 7, ring head 9          BUFFER   the ring dropped position 7: changes back to ARCHIVE

A replica receives all sealed blocks. A reader that may see only durable entries passes ``upto``, the durable end, and
receives whole blocks up to it.
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
    """Runs a blocking read on another thread. The future is completed on the event loop."""

    def __call__(self, job: Callable[[], ReadRun]) -> asyncio.Future[ReadRun]: ...


def _unheard(_: Mode) -> None:
    """Ignores a change of mode."""


class Source:
    """One reader's source of blocks, from one VLSN of a log on."""

    def __init__(
        self,
        log: LocalLog,
        next_vlsn: Vlsn,
        offload: Offload,
        on_switch: Callable[[Mode], None] = _unheard,
        upto: Callable[[], Vlsn] | None = None,
    ) -> None:
        """Begins in ARCHIVE mode. Calls ``on_switch`` at each change of mode. ``upto`` returns the last VLSN that may
        be read now, a value that never falls. If ``upto`` is None, all VLSNs may be read."""
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
        """Takes the next blocks of the ring, without waiting. Returns an empty sequence in ARCHIVE mode, or if the ring
        has no more blocks."""
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
            end = within if within is not None else end  # if ``within`` is None, all of the ring may be read
        if self._position >= end:
            return ()
        blocks = ring.take(self._position, end=end, bytes_max=bytes_max)
        self._position += len(blocks)
        self.next_vlsn = Vlsn(ring.last_at(self._position - 1) + 1)
        return blocks

    @property
    def behind(self) -> bool:
        """True if the ring has more blocks that this source has not taken."""
        return self.mode is Mode.BUFFER and self._position < self._log.view.ring.end

    async def from_archive(self) -> Sequence[Buffer]:
        """Reads the next blocks from the segments, and begins to read the blocks that follow, so that disk and network
        overlap. Returns an empty sequence if nothing more is synced. Raises ``Damaged`` or ``Trimmed``."""
        ahead, self._ahead = self._ahead, None
        run = await (ahead or self._read())
        self.archive_reads += 1
        if ahead is not None and not run.data:  # when that read began, nothing more was synced
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
        """Closes the reader as soon as no read is running. No further change of mode is reported."""
        self._on_switch = _unheard
        if self._ahead is not None and not self._ahead.done():
            self._ahead.add_done_callback(self._close_reader)
        else:
            self._close_reader(self._ahead)

    def _close_reader(self, ahead: asyncio.Future[ReadRun] | None) -> None:
        if ahead is not None and not ahead.cancelled():
            ahead.exception()  # retrieve the error, or asyncio reports it as never retrieved
        self._reader.close()

    def _read(self) -> asyncio.Future[ReadRun]:
        log, vlsn = self._log, self.next_vlsn
        start = self._at
        if start is None:
            if vlsn < log.view.range.first:
                raise Trimmed(f"VLSN {vlsn} was cleaned away", first=log.view.range.first)
            mapping = log.view.index.at_or_before(vlsn)
            if mapping is None:
                raise Damaged(f"the index has no mapping for VLSN {vlsn} of {log.view.range}", vlsn=vlsn)
            start = mapping[1]
        upto = log.view.range.last_sync if self._upto is None else min(log.view.range.last_sync, self._upto())
        return self._offload(lambda: self._reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=FEED_BYTES))

    def _change(self, mode: Mode) -> None:
        self.mode = mode
        self.switches += 1
        self._on_switch(mode)
        if mode is Mode.ARCHIVE:
            self._at = None
