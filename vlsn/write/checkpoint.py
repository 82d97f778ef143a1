"""Checkpoints: the VLSN index flushed, and a place from which the next open may read.

    1  CHECKPOINT_START is placed, in its turn among the blocks, and synced
    2  every VLSN given before it is waited for in the index, on master and replica alike
    3  what of the index could not be read is tracked again (if that fails, by a later one); then it is flushed: one
       transaction, buckets ascending, the checkpoint's id, the range last
    4  CHECKPOINT_END is placed and synced
    5  the pointer and the state record go into ``state``, in one transaction        ◄ commit point

Stopped before 5, the next open reads from the checkpoint before; an index one id ahead of the pointer is
what 3 without 5 leaves, and is good.  A clean stop is the same with a flag in CHECKPOINT_END and nothing
placed after it.  One checkpoint runs at a time; who asks meanwhile shares the next one.  A log that fails ends
the one that runs and those that wait, with its error; none starts after that.
Source: JE's checkpoint and awaitConsistency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vlsn.errors import VlsnLogError
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointFlag, CheckpointStart
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.recover.stored_index import Unmended, mend
from vlsn.state.state_store import Checkpoint

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog

Done = Callable[[Checkpoint], None]
Failed = Callable[[VlsnLogError], None]
OWN_BYTES: Final = 2 * FRAME_BYTES + CheckpointStart.LAYOUT.size + CheckpointEnd.LAYOUT.size
"""What a checkpoint itself adds to the log."""


@dataclass(frozen=True, slots=True)
class _Asked:
    clean: bool
    done: Done
    failed: Failed


class Checkpointer:
    """Runs a log's checkpoints, by bytes, by period and on request.  At home only."""

    def __init__(self, log: LocalLog, *, last: Checkpoint | None) -> None:
        self._log = log
        self.last = last
        self.after: Callable[[], None] = lambda: None
        """Called after each checkpoint, and at each period that needs none."""
        self._bytes = 0
        self._running = False
        self._since: float | None = None
        self._waiting: list[_Asked] = []
        self._served: list[_Asked] = []
        """Who asked for the one that runs."""
        self._ended: VlsnLogError | None = None
        self._alone: list[Callable[[], None]] = []

    @property
    def running(self) -> bool:
        return self._running

    def wrote(self, size: int) -> None:
        """The log grew by ``size`` synced bytes."""
        self._bytes += size
        if self._bytes >= self._log.options.checkpoint_bytes and not self._running:
            self._log.space.look(self._run_for_bytes)

    def _run_for_bytes(self) -> None:
        due = self._bytes >= self._log.options.checkpoint_bytes
        if due and not self._running and not self._log.closed and not self._log.space.cramped:
            self.run()

    def tick(self, now: float) -> None:
        if self._since is None:
            self._since = now
        elif now - self._since >= self._log.options.checkpoint_period_s:
            self._since = now
            if self._has_more():
                self.run()
            elif not self._running:
                self.after()
        if self._log.index.wounded and not self._running and self._log.background.is_due("mapping"):
            self.run()

    def _has_more(self) -> bool:
        """Whether one now would say more than the last one: its own two records do not count, or a quiet log would
        be written to for ever."""
        if self._running:
            return False
        durable = min(self._log.dtvlsn, self._log.range.last)
        return self._bytes > OWN_BYTES or (self.last is not None and self.last.dtvlsn < durable)

    def run(self, *, clean: bool = False, done: Done = lambda _: None, failed: Failed = lambda _: None) -> None:
        """``done`` gets the checkpoint once it is the one that the next open starts from, or ``failed`` the error
        that ended the log before that, or ``NoSpace``: nothing waits for a checkpoint without room, for cleaning,
        which makes room, would wait for it."""
        with self._log.latch:
            if self._ended is None:
                self._waiting.append(_Asked(clean, done, failed))
                if not self._running:
                    self._start()
                return
        failed(self._ended)

    def give_up(self, error: VlsnLogError) -> None:
        """The log failed: what is under way comes to nothing, and nothing starts any more."""
        with self._log.latch:
            self._ended = error
            asked, self._served, self._waiting = [*self._served, *self._waiting], [], []
            self._alone.clear()
        for each in asked:
            each.failed(error)

    def hold(self, then: Callable[[], None]) -> None:
        """Calls ``then`` when no checkpoint runs, and starts none until ``release``: a rollback and a checkpoint
        would each write the index under the other's feet."""
        with self._log.latch:
            if self._running:
                self._alone.append(then)
            else:
                self._running = True
                then()

    def release(self) -> None:
        """The end of a checkpoint or of a hold; what waited for it goes on."""
        with self._log.latch:
            self._running = False
            self._served = []
            if self._ended is not None:
                return
            if self._alone:
                self._running = True
                self._alone.pop(0)()
            elif self._waiting:
                self._start()

    def _abandon(self, error: VlsnLogError) -> None:
        """The one that runs: its wait for the index was ended, or there is no room for its records."""
        served, self._served = self._served, []
        for each in served:
            each.failed(error)
        self.release()

    def _start(self) -> None:
        self._served, self._waiting = self._waiting, []
        self._running = True
        self._bytes = 0
        clean = any(each.clean for each in self._served)
        number = self.last.id + 1 if self.last is not None else 1
        _Run(self._log, number, clean=clean, done=self._done, failed=self._abandon, over=self._is_over).begin()

    def _is_over(self) -> bool:
        return self._ended is not None

    def _done(self, checkpoint: Checkpoint, settled: Vlsn) -> None:
        """The one that runs is the one that the next open starts from."""
        with self._log.latch:
            self.last = checkpoint
            self._log.cleaner.settled(settled)
            served, self._served = self._served, []
        for each in served:
            each.done(checkpoint)
        self.release()
        self.after()


