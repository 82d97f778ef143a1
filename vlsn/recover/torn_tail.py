"""Examines segments when a log is opened: which frames belong to the log, and where a cut or damage is.

The consecutive valid frames from the start of a segment belong to the log. At the first bad frame, ``log_end.ending``
decides whether the log ends there or is damaged there. Later frames are searched for at every 8 bytes, whatever length
the bad frame states. Zeros with a valid frame after them are a bad frame, too. Every file was synced and dropped from
the page cache before, so each read shows the medium.

Only one segment is in memory at a time. Of an examined segment, only the columns and the bytes that are cut are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody, Damaged
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, VERSION, EntryKind, decode_header
from vlsn.format.columns import PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES, OVERMARKED, FrameKind
from vlsn.format.scan import Offsets
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Lsn, lsn, lsn_file
from vlsn.limits import MIB
from vlsn.recover.vote_floor import BlockName
from vlsn.seams import Buffer, Disk
from vlsn.segments.directory import SegmentInfo
from vlsn.segments.log_end import Ending, ending, synced_end
from vlsn.segments.tail import PAGE_BYTES

USED_BYTES = MIB


@dataclass(slots=True)
class Found:
    """The log's frames in one segment, from the place where reading began. Some fields are columns, with a value for
    each frame."""

    number: int
    end: int
    """The end of the good frames: the end of the log in this segment, or a cut."""
    last_frame: int
    """The offset of the last good frame, or 0 if there is none."""
    last_kind: int
    last_page_from: int
    """The offset of the first frame that reaches into the 4 KiB page in which the good frames end."""
    offsets: Offsets
    """The offsets of the BLOCK frames. The columns after this one have the first and the last VLSN, the term, the
    DTVLSN and the clock of each block."""
    firsts: Offsets
    lasts: Offsets
    terms: Offsets
    dtvlsns: Offsets
    clocks: Offsets
    marked: npt.NDArray[np.bool_]
    """Marks the blocks whose frames have the flag of a rollback."""
    produced: npt.NDArray[np.bool_]
    """Marks the blocks that have producers."""
    committed: npt.NDArray[np.bool_]
    """Marks the blocks that have transactions."""
    records: list[tuple[int, FrameKind, bytes]] = field(default_factory=list)
    """The offset, kind and payload of each local record."""
    others: dict[int, bytes] = field(default_factory=dict)
    """The blocks that may hold GROUP entries or settings, by offset. Blocks with transactions are left out."""
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """An unsynced tail: the bytes from ``offset`` on that do not belong to the log, up to the last byte that is not
    zero. ``names`` are the block headers that can be read in the unsynced tail (``vote_floor``), in order."""

    number: int
    offset: int
    data: bytes
    names: list[BlockName]


def sync_and_forget(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Writes the content of these files from the page cache to the medium, and drops it from the cache."""
    for name in names:
        with closing(disk.open(f"{directory}/{name}", write=True)) as file:
            file.sync()
            file.drop_cache()
    disk.sync_directory(directory)


def examine(disk: Disk, segment: SegmentInfo, *, start: int, last: bool, stated: Sequence[Lsn]) -> Found:
    """Reads one ACTIVE segment from ``start`` (the offset of a frame) on. ``last`` means that no ACTIVE segment
    follows. ``stated`` are ends, stored in ``state``, up to which the log was synced. Raises ``Damaged`` or
    ``WrongVersion``."""
    header = segment.head
    limit = segment.size if last else segment.live_end or segment.size
    buf = _read(disk, segment, start, limit)
    walk = scan.walk(buf, base=start, start=start, end=start + len(buf), salt=header.salt)
    bad = scan.check_crcs(buf, start, walk)
    if bad is not None:
        walk = walk.before(bad)
    scan.check_kind(buf, start, walk.end, header.salt, segment.path)
    found = _columns(buf, start, segment, walk)
    if not last and walk.end == limit:
        return found
    rest = memoryview(buf)[walk.end - start :]
    synced = synced_end(
        segment.number,
        walk.end,
        frames_behind=_synced_behind(buf, start, walk.end, header.salt),
        next_header=0 if last else limit,
        stated=stated,
    )
    match ending(walk.end, synced=synced, zeros=not np.frombuffer(rest, dtype=np.uint8).any()):
        case Ending.DAMAGE:
            raise Damaged(
                f"{segment.name} is damaged at offset {walk.end}: it was synced up to offset {synced}",
                file=segment.name,
                offset=walk.end,
                vlsn=int(found.lasts[-1]) + 1 if len(found.lasts) else 0,
            )
        case Ending.TAIL:
            found.cut = cut_of(segment.number, walk.end, rest)
    return found


def cut_of(number: int, offset: int, rest: memoryview) -> Cut:
    """Returns the cut that leaves the bytes of ``rest`` out of the log."""
    return Cut(number, offset, bytes(rest[: _used(rest)]), block_names(rest))


