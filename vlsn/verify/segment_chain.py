"""The chain of segments that make up a log, for tools that read the log from outside.

The chain has the end and the salt of each segment, even if the segment's header page is lost. The chain also lists the
missing segments. ``Stated`` has the ends up to which the log was synced, by the ``state`` store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from vlsn.errors import BadBody, Damaged, LogInUse, WrongVersion
from vlsn.format import scan
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.records import RollbackStart
from vlsn.format.segment import FIRST_FRAME, SegmentHeader, SegmentState, segment_name
from vlsn.ids import NULL_LSN, Lsn, lsn, lsn_file, lsn_offset
from vlsn.levels import named
from vlsn.limits import MIB, SEGMENT_BYTES_MAX, STATE_MAP_BYTES
from vlsn.pages.page import PageRow
from vlsn.pages.store import StoreRow
from vlsn.recover.recovery import NODE_FILE_NAME, STATE_NAME
from vlsn.seams import Buffer, Disk, File, Stores
from vlsn.segments.bad_sectors import is_unread, read_around, read_pages
from vlsn.segments.directory import SegmentInfo, stated_synced_end, survey, synced_in_frames
from vlsn.state.node_file import read_slots
from vlsn.state.state_store import StateRecord, StateStore, StoredEnds

READ_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Link:
    """One segment of the chain of segments."""

    info: SegmentInfo
    salt: int
    end: int | None
    """The end of the segment's log, or None if the end can be found only by reading the frames."""
    last: bool
    missing_before: list[int]
    """The numbers of the log's segments that are missing between the previous link and this one."""
    fault: str = ""
    """The fault of the segment's header page; empty if the page is good."""
    foreign: str = ""
    """The node that owns the segment, if it is not this log's node. The segment's header and the next header then name
    different logs."""

    @property
    def number(self) -> int:
        return self.info.number

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def size(self) -> int:
        """The bytes of the file that can belong to a segment. Bytes past this size are not read, since in a rotten
        directory a file may have any size."""
        return min(self.info.size, self.info.header.size if self.info.header is not None else SEGMENT_BYTES_MAX)

    @property
    def header(self) -> SegmentHeader | None:
        return self.info.header

    @property
    def prev_last_vlsn(self) -> int:
        return self.info.header.prev_last_vlsn if self.info.header is not None else 0


@dataclass(frozen=True, slots=True)
class Stray:
    """A segment file under another segment's name. ``holds`` is the number in its header. With ``moved``, the chain
    contains the file under that number, since no other file has the number."""

    name: str
    holds: int
    vlsn: int
    """The first VLSN that is misplaced: the first VLSN of the segment that should have this name, or of the segment in
    the file."""
    moved: bool

    @property
    def detail(self) -> str:
        where = "" if self.moved else ", which is there under its own name"
        return f"the header says that it is segment {self.holds}{where}"


@dataclass(frozen=True, slots=True)
class Chain:
    links: list[Link]
    unsynced_segment: bool
    """True if the next segment has frames but was never synced as part of the log. Frames in an unsynced next segment
    are a torn tail."""
    strays: list[Stray] = field(default_factory=list)
    owner: tuple[str, str] = ("", "")
    """The group and the node that own the log."""


@dataclass(slots=True)
class Stated:
    """The ends up to which ``state`` says that the log was synced."""

    ends: list[Lsn] = field(default_factory=list)
    """The ends (exclusive) up to which ``state`` says that the log was synced."""
    checkpoint_end: Lsn | None = None
    scan_from: Lsn = NULL_LSN
    """The LSN from which the next opening of the log reads; 0 for the log's beginning."""
    dtvlsn: int = 0
    """The stored DTVLSN (durable end), which the headers of the last blocks cannot state."""
    record: StateRecord | None = None
    """The state record. The record has, among other things, the first VLSN of a cleaned log."""
    faults: list[str] = field(default_factory=list)
    pages: dict[str, tuple[StoreRow | None, dict[int, PageRow]]] = field(default_factory=dict)
    """The page table of destinations (which page files are valid), by the destinations' uuids."""

    def offset_in(self, number: int) -> int:
        return max((lsn_offset(at) for at in self.ends if lsn_file(at) == number), default=0)

    def missing_before(self, links: Sequence[Link], indexed: int) -> tuple[str, int] | None:
        """Returns the first segment that is missing before the first link, and the segment's first VLSN. Returns None
        if the segment was cleaned away, as ``state`` or the index, which may be newer, shows. ``indexed`` is the
        index's first segment, or 0."""
        head = links[0].header if links else None
        if self.record is None or head is None or not head.prev_number or indexed == head.number:
            return None
        if head.number <= self.record.first_segment:
            return None
        return segment_name(self.record.first_segment or 1), self.record.trimmed_to + 1

    def missing_after(self, links: Sequence[Link]) -> list[str]:
        """Returns the names of the synced segments that are missing after the last link."""
        last = links[-1].number if links else 0
        return [segment_name(number) for number in sorted({lsn_file(at) for at in self.ends}) if number > last]


