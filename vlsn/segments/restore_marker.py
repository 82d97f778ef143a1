"""The marker file of a network restore. While the marker is in a directory, the segments in the directory are not a
valid log (``repair.restore``)."""

from __future__ import annotations

import msgspec

from vlsn.errors import Damaged, Restoring, WrongVersion
from vlsn.format.checksum import crc
from vlsn.format.records import JSON_FAULTS
from vlsn.ids import Vlsn
from vlsn.levels import named, unread
from vlsn.seams import Disk

MARKER_NAME = "restore.marker"
VERSION = 1
"""The version of the marker's format."""
_CRC_BYTES = 4


class _Versioned(msgspec.Struct):
    """The fields that a marker of any version has."""

    version: int = 1


class Marker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of the marker file: the restored log begins in segment ``first_segment``, with the VLSN after
    ``after``."""

    first_segment: int
    after: Vlsn
    why: str
    begun_us: int
    version: int = VERSION
    """The version of the format. A version of 1 is not encoded."""

    def encode(self) -> bytes:
        text = msgspec.json.encode(self)
        return crc(text).to_bytes(_CRC_BYTES, "little") + text

    @classmethod
    def decode(cls, data: bytes) -> Marker:
        """Decodes the bytes of a marker file. Raises ``Damaged`` or ``WrongVersion``."""
        text = data[_CRC_BYTES:]
        if int.from_bytes(data[:_CRC_BYTES], "little") != crc(text):
            raise Damaged("the marker of a restore does not match its checksum", file=MARKER_NAME)
        try:
            version = msgspec.json.decode(text, type=_Versioned).version
            if version != VERSION:
                raise unread("the marker of a restore", version, VERSION)
            return msgspec.json.decode(text, type=cls)
        except JSON_FAULTS as error:
            raise Damaged(f"the marker of a restore cannot be read: {error}", file=MARKER_NAME) from None


def check_no_restore(disk: Disk, directory: str) -> None:
    """Raises ``Restoring`` if a restore has begun in ``directory`` and is not finished."""
    if disk.exists(f"{directory}/{MARKER_NAME}"):
        raise Restoring(
            f"a network restore of {directory} has begun; its node continues the restore when it is started"
        )


def read_marker(disk: Disk, directory: str) -> Marker | None:
    """Reads the marker. Returns None if no restore has begun. Raises ``Damaged`` for an unreadable marker: a restore
    has begun then, and has to begin again."""
    try:
        file = disk.open(f"{directory}/{MARKER_NAME}")
    except FileNotFoundError:
        return None
    try:
        return Marker.decode(file.read(0, file.size()))
    except WrongVersion as error:
        raise named(error, f"{directory}/{MARKER_NAME}") from None
    finally:
        file.close()
