"""The payloads of local frames, and the values of the log's own entries.

Local frames have fixed layouts. Every field is a u64, except ``flags`` and the zero after it, which are u32:

    CHECKPOINT_START  id, first_vlsn, last_vlsn, dtvlsn, clock_us                                        40 bytes
    CHECKPOINT_END    id, start_lsn, flags, 0, first_vlsn, last_vlsn, dtvlsn, clock_us                   56
    ROLLBACK_START    matchpoint, matchpoint_lsn, first_lsn, end_lsn, last_vlsn, clock_us                48
    ROLLBACK_END      start_lsn, clock_us                                                                16

The frame's checksum also covers the payload. TERM, GROUP and COMMIT entries are replicated, and their values are JSON.
A later version may add fields, and this version ignores such fields. ``BadBody`` is raised for bytes that do not match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec

from vlsn.durability import GroupDurability
from vlsn.errors import BadBody
from vlsn.format.frame import FrameKind
from vlsn.ids import is_name
from vlsn.levels import Level
from vlsn.limits import PRODUCERS_MAX, PRODUCERS_MIN
from vlsn.seams import Buffer

_HEX = re.compile(r"[0-9a-f]{16}\Z")
_URL = re.compile(r"https?://[!-~]{1,256}\Z")
MEMBERS_MAX = 64
PRIORITY_MAX = 10
VALUE_BYTES_MAX = 64 << 10
"""The largest value of a TERM or GROUP entry. A larger value is refused before it is decoded."""


class _Fixed:
    """A dataclass whose fields, in their order, are laid out as one ``Struct``."""

    __slots__ = ()
    LAYOUT: ClassVar[Struct]

    def encode(self) -> bytes:
        fault = self._fault()
        assert fault is None, fault
        names: tuple[str, ...] = self.__slots__
        return self.LAYOUT.pack(*[getattr(self, name) for name in names])

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        """Decodes a payload. Raises ``BadBody`` for a payload of another size, or for fields that contradict each
        other."""
        if len(payload) != cls.LAYOUT.size:
            raise BadBody(f"{cls.__name__} of {len(payload)} bytes, not {cls.LAYOUT.size}")
        record = cls(*cls.LAYOUT.unpack(payload))
        fault = record._fault()
        if fault is not None:
            raise BadBody(f"{cls.__name__}: {fault}")
        if record.encode() != payload:
            raise BadBody(f"{cls.__name__}: padding that is not zero")
        return record

    def _fault(self) -> str | None:
        raise NotImplementedError


class CheckpointFlag(IntFlag):
    CLEAN = 1
    """The flag of a clean stop: the node stopped right after this record, so the next opening may continue in the same
    segment."""


@dataclass(frozen=True, slots=True)
class CheckpointStart(_Fixed):
    LAYOUT: ClassVar[Struct] = Struct("<QQQQQ")

    id: int
    first_vlsn: int
    last_vlsn: int
    dtvlsn: int
    clock_us: int

    def _fault(self) -> str | None:
        return _range_fault(self.first_vlsn, self.last_vlsn, self.dtvlsn)


@dataclass(frozen=True, slots=True)
class CheckpointEnd(_Fixed):
    """The end of a checkpoint. ``start_lsn`` is the LSN of the checkpoint's CHECKPOINT_START. The record also has the
    log's range and DTVLSN at this frame."""

    LAYOUT: ClassVar[Struct] = Struct("<QQIxxxxQQQQ")

    id: int
    start_lsn: int
    flags: int
    first_vlsn: int
    last_vlsn: int
    dtvlsn: int
    clock_us: int

    @property
    def clean(self) -> bool:
        return bool(self.flags & CheckpointFlag.CLEAN)

    def _fault(self) -> str | None:
        if self.flags & ~1:
            return f"flags {self.flags:#x}"
        return _range_fault(self.first_vlsn, self.last_vlsn, self.dtvlsn)


