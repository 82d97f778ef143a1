"""Walks through the frames in a segment's bytes. A tight loop follows the frames' lengths, and all other checks are
done by column.

A buffer has a segment's bytes from file offset ``base`` (a multiple of 8) on. Large frames are found by following their
lengths. Small frames are found by magic and salt, at all places at once. Then every header field except the crc is
checked for all frames at once. So a NumPy call is needed once for each window, not once for each frame.

    base = 4096          4184           4272     4272+24
      |BLOCK 64 B, prev 0 |BLOCK 60 B, prev 88   |000000…
      offsets = [4096, 4184]   end = 4272   reason = ZEROS

A walk stops before the first bytes that are not a frame, and says why. The caller decides whether that place is the
log's end, a torn tail or damage. Checksums are checked separately (``check_crcs``), since for a segment with a sidecar
one checksum over all its bytes is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from vlsn.format.block import BLOCK_BYTES, VERSION
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.frame import (
    FLAG_AT,
    FRAME_BYTES,
    MAGIC,
    OVERMARKED,
    FrameKind,
    check_frame,
    decode_header,
    later_kind,
    padded,
)
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import U32_MAX
from vlsn.levels import named, unread
from vlsn.limits import KIB, MIB
from vlsn.seams import Buffer

FRAME_DTYPE = np.dtype(
    [
        ("magic", "<u2"),
        ("kind", "u1"),
        ("flag", "u1"),
        ("length", "<u4"),
        ("prev", "<u4"),
        ("synced", "<u4"),
        ("salt", "<u4"),
        ("crc", "<u4"),
    ]
)
Offsets = npt.NDArray[np.int64]
Headers = npt.NDArray[np.void]

_SEARCH_BYTES = MIB
_CLAIMS_MAX = 256
"""The search for a segment's first frame reads at most this many times the segment's own bytes. False frames that claim
a long length can so cost only a limited time."""
_COVERED = [*range(FLAG_AT), *range(FLAG_AT + 1, FRAME_BYTES - 4)]
_TABLE_FROM = 100
"""From this number of frames on, checksums of headers are cheaper by table, by column."""
_MARKS_FRAME_BYTES = 1024
"""If the first frame has at most this size, a window is searched for magic and salt (0.1 ns for each byte). If frames
are larger, following their lengths costs less than searching (0.13 µs for each frame)."""
_MARKS_BYTES_MIN = 8 * KIB
_CRC_RUN = 2048
"""The number of pieces whose places are converted to Python lists at once."""
_VIEW_FROM = 4 * KIB
"""If frames have at least this size on average, they are not copied to compute their checksums."""
_BLOCK, _KIND_LAST = int(FrameKind.BLOCK), int(max(FrameKind))
"""Plain ints, since NumPy inspects an enum member again on every use."""


class Stop(StrEnum):
    """The reason why a walk stopped."""

    END = "end"
    """The walk reached the end that the caller has set."""
    ZEROS = "zeros"
    """The bytes of the next header are all zeros."""
    BAD = "bad"
    """The next header is not valid: magic, kind, flag, length, salt or prev is wrong."""
    SHORT = "short"
    """The next frame (or header) does not end within the bytes read."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of a walk: the frames' offsets in the file, their headers (``FRAME_DTYPE``), and where and why the
    walk stopped. The frames' checksums are not checked yet."""

    offsets: Offsets
    headers: Headers
    end: int
    reason: Stop

    def __len__(self) -> int:
        return len(self.offsets)

    def before(self, count: int) -> Walk:
        """Returns the walk with the first ``count`` frames, as if the next frame were not a frame."""
        return Walk(self.offsets[:count], self.headers[:count], int(self.offsets[count]), Stop.BAD)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Walk:
        """Returns the walk with only the frames that ``chosen`` marks. The frames of the result may have gaps between
        them."""
        return Walk(self.offsets[chosen], self.headers[chosen], self.end, self.reason)

    def visible(self) -> Walk:
        """Returns the walk with only the blocks that no rollback has abandoned."""
        return self.only((self.headers["kind"] == _BLOCK) & (self.headers["flag"] == 0))


