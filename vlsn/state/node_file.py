"""The node file: the identity of this node, and the promises that it has made in elections.

The file has two slots of 4 KiB each. Both slots hold the same record:

    0        8       12  16       24          32   40        48         56         64    96   128
    |VLSNNODE|version| 0 |sequence|incarnation|term|vote_term|floor_term|floor_vlsn|group|node|voted_for| zeros |crc|

A change is written to slot one and synced, then written to slot two and synced. The *commit point* is the return of the
second sync: nothing relies on the change before it. When the file is opened, the readable slot with the higher sequence
is right. If both slots have the same sequence (a vote floor or a restore's term was being written), slot one is right.
Opening the file makes both slots equal.

    crash while slot one was written  one torn or new, two old      the old record, or the new one: both are right
    crash while slot two was written  one new, two torn or old      the new record
    both unreadable                   Damaged: the node becomes a new incarnation
    one of another version, crc right WrongVersion: nothing is written

Every later version keeps the magic, the version and the crc at these offsets. The version is the level (``levels``)
that the node has promised to read. A binary that does not support that level refuses the file. Opening the file first
syncs it, and then reads it from the medium, not from the page cache. Without the sync, a promise that is only in the
page cache could be lost later.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from struct import Struct

from vlsn import levels
from vlsn.errors import BadBody, Damaged, LogFailed, WrongVersion
from vlsn.format.checksum import crc
from vlsn.format.segment import decode_name
from vlsn.ids import is_name
from vlsn.levels import named, unread
from vlsn.seams import Buffer, Disk, File
from vlsn.segments.bad_sectors import is_unread

SLOT_BYTES = 4096
MAGIC = b"VLSNNODE"

_SLOT = Struct("<8sIIQQQQQQ32s32s32s")
_CRC_AT = SLOT_BYTES - 4
_REST = bytes(_CRC_AT - _SLOT.size)

assert _SLOT.size == 160


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """The content of the node file. ``voted_for`` is the name of the node that got this node's vote in ``vote_term``,
    or "" for no vote. The vote floor is a term and a VLSN (0, 0 for none): the node does not vote for a log that ends
    below it, and is no candidate with such a log. Only ``NodeFile`` sets ``sequence``."""

    group: str
    node: str
    incarnation: int
    term: int = 0
    voted_for: str = ""
    vote_term: int = 0
    floor_term: int = 0
    floor_vlsn: int = 0
    sequence: int = 1
    level: int = 1
    """The version of the slot, which never decreases."""

    def encode(self) -> bytes:
        """Encodes the bytes of one slot."""
        fault = self._fault()
        assert fault is None, fault
        head = _SLOT.pack(
            MAGIC,
            self.level,
            0,
            self.sequence,
            self.incarnation,
            self.term,
            self.vote_term,
            self.floor_term,
            self.floor_vlsn,
            self.group.encode(),
            self.node.encode(),
            self.voted_for.encode(),
        )
        page = head.ljust(_CRC_AT, b"\0")
        return page + crc(page).to_bytes(4, "little")

    @classmethod
    def decode(cls, slot: Buffer) -> NodeRecord:
        """Decodes the record in one whole slot. Raises ``BadBody`` for a damaged slot, or ``WrongVersion``."""
        if len(slot) != SLOT_BYTES:
            raise BadBody(f"a node file slot of {len(slot)} bytes")
        slot = bytes(slot)
        magic, version, zero, sequence, incarnation, term, vote_term, *rest = _SLOT.unpack_from(slot)
        floor_term, floor_vlsn, group, node, voted_for = rest
        if magic != MAGIC:
            raise BadBody("no node file")
        if crc(slot[:_CRC_AT]) != int.from_bytes(slot[_CRC_AT:], "little"):
            raise BadBody("node file crc")
        if not levels.LEVELS.read(version):
            raise unread("a node file", version, levels.LEVELS.max)
        if zero or slot[_SLOT.size : _CRC_AT] != _REST:
            raise BadBody("a node file slot with more than it should hold")
        record = cls(
            group=decode_name(group),
            node=decode_name(node),
            incarnation=incarnation,
            term=term,
            voted_for=decode_name(voted_for),
            vote_term=vote_term,
            floor_term=floor_term,
            floor_vlsn=floor_vlsn,
            sequence=sequence,
            level=version,
        )
        fault = record._fault()
        if fault is not None:
            raise BadBody(fault)
        return record

    def _fault(self) -> str | None:
        if not self.sequence or not self.level:
            return f"a node file of sequence {self.sequence}, level {self.level}"
        if not is_name(self.group) or not is_name(self.node) or (self.voted_for and not is_name(self.voted_for)):
            return f"node file names {self.group!r} {self.node!r} {self.voted_for!r}"
        if self.vote_term > self.term or (self.voted_for and not self.vote_term):
            return f"a vote for {self.voted_for!r} in term {self.vote_term} at term {self.term}"
        return None


class NodeFile:
    """The open node file. Only one thread may use it at a time. Every method may block on the disk."""

    def __init__(self, file: File, record: NodeRecord) -> None:
        self._file = file
        self.record = record
        """The record that is in both slots, synced."""
        self._failed = False

    @classmethod
    def open(cls, disk: Disk, path: str) -> NodeFile:
        """Opens the file, reads the record, and makes both slots equal and durable together with the file's name.
        Raises ``WrongVersion``, ``Damaged`` if neither slot can be read, ``LogFailed`` if a sync fails, or
        ``FileNotFoundError`` if there is no file."""
        file = disk.open(path, write=True)
        try:
            _settle(disk, path, file)
            slots = _slots(file, path)
            right = _newer(slots, path)
            one, two = (slot if isinstance(slot, NodeRecord) else None for slot in slots)
            node_file = cls(file, right)
            # Only the wrong slot is written, so that the right slot stays intact whatever happens.
            if one != right:
                node_file._write(0, right.encode())
            if two != right:
                node_file._write(1, right.encode())
        except BaseException:
            file.close()
            raise
        return node_file

    def replace(self, record: NodeRecord, *, learned: bool = False) -> NodeRecord:
        """Writes ``record`` with the next sequence, durable on return, and returns the record as written. Within one
        incarnation the term never decreases. The sequence stays the same if only a vote floor changes, or if the change
        was ``learned`` from another node's log. A higher sequence would be wrong there: an old image of the disk makes
        such changes too, and could then pass for the newest image. A vote is never changed within its term. A record
        that would change the vote of its term is refused with ``LogFailed`` and not written. After the disk has failed
        once, the file's content is unknown, and every further call raises ``LogFailed``."""
        mine = self.record
        assert record.incarnation != mine.incarnation or record.term >= mine.term
        assert record.level >= mine.level
        promised = mine.voted_for if mine.vote_term == record.term and record.incarnation == mine.incarnation else ""
        if promised and (record.vote_term, record.voted_for) != (mine.vote_term, promised):
            raise LogFailed(
                f"the vote of term {record.term} is {promised}'s, not to be {record.voted_for or 'nobody'}'s"
            )
        floor_alone = replace(
            record,
            floor_term=mine.floor_term,
            floor_vlsn=mine.floor_vlsn,
            sequence=mine.sequence,
            level=mine.level,
        )
        assert not learned or (record.vote_term, record.voted_for) == (mine.vote_term, mine.voted_for)
        record = replace(record, sequence=mine.sequence + (floor_alone != mine and not learned))
        slot = record.encode()
        self._write(0, slot)
        self._write(1, slot)
        self.record = record
        return record

    def close(self) -> None:
        self._file.close()

    def _write(self, index: int, slot: bytes) -> None:
        if self._failed:
            raise LogFailed("the node file failed before")
        try:
            self._file.write(index * SLOT_BYTES, [slot])
            self._file.sync()
        except OSError as error:
            self._failed = True
            raise LogFailed(f"writing the node file: {error}") from error


