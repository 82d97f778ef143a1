"""A rollback abandons the blocks after the matchpoint by overmarking: one byte in each block's frame is changed in
place, and nothing is erased.

    1  ROLLBACK_START (matchpoint, first LSN, end LSN) placed and synced            ◄ commit point
    2  the sidecars of the files that will change are deleted, the directory synced
    3  the flag byte of each abandoned frame is set to 0xA5; those files are synced
    4  ROLLBACK_END placed and synced
    5  the index is truncated, synchronously; ring and history forget these blocks

After a crash after step 1, the next open sets the missing flags (``finish_rollback``) and does the other steps. After a
crash before step 1, nothing has happened. The records (ROLLBACK_START, ROLLBACK_END) decide which blocks are abandoned,
and every open checks the flags against the records. If several blocks have the same VLSN, a dump shows all of them, and
a reader sees only the visible one.

    LSN 100 VLSN 1 │ LSN 200 VLSN 2 ✗ │ LSN 300 VLSN 3 ✗ │ START(1) END │ LSN 400 VLSN 2 │ LSN 500 VLSN 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vlsn.errors import BadArgument, Damaged, RollbackProhibited, VlsnLogError, said_of
from vlsn.format.frame import FrameKind
from vlsn.format.records import RollbackEnd, RollbackStart
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.segments.overmarks import finish_rollback
from vlsn.segments.window import WINDOW_BYTES_MAX
from vlsn.write.checkpointer import Checkpointer
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.replacer import Replacer
from vlsn.write.write_cycle import WriteCycle


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The blocks that a rollback to ``matchpoint`` abandons: the LSNs of the visible blocks after the matchpoint,
    ascending. ``kept_first`` and ``kept_at`` are the first VLSN and the LSN of the block that ends at the matchpoint.
    If the matchpoint is 0, ``kept_first`` and ``kept_at`` are 0."""

    matchpoint: Vlsn
    kept_first: Vlsn
    kept_at: Lsn
    frames: list[Lsn]


def check_rollback(view: LogView, matchpoint: Vlsn) -> None:
    """Raises ``RollbackProhibited`` if a rollback to ``matchpoint`` would undo durable entries. Raises ``BadArgument``
    if the matchpoint is not in the log."""
    if matchpoint < view.dtvlsn:
        raise RollbackProhibited(
            f"a rollback to VLSN {matchpoint} would undo durable entries up to {view.dtvlsn}; it needs a person: "
            "compare the copies by an audit before anything else",
            matchpoint=matchpoint,
            durable=view.dtvlsn,
        )
    if matchpoint > view.range.last:
        raise BadArgument(f"a rollback to VLSN {matchpoint}, but the log ends at {view.range.last}")


