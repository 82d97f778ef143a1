"""The blocks that were read when a log was opened, and which of them are visible.

The rollback records decide which blocks were abandoned: those between the first LSN and the end LSN that a
ROLLBACK_START names, as far as they are before that record (``rollback_periods``). Each abandoned block's frame has a
flag. A flag that no record explains is damage. A missing flag is set again. The VLSNs of visible blocks must be
consecutive, and the terms of visible blocks never decrease.

    LSN   100  200  300  400 START(200–301)  500  600
    VLSN    1    2    3                        2    3
    flag         ✗                                       the flag at 300 is missing; visible are 100, 500, 600
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody, Damaged
from vlsn.format import rollback_periods
from vlsn.format.frame import FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.segment import segment_name
from vlsn.ids import NULL_LSN, Lsn, Vlsn, lsn, lsn_file, lsn_offset
from vlsn.recover.stored_index import Reread, log_base
from vlsn.recover.torn_tail import Found
from vlsn.segments.visible_blocks import Columns

Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Blocks:
    """All blocks that were read, in log order. Each field is a column with a value for each block."""

    firsts: Column
    lasts: Column
    terms: Column
    dtvlsns: Column
    clocks: Column
    lsns: Column
    produced: Mask
    """Marks the blocks that have producers."""
    committed: Mask
    """Marks the blocks that have transactions."""
    marked: Mask
    """Marks the blocks whose frames have the rollback's flag on the medium."""
    abandoned: Mask
    """Marks the blocks that a rollback record abandons. The other blocks are visible."""
    others: dict[Lsn, bytes]
    """The blocks that may hold GROUP entries or settings, by LSN. Blocks with transactions are left out."""
    rollbacks: list[tuple[Lsn, RollbackStart]] = field(default_factory=list)
    unfinished: list[RollbackStart] = field(default_factory=list)
    """The rollbacks that have no ROLLBACK_END."""
    checkpoint_starts: list[CheckpointStart] = field(default_factory=list)
    checkpoint_ends: list[tuple[Lsn, CheckpointEnd]] = field(default_factory=list)

    @property
    def visible(self) -> Mask:
        return ~self.abandoned

    @property
    def highest_term(self) -> int:
        """The highest term of all blocks, including abandoned ones."""
        return int(self.terms.max()) if len(self.terms) else 0

    @property
    def highest_vlsn(self) -> int:
        return int(self.lasts.max()) if len(self.lasts) else 0

    def due_flags(self) -> list[Lsn]:
        """Lists the blocks that a rollback abandoned but whose frames do not have its flag yet."""
        return [Lsn(at) for at in self.lsns[self.abandoned & ~self.marked].tolist()]

    def reread(self, scan_from: Lsn, checkpoint_last: Vlsn) -> Reread:
        """Selects the visible blocks for the index. ``scan_from`` is the place where reading began. ``checkpoint_last``
        is the last VLSN at the checkpoint that points to ``scan_from``. The CHECKPOINT_START of a checkpoint may be in
        dead bytes, if its segment was replaced after a failed write."""
        visible = self.visible
        columns = Columns(*(column[visible].tolist() for column in (self.firsts, self.lasts, self.lsns, self.clocks)))
        matchpoints = [rollback.matchpoint for _, rollback in self.rollbacks]
        if self.checkpoint_starts:
            checkpoint_last = Vlsn(self.checkpoint_starts[0].last_vlsn)
        return Reread(scan_from, log_base(columns, matchpoints, checkpoint_last), columns)


def gather(found: Sequence[Found], scan_from: Lsn = NULL_LSN) -> Blocks:
    """Gathers the blocks that were read from ``scan_from`` on (0: from the log's beginning). Raises ``Damaged`` for an
    unreadable record and for blocks out of order. For rollbacks, also raises it if two of them cross, if an end has no
    start, or if a flag has no record."""

    def column(name: str, kind: type[np.int64 | np.bool_]) -> Any:
        return np.concatenate([np.zeros(0, kind), *(getattr(each, name) for each in found)])

    lsns = [np.zeros(0, np.int64), *(each.offsets + lsn(each.number, 0) for each in found)]
    blocks = Blocks(
        **{name: column(name, np.int64) for name in ("firsts", "lasts", "terms", "dtvlsns", "clocks")},
        **{name: column(name, np.bool_) for name in ("produced", "committed", "marked")},
        lsns=np.concatenate(lsns),
        abandoned=np.zeros(sum(len(each.offsets) for each in found), np.bool_),
        others={lsn(each.number, at): data for each in found for at, data in each.others.items()},
    )
    _apply_records(blocks, found, scan_from)
    _check_flags(blocks)
    _check_order(blocks)
    return blocks


def _apply_records(blocks: Blocks, found: Sequence[Found], scan_from: Lsn) -> None:
    ends: list[rollback_periods.Ended] = []
    for each in found:
        for offset, kind, payload in each.records:
            at = lsn(each.number, offset)
            try:
                if kind is FrameKind.ROLLBACK_START:
                    blocks.rollbacks.append((at, RollbackStart.decode(payload)))
                elif kind is FrameKind.ROLLBACK_END:
                    ends.append((at, RollbackEnd.decode(payload)))
                elif kind is FrameKind.CHECKPOINT_START:
                    blocks.checkpoint_starts.append(CheckpointStart.decode(payload))
                elif kind is FrameKind.CHECKPOINT_END:
                    blocks.checkpoint_ends.append((at, CheckpointEnd.decode(payload)))
            except BadBody as error:
                raise _damage(str(error), at) from error
    first = scan_from or (lsn(found[0].number, 0) if found else NULL_LSN)
    _check_rollbacks(blocks.rollbacks, ends, first)
    for started in blocks.rollbacks:
        blocks.abandoned |= rollback_periods.inside(blocks.lsns, *started)
    ended = {record.start_lsn for _, record in ends}
    blocks.unfinished = [record for at, record in blocks.rollbacks if at not in ended]


def _check_rollbacks(
    started: Sequence[rollback_periods.Started], ended: Sequence[rollback_periods.Ended], first: Lsn
) -> None:
    wrong = rollback_periods.crossings(started) + rollback_periods.unstarted(started, ended, first)
    if wrong:
        at, detail = min(wrong)
        vlsn = next((record.matchpoint + 1 for place, record in started if place == at), 0)
        raise _damage(f"a rollback's record contradicts the log: {detail}", at, vlsn)


def _check_flags(blocks: Blocks) -> None:
    strange = blocks.marked & ~blocks.abandoned
    if strange.any():
        at, vlsn = Lsn(int(blocks.lsns[strange][0])), int(blocks.firsts[strange][0])
        raise _damage("a block is overmarked, and no rollback record names it", at, vlsn)


def _check_order(blocks: Blocks) -> None:
    visible = blocks.visible
    firsts, lasts, terms = blocks.firsts[visible], blocks.lasts[visible], blocks.terms[visible]
    wrong = (firsts[1:] != lasts[:-1] + 1) | (terms[1:] < terms[:-1])
    if wrong.any():
        index = int(wrong.argmax()) + 1
        last = int(lasts[index - 1])
        detail = f"VLSN {firsts[index]} of term {terms[index]} follows VLSN {last} of term {terms[index - 1]}"
        raise _damage(detail, Lsn(int(blocks.lsns[visible][index])), last + 1)


def _damage(detail: str, at: Lsn, vlsn: int = 0) -> Damaged:
    name, offset = segment_name(lsn_file(at)), lsn_offset(at)
    return Damaged(f"{name}, offset {offset}: {detail}", file=name, offset=offset, vlsn=vlsn)
