"""Opening a directory: the node file, the stores, the segments from the last checkpoint on.

    1  lock the directory; node file, ``state``, ``index`` (what of LMDB cannot be read is set aside)
    2  sync every segment that will be read, and the directory; drop them from the page cache
    3  examine them (``examine``): good frames, or a cut, or damage
    4  a rollback that was begun is finished; visible blocks must follow on exactly
    5  write the vote floor, then keep the cut bytes aside
    6  the blocks go into the index, or it is built anew where it does not fit the log (``reindex``)

Damage raises and nothing is changed by it.  Stopped anywhere, the next open does the same again: nothing
here makes the log shorter on the medium; the next segment's header will, by naming the end.  All of it runs
on the keeper's thread, the one that may write to LMDB.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vlsn import nodefile, scan
from vlsn.beginning import finish_cleaning, kept_segments, state_fits
from vlsn.block import KIND_COLUMN, EntryKind, decode_header
from vlsn.directory import SegmentInfo, survey
from vlsn.errors import Damaged, WrongDirectory
from vlsn.examine import Cut, Found, cut_name, examine, sync_and_forget, untaken
from vlsn.frame import FRAME_BYTES, OVERMARKED, FrameKind
from vlsn.history import History
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn, lsn, lsn_file, lsn_offset
from vlsn.index.index import VlsnIndex
from vlsn.limits import INDEX_MAP_BYTES, STATE_MAP_BYTES
from vlsn.nodefile import NodeFile, NodeRecord
from vlsn.overmark import finish_rollback
from vlsn.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.reindex import Reread, StoredIndex, log_base
from vlsn.retrack import Columns
from vlsn.seams import DirectoryLock, Disk, File, Seams
from vlsn.segment import FIRST_FRAME, SegmentState, segment_name
from vlsn.state import Checkpoint, StateRecord, StateStore
from vlsn.tail import PAGE_BYTES, Frame, Tail

LOCK_NAME = "LOCK"
NODE_FILE_NAME = "node.id"
INDEX_NAME = "index"
STATE_NAME = "state"


@dataclass(slots=True)
class Recovered:
    """An opened directory, ready for ``LocalLog``."""

    directory: str
    lock: DirectoryLock
    latch: AbstractContextManager[object]
    node_file: NodeFile
    index: VlsnIndex
    state: StateStore
    history: History
    checkpoint: Checkpoint | None
    settled: Vlsn | None
    """The VLSN of the state record; None without one, when the log does not begin at 1."""
    dtvlsn: Vlsn
    tail: Tail | None
    prev_number: int
    prev_end: int
    next_number: int
    ends: dict[int, int]
    cuts: int
    empty_store: bool
    """The node file was made by this open: a new incarnation."""
    notes: list[str] = field(default_factory=list)
    """What was out of the ordinary, for the node's log."""


@dataclass(slots=True)
class _Blocks:
    """Visible and overmarked blocks of everything examined, by column, in log order."""

    firsts: npt.NDArray[np.int64]
    lasts: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int64]
    dtvlsns: npt.NDArray[np.int64]
    lsns: npt.NDArray[np.int64]
    marked: npt.NDArray[np.bool_]


def recover(
    directory: str,
    seams: Seams,
    *,
    group: str,
    node: str,
    segment_bytes: int,
    index_map_bytes: int = INDEX_MAP_BYTES,
    state_map_bytes: int = STATE_MAP_BYTES,
) -> Recovered:
    """Opens (or founds) the directory of ``node`` of ``group``.  Raises ``LogInUse``, ``WrongDirectory``,
    ``Damaged``, ``LogFailed`` or ``OSError``; nothing stays open or locked then."""
    disk = seams.disk
    _make_directory(disk, directory)
    lock = disk.lock(f"{directory}/{LOCK_NAME}")
    opened: list[Callable[[], None]] = [lock.release]
    try:
        return _recover(directory, seams, lock, opened, group, node, segment_bytes, index_map_bytes, state_map_bytes)
    except BaseException:
        for close in reversed(opened):
            close()
        raise


