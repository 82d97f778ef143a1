"""Reads the entries of a stopped node's log, from the log's segments alone.

    segments ─► valid frames ─► visible blocks ─► must be consecutive ─► entries

1. The *durable end* is the highest DTVLSN stated in the directory: in a block's header, a checkpoint, or ``state``.
   After a clean stop, it is the durable end that the node had. After a kill, the durable end found may be a block or
   two below the node's. Entries past the durable end may be on no other node, and are read only on request
   (``undurable``).
2. A block is visible unless a rollback, finished or not, has abandoned it.
3. If the next VLSN cannot be read, ``Damaged`` is raised. The error has the VLSN from which reading can continue. No
   gap is skipped silently.

This module writes, locks and maps nothing. Only one segment is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadArgument, BadBody, Damaged, LogInUse, Trimmed
from vlsn.format import scan
from vlsn.format.block import Entry
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.key_filter import KeyFilter
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackStart, decode_record
from vlsn.format.rows import EntryRows
from vlsn.ids import NULL_VLSN, Vlsn, lsn, lsn_file
from vlsn.limits import MIB
from vlsn.seams import Disk, Stores
from vlsn.segments.directory import LOCK_NAME
from vlsn.segments.reader import DATA_ONLY
from vlsn.segments.restore_marker import check_no_restore
from vlsn.verify.index_mappings import read_times
from vlsn.verify.inspection import inspected
from vlsn.verify.segment_chain import Link, log_chain, read_stated

TAIL_BYTES = 8 * MIB
"""The bytes before the log's end that are searched for the durable end."""
WINDOW_BYTES = 4 * MIB
"""The bytes of a segment whose entries are read by column at once, but at least one block."""
ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class _Visible:
    """The visible blocks of one segment, as columns. ``places`` are the offsets of the blocks' frames."""

    places: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    lasts: npt.NDArray[np.int64]
    heads: npt.NDArray[np.void]

    def __len__(self) -> int:
        return len(self.places)

    def window(self, low: int) -> int:
        """Returns the exclusive end of the blocks, from ``low`` on, that are read at once."""
        return max(low + 1, int(np.searchsorted(self.places, self.places[low] + WINDOW_BYTES)))


