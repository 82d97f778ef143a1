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

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from vlsn.errors import Damaged, Halted
from vlsn.frame import FLAG_AT, OVERMARKED, FrameKind
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn, lsn_file, lsn_offset
from vlsn.reader import LogReader
from vlsn.records import RollbackEnd, RollbackStart
from vlsn.seams import Disk
from vlsn.segment import segment_name, sidecar_name

if TYPE_CHECKING:
    from vlsn.local import LocalLog

_MARK = bytes([OVERMARKED])


def check_rollback(log: LocalLog, matchpoint: Vlsn) -> None:
    """Raises ``Halted`` when a rollback to ``matchpoint`` would undo what is durable."""
    if matchpoint < log.dtvlsn:
        raise Halted(
            f"a rollback to VLSN {matchpoint} would undo durable entries up to {log.dtvlsn}; it needs a person: "
            "compare the copies with 'vlsnlog audit' before anything else"
        )


def rollback(log: LocalLog, matchpoint: Vlsn, frames: Sequence[Lsn], done: Callable[[], None]) -> None:
    """Rolls ``log`` back to ``matchpoint``, the end of a visible block (or 0).  ``frames`` are the LSNs of the
    visible blocks after it, ascending.  At home, the write path drained, nothing queued, no checkpoint running;
    ``done`` when it is durable."""
    last = log.range.last
    if not frames:
        assert matchpoint == last
        done()
        return
    kept: list[tuple[Vlsn, Lsn]] = [(NULL_VLSN, NULL_LSN)]
    """First VLSN and LSN of the block that ends at the matchpoint."""
    started: list[Lsn] = []

    def located(found: tuple[Vlsn, Lsn]) -> None:
        kept[0] = found
        log.append_record(FrameKind.ROLLBACK_START, start, mark)

    def start() -> bytes:
        return RollbackStart(
            matchpoint=matchpoint,
            matchpoint_lsn=kept[0][1],
            first_lsn=frames[0],
            end_lsn=Lsn(frames[-1] + 1),
            last_vlsn=last,
            clock_us=log.seams.clock.wall_us(),
        ).encode()

    def mark(at: Lsn) -> None:
        started.append(at)
        log.keeper.submit(lambda: finish_rollback(log.seams.disk, log.directory, frames), marked, log.store_failed)

    def marked(_: None) -> None:
        log.append_record(
            FrameKind.ROLLBACK_END,
            lambda: RollbackEnd(start_lsn=started[0], clock_us=log.seams.clock.wall_us()).encode(),
            lambda _: log.keeper.submit(
                lambda: log.index.truncate_tail(matchpoint, kept[0][1], block_first=kept[0][0]),
                truncated,
                log.store_failed,
            ),
        )

    def truncated(_: object) -> None:
        log.forget_after(matchpoint)
        done()

    if matchpoint:
        log.keeper.submit(lambda: _block_at(log, matchpoint), located, log.store_failed)
    else:
        located((NULL_VLSN, NULL_LSN))


def _block_at(log: LocalLog, vlsn: Vlsn) -> tuple[Vlsn, Lsn]:
    """First VLSN and LSN of the block that ends at ``vlsn``."""
    mapping = log.index.at_or_before(vlsn)
    assert mapping is not None
    reader = LogReader(log.seams.disk, log.directory, log.synced_end)
    try:
        run = reader.blocks(vlsn, start=mapping[1], upto_vlsn=vlsn, bytes_max=1)
    finally:
        reader.close()
    if run.last != vlsn:
        raise Damaged(f"no block ends at the matchpoint {vlsn}", vlsn=vlsn)
    return run.first, run.lsns[0]


def finish_rollback(disk: Disk, directory: str, frames: Sequence[Lsn]) -> None:
    """Steps 2 and 3 for the frames at ``frames`` (ascending); durable on return, harmless when done again."""
    voided = False
    for number in sorted({lsn_file(at) for at in frames}):
        path = f"{directory}/{sidecar_name(number)}"
        if disk.exists(path):
            disk.remove(path)
            voided = True
    if voided:
        disk.sync_directory(directory)
    for number, places in groupby(frames, lsn_file):
        file = disk.open(f"{directory}/{segment_name(number)}", write=True)
        try:
            for at in places:
                file.write(lsn_offset(at) + FLAG_AT, [_MARK])
            file.sync()
        finally:
            file.close()