def _recover(
    directory: str,
    seams: Seams,
    lock: DirectoryLock,
    opened: list[Callable[[], None]],
    group: str,
    node: str,
    segment_bytes: int,
    index_map_bytes: int,
    state_map_bytes: int,
) -> Recovered:
    disk = seams.disk
    notes: list[str] = []
    every = survey(disk, directory)
    next_number = max((segment.number for segment in every), default=0) + 1
    _check_owner(every, directory, group, node)
    record = _node_record(disk, directory)
    if record is not None and (record.group != group or record.node != node):
        raise WrongDirectory(
            f"{directory} belongs to node {record.node} of group {record.group}, not to {node} of {group}"
        )
    state = _open_state(seams, directory, state_map_bytes, notes)
    opened.append(state.close)
    latch = seams.threads.latch()
    stored = StoredIndex(seams.stores, f"{directory}/{INDEX_NAME}", index_map_bytes, latch, notes)
    opened.append(lambda: stored.index.close())

    checkpoint = state.checkpoint()
    state_record = state.record()
    stated = _stated(state, checkpoint)
    segments = [segment for segment in every if segment.active]
    unsynced = _untaken(disk, directory, every, stated)
    if not state_fits(disk, directory, segments, stored.index, state_record):
        notes.append("the state is older than a cleaning of this log: its checkpoint and record are not used")
        checkpoint = state_record = None
    segments = kept_segments(segments, state_record)
    if checkpoint is not None and not _has_place(segments, checkpoint.scan_lsn, checkpoint.end_lsn):
        if record is None and not segments:
            raise WrongDirectory(f"{directory} has a checkpoint but neither segments nor a node file")
        raise Damaged(f"{directory}: the checkpoint points at a segment that is gone", file="state")
    scan_from = checkpoint.scan_lsn if checkpoint is not None else NULL_LSN

    read = [segment for segment in segments if segment.number >= lsn_file(scan_from)]
    sync_and_forget(disk, directory, read)
    _check_chain(segments)
    found = _examine_all(disk, read, scan_from, stated)
    blocks = _gather(found)
    rollbacks, ends = _rollback_records(found)
    _apply_rollbacks(disk, directory, blocks, rollbacks, ends, notes)
    visible = ~blocks.marked
    _check_contiguity(blocks, visible)
    log = _reread(scan_from, blocks, visible, rollbacks, found)

    cut = found[-1].cut if found else None
    highest_term = int(blocks.terms.max()) if len(blocks.terms) else 0
    last_visible = int(log.last)
    empty_store = record is None
    node_file = _open_node_file(seams, directory, record, group, node, max(highest_term, cut.floor_term if cut else 0))
    opened.append(node_file.close)
    if cut is not None:
        _write_floor(node_file, cut, last_visible)
        _keep_cut(disk, directory, cut, notes)
    for segment, frames in unsynced:
        _write_floor(node_file, frames, last_visible)
        notes.append(f"{segment.name} was taken but never synced: its frames are kept aside")
        disk.rename(segment.path, _free_name(disk, f"{directory}/{cut_name(segment.number, FIRST_FRAME)}"))
        disk.sync_directory(directory)

    history = _history(state_record, scan_from, int(blocks.firsts[visible][0]) if visible.any() else 1)
    _derive(history, blocks, visible, found)
    index = stored.fit(
        disk,
        directory,
        segments,
        log,
        pointer=checkpoint.id if checkpoint is not None else 0,
        owner=node_file.record.incarnation,
    )
    if finish_cleaning(disk, directory, index, segments, state_record):
        notes.append(f"the cleaning up to VLSN {index.range.first - 1} is finished")
    log_begins = index.range.first
    history.truncate_head(log_begins)

    idle = state.idle_end()
    dtvlsn = max(
        checkpoint.dtvlsn if checkpoint is not None else 0,
        idle.dtvlsn if idle is not None else 0,
        int(blocks.dtvlsns[visible].max()) if visible.any() else 0,
        *_checkpointed_dtvlsns(found, rollbacks),
        0,
    )
    tail = _tail(disk, segments, found)
    live_ends = {segment.number: segment.live_end for segment in segments if segment.live_end is not None}
    if found:
        live_ends[found[-1].number] = found[-1].end
    prev = found[-1] if found else None
    return Recovered(
        directory=directory,
        lock=lock,
        latch=latch,
        node_file=node_file,
        index=index,
        state=state,
        history=history,
        checkpoint=checkpoint,
        settled=state_record.vlsn if state_record is not None else None if log_begins > 1 else NULL_VLSN,
        dtvlsn=Vlsn(min(dtvlsn, last_visible)),
        tail=tail,
        prev_number=prev.number if prev is not None else 0,
        prev_end=prev.end if prev is not None else 0,
        next_number=next_number,
        ends=live_ends,
        cuts=int(cut is not None) + len(unsynced),
        empty_store=empty_store,
        notes=notes,
    )