@dataclass(frozen=True, slots=True)
class RollbackStart(_Fixed):
    """The start of a rollback. Blocks after ``matchpoint`` up to ``last_vlsn`` are abandoned; their frames are those
    from ``first_lsn`` to before ``end_lsn``. If ``matchpoint`` and its LSN are 0, the whole log is abandoned."""

    LAYOUT: ClassVar[Struct] = Struct("<QQQQQQ")

    matchpoint: int
    matchpoint_lsn: int
    first_lsn: int
    end_lsn: int
    last_vlsn: int
    clock_us: int

    def _fault(self) -> str | None:
        if self.matchpoint > self.last_vlsn or bool(self.matchpoint) != bool(self.matchpoint_lsn):
            return f"back to VLSN {self.matchpoint} at {self.matchpoint_lsn:#x} from {self.last_vlsn}"
        if not self.matchpoint_lsn <= self.first_lsn <= self.end_lsn:
            return f"LSNs {self.matchpoint_lsn:#x} {self.first_lsn:#x} {self.end_lsn:#x}"
        return None


@dataclass(frozen=True, slots=True)
class RollbackEnd(_Fixed):
    """The end of the rollback whose ROLLBACK_START is at ``start_lsn``."""

    LAYOUT: ClassVar[Struct] = Struct("<QQ")

    start_lsn: int
    clock_us: int

    def _fault(self) -> str | None:
        return None


LocalRecord = CheckpointStart | CheckpointEnd | RollbackStart | RollbackEnd
_OF_KIND: dict[FrameKind, type[LocalRecord]] = {
    FrameKind.CHECKPOINT_START: CheckpointStart,
    FrameKind.CHECKPOINT_END: CheckpointEnd,
    FrameKind.ROLLBACK_START: RollbackStart,
    FrameKind.ROLLBACK_END: RollbackEnd,
}


def decode_record(kind: FrameKind, payload: Buffer) -> LocalRecord:
    """Decodes the payload of a frame of ``kind``, which must not be BLOCK. Raises ``BadBody``."""
    return _OF_KIND[kind].decode(payload)


assert [one.LAYOUT.size for one in (CheckpointStart, CheckpointEnd, RollbackStart, RollbackEnd)] == [40, 56, 48, 16]


def _range_fault(first_vlsn: int, last_vlsn: int, dtvlsn: int) -> str | None:
    empty = not first_vlsn and not last_vlsn
    if (not empty and not 1 <= first_vlsn <= last_vlsn) or dtvlsn > last_vlsn:
        return f"range {first_vlsn} … {last_vlsn} with DTVLSN {dtvlsn}"
    return None


# Values of the log's own entries.


class _OwnValue(msgspec.Struct, frozen=True):
    def encode(self) -> bytes:
        _refuse(self._fault())
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, value: Buffer) -> Self:
        entry = _from_json(value, cls)
        _refuse(entry._fault())
        return entry

    def _fault(self) -> str | None:
        raise NotImplementedError


class TermEntry(_OwnValue, frozen=True):
    """The first entry of a term. ``incarnation`` is the incarnation of the master, as 16 hex digits."""

    term: int
    master: str
    incarnation: str

    @property
    def founding(self) -> str:
        """The name of the log that this entry founds, if the entry is the log's first. No other log has the same
        name."""
        return f"{self.incarnation}-{self.term}"

    def _fault(self) -> str | None:
        if self.term < 1 or not is_name(self.master) or not _HEX.match(self.incarnation):
            return f"term {self.term} of {self.master!r}, incarnation {self.incarnation!r}"
        return None


class Member(msgspec.Struct, frozen=True):
    """One node of the group. Only electable nodes count in majorities. A node with a lower ``priority`` stands for
    election later. A ``joining`` node becomes electable once it has caught up."""

    name: str
    url: str
    incarnation: str
    electable: bool = True
    priority: int = 1
    joining: bool = False


