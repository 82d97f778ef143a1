"""What entries add up to, made again from the blocks that an open has read: term runs, groups, the DTVLSN.

The log wins over the state record.  Where that does not go on into what was read, it is a ``Misfit``: ``state`` is of
another log or of another time, and the whole log is read instead.  The index has its own rules: ``reindex``.
"""

from __future__ import annotations

import numpy as np

from vlsn.errors import VlsnLogError
from vlsn.history import History
from vlsn.ids import Vlsn
from vlsn.state import StateRecord
from vlsn.visible import Blocks


class Misfit(VlsnLogError):
    """The state record does not go on into the log that was read."""


def derive_history(record: StateRecord | None, blocks: Blocks, last_visible: int) -> History:
    """Term runs and groups: the state record's, then those of what was read.  Raises ``Misfit``."""
    history = History(record)
    known = int(record.vlsn) if record is not None else 0
    if known > last_visible:
        raise Misfit(f"the state record is of VLSN {known}, the log ends at {last_visible}")
    keep = blocks.visible & (blocks.lasts > known)
    firsts, lasts, terms = blocks.firsts[keep], blocks.lasts[keep], blocks.terms[keep]
    if not len(firsts):
        return history
    if record is not None and (firsts[0] > known + 1 or terms[0] < history.last_term):
        raise Misfit(f"the state record ends at VLSN {known}, the log goes on at {firsts[0]} in term {terms[0]}")
    starts = np.flatnonzero(np.concatenate(([True], terms[1:] != terms[:-1])))
    stops = np.concatenate((starts[1:], [len(terms)])) - 1
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        first = max(int(firsts[start]), known + 1) if record is not None else int(firsts[start])
        history.note_term(int(terms[start]), first, int(lasts[stop]))
    for at in blocks.lsns[keep].tolist():
        if at in blocks.others:
            history.note_block(blocks.others[at])
    return history


def durable_end(blocks: Blocks, *, stated: int, last_visible: int) -> Vlsn:
    """The highest DTVLSN that visible blocks, checkpoints or ``state`` name: of a checkpoint's no more than what a
    rollback behind it (an operator's truncation) has left."""
    named = [
        min([end.dtvlsn, *(rollback.matchpoint for start, rollback in blocks.rollbacks if start > at)])
        for at, end in blocks.checkpoint_ends
    ]
    named.append(stated)
    visible = blocks.visible
    if visible.any():
        named.append(int(blocks.dtvlsns[visible].max()))
    return Vlsn(min(max(named), last_visible))
