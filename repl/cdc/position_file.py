"""The position of a consumer on one node: a file of two slots of 4,096 bytes each, separate from the log.

    0        8       12    16       24   32   40    72   104    112       120      128   4092
    |VLSNCDCP|version|flags|sequence|next|term|group|name|number|paused_us|moved_us|zeros|crc|

``flags`` 1: the group has recorded that the consumer began here with the file of this ``number``. ``flags`` 2: a person
has set the position, so the group must record this number in place of another one.

``paused_us`` is the time when a person paused the consumer. ``moved_us`` is the time of a person's order that set the
position, until the consumer's next commit. Version 1 of the file has zeros in place of ``paused_us`` and ``moved_us``.

Each change is written to the older slot and synced (*commit point*: the return). A change is reported only after the
sync. When the file is opened, the readable slot with the higher sequence is valid.

    cut while a slot was written    one torn or new, one old    the old position, or the new one: none was reported
    both unreadable                 Damaged: the consumer is parked, and does not begin anew

The file is ``DIR/cdc/NAME.position``. A restore, a mending and a lost state store leave the file unchanged.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from vlsn.errors import BadBody, Damaged, LogFailed, WrongVersion
from vlsn.format.checksum import crc
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Buffer, Disk, File
from vlsn.segments.bad_sectors import is_unread

DIRECTORY: Final = "cdc"
SUFFIX: Final = ".position"
SLOT_BYTES: Final = 4096
MAGIC: Final = b"VLSNCDCP"
VERSIONS: Final = (1, 2)
"""The versions of a slot: 1 without, 2 with a person's orders. An older node refuses version 2, because it would
ignore the order."""
_SLOT = Struct("<8sIIQQQ32s32sQQQ")
_KNOWN: Final = 1
_PLACED: Final = 2
_CRC_AT: Final = SLOT_BYTES - 4
_REST = bytes(_CRC_AT - _SLOT.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPosition:
    """``next`` is the VLSN of the first event to deliver. ``term`` is the term of the entry before that event (0: not
    known).

    ``number`` identifies this file. ``known`` is true once the group has recorded that number. ``placed`` is true if
    the group must record the number in place of another file's number. ``paused_us`` and ``moved_us`` are µs since
    the epoch, or 0.
    """

    group: str
    name: str
    next: int
    term: int = 0
    sequence: int = 1
    number: int = 0
    known: bool = False
    placed: bool = False
    paused_us: int = 0
    moved_us: int = 0

    def encode(self) -> bytes:
        """Encodes one slot."""
        names = self.group.encode(), self.name.encode()
        flags = _KNOWN * self.known | _PLACED * self.placed
        orders = self.paused_us, self.moved_us
        version = VERSIONS[any(orders)]
        head = _SLOT.pack(MAGIC, version, flags, self.sequence, self.next, self.term, *names, self.number, *orders)
        page = head.ljust(_CRC_AT, b"\0")
        return page + crc(page).to_bytes(4, "little")

    @classmethod
    def decode(cls, slot: Buffer) -> StoredPosition:
        """Decodes one slot. Raises ``BadBody``, ``WrongVersion``."""
        slot = bytes(slot)
        if len(slot) != SLOT_BYTES or slot[: len(MAGIC)] != MAGIC:
            raise BadBody("no position file")
        if crc(slot[:_CRC_AT]) != int.from_bytes(slot[_CRC_AT:], "little"):
            raise BadBody("position file crc")
        _, version, flags, sequence, next_vlsn, term, group, name, number, *orders = _SLOT.unpack_from(slot)
        if version not in VERSIONS:
            raise WrongVersion(f"a position file of version {version}; this node reads up to {VERSIONS[-1]}")
        if flags & ~(_KNOWN | _PLACED) or slot[_SLOT.size : _CRC_AT] != _REST or version != VERSIONS[any(orders)]:
            raise BadBody("a position file slot with more than it should hold, or less")
        if not 1 <= next_vlsn <= NUMBER_MAX or not 0 <= term <= NUMBER_MAX or not sequence or max(orders) > NUMBER_MAX:
            raise BadBody(f"a position file of next {next_vlsn}, term {term}, sequence {sequence}, orders {orders}")
        names = [each.rstrip(b"\0").decode("ascii", "replace") for each in (group, name)]
        return cls(
            group=names[0],
            name=names[1],
            next=next_vlsn,
            term=term,
            sequence=sequence,
            number=number,
            known=bool(flags & _KNOWN),
            placed=bool(flags & _PLACED),
            paused_us=orders[0],
            moved_us=orders[1],
        )


class PositionFile:
    """The open position file of one consumer. Only one thread may use it at a time. Every call may block until the
    disk has answered."""

    def __init__(self, file: File, position: StoredPosition) -> None:
        self._file = file
        self._position = position
        self._failed = False

    @classmethod
    def open(cls, disk: Disk, directory: str, name: str) -> PositionFile | None:
        """Opens the position file of consumer ``name``; returns None if the file does not exist. Raises ``Damaged`` if
        neither slot can be read, ``WrongVersion``, ``LogFailed``."""
        folder = posixpath.join(directory, DIRECTORY)
        path = posixpath.join(folder, name + SUFFIX)
        if not disk.exists(path):
            return None
        file = disk.open(path, write=True)
        try:
            file.sync()  # an earlier process may have left its writes, or the file's name, unsynced
            disk.sync_directory(folder)
            disk.sync_directory(directory)
            file.drop_cache()
            slots = [slot for slot in (_slot(file, 0), _slot(file, 1)) if slot is not None]
            if not slots:
                raise Damaged("neither slot of the position file can be read", file=path)
            return cls(file, max(slots, key=lambda slot: slot.sequence))
        except BaseException:
            file.close()
            raise

    @classmethod
    def create(cls, disk: Disk, directory: str, position: StoredPosition) -> PositionFile:
        """Creates a new file. The file and its name are durable on return. No other process can see the file half
        written."""
        folder = posixpath.join(directory, DIRECTORY)
        path = posixpath.join(folder, position.name + SUFFIX)
        disk.make_directory(folder)
        fresh = path + ".new"
        if disk.exists(fresh):
            disk.remove(fresh)
        file = disk.open(fresh, write=True, create=True)
        try:
            file.write(0, [position.encode(), position.encode()])
            file.sync()
            disk.rename(fresh, path)
            disk.sync_directory(folder)
            disk.sync_directory(directory)
        except OSError as error:
            file.close()
            raise LogFailed(f"making {path}: {error}") from error
        return cls(file, position)

    @property
    def position(self) -> StoredPosition:
        return self._position

    def store(self, next_vlsn: int, term: int) -> None:
        """Stores a position, durable on return, and removes a person's order. After ``LogFailed`` the contents of
        the file are unknown, so every further call raises ``LogFailed`` too."""
        self._write(replace(self._position, next=next_vlsn, term=term, moved_us=0))

    def place(self, next_vlsn: int, term: int, moved_us: int) -> None:
        """Stores a position that a person has chosen. ``moved_us`` is the time of the person's order. Raises as
        ``store``."""
        mine = self._position
        self._write(replace(mine, next=next_vlsn, term=term, placed=not mine.known, moved_us=moved_us))

    def pause(self, since_us: int) -> None:
        """Stores the time when a person paused the consumer; 0 if it is not paused. Raises as ``store``."""
        self._write(replace(self._position, paused_us=since_us))

    def set_number(self, number: int) -> None:
        self._write(replace(self._position, number=number))

    def set_known(self) -> None:
        """Stores that the group has recorded this file's number; durable on return. Raises as ``store``."""
        self._write(replace(self._position, known=True, placed=False))

    def _write(self, position: StoredPosition) -> None:
        if self._failed:
            raise LogFailed("the position file failed before")
        position = replace(position, sequence=position.sequence + 1)
        try:
            self._file.write((position.sequence + 1) % 2 * SLOT_BYTES, [position.encode()])
            self._file.sync()
        except OSError as error:
            self._failed = True
            raise LogFailed(f"writing the position of {position.name}: {error}") from error
        self._position = position

    def close(self) -> None:
        self._file.close()


def _slot(file: File, index: int) -> StoredPosition | None:
    """Reads one slot. Each slot is read separately, because a bad sector may make one of them unreadable."""
    try:
        return StoredPosition.decode(file.read(index * SLOT_BYTES, SLOT_BYTES))
    except BadBody:
        return None
    except OSError as error:
        if not is_unread(error):
            raise
        return None
