"""The log reader: whole blocks from any VLSN on, by windows of bytes.

A reader never maps a segment and holds one window at a time (at most 1 MiB, or one frame when that is
larger), so that a node's memory does not grow with its log.  It knows of no index: the caller brings the LSN
of a block at or before the VLSN it wants, and after that goes on from ``next_lsn``.

Rules.
1. Nothing at or past the synced end that the owner names is read, nor past ``upto_vlsn``.
2. Where a segment ends, the next one whose header names this one goes on; what lies past the end named there
   is dead: a place there stands for the first frame of the next segment, which begins with the same blocks.
   Numbers in between may be missing (burnt standbys).
3. Overmarked frames and local records are passed over; the blocks left must follow on exactly.
4. A block is handed out only after its frame's checksum, header and padding were found right.
5. What is not so is ``Damaged``, with file, offset and the VLSN that should be there; what lies before it is
   handed out first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from struct import Struct

import numpy as np
import numpy.typing as npt

from vlsn import block as block_format
from vlsn import scan
from vlsn.block import BLOCK_BYTES, Entry, EntryKind
from vlsn.directory import segment_numbers
from vlsn.errors import BadBody, Damaged, Trimmed
from vlsn.frame import FRAME_BYTES, FrameKind, decode_header
from vlsn.gathering import Gathering
from vlsn.ids import NULL_VLSN, Lsn, Vlsn, lsn, lsn_file, lsn_offset
from vlsn.limits import KIB, MIB
from vlsn.scan import Offsets, Stop, Walk
from vlsn.seams import Disk, File
from vlsn.segment import FIRST_FRAME, HEADER_PAGE, SegmentHeader, SegmentState, segment_name

WINDOW_BYTES_MIN = 16 * KIB
WINDOW_BYTES_MAX = MIB
_HEADER = Struct("<BBBxIQQQQIIIIII")
DATA_ONLY = frozenset({int(EntryKind.DATA)})


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Whole blocks that follow one another, as they lie in the log, without padding.  ``first`` and ``last``
    are VLSNs (both 0 when ``data`` is empty); ``next_lsn`` is where to go on for ``next_vlsn``."""

    data: list[bytes]
    lsns: list[Lsn]
    first: Vlsn
    last: Vlsn
    next_lsn: Lsn
    next_vlsn: Vlsn


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Entries in order; VLSNs of other kinds than asked for are gaps.  ``next_vlsn`` is the first VLSN not
    looked at, ``next_lsn`` the block (or the end) to look for it from."""

    entries: list[Entry]
    next_lsn: Lsn
    next_vlsn: Vlsn


class SegmentFile:
    """One segment, open for reading.  Raises ``Damaged`` when its header page is not what it must be."""

    def __init__(self, disk: Disk, directory: str, number: int) -> None:
        self.number = number
        self.name = segment_name(number)
        self.live_end = 0
        """Where the next segment's header ends this one; 0 until it was asked."""
        try:
            self.file: File = disk.open(f"{directory}/{self.name}")
        except FileNotFoundError:
            raise Damaged(f"{self.name} is missing", file=self.name) from None
        try:
            self.header = SegmentHeader.decode(self.file.read(0, HEADER_PAGE))
        except BadBody as error:
            self.file.close()
            raise Damaged(f"{self.name}: {error}", file=self.name) from error
        if self.header.number != number:
            self.file.close()
            raise Damaged(f"{self.name} holds the header of segment {self.header.number}", file=self.name)

    @property
    def active(self) -> bool:
        return self.header.state == SegmentState.ACTIVE

    def window(self, at: int, end: int, size: int) -> tuple[bytes, Walk]:
        """About ``size`` bytes from the frame at ``at`` on, never past ``end``, and the frames in them: at least
        one, unless none begins at ``at`` or it does not end by ``end``."""
        while True:
            buf = self.file.read(at, min(size, end - at))
            found = scan.walk(buf, base=at, start=at, end=at + len(buf), salt=self.header.salt)
            if len(found) or found.reason is not Stop.SHORT or len(buf) < min(size, end - at):
                return buf, found
            header = decode_header(buf, 0, offset=at, salt=self.header.salt)
            if header is None or header.size <= size or at + header.size > end:
                return buf, found
            size = header.size

    def close(self) -> None:
        self.file.close()


