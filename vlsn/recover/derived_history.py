"""Rebuilds the history of a log when it is opened: everything that follows from the entries, such as terms, groups,
producers and the DTVLSN (durable end).

If the log and the state record contradict each other, the log is right. If the state record does not fit the blocks
that were read, ``Misfit`` is raised, since ``state`` belongs to another log or another time. The whole log is read
instead. For the index, ``stored_index`` has the rules.

A truncation needs the history as of a VLSN before the record's VLSN (``record_before``). If the log begins at VLSN 1,
the history is read from the log. If the log was cleaned, only the record has the effects of the removed entries. So a
truncation of a cleaned log is refused if anything has changed since the VLSN of the truncation:

    cleaned to 40, record of 90, cut after 60     61–90 set ``a`` and have producer 7: refused, because the value of
                                                  ``a`` at 60, and the place of producer 7, may have been in 1–40
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from vlsn.errors import BadArgument, Damaged, VlsnLogError
from vlsn.format import block as block_format
from vlsn.format import scan
from vlsn.format.block import KIND_COLUMN, EntryKind, check_body, decode_header
from vlsn.format.block_heads import produced_of
from vlsn.format.columns import PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.own_entries import founding_of, own_entries
from vlsn.format.producer_columns import HANDLE_SEQUENCE, Produced
from vlsn.format.records import CommitEntry, Settings
from vlsn.format.segment import SegmentHeader
from vlsn.ids import NULL_VLSN, U32_MAX, Vlsn, lsn_file, lsn_offset
from vlsn.levels import LEVEL_1, TRANSACTIONS
from vlsn.recover.log_start import first_block
from vlsn.recover.read_blocks import Blocks, Column
from vlsn.seams import Disk
from vlsn.segments.reader import SegmentFile
from vlsn.segments.visible_blocks import WINDOW_BYTES
from vlsn.segments.window import WINDOW_BYTES_MIN
from vlsn.state.history import History
from vlsn.state.state_store import StateRecord

NAMED_MAX = 10
"""The most names of one kind that an error lists."""


class Misfit(VlsnLogError):
    """Raised if the state record does not fit the log that was read."""

    retry_safe = True


def derive_history(record: StateRecord | None, blocks: Blocks, last_visible: int, *, level: int) -> History:
    """Derives terms and groups from the state record, then from the blocks read. The tables of producers and
    transactions stay as in the record (see ``note_producers``). ``level`` is the level at the beginning of a cleaned
    log without a record (``level_before``). Raises ``Misfit`` if the record does not fit the blocks."""
    history = History(record)
    known = int(record.vlsn) if record is not None else 0
    if known > last_visible:
        raise Misfit(f"the state record is of VLSN {known}, the log ends at {last_visible}")
    keep = blocks.visible & (blocks.lasts > known)
    firsts, lasts, terms = blocks.firsts[keep], blocks.lasts[keep], blocks.terms[keep]
    if not len(firsts):
        return history
    if record is not None and (firsts[0] > known + 1 or terms[0] < history.last_term):
        raise Misfit(f"the state record ends at VLSN {known}, but the log continues at {firsts[0]} in term {terms[0]}")
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
    """Reads the log's name from the first block of the segments in ``ends``. The name is read from the log if the state
    record was written before logs had names. Returns "" if that block does not contain the name. Other code reports
    damage in the first block."""
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
    """Returns the level that the log evidently had before its first entry that sets a level. A segment's header has the
    level that was durable when the segment was prepared. A logged transaction shows that the level for transactions was
    durable."""
    logged = logged_levels(blocks)
    upto = logged[0][0] if logged else blocks.highest_vlsn + 1
    seen = [header.level for header in headers if header.prev_last_vlsn < upto]
    if (blocks.visible & blocks.committed & (blocks.lasts < upto)).any():
        seen.append(TRANSACTIONS)
    return max(seen, default=LEVEL_1.min)


def logged_levels(blocks: Blocks) -> list[tuple[Vlsn, int]]:
    """Returns the levels that visible blocks set, each with its VLSN."""
    read = History()
    for at in blocks.lsns[blocks.visible].tolist() if blocks.others else ():
        if at in blocks.others:
            read.note_block(blocks.others[at])
    return read.levels


def note_producers(disk: Disk, directory: str, record: StateRecord | None, blocks: Blocks, history: History) -> None:
    """Notes the producers and transactions of the blocks read. Blocks with producers or transactions are read again,
    window by window, so that memory does not grow with the log. Raises ``Damaged`` for a block that can no longer be
    read."""
    known = int(record.vlsn) if record is not None else 0
    visible = blocks.visible & (blocks.lasts > known)
    if not known and visible.any():
        history.lose_before(Vlsn(int(blocks.firsts[visible][0])))
    for window in _windows(disk, directory, blocks.lsns[visible & (blocks.produced | blocks.committed)]):
        history.note_submissions(window.submissions())
        for block in window.blocks(window.heads["flags"] & np.uint8(TXNS) != 0):
            history.note_block(block)


def record_before(disk: Disk, directory: str, record: StateRecord, blocks: Blocks, vlsn: Vlsn) -> StateRecord:
    """Returns a state record of VLSN ``vlsn`` or earlier. ``vlsn`` must be before the VLSN of ``record``, and
    ``blocks`` must be the whole log. Raises ``BadArgument`` if the log alone cannot provide an earlier record. Raises
    ``Damaged``."""
    if not record.trimmed_to:
        return StateRecord(vlsn=NULL_VLSN, first_segment=record.first_segment)
    between = blocks.visible & (blocks.lasts > vlsn) & (blocks.firsts <= record.vlsn)
    check_unchanged(disk, directory, record, vlsn, blocks.lsns[between])
    runs = [(term, first, min(last, vlsn)) for term, first, last in record.term_runs if first <= vlsn]
    return msgspec.structs.replace(record, vlsn=vlsn, term_runs=runs)


def check_unchanged(disk: Disk, directory: str, record: StateRecord, vlsn: Vlsn, lsns: Column | Sequence[int]) -> None:
    """Checks that nothing in ``record``, the state record of a cleaned log, has changed since ``vlsn``. ``lsns`` are
    the LSNs of all visible blocks after ``vlsn``, up to the record's VLSN. Raises ``BadArgument``, which names the
    changes, or ``Damaged``."""
    changed = _Changed()
    for window in _windows(disk, directory, np.asarray(lsns, np.int64)):
        changed.note(window)
    if said := changed.said():
        raise BadArgument(
            f"{directory} cannot be cut after VLSN {vlsn}: the log was cleaned up to VLSN {record.trimmed_to}, and "
            f"the state before VLSN {record.vlsn} is not stored. These have changed, and their earlier values would be "
            f"lost: {said}. "
            f"Cut after {record.vlsn} or later, or have the node restored from another one"
        )


@dataclass(slots=True)
class _Changed:
    """The metadata that some blocks change."""

    names: set[str] = field(default_factory=set)
    destinations: set[str] = field(default_factory=set)
    producers: set[int] = field(default_factory=set)
    transactions: int = 0
    settings: bool = False
    members: bool = False

    def note(self, window: _Window) -> None:
        self.producers.update(row[0] for row in window.submissions() if row[1] != HANDLE_SEQUENCE)
        for block in window.blocks(np.isin(window.heads["kind"], (EntryKind.GROUP, EntryKind.COMMIT, KIND_COLUMN))):
            own = own_entries(block, block_format.decode_header(block))
            self.transactions += bool(own.txn_end)
            for entry in own.entries:
                if entry.kind == EntryKind.GROUP:
                    self.members = True
                elif entry.kind == EntryKind.COMMIT:
                    commit = CommitEntry.decode(entry.value)
                    self.names |= commit.put.keys()
                    self.destinations |= commit.acks.keys()
                    self.settings |= commit.set != Settings()

    def said(self) -> str:
        """Names all changes, or returns "" if there are none."""
        parts = [_several("the name", self.names), _several("the acknowledgements of destination", self.destinations)]
        parts += ["the settings of the group"] * self.settings + ["its members"] * self.members
        parts.append(_several("the producer", {f"{producer:016x}" for producer in self.producers}))
        parts += ["the transactions that the log holds"] * bool(self.transactions)
        return "; ".join(part for part in parts if part)


def _several(what: str, names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMED_MAX])
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{what}{'s' * (len(names) > 1)} {shown}{more}" if names else ""


@dataclass(frozen=True, slots=True)
class _Window:
    """Some blocks in a window (a piece) of a segment: their headers, and the places in the window where the blocks
    begin."""

    buf: bytes
    begins: scan.Offsets
    heads: scan.Headers

    def submissions(self) -> list[Produced]:
        """Lists the submissions that have a producer, or are transactions with handles."""
        named = self.heads["flags"] & np.uint8(PRODUCERS) != 0
        return produced_of(self.buf, self.begins[named], self.heads[named]) if named.any() else []

    def blocks(self, chosen: npt.NDArray[np.bool_]) -> Iterator[memoryview]:
        view = memoryview(self.buf)
        return (view[begin:] for begin in self.begins[chosen].tolist())


def _windows(disk: Disk, directory: str, lsns: Column) -> Iterator[_Window]:
    """Reads the blocks at ``lsns``, which are ascending, window by window. Raises ``Damaged`` if one of the blocks is
    no longer there."""
    for number in np.unique(lsns >> 32).tolist():
        with closing(SegmentFile(disk, directory, number)) as segment:
            yield from _windows_of(segment, lsns[lsns >> 32 == number] & U32_MAX)


def _windows_of(segment: SegmentFile, offsets: Column) -> Iterator[_Window]:
    done = 0
    while done < len(offsets):
        at = int(offsets[done])
        buf, found = segment.window(at, segment.header.size, WINDOW_BYTES)
        chosen = found.only(np.isin(found.offsets, offsets))
        if not len(chosen):
            raise Damaged(f"{segment.name}: a block at {at} is no longer there", file=segment.name, offset=at)
        yield _Window(buf, chosen.offsets - at + FRAME_BYTES, scan.block_headers(buf, at, chosen.offsets))
        done += len(chosen)


def durable_end(blocks: Blocks, *, stated: int, last_visible: int) -> Vlsn:
    """Finds the highest DTVLSN (durable end) that visible blocks, checkpoints or ``state`` state. An operator's
    truncation may roll back to before a checkpoint. The DTVLSN of a checkpoint after the matchpoint is lowered to the
    rollback's matchpoint."""
    named = [
        min([end.dtvlsn, *(rollback.matchpoint for start, rollback in blocks.rollbacks if start > at)])
        for at, end in blocks.checkpoint_ends
    ]
    named.append(stated)
    visible = blocks.visible
    if visible.any():
        named.append(int(blocks.dtvlsns[visible].max()))
    return Vlsn(min(max(named), last_visible))