def walk(buf: Buffer, *, base: int, start: int, end: int, salt: int) -> Walk:
    """Walks the frames from file offset ``start`` to ``end`` (exclusive). ``start`` and ``end`` must be within ``buf``,
    whose first byte is at offset ``base``. If the first frame of the walk is not the segment's first frame, its
    ``prev`` is not checked."""
    assert base % 8 == 0
    assert start % 8 == 0
    assert base <= start
    assert end <= base + len(buf)
    offsets = frame_offsets(buf, base, start, end, salt)
    headers = frame_headers(buf, base, offsets)
    good = headers_good(headers, offsets, salt, first_prev=0 if start == FIRST_FRAME else None)
    if not good.all():
        count = int(good.argmin())
        stop = int(offsets[count])
        zeros = not any(buf[stop - base : stop - base + FRAME_BYTES])
        return Walk(offsets[:count], headers[:count], stop, Stop.ZEROS if zeros else Stop.BAD)
    if not len(offsets):
        return Walk(offsets, headers, start, Stop.END if start >= end else Stop.SHORT)
    last = int(offsets[-1])
    stop = last + FRAME_BYTES + padded(int(headers[-1]["length"]))
    if stop > end:
        return Walk(offsets[:-1], headers[:-1], last, Stop.SHORT)
    return Walk(offsets, headers, stop, Stop.END if stop == end else Stop.SHORT)


def at_offsets(buf: Buffer, *, base: int, offsets: Offsets, end: int, salt: int) -> Walk:
    """Walks like ``walk``, but the frames begin at ``offsets`` (ascending, from a sidecar). The walk stops before the
    first place without a frame, or with a frame that does not reach to the next place."""
    headers = frame_headers(buf, base, offsets)
    first_prev = 0 if len(offsets) and offsets[0] == FIRST_FRAME else None
    good = headers_good(headers, offsets, salt, first_prev=first_prev)
    ends = frame_ends(offsets, headers)
    good[:-1] &= ends[:-1] == offsets[1:]
    good[-1:] &= ends[-1:] <= end
    if good.all():
        stop = int(ends[-1]) if len(ends) else base
        return Walk(offsets, headers, stop, Stop.END if stop == end else Stop.SHORT)
    count = int(good.argmin())
    return Walk(offsets[:count], headers[:count], int(offsets[count]), Stop.BAD)


def frame_ends(offsets: Offsets, headers: Headers) -> Offsets:
    """Returns the file offset after each frame's padding."""
    return offsets + FRAME_BYTES + ((headers["length"].astype(np.int64) + 7) & ~7)


def joined(headers: Sequence[Headers]) -> Headers:
    """Joins arrays of the same type as bytes, since NumPy joins structured arrays field by field, slowly."""
    plain = np.dtype((np.void, headers[0].dtype.itemsize))
    whole: Headers = np.concatenate([each.view(plain) for each in headers]).view(headers[0].dtype)
    return whole


def frame_offsets(buf: Buffer, base: int, start: int, end: int, salt: int) -> Offsets:
    """Returns the places at which frames begin, from ``start`` on, by following their lengths alone. At the last place
    there may be no frame, or a frame that ends past ``end``."""
    offsets = _by_marks(buf, base, start, end, salt)
    return _by_length(buf, base, start, end) if offsets is None else offsets


def frame_headers(buf: Buffer, base: int, offsets: Offsets) -> Headers:
    """Returns the headers (``FRAME_DTYPE``) of the frames at ``offsets``."""
    return _rows(buf, offsets - base, FRAME_DTYPE)


def block_headers(buf: Buffer, base: int, offsets: Offsets) -> npt.NDArray[np.void]:
    """Returns the block headers (``BLOCK_DTYPE``) of the frames at ``offsets``. Each frame at ``offsets`` must be a
    BLOCK of at least 64 bytes."""
    return _rows(buf, offsets - base + FRAME_BYTES, BLOCK_DTYPE)


