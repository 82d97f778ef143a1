"""The frame: the envelope of a block or of a local record in a node's segment.

    0     2    3    4        8      12       16     20      24
    |magic|kind|flag| length | prev | synced |  salt |  crc  | payload … | padding to 8

    ``length``  the length of the payload, without the padding, which is zero and checked
    ``prev``    the distance back to the frame before; 0 for the first frame of a segment
    ``synced``  the offset up to which this segment was synced when the frame was built
    ``salt``    the segment's salt XOR the frame's own offset, so that neither a client's bytes nor a write that
                went to the wrong place can be taken for a frame
    ``crc``     crc32c of header bytes 0–2 and 4–19, then the payload: all but the flag
    ``flag``    0x00, or 0xA5 once the frame is overmarked (abandoned by a rollback)

The flag is the only byte of a log that is ever changed in place. Frames differ from node to node, but the block in a
frame is equal on all nodes.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from msgspec import Struct as Record

from vlsn.format.checksum import crc
from vlsn.seams import Buffer

FRAME = Struct("<HBBIIIII")
FRAME_BYTES = 24
MAGIC = 0x564C
OVERMARKED = 0xA5
FLAG_AT = 3
"""The offset of the flag byte in a frame."""

# The fields of a frame's header that its crc covers, in order: all except flag and crc.
_COVERED = Struct("<HBIIII")

assert FRAME.size == FRAME_BYTES
assert _COVERED.size == FRAME_BYTES - 5


class FrameKind(IntEnum):
    BLOCK = 1
    CHECKPOINT_START = 2
    CHECKPOINT_END = 3
    ROLLBACK_START = 4
    ROLLBACK_END = 5


_KIND_MAX = max(FrameKind)


class FrameHeader(Record, frozen=True, gc=False):
    """The header of a frame as it is in the file. ``salt`` is the header's field, not the segment's salt."""

    kind: int
    flag: int
    length: int
    prev: int
    synced: int
    salt: int
    crc: int

    @property
    def size(self) -> int:
        """The bytes from this frame to the start of the next frame."""
        return FRAME_BYTES + ((self.length + 7) & ~7)

    @property
    def overmarked(self) -> bool:
        return self.flag == OVERMARKED


def padded(size: int) -> int:
    """Returns ``size`` rounded up to the next multiple of 8 bytes."""
    return (size + 7) & ~7


def build_header(kind: int, payload: Buffer, *, offset: int, prev: int, synced: int, salt: int) -> bytes:
    """Builds the 24 bytes before ``payload``, for a frame at ``offset`` of a segment with this ``salt``."""
    length = len(payload)
    field = salt ^ offset
    total = crc(payload, crc(_COVERED.pack(MAGIC, kind, length, prev, synced, field)))
    return FRAME.pack(MAGIC, kind, 0, length, prev, synced, field, total)


def decode_header(buf: Buffer, at: int, *, offset: int, salt: int) -> FrameHeader | None:
    """Reads the header at ``buf[at]``, which is at ``offset`` of the file. Returns None if no frame of this segment
    starts there: magic, kind, flag or salt are wrong, or fewer than 24 bytes are left. ``check_frame`` checks the crc,
    and whether the frame ends inside the buffer. Before ``check_frame`` has succeeded, no other field of the header may
    be trusted."""
    if at < 0 or len(buf) - at < FRAME_BYTES:
        return None
    magic, kind, flag, length, prev, synced, field, total = FRAME.unpack_from(buf, at)
    if magic != MAGIC or field != salt ^ offset or not 1 <= kind <= _KIND_MAX or (flag and flag != OVERMARKED):
        return None
    return FrameHeader(kind, flag, length, prev, synced, field, total)


def claimed_size(head: Buffer) -> int:
    """Returns the bytes to the next frame according to the header in ``head``, of any version. Returns 0 if ``head`` is
    not a header."""
    magic, _, _, length, *_ = FRAME.unpack(head)
    return FRAME_BYTES + ((length + 7) & ~7) if magic == MAGIC else 0


def later_kind(buf: Buffer, at: int, *, offset: int, salt: int) -> int | None:
    """Returns the kind of the frame at ``buf[at]`` if this version does not support that kind, else None. The frame
    must be complete and its crc correct, so a later version wrote it."""
    if at < 0 or len(buf) - at < FRAME_BYTES:
        return None
    magic, kind, flag, length, prev, synced, field, total = FRAME.unpack_from(buf, at)
    if magic != MAGIC or field != salt ^ offset or 1 <= kind <= _KIND_MAX or (flag and flag != OVERMARKED):
        return None
    return kind if check_frame(buf, at, FrameHeader(kind, flag, length, prev, synced, field, total)) else None


def check_frame(buf: Buffer, at: int, header: FrameHeader) -> bool:
    """Returns whether ``buf`` has the complete frame at ``at``, with a correct crc and zero padding."""
    start = at + FRAME_BYTES
    end = start + header.length
    if at + header.size > len(buf):
        return False
    view = memoryview(buf)
    covered = crc(view[at + FLAG_AT + 1 : at + 20], crc(view[at : at + FLAG_AT]))
    return crc(view[start:end], covered) == header.crc and not any(view[end : at + header.size])
