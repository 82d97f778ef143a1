"""Rollback by overmarking: blocks after the matchpoint are abandoned, never erased.

    1  ROLLBACK_START (matchpoint, first LSN, end LSN) placed and synced            ◄ commit point
    2  the sidecars of the files that will change are deleted, the directory synced
    3  the flag byte of each abandoned frame is set to 0xA5; those files are synced
    4  ROLLBACK_END placed and synced
    5  the index is truncated, synchronously; ring and history forget

Stopped after 1, the next open sets the missing flags (``finish_rollback``) and goes on; before 1 nothing
happened.  The records are the truth, the flags are checked against them at every open.  A dump shows both
lives of a VLSN, a reader never.

    LSN 100 VLSN 1 │ LSN 200 VLSN 2 ✗ │ LSN 300 VLSN 3 ✗ │ START(1) END │ LSN 400 VLSN 2 │ LSN 500 VLSN 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlsn.errors import BadArgument, Damaged, RollbackProhibited, VlsnLogError, said_of
from vlsn.format.frame import FrameKind
from vlsn.format.records import RollbackEnd, RollbackStart
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.segments.overmarks import finish_rollback
from vlsn.segments.window import WINDOW_BYTES_MAX

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What a rollback to ``matchpoint`` takes away: the LSNs of the visible blocks after it, ascending, and first
    VLSN and LSN of the block that ends there (0, 0 for a matchpoint of 0)."""

    matchpoint: Vlsn
    kept_first: Vlsn
    kept_at: Lsn
    frames: list[Lsn]


def check_rollback(log: LocalLog, matchpoint: Vlsn) -> None:
    """Raises ``RollbackProhibited`` when a rollback to ``matchpoint`` would undo what is durable, ``BadArgument``
    when that is not in the log."""
    if matchpoint < log.dtvlsn:
        raise RollbackProhibited(
            f"a rollback to VLSN {matchpoint} would undo durable entries up to {log.dtvlsn}; it needs a person: "
            "compare the copies with 'vlsnlog audit' before anything else",
            matchpoint=matchpoint,
            durable=log.dtvlsn,
        )
    if matchpoint > log.range.last:
        raise BadArgument(f"a rollback to VLSN {matchpoint}, but the log ends at {log.range.last}")