def check_crcs(buf: Buffer, base: int, found: Walk) -> int | None:
    """Returns the index in ``found`` of the first frame with a wrong checksum or padding, or None if all are right."""
    bad = bad_frames(buf, base, found)
    return int(bad.argmax()) if bad.any() else None


def bad_frames(buf: Buffer, base: int, found: Walk) -> npt.NDArray[np.bool_]:
    """Marks the frames with a wrong checksum or non-zero padding."""
    if not len(found):
        return np.zeros(0, dtype=np.bool_)
    bad: npt.NDArray[np.bool_] = frame_crcs(buf, base, found) != found.headers["crc"]
    return bad | ~_padding_zero(buf, base, found)


def frame_crcs(buf: Buffer, base: int, found: Walk) -> npt.NDArray[np.uint32]:
    """Computes the correct checksum of each frame from its bytes (about 0.25 µs for each frame, and 0.05 µs for each
    KiB)."""
    starts = found.offsets - base + FRAME_BYTES
    ends = starts + found.headers["length"]
    values = np.empty(len(found), dtype=np.uint32)
    for low in range(0, len(found), _CRC_RUN):
        run = slice(low, low + _CRC_RUN)
        values[run] = piece_crcs(buf, starts[run], ends[run], head_crcs(found.headers[run]))
    return values


def piece_crcs(
    buf: Buffer, starts: Offsets, ends: Offsets, seeds: npt.NDArray[np.uint32] | None = None
) -> npt.NDArray[np.uint32]:
    """Computes the crc32c of each ``buf[start:end]``, starting from its seed if ``seeds`` are passed."""
    count = len(starts)
    values = np.empty(count, dtype=np.uint32)
    for low in range(0, count, _CRC_RUN):
        run = slice(low, low + _CRC_RUN)
        piece = memoryview(buf) if int((ends[run] - starts[run]).sum()) > len(starts[run]) * _VIEW_FROM else buf
        places = starts[run].tolist(), ends[run].tolist()
        if seeds is None:
            values[run] = [crc32c(piece[start:end]) for start, end in zip(*places, strict=True)]
        else:
            seeded = zip(*places, seeds[run].tolist(), strict=True)
            values[run] = [crc32c(piece[start:end], seed) for start, end, seed in seeded]
    return values


def check_kind(buf: Buffer, base: int, at: int, salt: int, name: str) -> None:
    """Checks that no frame of a later version is at ``at``, where a walk of segment ``name`` has stopped. Raises
    ``WrongVersion``."""
    kind = later_kind(buf, at - base, offset=at, salt=salt)
    if kind is not None:
        raise named(unread("a frame", kind, _KIND_LAST, number="kind"), f"{name}, offset {at}")


def check_versions(heads: Headers, offsets: Offsets, name: str) -> None:
    """Checks that none of the blocks with headers ``heads``, of segment ``name``, is of a later version. ``heads``
    (``BLOCK_DTYPE``) and ``offsets`` must belong to frames with correct checksums. Raises ``WrongVersion``."""
    for index in np.flatnonzero(heads["version"] != VERSION).tolist():
        if header_crcs(heads[index : index + 1])[0] == heads["header_crc"][index]:
            error = unread("a block", int(heads["version"][index]), VERSION)
            raise named(error, f"{name}, offset {int(offsets[index])}")


def find_frame_after(buf: Buffer, base: int, start: int, salt: int) -> int | None:
    """Finds the first offset at or after ``start`` (a multiple of 8) with a complete frame of this segment in ``buf``.
    The frame's magic, salt and crc must be correct. The length in a bad frame is not used."""
    view = memoryview(buf)
    at = padded(max(start, base))
    limit = base + (len(buf) & ~7)
    while at < limit:
        stop = min(limit, at + _SEARCH_BYTES)
        halves = np.frombuffer(view[at - base : stop - base], dtype="<u2")[::4]
        for position in (np.flatnonzero(halves == MAGIC) * 8 + at).tolist():
            if is_frame(buf, base, position, salt):
                return int(position)
        at = stop
    return None