class _Run:
    """One checkpoint, step by step; ``failed`` when a wait or a record of it was refused, the log whole."""

    def __init__(
        self,
        log: LocalLog,
        number: int,
        *,
        clean: bool,
        done: Callable[[Checkpoint, Vlsn], None],
        failed: Failed,
        over: Callable[[], bool],
    ) -> None:
        self._log, self._number, self._clean = log, number, clean
        self._done, self._failed, self._over = done, failed, over
        self._allocated = NULL_VLSN
        self._start_lsn = NULL_LSN

    # 1

    def begin(self) -> None:
        self._log.append_record(FrameKind.CHECKPOINT_START, self._start_record, self._wait, self._failed)

    def _start_record(self) -> bytes:
        log = self._log
        span, self._allocated = log.range, log.allocated
        return CheckpointStart(
            id=self._number,
            first_vlsn=span.first or (1 if self._allocated else 0),
            last_vlsn=self._allocated,
            dtvlsn=min(log.dtvlsn, self._allocated),
            clock_us=log.seams.clock.wall_us(),
        ).encode()

    # 2

    def _wait(self, at: Lsn) -> None:
        self._start_lsn = at
        # What an empty log that begins later follows on was never here.
        given = self._allocated if self._allocated > self._log.trimmed_to else NULL_VLSN
        self._log.index.wait_for(given, self._flush)

    # 3

    def _flush(self, error: VlsnLogError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        log = self._log
        flush = log.index.start_flush(self._number)

        def write() -> Unmended | None:
            unmended = None
            if log.index.wounded:
                try:
                    mend(log.index, log.seams.disk, log.directory, self._start_lsn)
                except Unmended as error:
                    unmended = error
            flush.run()
            return unmended

        def written(unmended: Unmended | None) -> None:
            with log.latch:
                if unmended is not None:
                    log.background.fails("mapping", unmended.why, lambda: None)
                else:
                    log.background.works("mapping")
            log.index.finish_flush(flush)
            if not self._over():
                self._place_end()

        log.keeper.submit(write, written, log.store_failed)

    # 4

    def _place_end(self) -> None:
        self._log.append_record(FrameKind.CHECKPOINT_END, self._end_record, self._point, self._failed)

    def _end_record(self) -> bytes:
        log, span = self._log, self._log.range
        return CheckpointEnd(
            id=self._number,
            start_lsn=self._start_lsn,
            flags=CheckpointFlag.CLEAN if self._clean else 0,
            first_vlsn=span.first,
            last_vlsn=span.last,
            dtvlsn=min(log.dtvlsn, span.last),
            clock_us=log.seams.clock.wall_us(),
        ).encode()

    # 5: the commit point

    def _point(self, end_lsn: Lsn) -> None:
        log = self._log
        settled = Vlsn(min(log.dtvlsn, log.range.last_sync))
        log.history.settle(settled)
        record = log.state_snapshot(settled)
        checkpoint = Checkpoint(
            id=self._number,
            start_lsn=self._start_lsn,
            end_lsn=end_lsn,
            scan_lsn=self._scan_from(settled),
            first_vlsn=log.range.first,
            last_vlsn=log.range.last,
            dtvlsn=min(log.dtvlsn, log.range.last),
            clean=self._clean,
            time_us=log.seams.clock.wall_us(),
        )
        log.keeper.submit(
            lambda: log.state.save(checkpoint=checkpoint, record=record()),
            lambda _: self._done(checkpoint, settled),
            log.store_failed,
        )

    def _scan_from(self, settled: Vlsn) -> Lsn:
        """Returns where the next open reads from: what the state record does not say is read again."""
        log = self._log
        if not settled or settled < log.trimmed_to:
            return Lsn(0)  # the record says nothing of what the log begins with
        after = log.index.at_or_before(Vlsn(settled + 1))
        return min(self._start_lsn, after[1]) if after is not None else self._start_lsn
