"""The steps of a network restore on the disk: those that make the old log invalid, and the step that makes the new log
valid.

    1  the vote floor is written, synced: for a while this node may not have what it acknowledged
    2  ``restore.marker`` says in which segment the restored log begins, synced       ◄ the old log is invalid
    3  ``index`` is emptied, ``state`` begins anew: one transaction each
    4  the log is opened ``restoring``: older segments are removed, as after a cleaning; blocks come in as on any
       replica, under this node's own frames, checkpoints too
    5  once all blocks are there: a clean stop, then the provider's state record is stored in ``state``, one transaction
    6  the marker is removed, the directory synced                                    ◄ commit point

If the restore is stopped between steps 2 and 6, only a restore can open the directory; any other opening raises
``Restoring``. The restore continues after the last synced block, or begins again if the marker and ``state`` do not
agree. The marker file is never seen half written. A marker file that has rotted still keeps the log from being opened.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from vlsn.errors import Damaged
from vlsn.format import scan
from vlsn.format.frame import FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import NULL_LSN, NULL_VLSN, NUMBER_MAX, Lsn, Vlsn, lsn
from vlsn.index.index import VlsnIndex
from vlsn.limits import INDEX_MAP_BYTES, STATE_MAP_BYTES
from vlsn.recover.identity import NODE_FILE_NAME, check_identity, highest_term, new_identity, open_node_file
from vlsn.recover.torn_tail import block_names
from vlsn.recover.vote_floor import with_floor
from vlsn.seams import Disk, Seams
from vlsn.segments.directory import LOCK_NAME, make_directory, segment_numbers, survey
from vlsn.segments.restore_marker import MARKER_NAME, Marker, read_marker
from vlsn.state import node_file
from vlsn.state.node_file import NodeFile
from vlsn.state.state_opening import OpenState, open_state
from vlsn.state.state_store import OWN_FIELDS, StateRecord, StateStore

INDEX_NAME = "index"
OLD_SUFFIX = ".old"
OLD_SEGMENTS_MAX = 4
"""The most segments of a damaged log that are kept in a folder when a restore replaces the log. The newest segments are
kept."""


class End(NamedTuple):
    """The last entry that a node may have acknowledged in a log that it gives up. Another log may replace the given-up
    log only if it is known to be durable up to ``vlsn`` in ``term`` or a later term, or in a term later than
    ``newest``."""

    term: int = 0
    vlsn: int = 0
    newest: int = NUMBER_MAX
    """The highest term in which the node can have acknowledged an entry. The master of a later term has every entry
    that was ever durable, wherever the log of this node ended."""


NULL_END: Final = End()


class Restart:
    """Begins and finishes the restores of one directory. The methods block, and run on the keeper's thread (the
    background thread). No log may be open in the directory meanwhile."""

    def __init__(
        self,
        seams: Seams,
        directory: str,
        *,
        group: str,
        node: str,
        index_map_bytes: int = INDEX_MAP_BYTES,
        state_map_bytes: int = STATE_MAP_BYTES,
    ) -> None:
        self._seams = seams
        self._disk = seams.disk
        self._directory = directory
        self._group, self._node = group, node
        self._index_map_bytes, self._state_map_bytes = index_map_bytes, state_map_bytes
        self.notes: list[str] = []

    def begin(self, after: Vlsn, why: str, *, end: tuple[int, int] | None, keep: bool = False) -> Marker:
        """Does steps 1 to 3 for a log that will begin after VLSN ``after``. Steps 1 to 3 are durable on return. ``end``
        is the (term, VLSN) of the last block of the old log, or None if the old log could not be opened. If ``end`` is
        None, or with ``keep``, the newest segments of the old log are kept aside, up to ``OLD_SEGMENTS_MAX``. Raises
        ``WrongDirectory`` or ``LogInUse``."""
        make_directory(self._disk, self._directory)
        lock = self._disk.lock(f"{self._directory}/{LOCK_NAME}")
        try:
            aside = (end is None or keep) and not self._disk.exists(f"{self._directory}/{MARKER_NAME}")
            self._write_floor(end)
            marker = Marker(
                first_segment=self._next_number(), after=after, why=why, begun_us=self._seams.clock.wall_us()
            )
            self._write_marker(marker)
            if aside:
                self._keep_old()
            self._empty_index()
            self._restart_state(marker)
        finally:
            lock.release()
        return marker

    def end(self) -> End | None:
        """Returns the last entry that this node may have acknowledged, as the files in the directory show it, whether
        or not the log can be opened. Returns None without a readable node file. The VLSN is never below the vote floor.
        The term is that of the furthest readable block, or 0 if there is no such block, since the stored term may have
        had no master."""
        try:
            record = node_file.read(self._disk, f"{self._directory}/{NODE_FILE_NAME}")
        except (FileNotFoundError, Damaged):
            return None
        furthest, state = self._look(record.term)
        vlsn = max([record.floor_vlsn, *(vlsn for _, vlsn in _ends(furthest, state, record.term))])
        newest = record.term
        if furthest.block is not None and furthest.reach >= max(state.ends, default=NULL_LSN):
            newest = max(furthest.block[0], record.floor_term, state.idle.term if state.idle is not None else 0)
        return End(furthest.block[0] if furthest.block is not None else 0, vlsn, newest)

    def _look(self, stored_term: int) -> tuple[_Furthest, OpenState]:
        """Returns how far the segments reach, and the content of the ``state`` store, which is closed again."""
        return _furthest(self._disk, self._directory, stored_term), self._closed_state()

    def _closed_state(self) -> OpenState:
        state = open_state(self._seams, self._directory, self._state_map_bytes, self.notes)
        state.store.close()
        return state

    def begun(self) -> Marker | None:
        """Returns the marker of an interrupted restore that can continue, or None if there is no such restore."""
        try:
            marker = read_marker(self._disk, self._directory)
        except Damaged as error:
            self.notes.append(str(error))
            return None
        if marker is None:
            return None
        # The record was written by ``begin`` or by a later checkpoint; both write the first segment of the log.
        record = self._closed_state().record
        if record is None or record.first_segment < marker.first_segment or record.vlsn < marker.after:
            self.notes.append("the restore had not begun, or its state record is lost: it begins again")
            return None
        return marker

    def finish(self, record: StateRecord) -> None:
        """Does steps 5 and 6 after the log is closed. ``record`` is the provider's state record for the restored
        entries. Steps 5 and 6 are durable on return."""
        lock = self._disk.lock(f"{self._directory}/{LOCK_NAME}")
        try:
            with closing(self._open_state()) as state:
                own = state.record()
                assert own is not None and own.vlsn == record.vlsn, (own, record)
                whole = msgspec.structs.replace(record, **{name: getattr(own, name) for name in OWN_FIELDS})
                state.save(record=whole)
            self._disk.remove(f"{self._directory}/{MARKER_NAME}")
            self._disk.sync_directory(self._directory)
        finally:
            lock.release()

    # The single steps.

    def _write_floor(self, end: tuple[int, int] | None) -> None:
        """Writes the vote floor: ``end``, or the highest end that can be read if the log cannot be opened."""
        with closing(self._open_node_file()) as node_file:
            record = node_file.record
            floor = end or max(_ends(*self._look(record.term), record.term), default=None)
            if floor is not None:
                raised = with_floor(record, floor, last_visible=NULL_VLSN)
                if raised is not record:
                    node_file.replace(raised)

    def _open_node_file(self) -> NodeFile:
        seams, directory = self._seams, self._directory
        node_file = open_node_file(seams, directory, self.notes)
        if node_file is None:
            segments = [segment for segment in survey(self._disk, directory) if segment.active]
            term = highest_term(self._disk, directory, segments)
            return new_identity(seams, directory, group=self._group, node=self._node, term=term)
        try:
            check_identity(node_file, directory, group=self._group, node=self._node)
        except BaseException:
            node_file.close()
            raise
        return node_file

    def _next_number(self) -> int:
        """Returns the next segment number. No number is used twice, even if its segment was removed."""
        numbers = [number for number, _ in segment_numbers(self._disk, self._directory)]
        try:
            marker = read_marker(self._disk, self._directory)
        except Damaged:
            marker = None
        record = self._closed_state().record
        first = record.first_segment if record is not None else 0
        return max([0, *numbers, first - 1, marker.first_segment if marker is not None else 0]) + 1

    def _write_marker(self, marker: Marker) -> None:
        path = f"{self._directory}/{MARKER_NAME}"
        fresh = path + ".new"
        if self._disk.exists(fresh):
            self._disk.remove(fresh)
        with closing(self._disk.open(fresh, create=True)) as file:
            file.write(0, [marker.encode()])
            file.sync()
        self._disk.rename(fresh, path)
        self._disk.sync_directory(self._directory)

    def _keep_old(self) -> None:
        disk, directory = self._disk, self._directory
        names = [name for _, name in segment_numbers(disk, directory)][-OLD_SEGMENTS_MAX:]
        for name in names:
            disk.rename(f"{directory}/{name}", f"{directory}/{name}{OLD_SUFFIX}")
        if names:
            disk.sync_directory(directory)
            self.notes.append(f"kept aside: {', '.join(name + OLD_SUFFIX for name in names)}")

    def _empty_index(self) -> None:
        path = f"{self._directory}/{INDEX_NAME}"
        stores = self._seams.stores
        if not stores.exists(path):
            return
        try:
            index = VlsnIndex(stores.open(path, map_bytes=self._index_map_bytes), self._seams.threads.latch())
        except Damaged as error:
            self.notes.append(f"index could not be read ({error}); set aside as {stores.set_aside(path)}")
            return
        try:
            index.clear()
        finally:
            index.close()

    def _restart_state(self, marker: Marker) -> None:
        with closing(self._open_state()) as state:
            state.restart(StateRecord(vlsn=marker.after, trimmed_to=marker.after, first_segment=marker.first_segment))

    def _open_state(self) -> StateStore:
        return open_state(self._seams, self._directory, self._state_map_bytes, self.notes).store


@dataclass(frozen=True, slots=True)
class _Furthest:
    """How far the segments reach that can belong to this log."""

    block: tuple[int, int] | None
    """The term and last VLSN of the furthest block; None if there is no block at all."""
    whole: bool
    """True if everything in the segments can be read."""
    reach: Lsn
    """The end of the last valid frame if everything after the furthest block can be read, otherwise 0."""


def _ends(furthest: _Furthest, state: OpenState, stored_term: int) -> list[tuple[int, int]]:
    """Lists the (term, VLSN) of every end that the files state: the end of the furthest block, the idle end and the
    checkpoint. If something cannot be read, the list has the VLSN after the furthest block, in the stored term, in
    place of the furthest block's end."""
    ends = [furthest.block] if furthest.block is not None else []
    if not furthest.whole:
        ends.append((stored_term, (furthest.block[1] if furthest.block is not None else 0) + 1))
    ends = [max(ends)] if ends else []
    if state.idle is not None:
        ends.append((state.idle.term, state.idle.vlsn))
    if state.checkpoint is not None and state.checkpoint.last_vlsn > max((end[1] for end in ends), default=0):
        ends.append((stored_term, state.checkpoint.last_vlsn))
    return ends


