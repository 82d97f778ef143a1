"""One checkpoint, step by step (what and why: ``checkpoint``).

1  CHECKPOINT_START is placed and synced        4  CHECKPOINT_END is placed and synced
2  the index has every VLSN given before it     5  the pointer and the state record    ◄ commit point
3  the index is flushed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vlsn.errors import VlsnLogError
from vlsn.format.frame import FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointFlag, CheckpointStart
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.index.flush import Flush
from vlsn.recover.stored_index import Unmended, mend
from vlsn.seams import Clock, Worker
from vlsn.segments.background import Background
from vlsn.state.state_store import Checkpoint, StateStore
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.log_contents import LogContents
from vlsn.write.queue_consumer import Consumer
from vlsn.write.write_cycle import Cycle


@dataclass(frozen=True, slots=True)
class CheckpointParts:
    """The parts that the checkpoints of one log are made with."""

    contents: LogContents
    state: StateStore
    consumer: Consumer
    cycle: Cycle
    keeper: Worker
    background: Background
    lifecycle: Lifecycle
    clock: Clock


class CheckpointRun:
    """One checkpoint. It calls ``failed`` when a wait or a record of it was refused, the log whole; ``over`` says that
    the log has failed."""

    def __init__(
        self,
        parts: CheckpointParts,
        number: int,
        *,
        clean: bool,
        done: Callable[[Checkpoint, Vlsn, float], None],
        failed: Callable[[VlsnLogError], None],
        over: Callable[[], bool],
    ) -> None:
        self._parts, self._number, self._clean = parts, number, clean
        self._done, self._failed, self._over = done, failed, over
        self._allocated = NULL_VLSN
        self._start_lsn = NULL_LSN

    # 1

    def begin(self) -> None:
        cycle = self._parts.cycle
        cycle.append_record(FrameKind.CHECKPOINT_START, self._start_record, self._wait, self._failed)

    def _start_record(self) -> bytes:
        contents, self._allocated = self._parts.contents, self._parts.consumer.allocated
        return CheckpointStart(
            id=self._number,
            first_vlsn=contents.range.first or (1 if self._allocated else 0),
            last_vlsn=self._allocated,
            dtvlsn=min(contents.dtvlsn, self._allocated),
            clock_us=self._parts.clock.wall_us(),
        ).encode()

    # 2

    def _wait(self, at: Lsn) -> None:
        self._start_lsn = at
        contents = self._parts.contents
        # What an empty log that begins later follows on was never here.
        given = self._allocated if self._allocated > contents.trimmed_to else NULL_VLSN
        contents.index.wait_for(given, self._flush)

    # 3

    def _flush(self, error: VlsnLogError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        parts = self._parts
        flush = parts.contents.index.start_flush(self._number)
        parts.keeper.submit(
            lambda: self._write(flush), lambda unmended: self._flushed(flush, unmended), parts.lifecycle.store_failed
        )

    def _write(self, flush: Flush) -> Unmended | None:
        """Writes on the keeper's thread."""
        contents, unmended = self._parts.contents, None
        if contents.index.wounded:
            try:
                mend(contents.index, contents.disk, contents.directory, self._start_lsn)
            except Unmended as error:
                unmended = error
        flush.run()
        return unmended

    def _flushed(self, flush: Flush, unmended: Unmended | None) -> None:
        parts = self._parts
        with parts.lifecycle.latch:
            if unmended is not None:
                parts.background.fails("mapping", unmended.why, lambda: None)
            else:
                parts.background.works("mapping")
        parts.contents.index.finish_flush(flush)
        if not self._over():
            self._place_end()

    # 4

    def _place_end(self) -> None:
        cycle = self._parts.cycle
        cycle.append_record(FrameKind.CHECKPOINT_END, self._end_record, self._point, self._failed)

    def _end_record(self) -> bytes:
        contents = self._parts.contents
        span = contents.range
        return CheckpointEnd(
            id=self._number,
            start_lsn=self._start_lsn,
            flags=CheckpointFlag.CLEAN if self._clean else 0,
            first_vlsn=span.first,
            last_vlsn=span.last,
            dtvlsn=min(contents.dtvlsn, span.last),
            clock_us=self._parts.clock.wall_us(),
        ).encode()

    # 5: the commit point

    def _point(self, end_lsn: Lsn) -> None:
        parts, contents, span = self._parts, self._parts.contents, self._parts.contents.range
        began = parts.clock.monotonic_s()
        settled = Vlsn(min(contents.dtvlsn, span.last_sync))
        contents.history.settle(settled)
        kept = contents.checkpoint(settled)
        checkpoint = Checkpoint(
            id=self._number,
            start_lsn=self._start_lsn,
            end_lsn=end_lsn,
            scan_lsn=self._scan_from(settled),
            first_vlsn=span.first,
            last_vlsn=span.last,
            dtvlsn=min(contents.dtvlsn, span.last),
            clean=self._clean,
            time_us=parts.clock.wall_us(),
        )

        def save() -> None:
            record, changes = kept()
            parts.state.save(checkpoint=checkpoint, record=record, changes=changes)

        home_s = parts.clock.monotonic_s() - began
        parts.keeper.submit(save, lambda _: self._done(checkpoint, settled, home_s), parts.lifecycle.store_failed)

    def _scan_from(self, settled: Vlsn) -> Lsn:
        """Returns where the next open reads from: what the state record does not say is read again."""
        contents = self._parts.contents
        if not settled or settled < contents.trimmed_to:
            return Lsn(0)  # the record says nothing of what the log begins with
        after = contents.index.at_or_before(Vlsn(settled + 1))
        return min(self._start_lsn, after[1]) if after is not None else self._start_lsn
