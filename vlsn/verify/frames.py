"""Reads the frames (envelopes of blocks) of one segment, recomputes every checksum, and finds damage and the torn tail.

1. A frame that cannot be read is *damage* if something says that it was synced: the ``synced`` field of a later frame,
   or ``stated``. If nothing says so, the log ends before the unreadable frame, in a torn tail, whatever the later bytes
   are. In a segment whose end is known, everything bad is damage.
2. Reading continues after damage: later frames are found by their magic, salt and crc, at every 8 bytes. So one flipped
   bit does not hide another. If a bad frame's length still leads to the next frame, the bad frame is marked. Damage
   that is not a single marked frame is a gap:

    |good|good|crc wrong|good|…garbage…|good|000000
              good=False      gap (start, end)

Checksums are computed for runs of frames that fit the processor's cache, by ``map`` over C functions. The crc32c of a
frame's payload is computed once. From the payloads' checksums, those of the payloads' parts and of the whole frames are
derived by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, VERSION
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.scan import FRAME_DTYPE, Stop
from vlsn.format.segment import FIRST_FRAME
from vlsn.limits import KIB
from vlsn.seams import Buffer
from vlsn.verify.crc_shift import U32, followed, shifted

Bools = NDArray[np.bool_]
Compared = Callable[[Sequence[Buffer]], bytes]
"""The type of a function that makes the bytes by which payloads are compared. The function returns the same number of
bytes for each payload, concatenated."""

_RUN_BYTES: Final = 256 * KIB
_RUN_FRAMES: Final = 4096
"""The number of frames whose checksums are derived together from the checksums of their payloads."""
_VIEW_FROM: Final = 4 * KIB
"""If the average payload has at least this size, payloads are not copied to compute their checksums."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Columns of checksums, with a row for each frame: the crcs of a block's header and body, and of the frame's
    payload."""

    header: U32
    body: U32
    payload: U32

    def only(self, which: Bools | slice) -> Sums:
        return Sums(self.header[which], self.body[which], self.payload[which])


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a segment up to ``end``, by offset. ``good`` marks the frames with correct crc and padding.
    ``gaps`` are the places, ascending, at which a frame should be and is missing. With ``torn``, a torn tail begins at
    ``end``."""

    offsets: scan.Offsets
    headers: scan.Headers
    heads: scan.Headers
    """The header of the block in each frame. In the row of a local record, the values have no meaning."""
    good: Bools
    sums: Sums
    compared: bytes
    gaps: list[tuple[int, int]]
    end: int
    torn: bool
    content: int | None = None
    """The crc32c of the file up to ``end``; None if the crc was not computed, or if some frame has a rollback's
    flag."""

    @property
    def damage(self) -> list[int]:
        """Returns the offsets, ascending, at which a frame is missing or not good."""
        return sorted({*(start for start, _ in self.gaps), *self.offsets[~self.good].tolist()})

    def records(self, buf: Buffer) -> list[tuple[int, FrameKind, bytes]]:
        """Returns the offset, kind and payload of each good local record. ``buf`` must have the file from its first
        byte on."""
        rows = np.flatnonzero(self.good & (self.headers["kind"] != FrameKind.BLOCK))
        kinds, lengths = self.headers["kind"][rows].tolist(), self.headers["length"][rows].tolist()
        columns = zip(self.offsets[rows].tolist(), kinds, lengths, strict=True)
        view, head = memoryview(buf), FRAME_BYTES
        return [(at, FrameKind(kind), bytes(view[at + head : at + head + length])) for at, kind, length in columns]


def read_frames(
    buf: Buffer,
    *,
    size: int,
    salt: int,
    end: int | None,
    name: str,
    stated: int = 0,
    base: int = 0,
    compared: Compared | None = None,
) -> Frames:
    """Reads the frames of segment ``name`` in ``buf``. The first ``size`` bytes of ``buf`` are the file from offset
    ``base`` on, which is 0 or the start of a frame. ``end`` is the end of the segment's log, or None for the last
    segment. ``stated`` is the end up to which the last segment was synced, by statements outside of it. Raises
    ``WrongVersion``, which names the file."""
    limit = (base + size if end is None else min(end, base + size)) & ~7
    view = memoryview(buf)[: max(limit - base, 0)]
    pieces = [_nothing()]
    gaps: list[tuple[int, int]] = []
    at = stop = max(base, FIRST_FRAME)
    while at < limit:
        found = scan.walk(buf, base=base, start=at, end=limit, salt=salt)
        scan.check_kind(view, base, found.end, salt, name)
        piece = _checked(buf, base, found, compared)
        # If a bad frame's length does not lead to another frame, the length may be wrong. So the frames after the bad
        # frame have to be searched for.
        kept = len(found) if found.reason is Stop.END else _without_bad_tail(piece.good)
        stop = int(found.offsets[kept]) if kept < len(found) else found.end
        pieces.append(_cut(piece, kept))
        if stop >= limit or (end is None and not np.frombuffer(view[stop - base :], np.uint8).any()):
            break
        after = scan.find_frame_after(view, base, stop + 8, salt)
        gaps.append((stop, after or limit))
        at = after or limit
        if after is not None or end is None:
            stop = at
    if end is not None and limit < end:
        start = gaps.pop()[0] if gaps and gaps[-1][1] == limit else max(limit, FIRST_FRAME)
        gaps.append((start, end))
    frames = _joined(pieces, gaps, stop)
    if end is None:
        frames = _without_torn_tail(frames, stated)
    blocks = frames.good & (frames.headers["kind"] == FrameKind.BLOCK)
    if (frames.heads["version"][blocks] != VERSION).any():
        scan.check_versions(frames.heads[blocks], frames.offsets[blocks], name)
    return frames


