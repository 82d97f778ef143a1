"""Checkpoints. A checkpoint writes the VLSN index to disk, and stores the position from which the next open reads the
log.

    1  CHECKPOINT_START is placed, in its order among the blocks, and synced
    2  the checkpoint waits until every VLSN assigned before is in the index, on master and replica alike
    3  the unreadable part of the index is rebuilt (if that fails, by a later checkpoint); then the index is flushed:
    one
       transaction, buckets ascending, the checkpoint's id, the range last
    4  CHECKPOINT_END is placed and synced
    5  the pointer and the state record are stored in ``state``, in one transaction  ◄ commit point

After a crash before step 5, the next open reads from the preceding checkpoint. If step 3 ran but step 5 did not, the
index has an id one above the pointer's, which is valid. A clean stop is a checkpoint with a flag in CHECKPOINT_END;
nothing is placed after that record. One checkpoint runs at a time, and all requests in the meantime share the next
checkpoint. If the log fails, the running and the waiting checkpoints end with the log's error, and no more start.
Source: JE's checkpoint and awaitConsistency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vlsn.errors import VlsnLogError
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointFlag, CheckpointStart
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.index.flush import Flush
from vlsn.recover.stored_index import Unmended, mend
from vlsn.state.holds import Holds, Owner
from vlsn.state.options import LogOptions
from vlsn.state.state_store import Checkpoint, StateStore
from vlsn.write.free_space import FreeSpace
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.write_cycle import WriteCycle

Done = Callable[[Checkpoint], None]
Failed = Callable[[VlsnLogError], None]
OWN_BYTES: Final = 2 * FRAME_BYTES + CheckpointStart.LAYOUT.size + CheckpointEnd.LAYOUT.size
"""The bytes that a checkpoint itself adds to the log."""
RECOVERY: Final = "recovery"
"""The name of the hold that keeps the log from the last checkpoint on."""


@dataclass(frozen=True, slots=True)
class _Asked:
    clean: bool
    done: Done
    failed: Failed


class Checkpointer:
    """Runs a log's checkpoints: after a number of bytes, periodically, and on request. The checkpointer is used on the
    owner's thread only (``seams.Worker``)."""

    def __init__(
        self,
        view: LogView,
        life: LogLife,
        state: StateStore,
        cycle: WriteCycle,
        options: LogOptions,
        space: FreeSpace,
        holds: Holds,
        *,
        last: Checkpoint | None,
        settled: Vlsn | None,
    ) -> None:
        """``last`` is the checkpoint from which the log was opened. ``settled`` is the VLSN of the state record when
        the log was opened."""
        self._view = view
        self._life = life
        self._state = state
        self._cycle = cycle
        self._options = options
        self._space = space
        self._holds = holds
        self.last = last
        self.home_s = 0.0
        """For how many seconds step 5, which copies the kept state, occupied the owner's thread."""
        self.after: Callable[[], None] = lambda: None
        """A function that is called after each checkpoint, and after each period in which no checkpoint is needed."""
        self.running = False
        self._since: float | None = None
        self._waiting: list[_Asked] = []
        self._served: list[_Asked] = []
        """The requests that the running checkpoint serves."""
        self._ended: VlsnLogError | None = None
        self._alone: list[Callable[[], None]] = []
        self._number, self._clean = 0, False
        self._allocated, self._start_lsn = NULL_VLSN, NULL_LSN
        """For the running checkpoint: the last VLSN assigned at its start, and the LSN of its CHECKPOINT_START."""
        if settled is not None:
            self.settled(settled)

    # The conditions under which a checkpoint runs.

    def run_for_bytes(self) -> None:
        """Runs a checkpoint if enough bytes were written since the last checkpoint, and if the disk has room."""
        if not self.running:
            self._space.look(self._run_for_bytes)

    def _run_for_bytes(self) -> None:
        due = self._cycle.uncovered_bytes >= self._options.checkpoint_bytes
        if due and not self.running and not self._life.closed and not self._space.cramped:
            self.run()

    def tick(self, now: float) -> None:
        if self._since is None:
            self._since = now
        elif now - self._since >= self._options.checkpoint_period_s:
            self._since = now
            if self._has_more():
                self.run()
            elif not self.running:
                self.after()
        if self._view.index.wounded and not self.running and self._life.background.is_due("mapping"):
            self.run()

    def _has_more(self) -> bool:
        """Returns whether a checkpoint now would store more than the last checkpoint. The last checkpoint's own two
        records are not counted; otherwise a quiet log would be written to for ever."""
        if self.running:
            return False
        durable = min(self._view.dtvlsn, self._view.range.last)
        return self._cycle.uncovered_bytes > OWN_BYTES or (self.last is not None and self.last.dtvlsn < durable)

    def run(self, *, clean: bool = False, done: Done = lambda _: None, failed: Failed = lambda _: None) -> None:
        """Runs a checkpoint. ``done`` receives the checkpoint once the next open starts from it. ``failed`` receives
        the error that ended the checkpoint. If the disk has no room, ``failed`` receives ``NoSpace`` at once: cleaning,
        which makes room, must not wait for a checkpoint."""
        with self._life.latch:
            if self._ended is None:
                self._waiting.append(_Asked(clean, done, failed))
                if not self.running:
                    self._start()
                return
        failed(self._ended)

    def give_up(self, error: VlsnLogError) -> None:
        """Ends the running and the waiting checkpoints, because the log has failed, and starts no more checkpoints."""
        with self._life.latch:
            self._ended = error
            asked, self._served, self._waiting = [*self._served, *self._waiting], [], []
            self._alone.clear()
        for each in asked:
            each.failed(error)

    def hold(self, then: Callable[[], None]) -> None:
        """Calls ``then`` when no checkpoint runs, and starts no checkpoint until ``release``. A rollback and a
        checkpoint must not write the index at the same time."""
        with self._life.latch:
            if self.running:
                self._alone.append(then)
            else:
                self.running = True
                then()

    def release(self) -> None:
        """Ends a checkpoint, or a hold on checkpoints. Work that waited for the end of a checkpoint or hold
        continues."""
        with self._life.latch:
            self.running = False
            self._served = []
            if self._ended is not None:
                return
            if self._alone:
                self.running = True
                self._alone.pop(0)()
            elif self._waiting:
                self._start()

    def _abandon(self, error: VlsnLogError) -> None:
        """Abandons the running checkpoint, because its wait was ended or there is no room for its records."""
        served, self._served = self._served, []
        for each in served:
            each.failed(error)
        self.release()

    def settled(self, vlsn: Vlsn) -> None:
        """Notes that a checkpoint's state record at ``vlsn`` is synced, so that the log before ``vlsn`` may be
        removed."""
        with self._life.latch:
            self._holds.place(Owner.CHECKPOINT, RECOVERY, Vlsn(max(vlsn, self._holds.floor + 1)))

    # 1

    def _start(self) -> None:
        self._served, self._waiting = self._waiting, []
        self.running = True
        self._cycle.uncovered_bytes = 0
        self._clean = any(each.clean for each in self._served)
        self._number = self.last.id + 1 if self.last is not None else 1
        self._cycle.append_record(FrameKind.CHECKPOINT_START, self._start_record, self._wait, self._abandon)

    def _start_record(self) -> bytes:
        view, self._allocated = self._view, self._view.allocated
        return CheckpointStart(
            id=self._number,
            first_vlsn=view.range.first or (1 if self._allocated else 0),
            last_vlsn=self._allocated,
            dtvlsn=min(view.dtvlsn, self._allocated),
            clock_us=self._life.clock.wall_us(),
        ).encode()

    # 2

    def _wait(self, at: Lsn) -> None:
        self._start_lsn = at
        # An empty log that begins at a later VLSN waits for nothing, because it never had the earlier VLSNs.
        given = self._allocated if self._allocated > self._view.trimmed_to else NULL_VLSN
        self._view.index.wait_for(given, self._flush)

    # 3

    def _flush(self, error: VlsnLogError | None) -> None:
        if error is not None:
            self._abandon(error)
            return
        flush = self._view.index.start_flush(self._number)
        self._life.keep(lambda: self._write(flush), lambda unmended: self._flushed(flush, unmended))

    def _write(self, flush: Flush) -> Unmended | None:
        """Writes the index on the keeper's thread."""
        view, unmended = self._view, None
        if view.index.wounded:
            try:
                mend(view.index, view.disk, view.directory, self._start_lsn)
            except Unmended as error:
                unmended = error
        flush.run()
        return unmended

    def _flushed(self, flush: Flush, unmended: Unmended | None) -> None:
        background = self._life.background
        with self._life.latch:
            if unmended is not None:
                background.fails("mapping", unmended.why, lambda: None)
            else:
                background.works("mapping")
        self._view.index.finish_flush(flush)
        if self._ended is None:
            self._cycle.append_record(FrameKind.CHECKPOINT_END, self._end_record, self._point, self._abandon)

    # 4

    def _end_record(self) -> bytes:
        view, span = self._view, self._view.range
        return CheckpointEnd(
            id=self._number,
            start_lsn=self._start_lsn,
            flags=CheckpointFlag.CLEAN if self._clean else 0,
            first_vlsn=span.first,
            last_vlsn=span.last,
            dtvlsn=min(view.dtvlsn, span.last),
            clock_us=self._life.clock.wall_us(),
        ).encode()

    # 5: the commit point

    def _point(self, end_lsn: Lsn) -> None:
        view, span, clock = self._view, self._view.range, self._life.clock
        began = clock.monotonic_s()
        settled = Vlsn(min(view.dtvlsn, span.last_sync))
        view.history.settle(settled)
        kept = view.checkpoint(settled)
        checkpoint = Checkpoint(
            id=self._number,
            start_lsn=self._start_lsn,
            end_lsn=end_lsn,
            scan_lsn=self._scan_from(settled),
            first_vlsn=span.first,
            last_vlsn=span.last,
            dtvlsn=min(view.dtvlsn, span.last),
            clean=self._clean,
            time_us=clock.wall_us(),
        )

        def save() -> None:
            record, changes = kept()
            self._state.save(checkpoint=checkpoint, record=record, changes=changes)

        home_s = clock.monotonic_s() - began
        self._life.keep(save, lambda _: self._done(checkpoint, settled, home_s))

    def _scan_from(self, settled: Vlsn) -> Lsn:
        """Returns the position from which the next open reads. The next open must read everything after the state
        record at ``settled``."""
        if not settled or settled < self._view.trimmed_to:
            return Lsn(0)  # the state record has nothing about the log's first entries
        after = self._view.index.at_or_before(Vlsn(settled + 1))
        return min(self._start_lsn, after[1]) if after is not None else self._start_lsn

    def _done(self, checkpoint: Checkpoint, settled: Vlsn, home_s: float) -> None:
        """Makes the running checkpoint the last checkpoint, from which the next open starts."""
        with self._life.latch:
            self.last, self.home_s = checkpoint, home_s
            self.settled(settled)
            served, self._served = self._served, []
        for each in served:
            each.done(checkpoint)
        self.release()
        self.after()
