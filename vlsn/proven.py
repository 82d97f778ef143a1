"""The inspection of a sealed segment by its sidecar: one checksum over all bytes, no step a frame.

The file is read in windows of whole frames, each small enough to stay in the processor's cache while it is
checksummed and its headers are looked at by column, so that no more than a window of it is in memory.

    |header page|frame|frame|frame|frame|frame|…      crc32c runs over all windows: the sidecar's content_crc
    |------- window 1 ------|---- window 2 ---|

Whatever is not as it must be makes it no proof: then ``inspection`` goes through the segment frame by frame
and says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vlsn import scan
from vlsn.checksum import crc
from vlsn.frame import FRAME_BYTES, FrameKind
from vlsn.inspection import Inspected, heads_good
from vlsn.limits import KIB
from vlsn.scan import Headers, Offsets
from vlsn.seams import File
from vlsn.sidecar import Sidecar

WINDOW_BYTES = 768 * KIB
"""Or one frame, when that is larger."""


def inspect_sealed(file: File, *, salt: int, end: int, sidecar: Sidecar) -> Inspected | None:
    """What ``inspection.inspect`` finds in a segment that is right in every byte, none of whose frames is overmarked;
    None when the sidecar does not prove that."""
    if (sidecar.salt, sidecar.end) != (salt, end) or not len(sidecar.offsets):
        return None
    offsets = sidecar.offsets.astype(np.int64)
    columns = _Columns()
    checksum = before = 0
    for low, high in _windows(offsets, end):
        start, stop = int(offsets[low]) if low else 0, int(offsets[high]) if high < len(offsets) else end
        buf = file.read(start, stop - start)
        if len(buf) != stop - start:
            return None
        checksum = crc(buf, checksum)
        found = scan.at_offsets(buf, base=start, offsets=offsets[low:high], end=stop, salt=salt)
        if len(found) != high - low or found.end != stop or int(found.headers["prev"][0]) != before:
            return None
        if not columns.add(buf, start, found):
            return None
        before = stop - int(offsets[high - 1])
    return columns.inspected(offsets, end) if checksum == sidecar.crc else None


def _windows(offsets: Offsets, end: int) -> Iterator[tuple[int, int]]:
    """Runs of frames of about ``WINDOW_BYTES``; each ends where a frame begins."""
    low = 0
    while low < len(offsets):
        high = max(low + 1, int(np.searchsorted(offsets, offsets[low] + WINDOW_BYTES)))
        yield low, high
        low = high


@dataclass(slots=True)
class _Columns:
    """What is kept of each window."""

    headers: list[Headers] = field(default_factory=list)
    block_offsets: list[Offsets] = field(default_factory=list)
    firsts: list[Offsets] = field(default_factory=list)
    lasts: list[Offsets] = field(default_factory=list)
    terms: list[Offsets] = field(default_factory=list)
    dtvlsns: list[Offsets] = field(default_factory=list)
    records: list[tuple[int, FrameKind, bytes]] = field(default_factory=list)

    def add(self, buf: bytes, base: int, found: scan.Walk) -> bool:
        """False when a frame is overmarked, claims what it cannot know, or holds a block whose header cannot be."""
        headers = found.headers
        if headers["flag"].any() or (headers["synced"] > found.offsets).any():
            return False
        self.headers.append(headers)
        is_block = headers["kind"] == FrameKind.BLOCK
        if not is_block.all():
            self._add_records(buf, base, found.only(~is_block))
            found = found.only(is_block)
        heads = scan.block_headers(buf, base, found.offsets)
        if not heads_good(heads, found.headers["length"].astype(np.int64)).all():
            return False
        firsts = heads["first_vlsn"].astype(np.int64)
        self.block_offsets.append(found.offsets)
        self.firsts.append(firsts)
        self.lasts.append(firsts + heads["count"] - 1)
        self.terms.append(heads["term"].astype(np.int64))
        self.dtvlsns.append(heads["dtvlsn"].astype(np.int64))
        return True

    def _add_records(self, buf: bytes, base: int, found: scan.Walk) -> None:
        kinds, lengths = found.headers["kind"].tolist(), found.headers["length"].tolist()
        for offset, kind, length in zip(found.offsets.tolist(), kinds, lengths, strict=True):
            begin = offset - base + FRAME_BYTES
            self.records.append((offset, FrameKind(kind), buf[begin : begin + length]))

    def inspected(self, offsets: Offsets, end: int) -> Inspected:
        block_offsets = np.concatenate(self.block_offsets)
        return Inspected(
            offsets,
            scan.joined(self.headers),
            np.zeros(len(offsets), dtype=np.bool_),
            [],
            end,
            False,
            block_offsets=block_offsets,
            firsts=np.concatenate(self.firsts),
            lasts=np.concatenate(self.lasts),
            terms=np.concatenate(self.terms),
            dtvlsns=np.concatenate(self.dtvlsns),
            marked=np.zeros(len(block_offsets), dtype=np.bool_),
            records=self.records,
            by_sidecar=True,
        )
