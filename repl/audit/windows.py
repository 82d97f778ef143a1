"""Reads a segment without faults window by window. Each window is checked while it is in the processor's cache.

    |header page|frame|frame|frame|frame|frame|frame|…|        read into one window of 1 MiB, again and again
    |----- window 1 -----|------ window 2 ------|--- …         kept: headers, checksums

A buffer as large as a segment would be written and read at half of that speed. For most segments the check needs only
headers and checksums. Some windows have more than plain blocks: local records, producers, transactions, members, or
blocks whose entries are sampled. A window with more is copied to its place in the segment's buffer, where the check
finds it.

A segment with any fault is read as a whole by ``read_frames`` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.blocks import Blocks, read_blocks
from repl.audit.digest import Checksums, compared_bytes
from repl.audit.plan import Part
from repl.audit.source import Source
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, BlockFlag, EntryKind
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, MAGIC, FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.verify.frames import Frames, last_words, payloads_in, sums_of

WINDOW_BYTES: Final = 1 << 20
"""The size of a window in bytes. A segment with a frame (a block's envelope) larger than this is not read window by
window."""
_SLACK: Final = FRAME_BYTES + BLOCK_BYTES
"""Spare bytes after a window. A block's header in a frame that is too short is then still inside the buffer."""


@dataclass(slots=True)
class _Found:
    """The columns of the windows so far; each window is one piece."""

    offsets: list[scan.Offsets] = field(default_factory=list)
    headers: list[scan.Headers] = field(default_factory=list)
    heads: list[scan.Headers] = field(default_factory=list)
    lasts: list[NDArray[np.uint64]] = field(default_factory=list)
    crc32c_of: list[int] = field(default_factory=list)
    compared: list[bytes] = field(default_factory=list)
    content: int = 0


def read_plain(
    source: Source, part: Part, into: bytearray, checksums: Checksums | None = None
) -> tuple[Frames, Blocks] | None:
    """Reads a segment of ``source`` that ends at ``part.end``. Returns None if anything in the segment is wrong or
    rolled back. ``into`` is as large as the segment. Windows with more than plain blocks are copied to their places in
    ``into``; its other bytes have no meaning. Raises ``Unreadable``."""
    if part.end % 8 or part.end <= FIRST_FRAME or part.stated > part.end:
        return None
    window, found, at = bytearray(WINDOW_BYTES + _SLACK), _Found(), 0
    while at < part.end:
        size = min(WINDOW_BYTES, part.end - at)
        if len(source.read(part, at, at + size, window)) < size:
            return None
        end = _take(window, part, at, size, found, into, checksums)
        if end is None:
            return None
        at = end
    return _right(found, part, checksums)


def is_plain(heads: scan.Headers) -> NDArray[np.bool_]:
    """Marks blocks of clients' entries without keys, transactions and producers. For plain blocks the check needs only
    the headers."""
    plain: NDArray[np.bool_] = (heads["kind"] == EntryKind.DATA) & (heads["flags"] & ~np.uint8(BlockFlag.KEYS) == 0)
    return plain


def _take(
    window: bytearray, part: Part, at: int, size: int, found: _Found, into: bytearray, checksums: Checksums | None
) -> int | None:
    """Takes the complete frames of a window that begins at offset ``at``. Returns the offset at which the last frame
    ends."""
    offsets = scan.frame_offsets(window, at, max(at, FIRST_FRAME), at + size, part.salt)
    headers = scan.frame_headers(window, at, offsets)
    ends = scan.frame_ends(offsets, headers)
    if len(ends) and ends[-1] > at + size:
        offsets, headers, ends = offsets[:-1], headers[:-1], ends[:-1]
    if not len(offsets) or (headers["magic"] != MAGIC).any() or not headers["length"].all() or headers["flag"].any():
        return None
    end, view = int(ends[-1]), memoryview(window)
    firsts = offsets + (FRAME_BYTES - at)
    payloads = payloads_in(view, firsts.tolist(), (firsts + headers["length"]).tolist())
    found.crc32c_of += map(crc, payloads)
    found.compared.append(compared_bytes(checksums, payloads))
    found.content = crc(view[: end - at], found.content)
    heads = scan.block_headers(window, at, offsets)
    found.offsets.append(offsets)
    found.headers.append(headers)
    found.heads.append(heads)
    found.lasts.append(np.frombuffer(window, "<u8", size // 8)[last_words(offsets - at, headers)])
    if not ((headers["kind"] == FrameKind.BLOCK) & is_plain(heads)).all():
        into[at:end] = view[: end - at]
    return end


def _right(found: _Found, part: Part, checksums: Checksums | None) -> tuple[Frames, Blocks] | None:
    offsets, headers, heads = np.concatenate(found.offsets), scan.joined(found.headers), scan.joined(found.heads)
    sums, good = sums_of(headers, heads, np.concatenate(found.lasts), found.crc32c_of)
    good &= scan.headers_good(headers, offsets, part.salt, first_prev=0)
    if not good.all():
        return None
    compared = b"".join(found.compared)
    frames = Frames(offsets, headers, heads, good, sums, compared, [], part.end, False, found.content)
    blocks = read_blocks(frames, checksums)
    return (frames, blocks) if blocks.whole.all() else None