def create(disk: Disk, path: str, record: NodeRecord) -> NodeFile:
    """Creates a node file. The file and its name are durable on return. No reader ever sees a half-written file."""
    slot = record.encode()
    fresh = path + ".new"
    if disk.exists(fresh):
        disk.remove(fresh)
    file = disk.open(fresh, write=True, create=True)
    try:
        file.write(0, [slot, slot])
        file.sync()
        disk.rename(fresh, path)
        disk.sync_directory(_directory(path))
    except BaseException:
        file.close()
        raise
    return NodeFile(file, record)


def read(disk: Disk, path: str) -> NodeRecord:
    """Reads the record, for tools that never write. Raises the errors of ``NodeFile.open``."""
    return read_slots(disk, path)[0]


def read_slots(disk: Disk, path: str) -> tuple[NodeRecord, dict[int, Exception]]:
    """Reads the record. Also returns the fault of each unreadable slot, by the slot's number (1, 2). Raises the errors
    of ``read``."""
    with closing(disk.open(path)) as file:
        slots = _slots(file, path)
    faults = {number: slot for number, slot in enumerate(slots, 1) if not isinstance(slot, NodeRecord)}
    return _newer(slots, path), faults


def _settle(disk: Disk, path: str, file: File) -> None:
    """Writes the unsynced bytes of an earlier process to the medium, or drops them from the page cache."""
    try:
        file.sync()
        file.drop_cache()
        disk.sync_directory(_directory(path))
    except OSError as error:
        raise LogFailed(f"syncing the node file: {error}") from error


def _directory(path: str) -> str:
    return posixpath.dirname(path) or "."


def _slots(file: File, path: str) -> list[NodeRecord | Exception]:
    try:
        return [_slot(file, index) for index in range(2)]
    except WrongVersion as error:
        raise named(error, path) from None


def _slot(file: File, index: int) -> NodeRecord | Exception:
    """Reads the slot at ``index`` alone, since a bad sector may be in the other slot only."""
    try:
        return NodeRecord.decode(file.read(index * SLOT_BYTES, SLOT_BYTES))
    except BadBody as error:
        return error
    except OSError as error:
        if not is_unread(error):
            raise
        return error


def _newer(slots: Sequence[NodeRecord | Exception], path: str) -> NodeRecord:
    """Returns the newer of the two records. If both have the same sequence, returns that of slot one, which is written
    first."""
    readable = [slot for slot in slots if isinstance(slot, NodeRecord)]
    if readable:
        return max(readable, key=lambda slot: slot.sequence)
    for slot in slots:
        # The disk may still return the slot later, so this error is no reason to become a new incarnation.
        if isinstance(slot, OSError):
            raise slot
    raise Damaged("neither slot of the node file can be read", file=path)