def _make_directory(disk: Disk, directory: str) -> None:
    """With its parents, each name synced: files in a directory that is not durable itself are not either."""
    missing = []
    at = directory.rstrip("/")
    while at and not disk.exists(at):
        missing.append(at)
        at = posixpath.dirname(at)
    for path in reversed(missing):
        disk.make_directory(path)
        disk.sync_directory(posixpath.dirname(path) or ".")


# Segments.


def _check_owner(segments: Sequence[SegmentInfo], directory: str, group: str, node: str) -> None:
    for segment in segments:
        header = segment.header
        if header is not None and (header.group != group or header.node != node):
            raise WrongDirectory(
                f"{segment.path} belongs to node {header.node} of group {header.group}, not to {node} of {group}"
            )


def _untaken(
    disk: Disk, directory: str, segments: Sequence[SegmentInfo], stated: Sequence[Lsn]
) -> list[tuple[SegmentInfo, Cut]]:
    """Deletes unused standbys (their numbers stay burnt for this open); gives those that hold frames of a group
    that was never synced."""
    unsynced = []
    last = max((segment.number for segment in segments if segment.active), default=0)
    for segment in segments:
        if segment.active:
            continue
        if segment.header is None and segment.number < last:
            raise Damaged(f"{segment.name}: its header is damaged ({segment.fault})", file=segment.name, offset=0)
        cut = untaken(disk, segment, stated=stated)
        if cut is not None:
            unsynced.append((segment, cut))
        else:
            disk.remove(segment.path)
            disk.sync_directory(directory)
    return unsynced


def _check_chain(segments: Sequence[SegmentInfo]) -> None:
    for before, after in pairwise(segments):
        assert after.header is not None
        if after.header.prev_number != before.number:
            raise Damaged(
                f"{after.name} follows on segment {after.header.prev_number}, but the one before it is {before.name}",
                file=after.name,
            )


def _has_place(segments: Sequence[SegmentInfo], *places: Lsn) -> bool:
    numbers = {segment.number for segment in segments}
    return all(not place or lsn_file(place) in numbers for place in places)


def _stated(state: StateStore, checkpoint: Checkpoint | None) -> list[Lsn]:
    """Everything that ``state`` says of how far the log had been synced, as exclusive ends."""
    stated = []
    if checkpoint is not None:
        stated.append(Lsn(checkpoint.end_lsn + FRAME_BYTES))
    idle = state.idle_end()
    if idle is not None:
        stated.append(Lsn(idle.lsn))
    return stated


