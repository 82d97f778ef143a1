"""The frames of one segment with every checksum recomputed, and what of it is damage or a torn tail.

1. A frame that cannot be read is *damage* if something says that it had been synced: the ``synced`` of a
   later frame, or ``Part.stated``.  Else the log ends there, in a torn tail, whatever lies behind it.
2. Damage is passed: what follows is found again by magic, salt and crc, so that one flipped bit hides no
   other.  A frame with a wrong crc, behind which no frame follows, may lie about its length: the search
   starts inside it.

Checksums are made in runs of frames that fit the processor's cache, by ``map`` over C functions: the crc32c once over
a frame's payload, and what copies are compared by.  Those of its parts, and of the whole frame, follow by column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.crc_shift import followed, shifted
from repl.audit.digest import U32, Checksums, Digests, block_digests, compared_bytes
from repl.audit.plan import Part
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, BLOCK_DTYPE, VERSION
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FRAME_DTYPE, FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.seams import Buffer

Bools = NDArray[np.bool_]

_RUN_BYTES: Final = 256 << 10
_VIEW_FROM: Final = 4 << 10
"""Payloads longer than this on the average are not copied for their checksums."""


@dataclass(frozen=True, slots=True)
class Sums:
    """A column a checksum, a row a frame: what a payload is compared by, and the crc of a block's two parts."""

    digests: Digests
    header: U32
    body: U32


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames up to ``end`` by file offset; ``good``: crc and padding are right.  ``damage`` lists where, ascending,
    a frame should be and is not, or is not good.  ``torn``: other bytes than zeros lie behind ``end``."""

    offsets: scan.Offsets
    headers: scan.Headers
    good: Bools
    sums: Sums
    damage: list[int]
    end: int
    torn: bool
    heads: scan.Headers | None = None
    """The header of each frame's block, where they were gathered already; a row of a local record says nothing."""
    content: int | None = None
    """The crc32c of the file up to ``end``, where it was made already and no flag is set."""


def read_frames(buf: Buffer, part: Part, base: int = 0, checksums: Checksums | None = None) -> Frames:
    """Reads the frames in ``buf``, which holds the segment's file from offset ``base`` to ``part.end``. ``base`` is 0,
    or where a frame begins; there is less where the file is cut short. Without ``checksums`` there are no digests."""
    pieces: list[tuple[scan.Walk, Bools, Sums]] = []
    gaps: list[int] = []
    end = min(part.end, base + len(buf) & ~7)
    stop = max(base, FIRST_FRAME)
    start: int | None = stop
    while start is not None:
        found = scan.walk(buf, base=base, start=start, end=end, salt=part.salt) if start < end else _nothing(start)
        if found.reason is scan.Stop.BAD:
            scan.check_kind(memoryview(buf)[: end - base], base, found.end, part.salt, part.file)
        sums, good = _sums(buf, base, found, checksums)
        _check_versions(buf, base, found, good, part)
        pieces.append((found, good, sums))
        stop = found.end
        if stop >= end:
            break
        if len(found) and not good[-1]:
            resume = int(found.offsets[-1]) + 8
        else:
            gaps.append(stop)
            resume = stop + 8
        start = scan.find_frame_after(memoryview(buf)[: end - base], base, resume, part.salt)
    if stop >= end and end < part.stated:
        gaps.append(stop)  # the file ends before its log does
    return _judged(buf, part, base, _joined(pieces), gaps, stop)


def _check_versions(buf: Buffer, base: int, found: scan.Walk, good: Bools, part: Part) -> None:
    """Checks that no block of a later version is among the good ones. Raises ``WrongVersion``."""
    at = found.offsets[good & (found.headers["kind"] == FrameKind.BLOCK)]
    if (np.frombuffer(buf, np.uint8)[at - base + FRAME_BYTES] != VERSION).any():
        scan.check_versions(scan.block_headers(buf, base, at), at, part.file)


def _judged(buf: Buffer, part: Part, base: int, frames: Frames, gaps: list[int], stop: int) -> Frames:
    synced = frames.headers["synced"][frames.good]
    stated = max(part.stated, int(synced.max()) if len(synced) else 0)
    bad = sorted({*gaps, *frames.offsets[~frames.good].tolist()})
    damage = [offset for offset in bad if offset < stated]
    if len(damage) == len(bad):
        return Frames(frames.offsets, frames.headers, frames.good, frames.sums, damage, stop, False)
    end = bad[len(damage)]
    keep = frames.offsets < end
    sums = frames.sums
    kept = Sums(sums.digests[keep], sums.header[keep], sums.body[keep])
    torn = bool(np.frombuffer(buf, np.uint8, offset=end - base).any()) if end - base < len(buf) else False
    return Frames(frames.offsets[keep], frames.headers[keep], frames.good[keep], kept, damage, end, torn)


