"""The stored index compared with the log. A recovery fits the index to the log, or rebuilds it; an open log mends it.

    stored index                                  what an open does
    of a later version                            ``WrongVersion``, nothing touched
    unreadable, or of an older format             set aside, built anew
    of another log, or of another time            emptied, built anew
    of the pointer's checkpoint, or the next      the log after the checkpoint's start is merged into it
    fits, but has less than the log says          emptied, built anew
    begins later than the log (built over rot)    emptied, built anew

The decision depends on the owner's incarnation, on the checkpoint's id, and on the VLSN before the part of the log that
was read again. Some of the index's mappings are also looked up in the log. To rebuild the index, the segments are read
in windows, and the index is flushed after every 64 MiB of log. Until the rebuilt index is complete, it has an id that
no checkpoint has. All functions block, on the store's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from vlsn.errors import Damaged, WrongVersion
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.index.index import IndexHole, VlsnIndex
from vlsn.index.mend import find_wounds, heal
from vlsn.index.stored import UNFINISHED
from vlsn.levels import named
from vlsn.limits import CHECKPOINT_BYTES
from vlsn.seams import Disk, Stores
from vlsn.segments.directory import SegmentInfo, survey
from vlsn.segments.visible_blocks import WINDOW_BYTES, Columns, first_damage, is_block_at, visible_blocks

PROBES = 8
"""The number of mappings of the index that are looked up in the log."""
FLUSH_WINDOWS = CHECKPOINT_BYTES // WINDOW_BYTES


@dataclass(frozen=True, slots=True)
class Reread:
    """The part of the log that was read when the log was opened. ``base`` is the last VLSN before ``blocks``. The
    blocks reach to the end of the log."""

    scan_from: Lsn
    base: Vlsn
    blocks: Columns

    @property
    def last(self) -> Vlsn:
        return Vlsn(self.blocks.lasts[-1]) if self.blocks.lasts else self.base


class StoredIndex:
    """The stored index of ``directory``. ``fit`` must be called before any lookup."""

    def __init__(
        self, stores: Stores, path: str, map_bytes: int, latch: AbstractContextManager[object], notes: list[str]
    ) -> None:
        self._stores = stores
        self._path = path
        self._map_bytes = map_bytes
        self._latch = latch
        self._notes = notes
        self.loaded: int | None = None
        """The id of the checkpoint that the index belongs to, or None if the index is empty."""
        try:
            self.index = self._open()
            self.loaded = self.index.load()
        except Damaged as error:
            self._set_aside(error)
        except WrongVersion as error:
            self.index.close()
            raise named(error, path) from None

    def fit(
        self,
        disk: Disk,
        directory: str,
        segments: Sequence[SegmentInfo],
        log: Reread,
        *,
        pointer: int,
        owner: int,
        first: int,
    ) -> VlsnIndex:
        """Makes the index equal to the log, and returns it. ``pointer`` is the id of the checkpoint from which the log
        was read (0: none), ``owner`` is the incarnation of the node, and ``first`` is the VLSN with which the log
        begins (0: not known). The index is durable on return if there is a checkpoint."""
        try:
            misfit = self._misfit(disk, directory, log, pointer, owner)
            if misfit is None and self.index.range.first > first > 0:
                misfit = f"it begins at VLSN {self.index.range.first}, the log at {first}"
            if misfit is None:
                self.index.merge(log.base, *log.blocks)
                return self.index
        except Damaged as error:
            misfit = str(error)
            if not isinstance(error, IndexHole):
                self._set_aside(error)
        if self.loaded is not None or log.base:
            self._notes.append(f"the VLSN index is built anew: {misfit}")
        if self.loaded is not None:
            self.index.clear()
        self._build(visible_blocks(disk, directory, segments, start=NULL_LSN, end=log.scan_from), log, pointer, owner)
        self._check_end(disk, directory, segments, log)
        return self.index

    def _check_end(self, disk: Disk, directory: str, segments: Sequence[SegmentInfo], log: Reread) -> None:
        """Checks the end of the log, since rot there would look like an earlier end of the log. Rot anywhere else only
        makes a gap in the index. Raises ``Damaged`` if there is rot at the end."""
        last = self.index.range.last
        if last >= log.base:
            return
        mapping = self.index.at_or_before(last)
        damage = first_damage(
            disk,
            directory,
            segments,
            start=mapping[1] if mapping else NULL_LSN,
            end=log.scan_from,
            what=f"the log continues to VLSN {log.base}",
            vlsn=last + 1,
        )
        if damage is not None:
            raise damage

    def _misfit(self, disk: Disk, directory: str, log: Reread, pointer: int, owner: int) -> str | None:
        """Returns the reason why the loaded index does not fit the log, or None if the index fits."""
        index = self.index
        if self.loaded is None:
            return "there was none"
        if index.owner != owner:
            return f"it was of the store {index.owner:016x}, this one is {owner:016x}"
        if self.loaded not in (pointer, pointer + 1):
            return f"it was of checkpoint {self.loaded}, the log is at {pointer}"
        kept, first = min(log.base, index.range.last), index.range.first
        if kept >= first > 0:
            for probe in range(PROBES + 1):
                found = index.at_or_before(Vlsn(first + (kept - first) * probe // PROBES))
                if found is not None and not is_block_at(disk, directory, *found):
                    return f"VLSN {found[0]} is not at {found[1]:#x}"
        if index.wounded:
            index.check_keys()
        return None

    def _build(self, columns: Iterable[Columns], log: Reread, pointer: int, owner: int) -> None:
        index = self.index
        index.owner = owner
        for window, blocks in enumerate(columns, 1):
            index.put_run(*blocks)
            if window % FLUSH_WINDOWS == 0:
                index.save(UNFINISHED)
        index.put_run(*log.blocks)
        if index.range.last:
            index.note_synced(index.range.last)
        if pointer:
            index.save(pointer)

    def _open(self) -> VlsnIndex:
        return VlsnIndex(self._stores.open(self._path, map_bytes=self._map_bytes), self._latch)

    def _set_aside(self, error: Damaged) -> None:
        if hasattr(self, "index"):
            self.index.close()
        aside = self._stores.set_aside(self._path)
        self._notes.append(f"the VLSN index could not be read ({error}); set aside as {aside}")
        self.index = self._open()
        self.loaded = None


class Unmended(Exception):
    """Raised if a part of the index cannot be rebuilt because the segments cannot be read. The index does not
    change."""

    def __init__(self, why: OSError | Damaged) -> None:
        super().__init__(str(why))
        self.why = why


def mend(index: VlsnIndex, disk: Disk, directory: str, end: Lsn) -> int:
    """Rebuilds the unreadable parts of the index from the log, and returns how many parts were rebuilt. The store
    covers no block at or after ``end``. No flush, cut or merge may run at the same time. Raises ``Unmended`` if the
    segments cannot be read."""
    try:
        segments = survey(disk, directory)
    except OSError as error:
        raise Unmended(error) from error
    wounds = find_wounds(index)
    for wound in wounds:
        runs = visible_blocks(disk, directory, segments, start=wound.start, end=wound.end or end)
        heal(index, wound, _read(runs))
    if not wounds:
        index.levels.stored.wounded = False
    return len(wounds)


def _read(runs: Iterable[Columns]) -> Iterator[Columns]:
    try:
        yield from runs
    except (OSError, Damaged) as error:
        raise Unmended(error) from error


def log_base(blocks: Columns, matchpoints: Sequence[int], checkpoint_last: int) -> Vlsn:
    """Returns the last VLSN before ``blocks``. If there are no blocks, returns the lowest matchpoint of the
    rollbacks that were read, since the log ends there. If there are no rollbacks either, returns the log's end at
    the checkpoint."""
    if blocks.firsts:
        return Vlsn(blocks.firsts[0] - 1)
    return Vlsn(min(matchpoints)) if matchpoints else Vlsn(checkpoint_last or NULL_VLSN)