def _examine_all(disk: Disk, read: Sequence[SegmentInfo], scan_from: Lsn, stated: Sequence[Lsn]) -> list[Found]:
    found = []
    for position, segment in enumerate(read):
        start = FIRST_FRAME
        if scan_from and segment.number == lsn_file(scan_from):
            start = lsn_offset(scan_from)
            if segment.live_end is not None:
                start = min(start, segment.live_end)  # past it: what lay there was written again in the next one
        found.append(examine(disk, segment, start=start, last=position == len(read) - 1, stated=stated))
    return found


def _gather(found: Sequence[Found]) -> _Blocks:
    def column(name: str) -> npt.NDArray[np.int64]:
        parts = [each.blocks[name].astype(np.int64) for each in found]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    lsns = [(np.int64(each.number) << np.int64(32)) | each.block_offsets for each in found]
    marks = [each.headers["flag"][each.headers["kind"] == FrameKind.BLOCK] == OVERMARKED for each in found]
    firsts = column("first_vlsn")
    return _Blocks(
        firsts=firsts,
        lasts=firsts + column("count") - 1,
        terms=column("term"),
        dtvlsns=column("dtvlsn"),
        lsns=np.concatenate(lsns) if lsns else np.zeros(0, dtype=np.int64),
        marked=np.concatenate(marks) if marks else np.zeros(0, dtype=np.bool_),
    )


# Rollbacks.


def _records(found: Sequence[Found], kind: FrameKind) -> list[tuple[Lsn, bytes]]:
    return [
        (lsn(each.number, offset), each.payloads[offset])
        for each in found
        for offset in each.offsets[each.headers["kind"] == kind].tolist()
    ]


def _rollback_records(found: Sequence[Found]) -> tuple[list[tuple[Lsn, RollbackStart]], set[int]]:
    starts = [(at, RollbackStart.decode(data)) for at, data in _records(found, FrameKind.ROLLBACK_START)]
    ends = {RollbackEnd.decode(data).start_lsn for _, data in _records(found, FrameKind.ROLLBACK_END)}
    return starts, ends


def _checkpointed_dtvlsns(found: Sequence[Found], rollbacks: Sequence[tuple[Lsn, RollbackStart]]) -> list[int]:
    """What checkpoints say was durable: no more than an operator's truncation behind them has left of it."""
    return [
        min([CheckpointEnd.decode(data).dtvlsn, *(rollback.matchpoint for start, rollback in rollbacks if start > at)])
        for at, data in _records(found, FrameKind.CHECKPOINT_END)
    ]


def _apply_rollbacks(
    disk: Disk,
    directory: str,
    blocks: _Blocks,
    rollbacks: Sequence[tuple[Lsn, RollbackStart]],
    ends: set[int],
    notes: list[str],
) -> None:
    """The records are the truth; a flag that they do not explain is damage, one that they miss is set again."""
    wanted = np.zeros(len(blocks.lsns), dtype=np.bool_)
    for at, rollback in rollbacks:
        wanted |= (blocks.lsns >= rollback.first_lsn) & (blocks.lsns < rollback.end_lsn)
        if at not in ends:
            notes.append(f"the rollback to VLSN {rollback.matchpoint} is finished")
    missing = wanted & ~blocks.marked
    if missing.any():
        finish_rollback(disk, directory, [Lsn(at) for at in blocks.lsns[missing].tolist()])
    strange = blocks.marked & ~wanted
    if strange.any():
        at = Lsn(int(blocks.lsns[strange][0]))
        raise Damaged(
            f"a block is overmarked that no rollback record names ({segment_name(lsn_file(at))}, {lsn_offset(at)})",
            file=segment_name(lsn_file(at)),
            offset=lsn_offset(at),
            vlsn=int(blocks.firsts[strange][0]),
        )
    blocks.marked = wanted