class Rollback:
    """The rollback of one log to a matchpoint, the end of a visible block (or 0). The rollback begins once everything
    queued is synced.

    No checkpoint runs during a rollback. This class is used on the owner's thread, under the log's latch; some of its
    jobs run on the keeper's thread. ``done`` is called when the rollback is durable. ``refused`` is called if nothing
    was changed, because there was no disk space or the rollback is not allowed.
    """

    def __init__(
        self,
        view: LogView,
        life: LogLife,
        placement: Placement,
        cycle: WriteCycle,
        replacer: Replacer,
        checkpointer: Checkpointer,
        matchpoint: Vlsn,
        done: Callable[[], None],
        refused: Callable[[VlsnLogError], None],
    ) -> None:
        self._view, self._life, self._placement, self._cycle = view, life, placement, cycle
        self._replacer, self._checkpointer = replacer, checkpointer
        self._matchpoint, self._done, self._refused = matchpoint, done, refused
        self._found = Abandoned(matchpoint, NULL_VLSN, NULL_LSN, [])
        self._start_lsn = NULL_LSN

    def begin(self) -> None:
        """Begins the rollback. Raises the errors of ``check_rollback``, before anything has changed."""
        check_rollback(self._view, self._matchpoint)
        self._replacer.follow(on=True)
        self._view.rollbacks += 1
        self._checkpointer.hold(lambda: self._cycle.drain(self._look))

    def _look(self) -> None:
        """Looks up the positions of the blocks to abandon, once everything queued before is written."""
        self._life.keeper.submit(
            partial(find_abandoned, self._view, self._matchpoint), self._place_start, self._unreadable
        )

    def _unreadable(self, error: BaseException) -> None:
        if isinstance(error, VlsnLogError):
            self._give_up(error)
        elif isinstance(error, OSError):  # for example, no file descriptor was free; nothing was changed
            self._give_up(VlsnLogError(f"the blocks to roll back could not be read: {said_of(error)}"))
        else:
            self._life.store_failed(error)

    # 1: the commit point

    def _place_start(self, found: Abandoned) -> None:
        self._found = found
        if not found.frames:
            self._end()
            return
        try:
            check_rollback(self._view, self._matchpoint)  # the durable end may have risen since the last check
            self._cycle.append_record(FrameKind.ROLLBACK_START, self._start_record, self._mark, self._give_up)
        except VlsnLogError as error:
            self._give_up(error)

    def _start_record(self) -> bytes:
        """Makes the record ROLLBACK_START, and forgets the blocks after the matchpoint. If a write fails, the forgotten
        blocks are not written again. The current segment gets no sidecar (file of offsets and a checksum), because the
        rollback is about to change flags that the checksum includes."""
        found = self._found
        with self._life.latch:
            self._placement.forget_after(self._matchpoint)
        return RollbackStart(
            matchpoint=self._matchpoint,
            matchpoint_lsn=found.kept_at,
            first_lsn=found.frames[0],
            end_lsn=Lsn(found.frames[-1] + 1),
            last_vlsn=self._view.range.last,
            clock_us=self._life.clock.wall_us(),
        ).encode()

    # 2, 3

    def _mark(self, at: Lsn) -> None:
        self._start_lsn = at
        self._life.keep(self._set_flags, self._place_end)

    def _set_flags(self) -> None:
        view = self._view
        finish_rollback(view.disk, view.directory, self._found.frames)

    # 4

    def _place_end(self, _: None) -> None:
        self._cycle.append_record(FrameKind.ROLLBACK_END, self._end_record, self._truncate)

    def _end_record(self) -> bytes:
        start = self._replacer.now_at(self._start_lsn)
        return RollbackEnd(start_lsn=start, clock_us=self._life.clock.wall_us()).encode()

    # 5

    def _truncate(self, _: Lsn) -> None:
        self._life.keep(self._truncate_index, self._forget)

    def _truncate_index(self) -> None:
        index, kept_at = self._view.index, self._replacer.now_at(self._found.kept_at)
        index.truncate_tail(self._matchpoint, kept_at, block_first=self._found.kept_first)

    def _forget(self, _: None) -> None:
        with self._life.latch:
            self._view.truncate(self._matchpoint)
            self._placement.last_vlsn = self._matchpoint
        self._end()

    # The end of a rollback.

    def _end(self) -> None:
        self._release()
        self._done()

    def _give_up(self, error: VlsnLogError) -> None:
        self._release()
        self._refused(error)

    def _release(self) -> None:
        self._view.rollbacks += 1
        self._replacer.follow(on=False)
        self._checkpointer.release()


def find_abandoned(view: LogView, matchpoint: Vlsn) -> Abandoned:
    """Finds the positions of the blocks after ``matchpoint``; the log is read window by window. Raises ``BadArgument``
    if no visible block ends at the matchpoint. Raises ``Damaged`` if the blocks cannot be read."""
    span = view.range
    if matchpoint >= span.last:
        return Abandoned(matchpoint, NULL_VLSN, NULL_LSN, [])
    mapping = view.index.at_or_before(matchpoint or span.first)
    if mapping is None or (not matchpoint and span.first != 1):
        raise BadArgument(f"a rollback to VLSN {matchpoint}, but the log begins at {span.first}")
    reader = view.reader()
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