class LogReader:
    """Reads one log's blocks; one user at a time.  Keeps one segment open between calls.

    ``synced_end(number)`` is how far a segment may be read now; 0 for one that its owner keeps no end of: then
    the next segment's header says it.  ``first()`` is the first VLSN there is, as its owner knows it: what is missing
    before it was cleaned away."""

    def __init__(
        self, disk: Disk, directory: str, synced_end: Callable[[int], int], first: Callable[[], int] = lambda: 0
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._synced_end = synced_end
        self._first = first
        self._segment: SegmentFile | None = None

    def blocks(self, from_vlsn: int, *, start: Lsn, upto_vlsn: int, bytes_max: int) -> ReadRun:
        """The block that holds ``from_vlsn`` and those after it whose last VLSN is at most ``upto_vlsn``, up to
        ``bytes_max`` but at least one.  ``start`` is the LSN of a frame at or before it (an index mapping, or
        ``next_lsn``).  An empty run: nothing more may be read yet.  Raises ``Damaged``, or ``Trimmed`` when it was
        cleaned away meanwhile."""
        taking = _Taking(from_vlsn, upto_vlsn, bytes_max)
        try:
            return self._blocks(taking, from_vlsn, start, upto_vlsn)
        except Damaged as error:
            first = self._first()
            if taking.want < first:
                raise Trimmed(f"VLSN {taking.want} was cleaned away; the first is {first}", first=first) from error
            raise

    def _blocks(self, taking: _Taking, from_vlsn: int, start: Lsn, upto_vlsn: int) -> ReadRun:
        at = start
        while taking.want <= upto_vlsn and taking.room > 0:
            segment = self._open(lsn_file(at))
            offset = lsn_offset(at)
            end = self._end(segment)
            if offset >= end:
                following = self._following(segment)
                if following is None:
                    break
                if following.header.prev_end > offset:  # its owner has not told yet that this one ends there
                    following.close()
                    break
                if following.header.prev_end < offset:
                    taking.expected = 0  # what lay past there was written again, where we go: it comes once more
                self._segment = following
                segment.close()
                at = lsn(following.number, FIRST_FRAME)
                continue
            buf, found = segment.window(offset, end, taking.window_bytes())
            at = lsn(segment.number, taking.take(buf, offset, found, segment.number))
            if taking.stopped is _Stopped.DAMAGED and lsn_offset(at) >= self._end(segment):
                taking.stopped = None  # the segment was left meanwhile; it ends before this
                continue
            if taking.stopped is _Stopped.DAMAGED and not taking.data:
                raise _damaged(segment, lsn_offset(at), taking.expected or from_vlsn)
            if taking.stopped is not None:
                break
        return taking.run(at)

    def entries(
        self,
        from_vlsn: int,
        *,
        start: Lsn,
        upto_vlsn: int,
        limit: int,
        bytes_max: int,
        kinds: frozenset[int] | None = DATA_ONLY,
    ) -> EntryRun:
        """Entries from ``from_vlsn`` up to ``upto_vlsn`` (a block's last), at most ``limit`` and about
        ``bytes_max`` bytes of keys and values, but at least one if there is any.  Raises ``Damaged``."""
        found = Gathering(from_vlsn, limit=limit, bytes_max=bytes_max, kinds=kinds)
        at = start
        while not found.full:
            window = max(min(found.room, WINDOW_BYTES_MAX), 1)
            try:
                run = self.blocks(found.next_vlsn, start=at, upto_vlsn=upto_vlsn, bytes_max=window)
            except (Damaged, Trimmed):
                if found.entries:
                    break  # rule 5: the next call says it
                raise
            for block, at in zip(run.data, run.lsns, strict=True):
                header = block_format.BlockHeader(*_HEADER.unpack_from(block))  # its frame's checksum was right
                if not found.add(block, header):
                    return EntryRun(found.entries, at, found.next_vlsn)
            at = run.next_lsn
            if not run.data:
                break
        return EntryRun(found.entries, at, found.next_vlsn)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _open(self, number: int) -> SegmentFile:
        if self._segment is None or self._segment.number != number:
            self.close()
            self._segment = SegmentFile(self._disk, self._directory, number)
        return self._segment

    def _end(self, segment: SegmentFile) -> int:
        end = self._synced_end(segment.number) or segment.live_end
        if not end:
            following = self._following(segment)
            if following is None:
                return FIRST_FRAME
            following.close()
            end = segment.live_end = following.header.prev_end
        return end

    def _following(self, segment: SegmentFile) -> SegmentFile | None:
        """The segment after this one, or None when there is none yet.  A header that cannot be read may be
        one that is just being rewritten, so it is damage only if the log goes on behind it."""
        unreadable: Damaged | None = None
        for number, name in segment_numbers(self._disk, self._directory):
            if number <= segment.number:
                continue
            try:
                found = SegmentFile(self._disk, self._directory, number)
            except Damaged as error:
                unreadable = error
                continue
            if found.active and found.header.prev_number == segment.number:
                return found
            active, named = found.active, found.header.prev_number
            found.close()
            if active:
                raise unreadable or Damaged(
                    f"{name} follows segment {named}, which is missing", file=segment_name(named)
                )
        return None


class _Stopped(Enum):
    LIMIT = auto()
    DAMAGED = auto()


class _Taking:
    """What one call of ``blocks`` has gathered so far, and what it still wants."""

    def __init__(self, from_vlsn: int, upto_vlsn: int, bytes_max: int) -> None:
        self.want = from_vlsn
        self.upto = upto_vlsn
        self.room = bytes_max
        self.data: list[bytes] = []
        self.lsns: list[Lsn] = []
        self.first = NULL_VLSN
        self.expected = 0
        """The VLSN that the next visible block begins with; 0 before the first one was seen."""
        self.stopped: _Stopped | None = None
        self._window = WINDOW_BYTES_MIN

    def window_bytes(self) -> int:
        """What fills the room, headers included; for one block near its mapping little, then ever more."""
        size = min(max(self.room + self.room // 4, self._window), WINDOW_BYTES_MAX)
        self._window *= 4
        return size

    def run(self, at: Lsn) -> ReadRun:
        last = Vlsn(self.want - 1) if self.data else NULL_VLSN
        return ReadRun(self.data, self.lsns, self.first, last, at, Vlsn(self.want))

    def take(self, buf: bytes, base: int, found: Walk, number: int) -> int:
        """Takes what is wanted of one window; returns the offset up to which all is dealt with."""
        if not len(found):
            self.stopped = _Stopped.DAMAGED
            return found.end
        visible = found.only((found.headers["kind"] == FrameKind.BLOCK) & (found.headers["flag"] == 0))
        if not len(visible):
            return found.end
        heads = scan.block_headers(buf, base, visible.offsets)
        firsts = heads["first_vlsn"].astype(np.int64)
        lasts = firsts + heads["count"] - 1
        good = self._follows_on(visible, heads, firsts, lasts)
        low = int(np.searchsorted(lasts[:good], self.want))
        high = int(np.searchsorted(lasts[:good], self.upto, side="right"))
        high = low + self._fitting(visible, low, high)
        if high < good:
            self.stopped = _Stopped.LIMIT
        verified = low + self._verified(buf, base, visible, low, high)
        if verified < high or (high == good and good < len(visible)):
            self.stopped = _Stopped.DAMAGED
        if verified > low:
            self._add(buf, base, number, visible, low, verified)
            self.first = self.first or Vlsn(int(firsts[low]))
            self.want = int(lasts[verified - 1]) + 1
        if verified:
            self.expected = int(lasts[verified - 1]) + 1
        return found.end if verified == len(visible) else int(visible.offsets[verified])

    def _follows_on(self, visible: Walk, heads: npt.NDArray[np.void], firsts: Offsets, lasts: Offsets) -> int:
        """How many of the blocks follow on exactly, fill their frames and do not begin after what is wanted."""
        good = visible.headers["length"] == heads["body_bytes"] + np.uint32(BLOCK_BYTES)
        good &= (heads["count"] > 0) & (firsts > 0)
        good[1:] &= firsts[1:] == lasts[:-1] + 1
        good[0] &= firsts[0] == self.expected if self.expected else firsts[0] <= self.want
        return len(good) if good.all() else int(good.argmin())

    def _fitting(self, visible: Walk, low: int, high: int) -> int:
        """How many of the blocks from ``low`` on have room: at least the very first."""
        totals = np.cumsum(visible.headers["length"][low:high], dtype=np.int64)
        fitting = int(np.searchsorted(totals, self.room, side="right"))
        return max(fitting, min(1, high - low)) if not self.data else fitting

    def _verified(self, buf: bytes, base: int, visible: Walk, low: int, high: int) -> int:
        """How many of the chosen blocks have a right checksum, up to the first that has not."""
        chosen = Walk(visible.offsets[low:high], visible.headers[low:high], visible.end, visible.reason)
        bad = scan.check_crcs(buf, base, chosen)
        return high - low if bad is None else bad

    def _add(self, buf: bytes, base: int, number: int, visible: Walk, low: int, high: int) -> None:
        places = (visible.offsets[low:high] - base + FRAME_BYTES).tolist()
        lengths = visible.headers["length"][low:high]
        self.data += [buf[at : at + size] for at, size in zip(places, lengths.tolist(), strict=True)]
        self.lsns += (visible.offsets[low:high] + (number << 32)).tolist()
        self.room -= int(lengths.sum())


def _damaged(segment: SegmentFile, offset: int, vlsn: int) -> Damaged:
    return Damaged(
        f"{segment.name} at {offset}: no whole, right frame where VLSN {vlsn} is looked for",
        file=segment.name,
        offset=offset,
        vlsn=vlsn,
    )