def _check_contiguity(blocks: _Blocks, visible: npt.NDArray[np.bool_]) -> None:
    firsts, lasts, terms = blocks.firsts[visible], blocks.lasts[visible], blocks.terms[visible]
    if not len(firsts):
        return
    wrong = (firsts[1:] != lasts[:-1] + 1) | (terms[1:] < terms[:-1])
    if wrong.any():
        index = int(wrong.argmax()) + 1
        at = Lsn(int(blocks.lsns[visible][index]))
        raise Damaged(
            f"VLSN {int(firsts[index])} of term {int(terms[index])} follows VLSN {int(lasts[index - 1])} of term "
            f"{int(terms[index - 1])} ({segment_name(lsn_file(at))}, offset {lsn_offset(at)})",
            file=segment_name(lsn_file(at)),
            offset=lsn_offset(at),
            vlsn=int(lasts[index - 1]) + 1,
        )


def _history(record: StateRecord | None, scan_from: Lsn, first: int) -> History:
    """What was there before what was read.  Of a log that was read from its start, VLSN ``first``, that is its group
    alone, where its entry was cleaned away."""
    if scan_from or record is None:
        return History(record)
    history = History()
    if record.group is not None and record.group_vlsn < first:
        history.groups.append((record.group_vlsn, record.group))
    return history


# Node file, state, index.


def _node_record(disk: Disk, directory: str) -> NodeRecord | None:
    path = f"{directory}/{NODE_FILE_NAME}"
    try:
        return nodefile.read(disk, path)
    except FileNotFoundError:
        return None
    except Damaged:
        disk.rename(path, _free_name(disk, path + ".damaged"))
        disk.sync_directory(directory)
        return None


def _open_node_file(
    seams: Seams, directory: str, record: NodeRecord | None, group: str, node: str, highest_term: int
) -> NodeFile:
    """A store without a readable node file is a new incarnation, however full its log."""
    path = posixpath.join(directory, NODE_FILE_NAME)
    if record is not None:
        return NodeFile.open(seams.disk, path)
    incarnation = seams.random.u64() or 1
    fresh = NodeRecord(group=group, node=node, incarnation=incarnation, term=highest_term)
    return nodefile.create(seams.disk, path, fresh)


def _open_state(seams: Seams, directory: str, map_bytes: int, notes: list[str]) -> StateStore:
    path = f"{directory}/{STATE_NAME}"
    try:
        store = StateStore(seams.stores.open(path, map_bytes=map_bytes))
        try:
            store.checkpoint()
            store.record()
            store.idle_end()
        except Damaged:
            store.close()
            raise
        return store
    except Damaged as error:
        aside = seams.stores.set_aside(path)
        notes.append(f"state could not be read ({error}); set aside as {aside}, rebuilt from the log")
        return StateStore(seams.stores.open(path, map_bytes=map_bytes))


def _write_floor(node_file: NodeFile, cut: Cut, last_visible: int) -> None:
    """Before the log gets shorter: what is left out may have been acknowledged, and then rotted.  A floor not yet
    reached is never lowered."""
    record = node_file.record
    term, vlsn = cut.floor_term, cut.floor_vlsn
    if not term:
        term, vlsn = record.term, last_visible + 1
    if vlsn > last_visible and (term, vlsn) > (record.floor_term, record.floor_vlsn):
        node_file.replace(replace(record, floor_term=term, floor_vlsn=vlsn))


def _keep_cut(disk: Disk, directory: str, cut: Cut, notes: list[str]) -> None:
    name = cut_name(cut.number, cut.offset)
    path = f"{directory}/{name}"
    if disk.exists(path):
        file = disk.open(path)
        try:
            if file.read(0, len(cut.data) + 1) == cut.data:
                return  # kept by an open before this one: nothing was appended since
        finally:
            file.close()
        path = _free_name(disk, path)
    notes.append(f"cut {len(cut.data)} unsynced bytes of {segment_name(cut.number)} at {cut.offset}, kept as {name}")
    file = disk.open(path, create=True)
    try:
        file.write(0, [cut.data])
        file.sync()
    finally:
        file.close()
    disk.sync_directory(directory)


