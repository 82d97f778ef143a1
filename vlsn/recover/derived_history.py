"""The sum of the entries, made again at an open: term runs, groups, producers, the DTVLSN.

The log wins over the state record.  Where that does not go on into what was read, it is a ``Misfit``: ``state`` is of
another log or of another time, and the whole log is read instead.  The index has its own rules: ``stored_index``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from vlsn.errors import Damaged, VlsnLogError
from vlsn.format import scan
from vlsn.format.block import check_body, decode_header
from vlsn.format.columns import PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.own_entries import founding_of, own_entries
from vlsn.format.producer_columns import produced_of
from vlsn.format.segment import SegmentHeader
from vlsn.ids import U32_MAX, Vlsn, lsn_file, lsn_offset
from vlsn.levels import LEVEL_1, TRANSACTIONS
from vlsn.recover.log_start import first_block
from vlsn.recover.read_blocks import Blocks, Column
from vlsn.seams import Disk
from vlsn.segments.reader import SegmentFile
from vlsn.segments.visible_blocks import WINDOW_BYTES
from vlsn.segments.window import WINDOW_BYTES_MIN
from vlsn.state.history import History
from vlsn.state.state_store import StateRecord


class Misfit(VlsnLogError):
    """The state record does not go on into the log that was read."""

    retry_safe = True


def derive_history(record: StateRecord | None, blocks: Blocks, last_visible: int, *, level: int) -> History:
    """Derives term runs and groups: the state record's, then those of what was read. Producers and transactions are as
    of the record yet (see ``note_producers``). ``level``: what a log without a record, which was cleaned, begins with
    (``level_before``). Raises ``Misfit``."""
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
    if record is None and firsts[0] > 1:
        history.begin_at_level(Vlsn(int(firsts[0]) - 1), level)
    starts = np.flatnonzero(np.concatenate(([True], terms[1:] != terms[:-1])))
    stops = np.concatenate((starts[1:], [len(terms)])) - 1
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        first = max(int(firsts[start]), known + 1) if record is not None else int(firsts[start])
        history.note_term(int(terms[start]), first, int(lasts[stop]))
    for at in blocks.lsns[keep].tolist():
        if at in blocks.others:
            history.note_block(blocks.others[at])
    return history


def read_founding(disk: Disk, directory: str, ends: Mapping[int, int]) -> str:
    """Reads the log's name from the first block of the segments in ``ends``, for a state record of before there were
    names; empty where that block does not say it. Damage there is for others to tell."""
    try:
        _, at = first_block(disk, directory, ends)
        segment = SegmentFile(disk, directory, lsn_file(at))
    except VlsnLogError:
        return ""
    try:
        buf, _ = segment.window(lsn_offset(at), ends[segment.number], WINDOW_BYTES_MIN)
        block = memoryview(buf)[FRAME_BYTES:]
        header = decode_header(block)
        check_body(block, header)
        return founding_of(own_entries(block, header).entries)
    except VlsnLogError:
        return ""
    finally:
        segment.close()


def level_before(blocks: Blocks, headers: Iterable[SegmentHeader]) -> int:
    """Returns the level that the log is seen to have had before the first entry in it that sets one. A segment bears
    the level that was durable when it was prepared; who logs a transaction has read that it is."""
    logged = logged_levels(blocks)
    upto = logged[0][0] if logged else blocks.highest_vlsn + 1
    seen = [header.level for header in headers if header.prev_last_vlsn < upto]
    if (blocks.visible & blocks.committed & (blocks.lasts < upto)).any():
        seen.append(TRANSACTIONS)
    return max(seen, default=LEVEL_1.min)


def logged_levels(blocks: Blocks) -> list[tuple[Vlsn, int]]:
    """Returns the levels that visible blocks set, and at which VLSNs."""
    read = History()
    for at in blocks.lsns[blocks.visible].tolist() if blocks.others else ():
        if at in blocks.others:
            read.note_block(blocks.others[at])
    return read.levels


def note_producers(disk: Disk, directory: str, record: StateRecord | None, blocks: Blocks, history: History) -> None:
    """Notes the producers and transactions of what was read, which is read again where there are any. It goes by
    windows, so that memory does not grow with the log. Raises ``Damaged``."""
    known = int(record.vlsn) if record is not None else 0
    visible = blocks.visible & (blocks.lasts > known)
    if not known and visible.any():
        history.lose_before(Vlsn(int(blocks.firsts[visible][0])))
    wanted = blocks.lsns[visible & (blocks.produced | blocks.committed)]
    for number in np.unique(wanted >> 32).tolist():
        segment = SegmentFile(disk, directory, number)
        try:
            _note_segment(segment, wanted[wanted >> 32 == number] & U32_MAX, history)
        finally:
            segment.close()


def _note_segment(segment: SegmentFile, offsets: Column, history: History) -> None:
    done = 0
    while done < len(offsets):
        at = int(offsets[done])
        buf, found = segment.window(at, segment.header.size, WINDOW_BYTES)
        chosen = found.only(np.isin(found.offsets, offsets))
        if not len(chosen):
            raise Damaged(f"{segment.name}: a block at {at} is not there any more", file=segment.name, offset=at)
        heads = scan.block_headers(buf, at, chosen.offsets)
        begins = chosen.offsets - at + FRAME_BYTES
        produced = heads["flags"] & np.uint8(PRODUCERS) != 0
        if produced.any():
            history.note_submissions(produced_of(buf, begins[produced], heads[produced]))
        view = memoryview(buf)
        for begin in begins[heads["flags"] & np.uint8(TXNS) != 0].tolist():
            history.note_block(view[begin:])
        done += len(chosen)


def durable_end(blocks: Blocks, *, stated: int, last_visible: int) -> Vlsn:
    """Finds the highest DTVLSN that visible blocks, checkpoints or ``state`` name. Of a checkpoint's it takes no more
    than a rollback behind it (an operator's truncation) has left."""
    named = [
        min([end.dtvlsn, *(rollback.matchpoint for start, rollback in blocks.rollbacks if start > at)])
        for at, end in blocks.checkpoint_ends
    ]
    named.append(stated)
    visible = blocks.visible
    if visible.any():
        named.append(int(blocks.dtvlsns[visible].max()))
    return Vlsn(min(max(named), last_visible))