class GroupEntry(_OwnValue, frozen=True):
    """The members of the group from this entry on. ``previous`` is the VLSN of the previous GROUP entry, 0 for none."""

    group: str
    members: list[Member]
    previous: int = 0

    def _fault(self) -> str | None:
        if not is_name(self.group) or self.previous < 0 or not 1 <= len(self.members) <= MEMBERS_MAX:
            return f"group {self.group!r} of {len(self.members)} members after {self.previous}"
        if len({member.name for member in self.members}) < len(self.members):
            return "a member twice"
        for member in self.members:
            if not is_name(member.name) or not _URL.match(member.url) or not _HEX.match(member.incarnation):
                return f"member {member.name!r} at {member.url!r}, incarnation {member.incarnation!r}"
            if not 0 <= member.priority <= PRIORITY_MAX or (member.joining and member.electable):
                return f"member {member.name!r} of priority {member.priority}, electable and joining"
        return None


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of the whole group, from the entry that sets them on. A setting that is None does not change."""

    level: Level | None = None
    """The level (version of the formats) that members may write from this entry on, once the entry is durable
    (``levels``)."""
    producers: Annotated[int, msgspec.Meta(ge=PRODUCERS_MIN, le=PRODUCERS_MAX)] | None = None
    """The most exactly-once producers whose submissions the log remembers. If there are more producers, those with the
    oldest submissions are forgotten."""
    durability: GroupDurability | None = None
    """The durability of appends that request no other, and the most that an append may request."""


class AckNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A note of one destination's acknowledgements (``state/acks``). Sets of VLSNs are packed (``vlsn_set``)."""

    begin: int | None = None
    """For a destination that is created or moved: the first VLSN to be delivered, or 0 for the VLSN after this
    COMMIT."""
    over: bool = False
    """True if the destination is deleted."""
    again: bytes = b""
    """The VLSNs that are no longer acknowledged and no longer dead."""
    done: bytes = b""
    """The VLSNs that are acknowledged now."""
    tries: dict[int, bytes] = {}
    """The VLSNs that were delivered two or more times, by the number of deliveries."""
    dead: bytes = b""
    """The VLSNs in ``done`` that are dead: they were delivered too often and are not delivered again."""


class CommitEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A COMMIT entry, and the settings that become valid with it. A COMMIT that is alone in its block commits no other
    entry. An empty value sets nothing."""

    set: Settings = Settings()
    put: dict[str, msgspec.Raw] = {}
    """Names of the small state (the log's table of names and values), each with its new value from this entry on, which
    is any JSON. ``null`` removes a name (``state/small_state``)."""
    acks: dict[str, AckNote] = {}
    """Notes of acknowledgements, by the uuids of their destinations. Notes of acknowledgements exist from level 3
    on."""

    @classmethod
    def putting(cls, puts: Mapping[str, Any]) -> Self:
        """Makes an entry that sets the names in ``puts``, each to a JSON value. A value of None removes the name."""
        return cls(put={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in puts.items()})

    @property
    def puts(self) -> dict[str, bytes | None]:
        """Returns a copy of the values in ``put``, as JSON. A value of None stands for a name to remove."""
        texts = {name: bytes(value) for name, value in self.put.items()}
        return {name: None if text == b"null" else text for name, text in texts.items()}

    def encode(self) -> bytes:
        """Encodes the entry. Raises ``BadBody`` if the value is larger than ``VALUE_BYTES_MAX``."""
        value = msgspec.json.encode(self)
        _refuse(f"a COMMIT of {len(value)} bytes; at most {VALUE_BYTES_MAX}" if len(value) > VALUE_BYTES_MAX else None)
        return value

    @classmethod
    def decode(cls, value: Buffer) -> CommitEntry:
        return _from_json(value, cls) if len(value) else cls()


JSON_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that are not the expected JSON. ``RecursionError`` is raised for JSON nested
too deeply."""
_Value = TypeVar("_Value")


def _from_json(value: Buffer, kind: type[_Value]) -> _Value:
    if len(value) > VALUE_BYTES_MAX:
        raise BadBody(f"a value of {len(value)} bytes in an entry of the log's own")
    try:
        return msgspec.json.decode(value, type=kind)
    except JSON_FAULTS as error:
        raise BadBody(f"an entry of the log's own: {error}") from None


def _refuse(fault: str | None) -> None:
    if fault is not None:
        raise BadBody(fault)
