"""Opens a directory: the node file, the stores, and the segments from the last checkpoint on.

     0  lock the directory; no file in it is of a later version                 versions
     1  open the node file, ``state`` and ``index``      identity, state_opening, stored_index
     2  sync every segment that may be read, and the directory; drop them from the page cache
     3  read the segments: good frames, or a cut, or damage  log_read, torn_tail, log_end
     4  find the visible blocks; derive the history          read_blocks, derived_history
        ── until here nothing of the log was changed; damage ends the open ──
     5  write the vote floor, then keep the cut bytes aside         vote_floor, cut_bytes
     6  set the flags that a rollback's record demands; delete prepared segments that were never used
     7  add the blocks to the index, or build it anew if it does not fit the log (``stored_index``)

If the opening is stopped anywhere, the next opening does the same again. No step makes the log shorter on the medium.
Only the header of the next segment makes the log shorter, since it states where the log before it ends. All steps run
on the keeper's thread (the log's background thread), which may write to LMDB.

The log is read from the last checkpoint on. If ``state`` does not name that checkpoint, the whole log is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from vlsn.errors import Damaged
from vlsn.format.segment import segment_name
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn, lsn_file
from vlsn.index.index import VlsnIndex
from vlsn.limits import INDEX_MAP_BYTES, STATE_MAP_BYTES
from vlsn.recover.clean_stop import resumed
from vlsn.recover.derived_history import (
    Misfit,
    derive_history,
    durable_end,
    level_before,
    logged_levels,
    note_producers,
    read_founding,
    record_before,
)
from vlsn.recover.identity import (
    NODE_FILE_NAME,
    check_identity,
    drop_old_image,
    highest_term,
    new_identity,
    open_node_file,
)
from vlsn.recover.log_read import LogRead, check_last, check_owner, last_before, read_log
from vlsn.recover.log_start import finish_cleaning, kept_segments, state_fits
from vlsn.recover.stored_index import Reread, StoredIndex
from vlsn.recover.versions import check_segments, check_versions
from vlsn.recover.vote_floor import floor_of, with_floor
from vlsn.seams import DirectoryLock, Seams
from vlsn.segments.cut_bytes import cut_name, free_name, is_kept, keep_cut
from vlsn.segments.directory import LOCK_NAME, SegmentInfo, make_directory, survey
from vlsn.segments.holes import give_back
from vlsn.segments.overmarks import finish_rollback
from vlsn.segments.restore_marker import check_no_restore
from vlsn.segments.tail import Tail
from vlsn.segments.visible_blocks import first_damage
from vlsn.state.history import History
from vlsn.state.node_file import NodeFile
from vlsn.state.state_opening import STATE_NAME, OpenState, open_state, replace_state
from vlsn.state.state_store import Checkpoint, StateRecord, StateStore

INDEX_NAME = "index"


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
    dtvlsn: Vlsn
    tail: Tail | None
    prev_number: int
    prev_end: int
    next_number: int
    ends: dict[int, int]
    cuts: int
    begins_after: Vlsn
    """The VLSN before the first VLSN of an empty log. This VLSN is 0, except if a restore has just begun."""
    cleaned: bool
    """True if segments before the first one were removed, or were never in this directory."""
    settled: Vlsn | None
    """The VLSN of the state record, or None if the history is not known. The history is unknown if ``state`` was lost
    and the log does not begin at VLSN 1. A node without a known history does not clean the log, and does not use a
    GROUP entry that may still be rolled back."""
    empty_store: bool
    """True if this opening has made the node file, as a new incarnation."""
    notes: list[str] = field(default_factory=list)
    """Messages about unusual findings, which the node logs."""

    @property
    def last_vlsn(self) -> Vlsn:
        """The last VLSN of the log; the next block begins after it."""
        return Vlsn(self.index.range.last or self.begins_after)


def recover(
    directory: str,
    seams: Seams,
    *,
    group: str,
    node: str,
    segment_bytes: int,
    index_map_bytes: int = INDEX_MAP_BYTES,
    state_map_bytes: int = STATE_MAP_BYTES,
    restoring: bool = False,
    exact_from: Vlsn | None = None,
) -> Recovered:
    """Opens (or creates) the directory of ``node`` of ``group``. Raises ``LogInUse``, ``WrongDirectory``,
    ``WrongVersion`` (nothing was changed), ``Damaged``, ``LogFailed`` or ``OSError``. After an error nothing stays open
    or locked. Raises ``Restoring`` if a network restore of the directory is not finished, unless that restore itself
    opens it (``restoring``).

    With ``exact_from`` the history can be rolled back to that VLSN, even if the state record has a later one. Raises
    ``BadArgument`` (nothing was changed) if the log alone is not enough for that (``record_before``).
    """
    opening = _Opening(directory, seams, group, node, index_map_bytes, state_map_bytes, restoring, exact_from)
    try:
        return opening.run()
    except BaseException:
        opening.held.close()
        raise


@dataclass
class _Opening:
    """One opening of a directory, step by step. After a failure, ``held`` closes everything that the opening holds."""

    _directory: str
    _seams: Seams
    _group: str
    _node: str
    _index_map_bytes: int
    _state_map_bytes: int
    _restoring: bool
    _exact_from: Vlsn | None
    held: ExitStack = field(default_factory=ExitStack)
    _notes: list[str] = field(default_factory=list)
    _node_file: NodeFile | None = field(init=False)
    _state: OpenState = field(init=False)
    _index: StoredIndex = field(init=False)
    _scan_from: Lsn = field(init=False)
    """The LSN from which the log is read; 0 means the whole log."""
    _log: LogRead = field(init=False)
    _blocks: Reread = field(init=False)
    _history: History = field(init=False)

    def __post_init__(self) -> None:
        self._disk = self._seams.disk
        self._latch = self._seams.threads.latch()

    def run(self) -> Recovered:
        make_directory(self._disk, self._directory)
        lock = self._disk.lock(f"{self._directory}/{LOCK_NAME}")
        self.held.callback(lock.release)
        check_versions(self._disk, self._directory, self._seams.levels)
        if not self._restoring:
            check_no_restore(self._disk, self._directory)
        segments = survey(self._disk, self._directory)
        check_segments(segments, self._seams.levels)
        check_owner(segments, self._directory, self._group, self._node)
        self._open_stores()
        next_number = max([0, self._first_segment - 1, *(segment.number for segment in segments)]) + 1
        self._use_state(segments)
        self._scan_from = self._state.checkpoint.scan_lsn if self._state.checkpoint is not None else NULL_LSN
        if self._is_late(self._state.record):
            self._scan_from = NULL_LSN
        self._read()
        self._go_back()
        self._derive()
        self._check_record()
        self._check_age_of_node_file()
        # Up to here nothing of the log was changed.
        empty_store = self._node_file is None
        node_file = self._node_file or self._new_identity()
        self._promise_level(node_file)
        self._leave_out(node_file)
        self._finish_rollbacks()
        self._remove_unused()
        index = self._fit_index(node_file)
        return self._recovered(lock, node_file, index, next_number, empty_store)

    # The files of a log besides its segments.

    def _open_stores(self) -> None:
        seams, directory, notes = self._seams, self._directory, self._notes
        self._node_file = open_node_file(seams, directory, notes)
        self.held.callback(lambda: self._node_file.close() if self._node_file is not None else None)
        check_identity(self._node_file, directory, group=self._group, node=self._node)
        self._state = open_state(seams, directory, self._state_map_bytes, notes)
        self.held.callback(lambda: self._state.store.close())
        path = f"{directory}/{INDEX_NAME}"
        self._index = StoredIndex(seams.stores, path, self._index_map_bytes, self._latch, notes)
        self.held.callback(lambda: self._index.index.close())

    def _use_state(self, segments: Sequence[SegmentInfo]) -> None:
        """Replaces the ``state`` store if it is older than a cleaning. Raises ``Damaged`` if ``state`` names a segment
        that was lost."""
        state = self._state
        active = [segment for segment in segments if segment.active]
        index = self._index.index
        if not state_fits(self._disk, self._directory, active, index, state.record, restoring=self._restoring):
            self._drop_state("is from before a cleaning of this log")
            return
        kept = {segment.number for segment in kept_segments(active, state.record)}
        places = [state.checkpoint.scan_lsn, state.checkpoint.end_lsn] if state.checkpoint is not None else []
        if any(at and lsn_file(at) not in kept for at in places):
            raise Damaged(f"{self._directory}: the checkpoint points at a segment that is missing", file=STATE_NAME)

    def _drop_state(self, why: str) -> None:
        self._state = replace_state(
            self._seams, self._directory, self._state_map_bytes, self._notes, old=self._state, why=why
        )

    def _indexed_first(self) -> int:
        """Returns the VLSN with which the log begins according to its stored index, or 0 if the index has none."""
        index = self._index.index
        ours = self._node_file is None or index.owner == self._node_file.record.incarnation
        return int(index.range.first) if self._index.loaded is not None and ours else 0

    @property
    def _first_segment(self) -> int:
        """The segment in which the log begins, or 0 if it includes all segments."""
        return self._state.record.first_segment if self._state.record is not None else 0

    @property
    def _trimmed_to(self) -> Vlsn:
        return self._state.record.trimmed_to if self._state.record is not None else NULL_VLSN

    # The log as it is on the medium.

    def _read(self) -> None:
        """Reads the segments of the log. Raises ``Damaged``."""
        self._log = read_log(
            self._disk,
            self._directory,
            scan_from=self._scan_from,
            first_segment=self._first_segment,
            stated=self._state.ends,
        )
        self._check_level()
        check_owner(self._log.segments, self._directory, self._group, self._node)
        checkpoint = self._state.checkpoint if self._scan_from else None
        last = self._trimmed_to
        if checkpoint is not None:
            last = last_before(self._log, self._scan_from, checkpoint.last_vlsn)
        check_last(self._log, last, self._state.stated_last)
        self._blocks = self._log.blocks.reread(self._scan_from, last)

    def _check_age_of_node_file(self) -> None:
        if self._node_file is None:
            return
        known_term = max(self._log.blocks.highest_term, self._state.last_term)
        self._node_file = drop_old_image(self._seams, self._directory, self._node_file, known_term, self._notes)

    def _check_level(self) -> None:
        """Checks that this binary can read the log's level. Raises ``WrongVersion`` before anything was changed."""
        record = self._state.record
        if not self._log.active:
            return
        if logged := logged_levels(self._log.blocks):
            level = logged[-1][1]
        else:
            level = record.level if record is not None else self._level_before()
        self._seams.levels.check_log(level, self._directory)

    def _is_late(self, record: StateRecord | None) -> TypeGuard[StateRecord]:
        """Returns whether the VLSN of the state record is later than the one that the caller needs."""
        return record is not None and self._exact_from is not None and record.vlsn > self._exact_from

    def _go_back(self) -> None:
        """Uses an earlier state record in place of one with too late a VLSN. The record in the store does not
        change."""
        record = self._state.record
        if self._is_late(record):
            assert self._exact_from is not None
            blocks = self._log.blocks
            self._state.record = record_before(self._disk, self._directory, record, blocks, self._exact_from)

    def _derive(self) -> None:
        """Derives the history from the state record and the entries. A state record that does not fit the log is
        dropped."""
        try:
            self._history = self._derived(self._state.record)
        except Misfit as error:
            self._derive_anew(f"does not fit the log ({error})")
        note_producers(self._disk, self._directory, self._state.record, self._log.blocks, self._history)

    def _derive_anew(self, why: str) -> None:
        """Derives the history from the log alone."""
        self._drop_state(why)
        if self._scan_from:
            self._scan_from = NULL_LSN
            self._read()
        self._history = self._derived(None)

    def _derived(self, record: StateRecord | None) -> History:
        level = record.level if record is not None else self._level_before()
        return derive_history(record, self._log.blocks, self._blocks.last, level=level)

    def _level_before(self) -> int:
        return level_before(self._log.blocks, [each.header for each in self._log.active if each.header is not None])

    def _check_record(self) -> None:
        """A state record whose level is below the log's level was written by a binary that did not know everything that
        has to be kept. A record of a lower level is rebuilt from the log. Raises ``Damaged`` if the log was cleaned, so
        that the node has to be restored."""
        record = self._state.record
        if record is None:
            return
        active = self._log.active
        known = [segment.header.level for segment in active if segment.header is not None]
        known += [level for vlsn, level in logged_levels(self._log.blocks) if vlsn <= record.vlsn]
        level = max(known, default=0)
        if self._history.level >= level:
            return
        why = f"is of level {record.level}, the log of level {level}"
        head = active[0].header if active else None
        if record.first_segment or (head is not None and head.prev_number):
            raise Damaged(f"{self._directory}: the state record {why}, and the log was cleaned", file=STATE_NAME)
        self._derive_anew(why)
        note_producers(self._disk, self._directory, None, self._log.blocks, self._history)

    # The changes that opening makes.

    def _promise_level(self, node_file: NodeFile) -> None:
        """Stores in the node file that this node supports the log's level (the version of its formats). The level is
        stored before anything is acknowledged on this log."""
        level = self._history.level
        if level > node_file.record.level:
            node_file.replace(replace(node_file.record, level=level))

    def _new_identity(self) -> NodeFile:
        left_out = [name.term for cut in self._log.cuts for name in cut.names]
        found = highest_term(self._disk, self._directory, self._log.segments)
        term = max([self._state.last_term, found, *left_out])
        self._node_file = made = new_identity(
            self._seams, self._directory, group=self._group, node=self._node, term=term
        )
        return made

    def _leave_out(self, node_file: NodeFile) -> None:
        """Writes the vote floor before bytes of the log are left out. The bytes left out may have been acknowledged,
        and have rotted later. For bytes that an earlier opening has kept aside, that opening wrote the vote floor, and
        a person may have lifted it since."""
        log = self._log
        for cut in log.cuts:
            if cut is log.cut and is_kept(self._disk, self._directory, cut.number, cut.offset, cut.data):
                continue
            record = node_file.record
            floor = floor_of(
                cut.names,
                size=len(cut.data),
                stored_term=record.term,
                last_term=log.blocks.highest_term,
                last_vlsn=max(self._blocks.last, log.blocks.highest_vlsn),
                state_lost=self._state.lost,
            )
            raised = with_floor(record, floor, last_visible=self._blocks.last)
            if raised is not record:
                node_file.replace(raised)
        if log.cut is not None:
            cut = log.cut
            kept = keep_cut(self._disk, self._directory, cut.number, cut.offset, cut.data)
            if kept is not None:
                what = f"cut {len(cut.data)} unsynced bytes of {segment_name(cut.number)} at {cut.offset}"
                self._notes.append(f"{what}, kept as {kept}")
        for segment, cut in log.untaken:
            self._notes.append(f"{segment.name} was begun but never synced: its frames are kept aside")
            name = free_name(self._disk, f"{self._directory}/{cut_name(cut.number, cut.offset)}")
            self._disk.rename(segment.path, name)
            self._disk.sync_directory(self._directory)
            with suppress(OSError):  # a file system that cannot free parts of a file keeps the space allocated
                give_back(self._disk, name, cut.offset + len(cut.data))

    def _finish_rollbacks(self) -> None:
        for rollback in self._log.blocks.unfinished:
            self._notes.append(f"the rollback to VLSN {rollback.matchpoint} is finished")
        due = self._log.blocks.due_flags()
        if due:
            finish_rollback(self._disk, self._directory, due)

    def _remove_unused(self) -> None:
        for segment in self._log.unused:
            self._disk.remove(segment.path)
        if self._log.unused:
            self._disk.sync_directory(self._directory)

    def _fit_index(self, node_file: NodeFile) -> VlsnIndex:
        checkpoint, record = self._state.checkpoint, self._state.record
        known = record.trimmed_to + 1 if record is not None else self._indexed_first()
        index = self._index.fit(
            self._disk,
            self._directory,
            self._log.active,
            self._blocks,
            pointer=checkpoint.id if checkpoint is not None else 0,
            owner=node_file.record.incarnation,
            first=known,
        )
        if finish_cleaning(self._disk, self._directory, index, self._log.active, record):
            self._notes.append(f"the cleaning up to VLSN {index.range.first - 1} is finished")
        self._check_head(index, known)
        return index

    def _check_head(self, index: VlsnIndex, known: int) -> None:
        """Checks the beginning of the log, so that rot at the first block is not mistaken for a cleaning. ``known`` is
        the VLSN with which the log begins by the state record, which states every cleaning. Without a record, ``known``
        is the VLSN from the stored index, or 0."""
        begins = index.range.first
        if begins > 1 and not known:
            self._notes.append(f"the log begins at VLSN {begins}; whether it was cleaned up to there is not known")
        elif begins > max(known, 1):
            mapping, lost = index.at_or_before(begins), max(known, 1)
            what = f"the log begins at VLSN {begins}; from {lost} on it was not cleaned"
            end = mapping[1] if mapping is not None else NULL_LSN
            damage = first_damage(
                self._disk, self._directory, self._log.active, start=NULL_LSN, end=end, what=what, vlsn=lost
            )
            raise damage or Damaged(what, vlsn=lost)

    # The result of opening.

    def _recovered(
        self, lock: DirectoryLock, node_file: NodeFile, index: VlsnIndex, next_number: int, empty_store: bool
    ) -> Recovered:
        log, state = self._log, self._state
        last = log.found[-1] if log.found else None
        self._history.truncate_head(index.range.first)
        ends = {segment.number: segment.live_end for segment in log.active if segment.live_end is not None}
        if last is not None:
            ends[last.number] = last.end
        if state.record is not None and not self._history.founding and index.range.first == 1:
            self._history.founding = read_founding(self._disk, self._directory, ends)
        settled = state.record.vlsn if state.record is not None else None
        if settled is None and index.range.first <= 1:
            settled = NULL_VLSN
        durable = durable_end(log.blocks, stated=state.dtvlsn, last_visible=self._blocks.last)
        self._history.acks.advance(durable)
        return Recovered(
            directory=self._directory,
            lock=lock,
            latch=self._latch,
            node_file=node_file,
            index=index,
            state=state.store,
            history=self._history,
            checkpoint=state.checkpoint,
            dtvlsn=durable,
            tail=resumed(self._disk, log.active[-1], last) if last is not None else None,
            prev_number=last.number if last is not None else 0,
            prev_end=last.end if last is not None else 0,
            next_number=next_number,
            ends=ends,
            cuts=len(log.cuts),
            begins_after=self._trimmed_to if index.range.empty else NULL_VLSN,
            cleaned=self._trimmed_to > 0
            or any(segment.header is not None and segment.header.prev_number for segment in log.active[:1]),
            settled=settled,
            empty_store=empty_store,
            notes=self._notes,
        )


__all__ = ["INDEX_NAME", "NODE_FILE_NAME", "STATE_NAME", "Recovered", "recover"]