class Rollback:
    """Takes one log back to a matchpoint, the end of a visible block (or 0), once all that was queued is synced.

    Checkpoints are kept away meanwhile.  At home, under the log latch, but for what the keeper does.  ``done`` when it
    is durable, ``refused`` when nothing was changed: without room for its records, or since it may not be.
    """

    def __init__(
        self,
        log: LocalLog,
        matchpoint: Vlsn,
        done: Callable[[], None],
        refused: Callable[[VlsnLogError], None],
    ) -> None:
        self._log, self._matchpoint = log, matchpoint
        self._done, self._refused = done, refused
        self._found = Abandoned(matchpoint, NULL_VLSN, NULL_LSN, [])
        self._start_lsn = NULL_LSN

    def begin(self) -> None:
        """Raises as ``check_rollback`` does, with nothing begun."""
        log = self._log
        check_rollback(log, self._matchpoint)
        log.replacer.follow(on=True)
        log.rollbacks += 1
        log.checkpointer.hold(lambda: log.drain(self._look))

    def _look(self) -> None:
        """The write path is drained, no checkpoint runs: where the blocks lie is looked up."""
        self._log.keeper.submit(
            lambda: find_abandoned(self._log, self._matchpoint), self._place_start, self._unreadable
        )

    def _unreadable(self, error: BaseException) -> None:
        if isinstance(error, VlsnLogError):
            self._give_up(error)
        elif isinstance(error, OSError):  # no descriptor, say; nothing was changed
            self._give_up(VlsnLogError(f"what is to be rolled back could not be read: {said_of(error)}"))
        else:
            self._log.store_failed(error)

    # 1

    def _place_start(self, found: Abandoned) -> None:
        self._found = found
        if not found.frames:
            self._end()
            return
        try:
            check_rollback(self._log, self._matchpoint)  # what is durable may have risen meanwhile
            self._log.append_record(FrameKind.ROLLBACK_START, self._start_record, self._mark, self._give_up)
        except VlsnLogError as error:
            self._give_up(error)

    def _start_record(self) -> bytes:
        log, found = self._log, self._found
        log.abandon_after(self._matchpoint)
        return RollbackStart(
            matchpoint=self._matchpoint,
            matchpoint_lsn=found.kept_at,
            first_lsn=found.frames[0],
            end_lsn=Lsn(found.frames[-1] + 1),
            last_vlsn=log.range.last,
            clock_us=log.seams.clock.wall_us(),
        ).encode()

    # 2, 3

    def _mark(self, at: Lsn) -> None:
        log, frames = self._log, self._found.frames
        self._start_lsn = at
        log.keeper.submit(
            lambda: finish_rollback(log.seams.disk, log.directory, frames), self._place_end, log.store_failed
        )

    # 4

    def _place_end(self, _: None) -> None:
        self._log.append_record(FrameKind.ROLLBACK_END, self._end_record, self._truncate)

    def _end_record(self) -> bytes:
        return RollbackEnd(start_lsn=self._start_lsn, clock_us=self._log.seams.clock.wall_us()).encode()

    # 5

    def _truncate(self, _: Lsn) -> None:
        self._log.keeper.submit(self._truncate_index, self._forget, self._log.store_failed)

    def _truncate_index(self) -> None:
        log, found = self._log, self._found
        log.index.truncate_tail(self._matchpoint, log.replacer.now_at(found.kept_at), block_first=found.kept_first)

    def _forget(self, _: None) -> None:
        self._log.forget_after(self._matchpoint)
        self._end()

    # Its end.

    def _end(self) -> None:
        self._release()
        self._done()

    def _give_up(self, error: VlsnLogError) -> None:
        self._release()
        self._refused(error)

    def _release(self) -> None:
        log = self._log
        log.rollbacks += 1
        log.replacer.follow(on=False)
        log.checkpointer.release()


def find_abandoned(log: LocalLog, matchpoint: Vlsn) -> Abandoned:
    """Reads where the blocks after ``matchpoint`` lie, by windows.  Raises ``BadArgument`` when no visible block
    ends there, ``Damaged`` when what is to be abandoned cannot be read."""
    span = log.range
    if matchpoint >= span.last:
        return Abandoned(matchpoint, NULL_VLSN, NULL_LSN, [])
    mapping = log.index.at_or_before(matchpoint or span.first)
    if mapping is None or (not matchpoint and span.first != 1):
        raise BadArgument(f"a rollback to VLSN {matchpoint}, but the log begins at {span.first}")
    reader = log.reader()
    kept_first, kept_at, at = NULL_VLSN, NULL_LSN, mapping[1]
    frames: list[Lsn] = []
    try:
        if matchpoint:
            run = reader.blocks(matchpoint, start=at, upto_vlsn=matchpoint, bytes_max=1)
            if run.last != matchpoint:
                raise BadArgument(f"VLSN {matchpoint} is not the last of its block: nothing can be rolled back to it")
            kept_first, kept_at, at = run.first, run.lsns[0], run.next_lsn
        want = Vlsn(matchpoint + 1)
        while want <= span.last:
            run = reader.blocks(want, start=at, upto_vlsn=span.last, bytes_max=WINDOW_BYTES_MAX)
            if not run.data:
                raise Damaged(f"the log ends before VLSN {want}, its index at {span.last}", vlsn=want)
            frames += run.lsns
            want, at = run.next_vlsn, run.next_lsn
    finally:
        reader.close()
    return Abandoned(matchpoint, kept_first, kept_at, frames)
