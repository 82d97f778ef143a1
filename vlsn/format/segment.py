"""The name of a segment file and the segment's header, the first 4 KiB of the file. This module does no I/O.

    0        8       10    12   16     20   24          32         40
    |VLSNLOG1|version|state|salt|number|size|incarnation|created_us|
    40          44       48             56    88   120     4092
    |prev_number|prev_end|prev_last_vlsn|group|node| zeros |crc|

Frames start at 4096; the bytes after the last frame are zeros. The fields ``prev_*`` describe the end of the previous
segment: its number, the offset up to which it was synced, and its last VLSN. Bytes of the previous segment past
``prev_end`` are dead. In a standby (a prepared segment, PREPARED) the fields ``prev_*`` are 0, since they are not known
yet. Names are padded with zeros. ``crc`` covers bytes 0–4091. In a header of any version, magic, version and crc are at
the same offsets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from vlsn import levels
from vlsn.errors import BadBody
from vlsn.format.checksum import crc
from vlsn.ids import is_name
from vlsn.levels import unread
from vlsn.limits import SEGMENT_BYTES_MAX
from vlsn.seams import Buffer

HEADER_PAGE = 4096
FIRST_FRAME = HEADER_PAGE
MAGIC = b"VLSNLOG1"
NUMBER_MAX = 99_999_999
"""The highest number of a segment. A segment's number has at most eight digits, so that file names sort by number."""

_HEADER = Struct("<8sHHIIIQQIIQ32s32s")
_CRC_AT = HEADER_PAGE - 4
_NAME = re.compile(r"([0-9]{8})\.vlog\Z")

_REST = bytes(_CRC_AT - _HEADER.size)

assert _HEADER.size == 120


class SegmentState(IntEnum):
    PREPARED = 1
    """The state of a standby: a segment that has a name, a number and zeros, but is not part of the log yet."""
    ACTIVE = 2


_STATES = frozenset(SegmentState)


def segment_name(number: int) -> str:
    assert 1 <= number <= NUMBER_MAX
    return f"{number:08}.vlog"


def sidecar_name(number: int) -> str:
    assert 1 <= number <= NUMBER_MAX
    return f"{number:08}.vidx"


def parse_segment_name(name: str) -> int | None:
    """Returns the number in a segment file's name, or None if ``name`` is not a segment file's."""
    match = _NAME.match(name)
    return int(match[1]) or None if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The header of a segment. ``size`` is the number of bytes allocated for the segment."""

    group: str
    node: str
    incarnation: int
    number: int
    salt: int
    state: SegmentState
    size: int
    created_us: int
    prev_number: int = 0
    prev_end: int = 0
    prev_last_vlsn: int = 0
    level: int = 1
    """The version of the header. The version of a header is the group's level that was durable when the segment was
    prepared."""

    def encode(self) -> bytes:
        """Encodes the whole header page."""
        fault = self._fault()
        assert fault is None, fault
        head = _HEADER.pack(
            MAGIC,
            self.level,
            self.state,
            self.salt,
            self.number,
            self.size,
            self.incarnation,
            self.created_us,
            self.prev_number,
            self.prev_end,
            self.prev_last_vlsn,
            self.group.encode(),
            self.node.encode(),
        )
        page = head.ljust(_CRC_AT, b"\0")
        return page + crc(page).to_bytes(4, "little")

    @classmethod
    def decode(cls, page: Buffer) -> SegmentHeader:
        """Decodes the header in the first 4096 bytes of ``page``. Raises ``BadBody`` or ``WrongVersion``."""
        if len(page) < HEADER_PAGE:
            raise BadBody(f"a segment header of {len(page)} bytes")
        page = bytes(page[:HEADER_PAGE])
        magic, version, state, salt, number, size, incarnation, created_us, *rest = _HEADER.unpack_from(page)
        prev_number, prev_end, prev_last_vlsn, group, node = rest
        if magic != MAGIC:
            raise BadBody("no segment")
        if crc(page[:_CRC_AT]) != int.from_bytes(page[_CRC_AT:], "little"):
            raise BadBody("segment header crc")
        if not levels.LEVELS.read(version):
            raise unread("a segment", version, levels.LEVELS.max)
        if page[_HEADER.size : _CRC_AT] != _REST or state not in _STATES:
            raise BadBody(f"segment header in state {state}, or with more than it should hold")
        header = cls(
            group=decode_name(group),
            node=decode_name(node),
            incarnation=incarnation,
            number=number,
            salt=salt,
            state=SegmentState(state),
            size=size,
            created_us=created_us,
            prev_number=prev_number,
            prev_end=prev_end,
            prev_last_vlsn=prev_last_vlsn,
            level=version,
        )
        fault = header._fault()
        if fault is not None:
            raise BadBody(fault)
        return header

    def _fault(self) -> str | None:
        if not is_name(self.group) or not is_name(self.node):
            return f"segment of group {self.group!r}, node {self.node!r}"
        if not 1 <= self.number <= NUMBER_MAX or self.size % 8 or not FIRST_FRAME <= self.size <= SEGMENT_BYTES_MAX:
            return f"segment {self.number} of {self.size} bytes"
        if self.prev_number >= self.number:
            return f"segment {self.number} after {self.prev_number}"
        if not self.prev_number:
            return f"segment {self.number} after none ends it at {self.prev_end}" if self.prev_end else None
        if self.prev_end % 8 or not FIRST_FRAME <= self.prev_end <= SEGMENT_BYTES_MAX:
            return f"segment {self.number} ends {self.prev_number} at {self.prev_end}"
        return None


def decode_name(field: bytes) -> str:
    """Decodes the text before the zeros in a field of 32 bytes. ``is_name`` checks whether the text is a valid name."""
    return field.rstrip(b"\0").decode("ascii", "replace")