def read_stated(stores: Stores, directory: str, *, live: bool = False) -> Stated:
    """Reads the ``state`` store, or, for a running node (``live``), a copy of it. The result is empty if the store
    cannot be read now. If the result is empty, only frames and headers say up to which end the log was synced."""
    stated = Stated()
    path = f"{directory}/{STATE_NAME}"
    try:
        if live:
            state = StateStore(stores.open_copy(path, map_bytes=STATE_MAP_BYTES))
        else:
            state = StateStore(stores.open(path, map_bytes=STATE_MAP_BYTES, read_only=True))
    except FileNotFoundError:
        return stated
    except LogInUse:
        if live:
            return stated
        raise
    except Damaged as error:
        stated.faults.append(str(error))
        return stated
    try:
        stored = StoredEnds(state.checkpoint(), state.idle_end())
        stated.record = state.record()
        stated.pages = state.pages().read()
        stated.dtvlsn, stated.ends = stored.dtvlsn, stored.ends
        if stored.checkpoint is not None:
            stated.checkpoint_end, stated.scan_from = stored.checkpoint.end_lsn, stored.checkpoint.scan_lsn
    except Damaged as error:
        stated.faults.append(str(error))
    except WrongVersion as error:
        raise named(error, path) from None
    finally:
        state.close()
    return stated


def log_chain(disk: Disk, directory: str, *, live: bool, stated: Sequence[Lsn] = ()) -> Chain:
    """Chains the log's segments, ascending. ``stated`` are the ends up to which ``state`` says that the log was synced.
    With ``live``, the last segment ends at its stated synced end. A file under another segment's name is chained by the
    number in its header."""
    listed = survey(disk, directory, around=True)
    segments = _placed(listed)
    named = {info.header.prev_number for info in segments if info.active and info.header is not None}
    last_active = max((info.number for info in segments if info.active), default=0)
    taken: list[tuple[SegmentInfo, int, str]] = []
    unsynced = False
    for info in segments:
        if info.active and info.header is not None:
            taken.append((info, info.header.salt, ""))
            continue
        if live and info.number > last_active:
            continue  # the next segment, not used yet, or a segment whose header page is just being written
        salt, synced = _frames_in(disk, info)
        known = info.number in named or any(lsn_file(at) == info.number for at in stated)
        if known or (salt is not None and (synced >= FIRST_FRAME or info.number < last_active)):
            fault = info.fault or "a segment that was prepared but never used, yet the log continues in it"
            taken.append((info, salt or 0, fault))
        elif salt is not None:
            unsynced = True
    owner = _owner(disk, directory, [info.header for info, _, _ in taken if info.header is not None])
    links = _links(disk, segments, taken, stated, owner, live=live)
    return Chain(links, unsynced, list(_strays(listed, links)), owner)