def islands(buf: Buffer, base: int, start: int, salt: int) -> Iterator[Walk]:
    """Yields every run of valid frames (with correct checksums) at or after ``start``, whatever is between the runs."""
    at: int | None = start
    end = base + len(buf)
    while at is not None and at < end:
        found = walk(buf, base=base, start=at, end=end, salt=salt)
        bad = check_crcs(buf, base, found)
        if bad is not None:
            found = found.before(bad)
        if len(found):
            yield found
        at = find_frame_after(buf, base, found.end if len(found) else at + 8, salt)


def salt_of(buf: Buffer, base: int, start: int) -> int | None:
    """Finds the salt of the first valid frame from ``start`` on, for a segment whose header page cannot be read.
    Returns None if there is no frame at all, or if too many places only look like a frame."""
    view = memoryview(buf)
    limit = base + (len(buf) & ~7)
    halves = np.frombuffer(view[start - base : limit - base], dtype="<u2")[::4]
    left = len(buf) * _CLAIMS_MAX
    for position in (np.flatnonzero(halves == MAGIC) * 8 + start).tolist():
        salt = (int.from_bytes(view[position - base + 16 : position - base + 20], "little") ^ position) & U32_MAX
        if is_frame(buf, base, position, salt):
            return salt
        # The search accepts any salt, so each magic number in a client's bytes may claim a length up to the end of the
        # file.
        left -= min(int.from_bytes(view[position - base + 4 : position - base + 8], "little"), limit - position)
        if left < 0:
            return None
    return None


def is_frame(buf: Buffer, base: int, offset: int, salt: int) -> bool:
    """Returns whether a complete frame of this segment is at ``offset``, with correct magic, salt, crc and padding."""
    header = decode_header(buf, offset - base, offset=offset, salt=salt)
    return header is not None and check_frame(buf, offset - base, header)


def _by_length(buf: Buffer, base: int, start: int, end: int) -> Offsets:
    """Finds the places at which frames begin by following the lengths alone. At the last place there may be no frame,
    or a frame that ends past ``end``."""
    words = memoryview(buf).cast("B")[: (end - base) & ~7].cast("I")
    at = (start - base) // 4 + 1  # the index of the length in a frame's header, in words of 4 bytes
    stop = len(words) - 5
    found: list[int] = []
    add = found.append
    while at <= stop:
        add(at)
        length = words[at]
        if not length:
            break
        at += 6 + ((length + 7) >> 3 << 1)
    return (np.array(found, dtype=np.int64) - 1) * 4 + base


