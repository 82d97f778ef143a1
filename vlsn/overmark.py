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

from vlsn.errors import BadArgument, Damaged, RollbackProhibited, VlsnLogError
from vlsn.frame import FrameKind
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.overmarks import finish_rollback
from vlsn.records import RollbackEnd, RollbackStart
from vlsn.window import WINDOW_BYTES_MAX

if TYPE_CHECKING:
    from vlsn.local import LocalLog


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


def begin_rollback(
    log: LocalLog, matchpoint: Vlsn, done: Callable[[], None], refused: Callable[[VlsnLogError], None]
) -> None:
    """Rolls ``log`` back once all that was queued is synced, and keeps checkpoints away meanwhile.  Raises as
    ``check_rollback`` does, with nothing begun."""
    check_rollback(log, matchpoint)
    log.replacer.follow(on=True)
    log.rollbacks += 1

    def end() -> None:
        log.rollbacks += 1
        log.replacer.follow(on=False)
        log.checkpointer.release()

    def ended() -> None:
        end()
        done()

    def given_up(error: VlsnLogError) -> None:
        end()
        refused(error)

    log.checkpointer.hold(lambda: log.drain(lambda: _rollback(log, matchpoint, ended, given_up)))


def _rollback(
    log: LocalLog, matchpoint: Vlsn, done: Callable[[], None], refused: Callable[[VlsnLogError], None]
) -> None:
    """Rolls ``log`` back to ``matchpoint``, the end of a visible block (or 0).  At home, the write path drained, no
    checkpoint running; ``done`` when it is durable, ``refused`` when nothing was changed (without room for its records
    among them)."""
    started: list[Lsn] = []
    plan: list[Abandoned] = []

    def located(found: Abandoned) -> None:
        if not found.frames:
            done()
            return
        plan.append(found)
        try:
            check_rollback(log, matchpoint)  # what is durable may have risen meanwhile
            log.append_record(FrameKind.ROLLBACK_START, start, mark, refused)
        except VlsnLogError as error:
            refused(error)

    def start() -> bytes:
        log.abandon_after(matchpoint)
        found = plan[0]
        return RollbackStart(
            matchpoint=matchpoint,
            matchpoint_lsn=found.kept_at,
            first_lsn=found.frames[0],
            end_lsn=Lsn(found.frames[-1] + 1),
            last_vlsn=log.range.last,
            clock_us=log.seams.clock.wall_us(),
        ).encode()

    def mark(at: Lsn) -> None:
        started.append(at)
        frames = plan[0].frames
        log.keeper.submit(lambda: finish_rollback(log.seams.disk, log.directory, frames), marked, log.store_failed)

    def marked(_: None) -> None:
        log.append_record(FrameKind.ROLLBACK_END, end, lambda _: log.keeper.submit(cut, forget, log.store_failed))

    def end() -> bytes:
        return RollbackEnd(start_lsn=started[0], clock_us=log.seams.clock.wall_us()).encode()

    def cut() -> None:
        log.index.truncate_tail(matchpoint, log.replacer.now_at(plan[0].kept_at), block_first=plan[0].kept_first)

    def forget(_: None) -> None:
        log.forget_after(matchpoint)
        done()

    def unreadable(error: BaseException) -> None:
        if isinstance(error, VlsnLogError):
            refused(error)
        else:
            log.store_failed(error)

    log.keeper.submit(lambda: find_abandoned(log, matchpoint), located, unreadable)


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
