"""A segment's sidecar: a file of frame offsets and a checksum, derived from the segment. The sidecar is written when
the segment is sealed. The sidecar is deleted before a rollback changes the flag of any frame in the segment.

    0        8       12     16   20  24     28          32         40        48      56            56 + 4 * frames
    |VLSNIDX1|version|number|salt|end|frames|content_crc|first_vlsn|last_vlsn|entries| offsets u32 … |crc|

``offsets`` has the offset of every frame, rising, from 4096 on. ``end`` is the offset at which the last frame ends.
``content_crc`` is the crc32c of the segment's bytes from 0 to ``end``, computed when the bytes were written, with every
flag byte taken as 0. ``crc`` covers all bytes before it. ``first_vlsn``, ``last_vlsn`` and ``entries`` describe the
blocks that no rollback has abandoned; they are 0 if there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from vlsn.errors import BadBody
from vlsn.format.checksum import crc
from vlsn.format.frame import FLAG_AT, FRAME_BYTES
from vlsn.format.segment import FIRST_FRAME
from vlsn.levels import unread
from vlsn.limits import SEGMENT_BYTES_MAX
from vlsn.seams import Buffer

MAGIC = b"VLSNIDX1"
VERSION = 1
SIDECAR_BYTES_MAX = 64 + SEGMENT_BYTES_MAX // FRAME_BYTES * 4

_HEADER = Struct("<8sIIIIIIQQQ")

assert _HEADER.size == 56


@dataclass(frozen=True, slots=True, eq=False)
class Sidecar:
    """The content of a sidecar, about one sealed segment. ``crc`` is the ``content_crc`` of the segment."""

    number: int
    salt: int
    first_vlsn: int
    last_vlsn: int
    end: int
    entries: int
    crc: int
    offsets: NDArray[np.uint32]

    def encode(self) -> bytes:
        fault = self._fault()
        assert fault is None, fault
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            self.number,
            self.salt,
            self.end,
            len(self.offsets),
            self.crc,
            self.first_vlsn,
            self.last_vlsn,
            self.entries,
        )
        data = head + self.offsets.astype("<u4", copy=False).tobytes()
        return data + crc(data).to_bytes(4, "little")

    @classmethod
    def decode(cls, data: Buffer) -> Sidecar:
        """Decodes the sidecar that fills ``data`` exactly. The sidecar's offsets are a view into ``data``. Raises
        ``BadBody`` or ``WrongVersion``."""
        if not _HEADER.size + 4 <= len(data) <= SIDECAR_BYTES_MAX:
            raise BadBody(f"a sidecar of {len(data)} bytes")
        magic, version, number, salt, end, frames, content, first, last, entries = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise BadBody("no sidecar")
        if crc(memoryview(data)[:-4]) != int.from_bytes(data[-4:], "little"):
            raise BadBody("sidecar crc")
        if version != VERSION:
            raise unread("a sidecar", version, VERSION)
        if len(data) != _HEADER.size + 4 * frames + 4:
            raise BadBody(f"a sidecar of {frames} frames in {len(data)} bytes")
        offsets = np.frombuffer(data, "<u4", frames, _HEADER.size)
        sidecar = cls(number, salt, first, last, end, entries, content, offsets)
        fault = sidecar._fault()
        if fault is not None:
            raise BadBody(fault)
        return sidecar

    def _fault(self) -> str | None:
        offsets = self.offsets
        if self.number < 1 or self.end % 8 or not FIRST_FRAME <= self.end <= SEGMENT_BYTES_MAX:
            return f"sidecar of segment {self.number} that ends at {self.end}"
        if self.entries != (self.last_vlsn - self.first_vlsn + 1 if self.first_vlsn else 0):
            return f"sidecar of {self.entries} entries from {self.first_vlsn} to {self.last_vlsn}"
        if bool(self.first_vlsn) != bool(self.last_vlsn) or (self.entries and not len(offsets)):
            return f"sidecar from {self.first_vlsn} to {self.last_vlsn} of {len(offsets)} frames"
        if not len(offsets):
            return None if self.end == FIRST_FRAME else f"sidecar without frames ends at {self.end}"
        if offsets[0] != FIRST_FRAME or int(offsets[-1]) + FRAME_BYTES > self.end or (offsets & 7).any():
            return "sidecar offsets that do not start at the first frame, fit the segment, or align"
        if (offsets[1:] < offsets[:-1] + np.uint32(FRAME_BYTES)).any():
            return "sidecar offsets that do not rise by a frame"
        return None


def content_crc(segment: Buffer, offsets: NDArray[np.uint32]) -> int:
    """Computes the crc32c of ``segment``, the file's bytes from 0 to the log's end, with every frame's flag taken as 0.
    ``offsets`` are the places at which frames begin. The bytes are copied only if a flag is set."""
    view = np.frombuffer(segment, np.uint8)
    flags_at = offsets.astype(np.int64) + FLAG_AT
    if not view[flags_at].any():
        return crc(segment)
    clear = view.copy()
    clear[flags_at] = 0
    return crc(clear.data)