def _placed(segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """Moves each file with another segment's name to the place of the number in its header, unless the segment of that
    number has a file of its own."""
    own = {info.number for info in segments if info.other is None}
    moved: dict[int, SegmentInfo] = {}
    for info in segments:
        header = info.other
        if header is not None and header.state is SegmentState.ACTIVE and header.number not in own | moved.keys():
            moved[header.number] = replace(info, number=header.number, header=header, fault="")
    if not moved:
        return [info for info in segments if info.other is None]
    placed = sorted([*moved.values(), *(info for info in segments if info.other is None)], key=attrgetter("number"))
    ends = {each.header.prev_number: each.header.prev_end for each in placed if each.active and each.header is not None}
    return [replace(info, live_end=ends.get(info.number)) for info in placed]


def _strays(listed: Sequence[SegmentInfo], links: Sequence[Link]) -> Iterator[Stray]:
    """Yields the segments of ``listed`` whose files have another segment's name, except segments not used yet."""
    firsts = {link.number: link.prev_last_vlsn + 1 for link in links}
    moved = {link.name for link in links}
    for info in listed:
        if info.other is not None and info.other.state is SegmentState.ACTIVE:
            vlsn = firsts.get(info.number, info.other.prev_last_vlsn + 1)
            yield Stray(info.name, info.other.number, vlsn, info.name in moved)


def read_segment(disk: Disk, link: Link, into: bytearray) -> tuple[int, list[tuple[int, int]]]:
    """Reads the bytes of the file that can belong to the log. Returns the number of bytes, and the places (start, end)
    that the disk cannot read; these are zeros in ``into``. ``into`` grows to the size of the largest segment and is
    reused, since touching new memory costs more than all the rest of the work."""
    size = min(link.size, link.size if link.end is None else link.end)
    if len(into) < size:
        into[:] = b"\0"
        into *= size  # in place, so that each page is touched once
    lost: list[tuple[int, int]] = []
    at = 0
    with closing(disk.open(link.info.path)) as file, memoryview(into) as view:
        while at < size:
            got = _read_piece(file, at, view[at : min(at + READ_BYTES, size)], lost)
            at += got
            if not got:
                break
    return at, lost


def _read_piece(file: File, at: int, into: memoryview, lost: list[tuple[int, int]]) -> int:
    """Fills ``into`` from the file. Where the disk fails, reads 4 KiB at a time. Returns the number of bytes read."""
    try:
        return file.read_into(at, into)
    except OSError as error:
        if not is_unread(error):
            raise
        return read_pages(file, at, into, lost)


def rollback_starts(disk: Disk, directory: str, from_number: int) -> Iterator[tuple[Lsn, RollbackStart]]:
    """Yields the ROLLBACK_START records, with their LSNs, of the segments from ``from_number`` on, synced or not. The
    records include rollbacks that a running node has begun after its log was read."""
    for info in survey(disk, directory):
        if info.number >= from_number and info.header is not None:
            yield from rollbacks_in(_bytes_of(disk, info), info.number, info.header.salt)


def rollbacks_in(buf: Buffer, number: int, salt: int) -> Iterator[tuple[Lsn, RollbackStart]]:
    """Yields the ROLLBACK_START records in ``buf``, the bytes of segment ``number`` from its first byte on."""
    view = memoryview(buf)
    for found in scan.islands(buf, 0, FIRST_FRAME, salt):
        for index in np.flatnonzero(found.headers["kind"] == FrameKind.ROLLBACK_START).tolist():
            begin = int(found.offsets[index]) + FRAME_BYTES
            try:
                record = RollbackStart.decode(bytes(view[begin : begin + int(found.headers["length"][index])]))
            except BadBody:
                continue  # an invalid record is reported by the verification of its segment
            yield lsn(number, begin - FRAME_BYTES), record


def _is_blank(disk: Disk, info: SegmentInfo) -> bool:
    """Returns whether the file has only zeros after its header page. A file with only zeros is the prepared next
    segment, and is not part of the log."""
    piece = bytearray(READ_BYTES)
    lost: list[tuple[int, int]] = []
    size = min(info.size, SEGMENT_BYTES_MAX)
    with closing(disk.open(info.path)) as file, memoryview(piece) as view:
        for at in range(FIRST_FRAME, size, READ_BYTES):
            got = _read_piece(file, at, view[: min(READ_BYTES, size - at)], lost)
            if lost or np.frombuffer(piece, np.uint8, got).any():
                return False
    return True


def _bytes_of(disk: Disk, info: SegmentInfo) -> bytes:
    size = min(info.size, SEGMENT_BYTES_MAX)
    with closing(disk.open(info.path)) as file:
        try:
            return file.read(0, size)
        except OSError as error:
            if not is_unread(error):
                raise
            return read_around(file, 0, size)


def _links(
    disk: Disk,
    segments: Sequence[SegmentInfo],
    taken: Sequence[tuple[SegmentInfo, int, str]],
    stated: Sequence[Lsn],
    owner: tuple[str, str],
    *,
    live: bool,
) -> list[Link]:
    links: list[Link] = []
    before = 0
    foreign = [_foreign(info.header, owner) for info, _, _ in taken]
    for position, (info, salt, fault) in enumerate(taken):
        last = position == len(taken) - 1
        end = info.live_end if not any(foreign[position : position + 2]) else None
        if last and live and end is None:
            end = max(FIRST_FRAME, lsn_offset(stated_synced_end(disk, segments, stated=stated)))
        follows = info.header.prev_number if info.header is not None and info.active else before
        missing = [follows] if before and follows > before else []
        if before and follows < before and not fault:
            fault = f"the header says that it follows on segment {follows}, but {before} is there"
        links.append(Link(info, salt, end, last, missing, fault, foreign[position]))
        before = info.number
    return links


def _owner(disk: Disk, directory: str, headers: Sequence[SegmentHeader]) -> tuple[str, str]:
    """Returns the log's group and node from the node file. If there is no node file, returns the owner of most
    segments. If several own equally many, returns the owner of the last segment."""
    try:
        record, _ = read_slots(disk, f"{directory}/{NODE_FILE_NAME}")
        return record.group, record.node
    except (OSError, Damaged):
        pass
    owners = Counter((header.group, header.node) for header in reversed(headers))
    return owners.most_common(1)[0][0] if owners else ("", "")


def _foreign(header: SegmentHeader | None, owner: tuple[str, str]) -> str:
    if header is None or (header.group, header.node) == owner:
        return ""
    return f"it is of node {header.node} of group {header.group}, the log of {owner[1]} of {owner[0]}"


def _frames_in(disk: Disk, info: SegmentInfo) -> tuple[int | None, int]:
    """Finds the salt of the frames in a segment without a good ACTIVE header, or None if there are no frames. Also
    returns the end up to which these frames say that the segment was synced."""
    if _is_blank(disk, info):
        return None, 0
    buf = _bytes_of(disk, info)
    salt = scan.salt_of(buf, 0, FIRST_FRAME) if len(buf) > FIRST_FRAME else None
    return salt, 0 if salt is None else synced_in_frames(buf, FIRST_FRAME, salt)