def _by_marks(buf: Buffer, base: int, start: int, end: int, salt: int) -> Offsets | None:
    """Searches for magic and salt, and checks by the lengths that the frames found are consecutive. Returns None if the
    frames found are not consecutive, or are few or large."""
    if end - start < _MARKS_BYTES_MIN:
        return None
    if int.from_bytes(buf[start - base + 4 : start - base + 8], "little") > _MARKS_FRAME_BYTES:
        return None
    pieces = []
    places = (end - start - FRAME_BYTES) // 8 + 1
    for low in range(0, places, _SEARCH_BYTES // 8):
        count, at = min(places - low, _SEARCH_BYTES // 8), start - base + low * 8
        magics = np.ndarray(count, "<u2", buf, at, (8,))
        marked = np.flatnonzero(magics == MAGIC)
        salts = np.ndarray(count, "<u4", buf, at + 16, (8,))[marked]
        lengths = np.ndarray(count, "<u4", buf, at + 4, (8,))[marked]
        offsets = marked * 8 + (start + low * 8)
        right = salts == (offsets.astype(np.uint32) ^ np.uint32(salt))
        pieces.append((offsets[right], lengths[right]))
    offsets = np.concatenate([found for found, _ in pieces])
    lengths = np.concatenate([found for _, found in pieces])
    if not len(offsets) or offsets[0] != start:
        return None
    ends = offsets + FRAME_BYTES + ((lengths.astype(np.int64) + 7) & ~7)
    if (ends[:-1] != offsets[1:]).any():
        return None
    return np.append(offsets, ends[-1]) if ends[-1] + FRAME_BYTES <= end & ~7 else offsets


def _rows(buf: Buffer, positions: Offsets, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Reads a value of type ``dtype`` at each position (a multiple of 8) of ``buf``, in one step."""
    size = dtype.itemsize
    places = max(0, (len(buf) - size) // 8 + 1)
    every: npt.NDArray[np.void] = np.ndarray(places, dtype=f"V{size}", buffer=buf, strides=(8,))
    rows: npt.NDArray[np.void] = every[positions >> 3].view(dtype)
    return rows


def header_crcs(headers: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """Computes the correct crc32c of each block header (``BLOCK_DTYPE``)."""
    return _crcs(headers.view(np.uint8).reshape(-1, BLOCK_BYTES), range(BLOCK_BYTES - 4))


def head_crcs(headers: Headers) -> npt.NDArray[np.uint32]:
    """Computes the crc32c of the part of each frame's header that the crc covers. The crc continues over the
    payload."""
    return _crcs(headers.view(np.uint8).reshape(-1, FRAME_BYTES), _COVERED)


def _crcs(raw: npt.NDArray[np.uint8], columns: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Computes the crc32c of the bytes in ``columns`` of each row."""
    width = len(columns)
    if len(raw) < _TABLE_FROM:
        data = raw[:, columns].tobytes()
        return np.array([crc32c(data[at : at + width]) for at in range(0, len(data), width)], dtype=np.uint32)
    value = np.full(len(raw), crc32c(bytes(width)), dtype=np.uint32)
    for table, column in zip(_tables(width), columns, strict=True):
        if raw[:, column].any():
            value ^= table[raw[:, column]]
    return value


@lru_cache(maxsize=2)
def _tables(width: int) -> npt.NDArray[np.uint32]:
    """Makes the table for crcs of ``width`` bytes. For each value of each byte, it has the change to the crc32c of
    ``width`` zeros. A crc is linear over its bytes, so the crc of any bytes is that of zeros with all these changes."""
    zeros = bytes(width)
    return np.array(
        [
            [crc32c(zeros[:at] + bytes([byte]) + zeros[at + 1 :]) ^ crc32c(zeros) for byte in range(256)]
            for at in range(width)
        ],
        dtype=np.uint32,
    )


def headers_good(headers: Headers, offsets: Offsets, salt: int, *, first_prev: int | None) -> npt.NDArray[np.bool_]:
    """Marks the headers that are correct in everything but their crc. The frames must be consecutive."""
    kinds, flags = headers["kind"], headers["flag"]
    good: npt.NDArray[np.bool_] = headers["magic"] == MAGIC
    good &= (kinds >= 1) & (kinds <= _KIND_LAST)
    good &= (flags == 0) | (flags == OVERMARKED)
    good &= headers["length"] != 0
    good &= headers["salt"] == (offsets.astype(np.uint32) ^ np.uint32(salt))
    good &= (kinds != _BLOCK) | (headers["length"] >= BLOCK_BYTES)
    good[1:] &= headers["prev"][1:] == offsets[1:] - offsets[:-1]
    if first_prev is not None and len(good):
        good[0] &= headers["prev"][0] == first_prev
    return good


def _padding_zero(buf: Buffer, base: int, found: Walk) -> npt.NDArray[np.bool_]:
    lengths = found.headers["length"].astype(np.int64)
    source = np.frombuffer(buf, dtype="<u8", count=len(buf) // 8)
    last = source[(frame_ends(found.offsets, found.headers) - base - 8) >> 3]
    used = (lengths & 7).astype(np.uint64) * np.uint64(8)
    zero: npt.NDArray[np.bool_] = ((last >> used) == 0) | (used == 0)
    return zero