def _used(rest: memoryview) -> int:
    """Returns the length of ``rest`` without the zeros at its end. The bytes are searched piece by piece, since an
    array with the places of all bytes would need eight times their memory."""
    view = np.frombuffer(rest, dtype=np.uint8)
    end = len(view)
    while end:
        start = max(0, end - USED_BYTES)
        used = np.flatnonzero(view[start:end])
        if len(used):
            return start + int(used[-1]) + 1
        end = start
    return 0


def untaken(disk: Disk, segment: SegmentInfo, *, stated: Sequence[Lsn]) -> Cut | None:
    """Examines a segment without a good ACTIVE header. Returns None for a prepared segment that was never used, or a
    cut if the segment's frames were never synced. The header and the first frames are written with one sync. So a
    missing header is damage only if ``state`` or a later segment says that this segment was synced. Raises ``Damaged``
    then."""
    buf = _read(disk, segment, 0, segment.size)
    salt = scan.salt_of(buf, 0, FIRST_FRAME) if len(buf) > FIRST_FRAME else None
    frames = _synced_behind(buf, 0, FIRST_FRAME - 8, salt) if salt is not None else []
    own = [at for at in stated if lsn_file(at) == segment.number or (salt is not None and at >= lsn(segment.number, 0))]
    if synced_end(segment.number, 0, frames_behind=frames, stated=own):
        raise Damaged(f"{segment.name}: its header is damaged ({segment.fault})", file=segment.name, offset=0)
    return cut_of(segment.number, FIRST_FRAME, memoryview(buf)[FIRST_FRAME:]) if salt is not None else None


def block_names(data: Buffer) -> list[BlockName]:
    """Lists the names of the blocks whose headers can be found in ``data``, at any multiple of 8. The header's own
    checksum must be right."""
    found = []
    view = memoryview(data)
    # A block begins 24 bytes after the start of its frame, which is also a multiple of 8. The block's first byte is its
    # version.
    first_bytes = np.frombuffer(data, dtype=np.uint8)[::8]
    for position in (np.flatnonzero(first_bytes == VERSION) * 8).tolist():
        if len(data) - position < BLOCK_BYTES:
            break
        try:
            header = decode_header(view, position)
        except BadBody:
            continue
        end = position + header.size
        found.append(BlockName(int(header.term), int(header.first_vlsn), int(header.last_vlsn), end))
    return found


def _read(disk: Disk, segment: SegmentInfo, start: int, end: int) -> bytes:
    with closing(disk.open(segment.path)) as file:
        return file.read(start, max(end - start, 0))


def _columns(buf: bytes, base: int, segment: SegmentInfo, walk: scan.Walk) -> Found:
    kinds = walk.headers["kind"]
    is_block = kinds == FrameKind.BLOCK
    offsets = walk.offsets[is_block]
    blocks = scan.block_headers(buf, base, offsets)
    scan.check_versions(blocks, offsets, segment.path)
    firsts = blocks["first_vlsn"].astype(np.int64)
    in_last_page = walk.offsets[scan.frame_ends(walk.offsets, walk.headers) > walk.end - walk.end % PAGE_BYTES]
    found = Found(
        number=segment.number,
        end=walk.end,
        last_frame=int(walk.offsets[-1]) if len(walk) else 0,
        last_kind=int(kinds[-1]) if len(walk) else 0,
        last_page_from=int(in_last_page[0]) if len(in_last_page) else walk.end,
        offsets=offsets,
        firsts=firsts,
        lasts=firsts + blocks["count"] - 1,
        terms=blocks["term"].astype(np.int64),
        dtvlsns=blocks["dtvlsn"].astype(np.int64),
        clocks=blocks["clock_us"].astype(np.int64),
        marked=walk.headers["flag"][is_block] == OVERMARKED,
        produced=blocks["flags"] & np.uint8(PRODUCERS) != 0,
        committed=blocks["flags"] & np.uint8(TXNS) != 0,
    )

    def payload(index: int) -> bytes:
        begin = int(walk.offsets[index]) - base + FRAME_BYTES
        return buf[begin : begin + int(walk.headers["length"][index])]

    for index in np.flatnonzero(~is_block).tolist():
        found.records.append((int(walk.offsets[index]), FrameKind(int(kinds[index])), payload(index)))
    settings = np.isin(blocks["kind"], (EntryKind.GROUP, EntryKind.COMMIT, KIND_COLUMN)) & ~found.committed
    for index in np.flatnonzero(is_block)[settings].tolist():
        found.others[int(walk.offsets[index])] = payload(index)
    return found


def _synced_behind(buf: bytes, base: int, stop: int, salt: int) -> list[int]:
    """Lists the highest ``synced`` field of each run of valid frames after offset ``stop``."""
    return [int(walk.headers["synced"].max()) for walk in scan.islands(buf, base, stop + 8, salt)]
