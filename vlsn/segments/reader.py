"""The log reader reads whole blocks from any VLSN on, in windows of bytes.

A reader never maps a segment into memory. A reader has one window of a segment in memory at a time (at most 1 MiB, or
one larger frame). So a node's memory does not grow with its log. The reader does not use the index: its caller passes
the LSN of a block at or before the wanted VLSN, and later continues from ``next_lsn``. Entries are decoded by column
(``rows``), many blocks at once. For a single entry, the few frames before it are searched.

The rules of reading:
1. The reader reads nothing at or after the synced end that the log's owner states, and no VLSN after ``upto_vlsn``.
2. After one segment, the reader continues in the segment whose header names the first as its previous segment. That
   header also states the end of the previous segment, whose later frames are dead. A position after the stated end
   means the first frame of the next segment. Segment numbers may be skipped (prepared segments that were never used).
3. Frames that a rollback has abandoned, and local records, are skipped. The blocks that are not skipped must have
   consecutive VLSNs.
4. A block is returned only after its frame's checksum, its header and its padding were found correct.
5. If the next block cannot be read so, ``Damaged`` is raised, with the file, the offset and the VLSN that should be
   there. The entries before the damage are returned first. A place that the disk cannot read is damage, too
   (``bad_sectors``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from struct import Struct

from vlsn.errors import BadBody, Damaged, NoRegularFile, Trimmed, WrongVersion
from vlsn.format import block as block_format
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, Entry, EntryKind
from vlsn.format.frame import FRAME, FRAME_BYTES, MAGIC, FrameKind, check_frame, claimed_size, decode_header, padded
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import EntryRows
from vlsn.format.scan import Stop, Walk, check_kind
from vlsn.format.segment import FIRST_FRAME, HEADER_PAGE, SegmentHeader, SegmentState, segment_name
from vlsn.ids import NULL_VLSN, Lsn, Vlsn, lsn, lsn_file, lsn_offset
from vlsn.levels import named
from vlsn.limits import KIB
from vlsn.seams import Disk, File
from vlsn.segments.bad_sectors import is_unread, read_around
from vlsn.segments.directory import segment_numbers
from vlsn.segments.gathering import NO_LIMIT, Gathering
from vlsn.segments.window import WINDOW_BYTES_MAX, Stopped, Taking, Window

SINGLE_BYTES = 8 * KIB
"""The bytes that a search for a single entry reads first. The index has a mapping for every 4 KiB, or for every ten
VLSNs."""
ENTRY_BYTES_GUESS = 256
"""The assumed bytes of an entry and its part of the frame. The window for a number of entries is sized from it."""
_SPAN = Struct("<4xI8xQ")
"""The layout that unpacks the count and the first VLSN of a block."""
_BLOCK = int(FrameKind.BLOCK)
_HEADER = Struct("<BBBxIQQQQIIIIII")
DATA_ONLY = frozenset({int(EntryKind.DATA)})


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Consecutive blocks, byte for byte as in the log but without padding. ``first`` and ``last`` are VLSNs (both 0 if
    ``data`` is empty). ``next_lsn`` is the position from which to read on for ``next_vlsn``."""

    data: list[bytes]
    lsns: list[Lsn]
    first: Vlsn
    last: Vlsn
    next_lsn: Lsn
    next_vlsn: Vlsn


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Entries in VLSN order, without the kinds that were not requested. ``next_vlsn`` is the first VLSN that was not
    searched. ``next_lsn`` is the position (of a block, or the end) from which to read on for ``next_vlsn``."""

    entries: list[Entry]
    next_lsn: Lsn
    next_vlsn: Vlsn


@dataclass(frozen=True, slots=True)
class PairRun:
    """VLSNs with values, in order. ``next_vlsn`` is the first VLSN that was not searched. ``next_lsn`` is the position
    from which to read on for ``next_vlsn``."""

    pairs: Iterable[tuple[int, bytes]]
    next_lsn: Lsn
    next_vlsn: Vlsn


@dataclass(frozen=True, slots=True)
class RowsRun:
    """Blocks as columns, in order. ``next_vlsn`` is the first VLSN that was not searched. ``next_lsn`` is the position
    from which to read on for ``next_vlsn``."""

    windows: list[EntryRows]
    next_lsn: Lsn
    next_vlsn: Vlsn


@dataclass(frozen=True, slots=True)
class TimeRun:
    """The result of a search by time. ``found`` is the first VLSN of the block that was found. If ``found`` is 0, no
    block that was read was sealed after ``clock_us``. ``next_vlsn`` is the first VLSN that was not searched.
    ``next_lsn`` is the position from which to read on for ``next_vlsn``."""

    found: Vlsn
    clock_us: int
    next_lsn: Lsn
    next_vlsn: Vlsn


class SegmentFile:
    """A segment that is open for reading. Raises ``Damaged`` if its header page is not valid. With ``around`` (in an
    open log), bytes that the disk cannot read are treated as rot. Without ``around``, bytes that the disk cannot read
    raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str, number: int, *, around: bool = False) -> None:
        self.number = number
        self._around = around
        self.name = segment_name(number)
        self.live_end = 0
        """The end that the next segment's header states; 0 while that end is not known."""
        try:
            self.file: File = disk.open(f"{directory}/{self.name}")
        except FileNotFoundError:
            raise Damaged(f"{self.name} is missing", file=self.name) from None
        except NoRegularFile as error:
            if not around:
                raise
            raise Damaged(str(error), file=self.name) from error
        try:
            self.header = SegmentHeader.decode(self.file.read(0, HEADER_PAGE))
        except BadBody as error:
            self.file.close()
            raise Damaged(f"{self.name}: {error}", file=self.name) from error
        except WrongVersion as error:
            self.file.close()
            raise named(error, self.name) from None
        except OSError as error:
            self.file.close()
            if not around or not is_unread(error):
                raise
            raise Damaged(f"{self.name}: its header page cannot be read ({error})", file=self.name) from error
        if self.header.number != number:
            self.file.close()
            raise Damaged(f"{self.name} holds the header of segment {self.header.number}", file=self.name)

    @property
    def active(self) -> bool:
        return self.header.state == SegmentState.ACTIVE

    def window(self, at: int, end: int, size: int) -> tuple[bytes, Walk]:
        """Reads about ``size`` bytes from the frame at ``at`` on, never past ``end``, and finds the frames in them. The
        bytes contain at least one frame, unless no frame begins at ``at`` or that frame ends after ``end``. Raises
        ``WrongVersion`` for a frame of a later version."""
        while True:
            buf = self.read(at, min(size, end - at))
            found = scan.walk(buf, base=at, start=at, end=at + len(buf), salt=self.header.salt)
            if found.reason is Stop.BAD:
                self._check_kind(found.end, end)
            if len(found) or found.reason is not Stop.SHORT or len(buf) < min(size, end - at):
                return buf, found
            header = decode_header(buf, 0, offset=at, salt=self.header.salt)
            if header is None or header.size <= size or at + header.size > end:
                return buf, found
            size = header.size

    def _check_kind(self, at: int, end: int) -> None:
        """Raises ``WrongVersion`` if the frame at ``at`` is of a later version."""
        head = self.read(at, min(FRAME_BYTES, end - at))
        size = claimed_size(head) if len(head) == FRAME_BYTES else 0
        if 0 < size <= end - at and not decode_header(head, 0, offset=at, salt=self.header.salt):
            check_kind(self.read(at, size), at, at, self.header.salt, self.name)

    def read(self, at: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``at`` on. With ``around``, continues after bytes that the disk cannot read."""
        try:
            return self.file.read(at, size)
        except OSError as error:
            if not self._around or not is_unread(error):
                raise
        return read_around(self.file, at, size)

    def close(self) -> None:
        self.file.close()


class LogReader:
    """Reads the blocks of one log. Only one user may use a reader at a time. Between calls, the reader keeps up to
    ``segments_max`` segments open, but closes each segment that it has read to the end.

    ``synced_end(number)`` returns the end up to which a segment may be read now. ``synced_end(number)`` returns 0 for a
    segment whose end is in the next segment's header. ``first()`` returns the first VLSN of the log. If a block before
    the log's first VLSN is missing, it was cleaned away.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        synced_end: Callable[[int], int],
        first: Callable[[], int] = lambda: 0,
        *,
        segments_max: int = 1,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._synced_end = synced_end
        self._first = first
        self._segments_max = segments_max
        self._segments: dict[int, SegmentFile] = {}

    def blocks(self, from_vlsn: int, *, start: Lsn, upto_vlsn: int, bytes_max: int) -> ReadRun:
        """Reads the block that contains ``from_vlsn`` and the following blocks that end at or before ``upto_vlsn``.
        Reads at most ``bytes_max`` bytes, but at least one block. ``start`` is the LSN of a frame at or before the
        block with ``from_vlsn`` (an index mapping, or ``next_lsn``). An empty run means that nothing more may be read
        yet. Raises ``Damaged``, or ``Trimmed`` if the block was cleaned away meanwhile."""
        taking = Taking(from_vlsn, start, upto_vlsn, bytes_max)
        data: list[bytes] = []
        lsns: list[Lsn] = []
        for window in self._windows(taking):
            data += window.blocks()
            lsns += window.lsns()
        last = Vlsn(taking.want - 1) if data else NULL_VLSN
        return ReadRun(data, lsns, taking.first, last, taking.at, Vlsn(taking.want))

    def entries(
        self,
        from_vlsn: int,
        *,
        start: Lsn,
        upto_vlsn: int,
        limit: int,
        bytes_max: int,
        kinds: frozenset[int] | None = DATA_ONLY,
        keys: KeyFilter | None = None,
        look_bytes_max: int = NO_LIMIT,
    ) -> EntryRun:
        """Reads entries from ``from_vlsn`` up to ``upto_vlsn`` (the last VLSN of a block), at least one if there is
        any. Reads at most ``limit`` entries, and about ``bytes_max`` bytes of keys and values. With ``keys``, about
        ``look_bytes_max`` bytes of blocks are searched, whether or not an entry matches. Raises ``Damaged`` or
        ``Trimmed``."""
        if limit == 1 and keys is None:
            try:
                entry = self._single(from_vlsn, start, upto_vlsn)
            except OSError as error:
                if not is_unread(error):
                    raise
                entry = None
            if entry is not None and (kinds is None or entry.kind in kinds):
                return EntryRun([entry], start, Vlsn(from_vlsn + 1))
        found = Gathering(
            from_vlsn, limit=limit, bytes_max=bytes_max, kinds=kinds, keys=keys, look_bytes_max=look_bytes_max
        )
        at = start
        while not found.full:
            size = min(found.room, WINDOW_BYTES_MAX, (limit - len(found.entries)) * ENTRY_BYTES_GUESS)
            if keys is not None:
                size = min(found.look_room, WINDOW_BYTES_MAX)
            taking = Taking(found.next_vlsn, at, upto_vlsn, max(size, 1))
            try:
                for window in self._windows(taking):
                    left_out = window.gather(found)
                    if left_out is not None:
                        return EntryRun(found.entries, left_out, found.next_vlsn)
            except (Damaged, Trimmed):
                if found.entries:
                    break  # rule 5: the next call raises the error
                raise
            at = taking.at
            if not taking.first:
                break
        return EntryRun(found.entries, at, found.next_vlsn)

    def pairs(self, from_vlsn: int, *, start: Lsn, upto_vlsn: int, to_vlsn: int) -> PairRun:
        """Reads (VLSN, value) of the DATA entries from ``from_vlsn`` to ``to_vlsn``, in one window of the log.
        ``upto_vlsn`` is the last VLSN of a block, at or after ``to_vlsn``. Raises ``Damaged`` or ``Trimmed``."""
        taking = Taking(from_vlsn, start, upto_vlsn, WINDOW_BYTES_MAX)
        found: list[Iterable[tuple[int, bytes]]] = []
        for window in self._windows(taking):
            rows = window.rows()
            found.append(rows.pairs(rows.chosen(from_vlsn, to_vlsn, DATA_ONLY)))
        return PairRun(chain.from_iterable(found), taking.at, Vlsn(taking.want))

    def rows(self, from_vlsn: int, *, start: Lsn, upto_vlsn: int, bytes_max: int = WINDOW_BYTES_MAX) -> RowsRun:
        """Reads blocks from the block that contains ``from_vlsn`` on, up to ``upto_vlsn`` (the last VLSN of a block).
        Reads at most ``bytes_max`` bytes, but at least one block. Raises ``Damaged`` or ``Trimmed``."""
        taking = Taking(from_vlsn, start, upto_vlsn, bytes_max)
        windows = [window.rows() for window in self._windows(taking)]
        return RowsRun(windows, taking.at, Vlsn(taking.want))

    def sealed_at(self, clock_us: int, from_vlsn: int, *, start: Lsn, upto_vlsn: int, bytes_max: int) -> TimeRun:
        """Searches for the first block that was sealed at ``clock_us`` or later, from the block that contains
        ``from_vlsn`` on. The search includes blocks that end at or before ``upto_vlsn``, at most ``bytes_max`` bytes of
        blocks, but at least one block. Raises ``Damaged`` or ``Trimmed``."""
        taking, highest = Taking(from_vlsn, start, upto_vlsn, bytes_max), 0
        for window in self._windows(taking):
            found = window.first_reaching(clock_us)
            if found is not None:
                return TimeRun(found, 0, taking.at, Vlsn(taking.want))
            highest = max(highest, window.highest_clock)
        return TimeRun(NULL_VLSN, highest, taking.at, Vlsn(taking.want))

    def close(self) -> None:
        while self._segments:
            self._segments.popitem()[1].close()

    def _windows(self, taking: Taking) -> Iterator[Window]:
        """Yields the blocks that were read, one window at a time. ``taking.at`` is the position from which to read on.
        If no window was yielded, may raise ``Damaged`` or ``Trimmed``."""
        try:
            while taking.want <= taking.upto and taking.room > 0 and taking.stopped is None:
                segment = self._open(lsn_file(taking.at))
                end = self._end(segment)
                if lsn_offset(taking.at) < end:
                    window = self._window(segment, end, taking)
                    if window is not None:
                        yield window
                elif not self._goes_on(segment, taking):
                    return
        except Damaged as error:
            first = self._first()
            if taking.want < first:
                raise Trimmed(f"VLSN {taking.want} was cleaned away; the first is {first}", first=first) from error
            raise

    def _window(self, segment: SegmentFile, end: int, taking: Taking) -> Window | None:
        offset = lsn_offset(taking.at)
        buf, found = segment.window(offset, end, taking.window_bytes())
        window = taking.take(buf, offset, found, segment.number)
        if taking.stopped is Stopped.DAMAGED:
            if lsn_offset(taking.at) >= self._end(segment):
                # the log continues in another segment since, and this segment ends before this position
                taking.stopped = None
            elif not taking.first:
                raise _damaged(segment, lsn_offset(taking.at), taking.expected or taking.want)
        return window

    def _goes_on(self, segment: SegmentFile, taking: Taking) -> bool:
        """Moves to the next segment if the present one ends at or before ``taking.at``. Returns False if there is no
        next segment yet."""
        following = self._following(segment)
        if following is None:
            return False
        # The log's owner has not reported yet that this segment ends there.
        if following.header.prev_end > lsn_offset(taking.at):
            following.close()
            return False
        if following.header.prev_end < lsn_offset(taking.at):
            taking.expected = 0  # the frames after the end were written again at the start of the next segment
        self._segments.pop(segment.number).close()  # a reader that only moves forward does not need this segment again
        self._keep(following)
        taking.at = lsn(following.number, FIRST_FRAME)
        return True

    def _single(self, vlsn: int, start: Lsn, upto_vlsn: int) -> Entry | None:
        """Reads the entry at ``vlsn`` if it is in a good frame soon after ``start``. Returns None otherwise."""
        segment = self._open(lsn_file(start))
        offset = lsn_offset(start)
        end = self._end(segment)
        if offset >= end:
            return None
        salt = segment.header.salt
        buf = segment.file.read(offset, min(SINGLE_BYTES, end - offset))
        at = _frame_of(buf, offset, salt, vlsn)
        frame = decode_header(buf, at, offset=offset + at, salt=salt) if at is not None else None
        if frame is None or at is None or offset + at + frame.size > end:
            return None
        if at + frame.size > len(buf):
            buf, at = segment.file.read(offset + at, frame.size), 0
        if not check_frame(buf, at, frame):
            return None
        block = memoryview(buf)[at + FRAME_BYTES : at + FRAME_BYTES + frame.length]
        header = block_format.BlockHeader(*_HEADER.unpack_from(block))
        if header.version != block_format.VERSION or header.size != frame.length or header.last_vlsn > upto_vlsn:
            return None
        return block_format.entry(block, header, Vlsn(vlsn))

    def _open(self, number: int) -> SegmentFile:
        segment = self._segments.get(number)
        if segment is None:
            segment = SegmentFile(self._disk, self._directory, number, around=True)
            self._keep(segment)
        return segment

    def _keep(self, segment: SegmentFile) -> None:
        """Keeps ``segment`` open for later calls. If too many are open, closes the segment that was opened first."""
        before = self._segments.pop(segment.number, None)
        if before is None and len(self._segments) >= self._segments_max:
            before = self._segments.pop(next(iter(self._segments)))
        if before is not None:
            before.close()
        self._segments[segment.number] = segment

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
        """Returns the segment after this one, or None if there is none yet. An unreadable header may be one that is
        just being rewritten. So an unreadable header is damage only if the log continues in a still later segment."""
        unreadable: Damaged | None = None
        for number, name in segment_numbers(self._disk, self._directory):
            if number <= segment.number:
                continue
            try:
                found = SegmentFile(self._disk, self._directory, number, around=True)
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


def _frame_of(buf: bytes, base: int, salt: int, vlsn: int) -> int | None:
    """Finds the visible block with ``vlsn`` in ``buf``, which begins with a frame. The search goes from frame to frame,
    and requires valid headers and consecutive blocks. Returns None if the search ends before ``vlsn``."""
    at = expected = size = 0
    while at + FRAME_BYTES + BLOCK_BYTES <= len(buf):
        magic, kind, flag, length, prev, _, field, _ = FRAME.unpack_from(buf, at)
        if magic != MAGIC or field != salt ^ (base + at) or (at and prev != size):
            return None
        if kind == _BLOCK and not flag:
            count, first = _SPAN.unpack_from(buf, at + FRAME_BYTES)
            if first > vlsn or (expected and first != expected):
                return None
            expected = first + count
            if vlsn < expected:
                return at
        size = FRAME_BYTES + padded(length)
        at += size
    return None


def _damaged(segment: SegmentFile, offset: int, vlsn: int) -> Damaged:
    return Damaged(
        f"{segment.name} at {offset}: no valid frame where VLSN {vlsn} is expected",
        file=segment.name,
        offset=offset,
        vlsn=vlsn,
    )
