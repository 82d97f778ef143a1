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
from typing import Final

from vlsn.errors import VlsnLogError
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.records import CheckpointEnd, CheckpointStart
from vlsn.ids import Vlsn
from vlsn.state.holds import Holds, Owner
from vlsn.state.options import LogOptions
from vlsn.state.state_store import Checkpoint
from vlsn.write.checkpoint import CheckpointParts, CheckpointRun
from vlsn.write.free_space import Space

Done = Callable[[Checkpoint], None]
Failed = Callable[[VlsnLogError], None]
OWN_BYTES: Final = 2 * FRAME_BYTES + CheckpointStart.LAYOUT.size + CheckpointEnd.LAYOUT.size
"""Bytes that a checkpoint itself adds to the log."""
RECOVERY: Final = "recovery"
"""The name of the checkpoint's own hold."""


@dataclass(frozen=True, slots=True)
class _Asked:
    clean: bool
    done: Done
    failed: Failed


class Checkpointer:
    """Runs a log's checkpoints, by bytes, by period and on request.  At home only."""

    def __init__(
        self,
        parts: CheckpointParts,
        options: LogOptions,
        space: Space,
        holds: Holds,
        *,
        last: Checkpoint | None,
        settled: Vlsn | None,
    ) -> None:
        """Begins with ``last`` and ``settled``: the checkpoint and the state record's VLSN that the log was opened
        with."""
        self._parts = parts
        self._contents = parts.contents
        self._lifecycle = parts.lifecycle
        self._options = options
        self._space = space
        self._holds = holds
        self.last = last
        self.home_s = 0.0
        """Seconds that its step 5, which copies what it keeps, held up home."""
        self.after: Callable[[], None] = lambda: None
        """A call after each checkpoint, and at each period that needs none."""
        self._bytes = 0
        self._running = False
        self._since: float | None = None
        self._waiting: list[_Asked] = []
        self._served: list[_Asked] = []
        """The askers of the one that runs."""
        self._ended: VlsnLogError | None = None
        self._alone: list[Callable[[], None]] = []
        if settled is not None:
            self.settled(settled)

    @property
    def running(self) -> bool:
        return self._running

    def wrote(self, size: int) -> None:
        """Notes that the log grew by ``size`` synced bytes."""
        self._bytes += size
        if self._bytes >= self._options.checkpoint_bytes and not self._running:
            self._space.look(self._run_for_bytes)

    def _run_for_bytes(self) -> None:
        due = self._bytes >= self._options.checkpoint_bytes
        if due and not self._running and not self._lifecycle.closed and not self._space.cramped:
            self.run()

    def tick(self, now: float) -> None:
        if self._since is None:
            self._since = now
        elif now - self._since >= self._options.checkpoint_period_s:
            self._since = now
            if self._has_more():
                self.run()
            elif not self._running:
                self.after()
        if self._contents.index.wounded and not self._running and self._parts.background.is_due("mapping"):
            self.run()

    def _has_more(self) -> bool:
        """Says whether a checkpoint now would say more than the last one. Its own two records do not count, or a quiet
        log would be written to for ever."""
        if self._running:
            return False
        durable = min(self._contents.dtvlsn, self._contents.range.last)
        return self._bytes > OWN_BYTES or (self.last is not None and self.last.dtvlsn < durable)

    def run(self, *, clean: bool = False, done: Done = lambda _: None, failed: Failed = lambda _: None) -> None:
        """Runs a checkpoint; ``done`` gets it once the next open starts from it, ``failed`` what ended the log before.
        Without room ``failed`` gets ``NoSpace``: nothing waits for a checkpoint without room, for cleaning, which makes
        room, would wait for it."""
        with self._lifecycle.latch:
            if self._ended is None:
                self._waiting.append(_Asked(clean, done, failed))
                if not self._running:
                    self._start()
                return
        failed(self._ended)

    def give_up(self, error: VlsnLogError) -> None:
        """Gives up: the log failed, what is under way comes to nothing, and nothing starts any more."""
        with self._lifecycle.latch:
            self._ended = error
            asked, self._served, self._waiting = [*self._served, *self._waiting], [], []
            self._alone.clear()
        for each in asked:
            each.failed(error)

    def hold(self, then: Callable[[], None]) -> None:
        """Calls ``then`` when no checkpoint runs, and starts none until ``release``. A rollback and a checkpoint would
        each write the index under the other's feet."""
        with self._lifecycle.latch:
            if self._running:
                self._alone.append(then)
            else:
                self._running = True
                then()

    def release(self) -> None:
        """Ends a checkpoint or a hold; what waited for it goes on."""
        with self._lifecycle.latch:
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
        """Abandons the one that runs: its wait was ended, or there is no room for its records."""
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
        run = CheckpointRun(self._parts, number, clean=clean, done=self._done, failed=self._abandon, over=self._is_over)
        run.begin()

    def settled(self, vlsn: Vlsn) -> None:
        """Notes that a checkpoint's state record is synced, as of ``vlsn``: what lies before may go."""
        with self._lifecycle.latch:
            self._holds.place(Owner.CHECKPOINT, RECOVERY, Vlsn(max(vlsn, self._holds.floor + 1)))

    def _is_over(self) -> bool:
        return self._ended is not None

    def _done(self, checkpoint: Checkpoint, settled: Vlsn, home_s: float) -> None:
        """Makes the one that runs the one that the next open starts from."""
        with self._lifecycle.latch:
            self.last, self.home_s = checkpoint, home_s
            self.settled(settled)
            served, self._served = self._served, []
        for each in served:
            each.done(checkpoint)
        self.release()
        self.after()
