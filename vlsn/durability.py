"""Durability: how far a node must have processed an append for the append to count.

    SYNC           on the medium: outlives the machine's power
    WRITE_NO_SYNC  with the operating system: outlives the process, not the machine
    NO_SYNC        in the node's memory, on its way to the writer: outlives neither

A group has two durabilities, as in JE's ``Durability``: the master's (``local``), and that of each replica whose
acknowledgement counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal

import msgspec

from vlsn.errors import BadArgument


class Durability(IntEnum):
    """The state of an append when it returns. A group of appends is treated as its strictest append asks."""

    NO_SYNC = 0
    """The append has its VLSNs, in this process's memory. It is written within the flush interval."""
    WRITE_NO_SYNC = 1
    """The append is written. It survives a crash of this process, but perhaps not of the machine. It is synced within
    the sync interval."""
    SYNC = 2
    """The append is on the medium."""


DurabilityName = Literal["sync", "write_no_sync", "no_sync"]
_LEVELS: Final[dict[str, Durability]] = {each.name.lower(): each for each in Durability}


class GroupDurability(msgspec.Struct, frozen=True, gc=False):
    """The durability on the master and on each replica that counts, when an append is answered.

    If either is less than SYNC, the answer says ``durable`` only if a majority happens to have synced the append."""

    local: DurabilityName
    replica: DurabilityName

    @property
    def levels(self) -> tuple[Durability, Durability]:
        """Both values as ``Durability``, the master's first."""
        return _LEVELS[self.local], _LEVELS[self.replica]

    @property
    def lower(self) -> bool:
        """True if either value is less than SYNC."""
        return self.local != "sync" or self.replica != "sync"

    def exceeds(self, other: GroupDurability) -> bool:
        """Says whether this asks more of the master or of a replica than ``other`` does."""
        (local, replica), (its_local, its_replica) = self.levels, other.levels
        return local > its_local or replica > its_replica

    def __str__(self) -> str:
        return f"{self.local},{self.replica}"


_PAIRS: Final = {
    (local, replica): GroupDurability(local.name.lower(), replica.name.lower())  # type: ignore[arg-type]
    for local in Durability
    for replica in Durability
}
SYNCED: Final = _PAIRS[Durability.SYNC, Durability.SYNC]
"""The default: an append is answered once a majority has synced it."""


def weakest(given: Iterable[GroupDurability]) -> GroupDurability:
    """Returns the durability that all of ``given`` guarantee. There must be at least one."""
    locals_, replicas = zip(*(each.levels for each in given), strict=True)
    return _PAIRS[min(locals_), min(replicas)]


GivenDurability = str | Durability | GroupDurability
"""All types that ``group_durability`` accepts."""


def group_durability(given: GivenDurability) -> GroupDurability:
    """Reads ``sync``, ``write_no_sync`` or ``no_sync``, for the master and the replicas. Also reads two of these,
    joined by a comma: the master's, then the replicas'. Raises ``BadArgument`` for anything else."""
    if isinstance(given, Durability):
        return _PAIRS[given, given]
    if isinstance(given, GroupDurability):
        return _PAIRS[given.levels]
    names = given.split(",") if isinstance(given, str) else []
    if not 1 <= len(names) <= 2 or any(name not in _LEVELS for name in names):
        raise BadArgument(
            f"durability: {given!r:.60} is not one of {', '.join(reversed(_LEVELS))}, nor two, the master's and "
            "the replicas', as in sync,no_sync"
        )
    return _PAIRS[_LEVELS[names[0]], _LEVELS[names[-1]]]


# In messages each takes one byte. The default is 0, as in messages from before durabilities existed.


def asked_code(asked: GroupDurability | None) -> int:
    """Packs what an append asks for in 16 bits; 0 if it asks for no durability."""
    if asked is None:
        return 0
    local, replica = asked.levels
    return local + 1 | (replica + 1) << 8


def asked_of(code: int) -> GroupDurability | None:
    """Unpacks what ``asked_code`` has packed. Raises ``ValueError`` for any other number."""
    return _PAIRS[Durability((code & 0xFF) - 1), Durability((code >> 8) - 1)] if code else None


def answered_code(answered: GroupDurability) -> int:
    """Packs the durability with which an append was answered in 4 bits; 0 for ``SYNCED``."""
    local, replica = answered.levels
    return (Durability.SYNC - local) | (Durability.SYNC - replica) << 2


def answered_of(code: int) -> GroupDurability:
    """Unpacks what ``answered_code`` has packed. Raises ``ValueError`` for any other number."""
    return _PAIRS[Durability(Durability.SYNC - (code & 3)), Durability(Durability.SYNC - (code >> 2))]