def _joined(pieces: list[tuple[scan.Walk, Bools, Sums]]) -> Frames:
    walks, goods, sums = zip(*pieces, strict=True)
    columns = (np.concatenate([getattr(each, name) for each in sums]) for name in Sums.__slots__)
    return Frames(
        np.concatenate([walk.offsets for walk in walks]),
        scan.joined([walk.headers for walk in walks]),
        np.concatenate(goods),
        Sums(*columns),
        [],
        walks[-1].end,
        False,
    )


def _nothing(start: int) -> scan.Walk:
    return scan.Walk(np.empty(0, np.int64), np.empty(0, FRAME_DTYPE), start, scan.Stop.END)


def _sums(buf: Buffer, base: int, found: scan.Walk, checksums: Checksums | None) -> tuple[Sums, Bools]:
    """Returns the checksums of each frame, and whether its own crc and its padding are right."""
    view = memoryview(buf)
    firsts = found.offsets + (FRAME_BYTES - base)
    starts, stops = firsts.tolist(), (firsts + found.headers["length"]).tolist()
    crc32c_of: list[int] = []
    compared: list[bytes] = []
    for low, high in _runs(found.offsets):
        payloads = payloads_in(view, starts[low:high], stops[low:high])
        crc32c_of += map(crc, payloads)
        compared.append(compared_bytes(checksums, payloads))
    heads = np.zeros(len(found), BLOCK_DTYPE)
    is_block = found.headers["kind"] == FrameKind.BLOCK
    heads[is_block] = scan.block_headers(buf, base, found.offsets[is_block])
    lasts = np.frombuffer(buf, "<u8", len(buf) // 8)[last_words(found.offsets - base, found.headers)]
    return sums_of(found.headers, heads, lasts, crc32c_of, checksums, b"".join(compared))


def payloads_in(view: memoryview, starts: Sequence[int], stops: Sequence[int]) -> list[Buffer]:
    """Cuts what lies from each start to its stop out of ``view``, ascending and close to one another."""
    first, data = starts[0], view[starts[0] : stops[-1]]
    if len(data) > len(starts) * _VIEW_FROM:
        return [data[start - first : stop - first] for start, stop in zip(starts, stops, strict=True)]
    plain = bytes(data)  # its slices cost half of those of a view, as long as they are short
    return [plain[start - first : stop - first] for start, stop in zip(starts, stops, strict=True)]


def last_words(offsets: scan.Offsets, headers: scan.Headers) -> scan.Offsets:
    """Returns the place of each frame's last 8 bytes, in words of 8 bytes, in which its padding lies."""
    places: scan.Offsets = (scan.frame_ends(offsets, headers) >> 3) - 1
    return places


def sums_of(
    headers: scan.Headers,
    heads: scan.Headers,
    lasts: NDArray[np.uint64],
    crc32c_of: list[int],
    checksums: Checksums | None,
    compared: bytes,
) -> tuple[Sums, Bools]:
    """Makes of the crc32c of each frame's payload all others, and says whether its crc and padding are right.
    ``heads`` are the blocks' headers, ``lasts`` the frames' last words, ``compared`` is for ``block_digests``."""
    lengths = headers["length"].astype(np.int64)
    whole = np.array(crc32c_of, np.uint32)
    good = (shifted(scan.head_crcs(headers), lengths) ^ whole) == headers["crc"]
    used = (lengths & 7).astype(np.uint64) << np.uint64(3)
    good &= (used == 0) | (lasts >> used == 0)
    header = scan.header_crcs(heads)
    own = np.ascontiguousarray(heads["header_crc"], "<u4").view(np.uint8).reshape(-1, 4)
    body = whole ^ shifted(followed(header, own), np.maximum(lengths - BLOCK_BYTES, 0))
    return Sums(block_digests(checksums, whole, compared), header, body), good


def _runs(offsets: scan.Offsets) -> Iterator[tuple[int, int]]:
    low = 0
    while low < len(offsets):
        high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + _RUN_BYTES)))
        yield low, high
        low = high