def _derive(history: History, blocks: _Blocks, visible: npt.NDArray[np.bool_], found: Sequence[Found]) -> None:
    """Term runs and groups of what was read, where the state record ends."""
    known = history.term_runs[-1].last if history.term_runs else 0
    keep = visible & (blocks.lasts > known)
    firsts, lasts, terms = blocks.firsts[keep], blocks.lasts[keep], blocks.terms[keep]
    if len(firsts):
        starts = np.flatnonzero(np.concatenate(([True], terms[1:] != terms[:-1])))
        stops = np.concatenate((starts[1:], [len(terms)])) - 1
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            first = int(firsts[start]) if not history.term_runs else max(int(firsts[start]), known + 1)
            history.note_term(int(terms[start]), first, int(lasts[stop]))
    for each in found:
        kinds = each.blocks["kind"]
        for index in np.flatnonzero((kinds == EntryKind.GROUP) | (kinds == KIND_COLUMN)).tolist():
            offset = int(each.block_offsets[index])
            place = np.searchsorted(blocks.lsns, lsn(each.number, offset))
            if keep[place]:
                history.note_block(each.payloads[offset])


def _reread(
    scan_from: Lsn,
    blocks: _Blocks,
    visible: npt.NDArray[np.bool_],
    rollbacks: Sequence[tuple[Lsn, RollbackStart]],
    found: Sequence[Found],
) -> Reread:
    columns = Columns(*(column[visible].tolist() for column in (blocks.firsts, blocks.lasts, blocks.lsns)))
    starts = [CheckpointStart.decode(data).last_vlsn for _, data in _records(found, FrameKind.CHECKPOINT_START)]
    matchpoints = [rollback.matchpoint for _, rollback in rollbacks]
    return Reread(scan_from, log_base(columns, matchpoints, starts[0] if starts else NULL_VLSN), columns)


# The tail.


def _tail(disk: Disk, segments: Sequence[SegmentInfo], found: Sequence[Found]) -> Tail | None:
    """Only after a clean stop does the log go on in the same segment."""
    if not found:
        return None
    last = found[-1]
    segment = segments[-1]
    assert segment.header is not None and segment.number == last.number
    if last.cut is not None or not len(last.offsets) or last.headers["kind"][-1] != FrameKind.CHECKPOINT_END:
        return None
    at = int(last.offsets[-1])
    if not CheckpointEnd.decode(last.payloads[at]).clean or segment.header.state is not SegmentState.ACTIVE:
        return None
    file = disk.open(segment.path, write=True)
    tail = Tail(segment.header, file, offset=last.end, synced=last.end, last_frame=at, crc=None)
    tail.keep(_last_page(file, last))
    return tail


def _last_page(file: File, found: Found) -> list[Frame]:
    """The frames that reach into the page where the log goes on."""
    ends = scan.frame_ends(found.offsets, found.headers)
    frames = []
    for at in np.flatnonzero(ends > found.end - found.end % PAGE_BYTES).tolist():
        offset, header = int(found.offsets[at]), found.headers[at]
        payload = file.read(offset + FRAME_BYTES, int(header["length"]))
        kind = FrameKind(int(header["kind"]))
        block = decode_header(payload) if kind is FrameKind.BLOCK else None
        if block is None:
            frames.append(Frame(offset, kind, payload, 0, 0))
        elif header["flag"] != OVERMARKED:
            frames.append(Frame(offset, kind, payload, block.first_vlsn, block.last_vlsn))
    return frames


def _free_name(disk: Disk, path: str) -> str:
    """``path``, or with the first free number behind it."""
    if not disk.exists(path):
        return path
    number = 1
    while disk.exists(f"{path}.{number}"):
        number += 1
    return f"{path}.{number}"


__all__ = ["NULL_VLSN", "Recovered", "recover"]