def _furthest(disk: Disk, directory: str, stored_term: int) -> _Furthest:
    whole = certain = True
    reach = NULL_LSN
    for segment in reversed(survey(disk, directory)):
        with closing(disk.open(segment.path)) as file:
            data = file.read(0, segment.size)
        salt = segment.header.salt if segment.header is not None else scan.salt_of(data, 0, FIRST_FRAME)
        if salt is None:
            certain &= not data[FIRST_FRAME:].strip(b"\0")
            continue
        found = _names(data, salt, stored_term)
        whole &= not found.gaps
        certain &= not found.gap_behind
        if found.end > FIRST_FRAME:  # otherwise the segment is a standby
            reach = reach or lsn(segment.number, found.end)
        if found.names:
            return _Furthest(max(found.names), whole, reach if certain else NULL_LSN)
    return _Furthest(None, whole, NULL_LSN)


class _Names(NamedTuple):
    """The readable blocks of one segment."""

    names: list[tuple[int, int]]
    """The term and last VLSN of each block."""
    end: int
    """The end of the last valid frame."""
    gaps: bool
    """True if something in the segment cannot be read."""
    gap_behind: bool
    """True if something after the last readable block cannot be read."""


def _names(data: bytes, salt: int, stored_term: int) -> _Names:
    names: list[tuple[int, int]] = []
    end, gaps, gap_behind = FIRST_FRAME, False, False
    for walk in scan.islands(data, 0, FIRST_FRAME, salt):
        gap = int(walk.offsets[0]) != end
        end = walk.end
        blocks = walk.offsets[walk.headers["kind"] == FrameKind.BLOCK]
        heads = scan.block_headers(data, 0, blocks)
        names += zip(heads["term"].tolist(), (heads["first_vlsn"] + heads["count"] - 1).tolist(), strict=True)
        gaps, gap_behind = gaps or gap, (gap_behind or gap) and not len(blocks)
    if data[end:].strip(b"\0"):
        gaps = gap_behind = True
        names += [(name.term, name.last) for name in block_names(data[end:]) if name.term <= stored_term]
    return _Names(names, end, gaps, gap_behind)