def _without_torn_tail(frames: Frames, stated: int) -> Frames:
    """Ends the log before the first bad frame that nothing states to be synced."""
    synced = max(stated, int(frames.headers["synced"][frames.good].max(initial=0)))
    cut = next((place for place in frames.damage if place >= synced), None)
    if cut is not None:
        gaps = [gap for gap in frames.gaps if gap[0] < cut]
        return replace(_cut(frames, int(np.searchsorted(frames.offsets, cut))), gaps=gaps, end=cut, torn=True)
    return frames if synced <= frames.end else replace(frames, gaps=[*frames.gaps, (frames.end, synced)])


def _without_bad_tail(good: Bools) -> int:
    right = np.flatnonzero(good)
    return int(right[-1]) + 1 if len(right) else 0


def _nothing() -> Frames:
    none = np.empty(0, np.uint32)
    columns = np.empty(0, np.int64), np.empty(0, FRAME_DTYPE), np.empty(0, BLOCK_DTYPE), np.empty(0, np.bool_)
    return Frames(*columns, Sums(none, none, none), b"", [], 0, False)


def _cut(frames: Frames, count: int) -> Frames:
    """Returns the first ``count`` frames."""
    width = len(frames.compared) // max(1, len(frames.offsets))
    return replace(
        frames,
        offsets=frames.offsets[:count],
        headers=frames.headers[:count],
        heads=frames.heads[:count],
        good=frames.good[:count],
        sums=frames.sums.only(slice(count)),
        compared=frames.compared[: count * width],
    )


def _joined(pieces: Sequence[Frames], gaps: list[tuple[int, int]], end: int) -> Frames:
    sums = (np.concatenate([getattr(each.sums, name) for each in pieces]) for name in Sums.__slots__)
    return Frames(
        np.concatenate([each.offsets for each in pieces]),
        scan.joined([each.headers for each in pieces]),
        scan.joined([each.heads for each in pieces]),
        np.concatenate([each.good for each in pieces]),
        Sums(*sums),
        b"".join([each.compared for each in pieces]),
        gaps,
        end,
        False,
    )


def _checked(buf: Buffer, base: int, found: scan.Walk, compared: Compared | None) -> Frames:
    view = memoryview(buf)
    firsts = found.offsets + (FRAME_BYTES - base)
    starts, stops = firsts.tolist(), (firsts + found.headers["length"]).tolist()
    payload_crcs: list[int] = []
    made: list[bytes] = []
    for low, high in _runs(found.offsets):
        payloads = payloads_in(view, starts[low:high], stops[low:high])
        payload_crcs += map(crc, payloads)
        if compared is not None:
            made.append(compared(payloads))
    heads = np.zeros(len(found), BLOCK_DTYPE)
    is_block = found.headers["kind"] == FrameKind.BLOCK
    heads[is_block] = scan.block_headers(buf, base, found.offsets[is_block])
    lasts = np.frombuffer(buf, "<u8", len(buf) // 8)[last_words(found.offsets - base, found.headers)]
    sums, good = sums_of(found.headers, heads, lasts, payload_crcs)
    return Frames(found.offsets, found.headers, heads, good, sums, b"".join(made), [], found.end, False)


def payloads_in(view: memoryview, starts: Sequence[int], stops: Sequence[int]) -> list[Buffer]:
    """Cuts the bytes from each start to the stop beside it out of ``view``. The pieces must be ascending and close to
    one another."""
    first, data = starts[0], view[starts[0] : stops[-1]]
    if len(data) > len(starts) * _VIEW_FROM:
        return [data[start - first : stop - first] for start, stop in zip(starts, stops, strict=True)]
    plain = bytes(data)  # slices of bytes cost half as much as slices of a view, as long as they are short
    return [plain[start - first : stop - first] for start, stop in zip(starts, stops, strict=True)]


def last_words(offsets: scan.Offsets, headers: scan.Headers) -> scan.Offsets:
    """Returns the index of each frame's last 8-byte word, which contains its padding."""
    places: scan.Offsets = (scan.frame_ends(offsets, headers) >> 3) - 1
    return places


def sums_of(
    headers: scan.Headers, heads: scan.Headers, lasts: NDArray[np.uint64], payload_crcs: Sequence[int]
) -> tuple[Sums, Bools]:
    """Derives all checksums from the crc32c of each frame's payload. Also returns whether each frame's crc and padding
    are correct. ``heads`` are the headers of the blocks, and ``lasts`` the last words of the frames."""
    whole = np.array(payload_crcs, np.uint32)
    runs = (slice(low, low + _RUN_FRAMES) for low in range(0, max(1, len(whole)), _RUN_FRAMES))
    pieces = [_sums_of_run(headers[run], heads[run], lasts[run], whole[run]) for run in runs]
    header, body, good = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return Sums(header, body, whole), good


def _sums_of_run(
    headers: scan.Headers, heads: scan.Headers, lasts: NDArray[np.uint64], whole: U32
) -> tuple[U32, U32, Bools]:
    lengths = headers["length"].astype(np.int64)
    good = (shifted(scan.head_crcs(headers), lengths) ^ whole) == headers["crc"]
    used = (lengths & 7).astype(np.uint64) << np.uint64(3)
    good &= (used == 0) | (lasts >> used == 0)
    header = scan.header_crcs(heads)
    own = np.ascontiguousarray(heads["header_crc"], "<u4").view(np.uint8).reshape(-1, 4)
    body = whole ^ shifted(followed(header, own), np.maximum(lengths - BLOCK_BYTES, 0))
    return header, body, good


def _runs(offsets: scan.Offsets) -> Iterator[tuple[int, int]]:
    low = 0
    while low < len(offsets):
        high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + _RUN_BYTES)))
        yield low, high
        low = high