class StoppedLog:
    """The log of a stopped node. Raises ``LogInUse`` if the directory is in use, ``Restoring`` if a restore is
    unfinished, and ``BadArgument`` if there is no log. ``first`` and ``last`` are the first and last visible VLSNs, and
    ``durable`` is the durable end. For an empty log, all three are NULL_VLSN."""

    def __init__(self, disk: Disk, stores: Stores, directory: str) -> None:
        check_no_restore(disk, directory)
        if disk.is_locked(f"{directory}/{LOCK_NAME}"):
            raise LogInUse(f"{directory}: its node runs; read it from its --url, or stop it first")
        self._disk = disk
        self._stores = stores
        self._directory = directory
        self._stated = read_stated(stores, directory)
        self._links = log_chain(disk, directory, live=False, stated=self._stated.ends).links
        if not self._links:
            raise BadArgument(f"{directory}: holds no log")
        self._abandoned: list[tuple[int, int]] = []
        self._buf = bytearray()
        self.first, self.last, self.durable = NULL_VLSN, NULL_VLSN, Vlsn(self._stated.dtvlsn)
        self._look_at_end()
        self._look_at_beginning()

    def entries(
        self,
        from_vlsn: int = 0,
        to_vlsn: int = 0,
        *,
        all_kinds: bool = False,
        undurable: bool = False,
        keys: KeyFilter | None = None,
    ) -> Iterator[list[Entry]]:
        """Yields entries from ``from_vlsn`` (0: the log's first VLSN) to ``to_vlsn`` (0: the durable end, or the log's
        end with ``undurable``). If ``keys`` is not None, only entries with these keys are yielded. Raises ``Trimmed``.
        Raises ``Damaged`` after yielding everything before the damage."""
        kinds = None if all_kinds else DATA_ONLY
        for rows, at, end in self.rows(from_vlsn, to_vlsn, undurable=undurable):
            chosen = rows.chosen(at, end, kinds, None if keys is None else keys.mask(rows))
            if isinstance(chosen, slice):
                chosen = np.arange(*chosen.indices(rows.rows))
            for start in range(0, len(chosen), ROWS_AT_ONCE):
                yield rows.entries(chosen[start : start + ROWS_AT_ONCE])

    def rows(
        self, from_vlsn: int = 0, to_vlsn: int = 0, *, undurable: bool = False, keep: bool = False
    ) -> Iterator[tuple[EntryRows, int, int]]:
        """Yields, as columns, the blocks with the entries that ``entries`` would yield, each time with the first and
        last wanted VLSN. The buffer of the blocks is used again for the next segment. With ``keep``, each segment gets
        its own buffer, which lives as long as it is referenced. Raises the errors of ``entries``."""
        end = max(self.last, self.durable) if undurable else self.durable
        end = Vlsn(min(end, to_vlsn)) if to_vlsn else end
        if not end and not self._ends_in_damage:
            return
        if from_vlsn and from_vlsn < self.first:
            raise Trimmed(f"VLSN {from_vlsn} is not here: the log begins at VLSN {self.first}", first=self.first)
        at = from_vlsn or self.first
        for position, link in enumerate(self._links):
            if at > end:
                break
            if not self._may_hold(position, at):
                continue
            if keep:
                self._buf = bytearray()
            blocks = self._visible(link)
            high = int(np.searchsorted(blocks.lasts, at))
            while high < len(blocks):
                low, high = high, blocks.window(high)
                run = slice(low, high)
                firsts, lasts = blocks.firsts[run], blocks.lasts[run]
                if at > end:
                    break
                follows = np.flatnonzero(firsts[1:] != lasts[:-1] + 1)
                good = int(follows[0]) + 1 if len(follows) else len(firsts)
                if firsts[0] > at:
                    raise self._lost(at, link, int(firsts[0]))
                places, heads = blocks.places[low : low + good], blocks.heads[low : low + good]
                yield EntryRows(self._buf, places + FRAME_BYTES, heads), at, int(end)
                at = int(lasts[good - 1]) + 1
                if good < len(firsts) and at <= end:
                    raise self._lost(at, link, int(firsts[good]))
        if at <= end or (undurable and self._ends_in_damage and not 0 < to_vlsn <= end):
            raise self._lost(at, self._links[-1], 0)

    def at_time(self, time_us: int) -> Vlsn:
        """Returns the first VLSN of the first block that was sealed at ``time_us`` or later, or the VLSN after the end.
        By the stored time index, only those segments are read that may contain blocks of that time."""
        header = self._links[-1].header
        times = read_times(self._stores, self._directory, header.incarnation if header is not None else 0)
        at = self.first
        for position, link in enumerate(self._links):
            step = times.reaching(time_us, at)
            if not self._may_hold(position, min(step[0] if step is not None else times.last + 1, self.last)):
                continue
            blocks = self._visible(link)
            late = np.flatnonzero(blocks.heads["clock_us"] >= time_us)
            if len(late):
                return Vlsn(max(int(blocks.firsts[late[0]]), self.first))
            at = Vlsn(max(at, int(blocks.lasts[-1]) + 1)) if len(blocks) else at
        return Vlsn(self.last + 1)

    # Private methods.

    def _lost(self, vlsn: int, link: Link, resume: int) -> Damaged:
        upto = f" to {resume - 1}" if resume > vlsn + 1 else ""
        advice = f"; continue with --from {resume}" if resume else ", nor anything after it"
        text = f"{self._directory}/{link.name}: VLSN {vlsn}{upto} cannot be read{advice}"
        return Damaged(text, file=link.name, vlsn=vlsn)

    def _may_hold(self, position: int, vlsn: int) -> bool:
        """Returns whether the segment may contain ``vlsn``. No visible VLSN in the segment is above the log's last VLSN
        at the time when the next segment was begun."""
        following = self._links[position + 1].prev_last_vlsn if position + 1 < len(self._links) else 0
        return not 0 < following < vlsn

    def _visible(self, link: Link) -> _Visible:
        """Returns the visible blocks of a segment. After the call, the segment's bytes are in the buffer."""
        found, _ = inspected(self._disk, link, self._stated, self._buf)
        wrong = np.array(sorted({fault.offset for fault in found.faults}), dtype=np.int64)
        keep = ~found.marked & ~np.isin(found.block_offsets, wrong)
        for start, end in self._abandoned:
            places = found.block_offsets + lsn(link.number, 0)
            keep &= (places < start) | (places >= end)
        places = found.block_offsets[keep]
        heads = scan.block_headers(self._buf, 0, places)
        return _Visible(places, found.firsts[keep], found.lasts[keep], heads)

    def _look_at_end(self) -> None:
        """Finds the rollbacks that an opening of the log would read, the last VLSN, and the durable end."""
        scan_file, seen = lsn_file(self._stated.scan_from), 0
        looked: list[Link] = []
        last_block = last_fault = 0
        for link in reversed(self._links):
            if link.number < scan_file and seen >= TAIL_BYTES:
                break
            found, size = inspected(self._disk, link, self._stated, self._buf)
            for _, kind, payload in found.records:
                self._note(kind, payload)
            last_fault = max([last_fault, *(lsn(link.number, fault.offset) for fault in found.faults)])
            looked.append(link)
            seen += size
        for link in looked:  # a second pass, now that all rollbacks are known
            blocks = self._visible(link)
            if len(blocks):
                self.last = max(self.last, Vlsn(int(blocks.lasts[-1])))
                last_block = max(last_block, lsn(link.number, int(blocks.places[-1])))
                self.durable = max(self.durable, Vlsn(int(blocks.heads["dtvlsn"].max())))

        self._ends_in_damage = last_fault > last_block

    def _note(self, kind: FrameKind, payload: bytes) -> None:
        try:
            record = decode_record(kind, payload)
        except BadBody:
            return
        if isinstance(record, RollbackStart):
            self._abandoned.append((record.first_lsn, record.end_lsn))
        elif isinstance(record, CheckpointStart | CheckpointEnd):
            self.durable = max(self.durable, Vlsn(record.dtvlsn))

    def _look_at_beginning(self) -> None:
        if self._stated.record is not None:
            self.first = Vlsn(self._stated.record.trimmed_to + 1)
            return
        for link in self._links:
            blocks = self._visible(link)
            if len(blocks):
                self.first = Vlsn(int(blocks.firsts[0]))
                return
