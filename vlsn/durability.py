"""Durability: the state in which a node must have stored an append before the node's acknowledgement counts.

    SYNC           on the medium: survives a loss of power
    WRITE_NO_SYNC  in the operating system's cache: survives a crash of the process, not of the machine
    NO_SYNC        in the node's memory, not written yet: survives no crash

A group of nodes has two durabilities, as in JE's ``Durability``: that of the master (``local``), and that of each
replica whose acknowledgement counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal

import msgspec

from vlsn.errors import BadArgument


class Durability(IntEnum):
    """The state of an append when its call returns. Appends that are written together are treated like the strictest of
    them."""

    NO_SYNC = 0
    """The append has its VLSNs and is in this process's memory. A ``NO_SYNC`` append is written within the flush
    interval."""
    WRITE_NO_SYNC = 1
    """The append is written. A written append survives a crash of this process, but perhaps not of the machine. It is
    synced within the sync interval."""
    SYNC = 2
    """The append is on the medium."""


DurabilityName = Literal["sync", "write_no_sync", "no_sync"]
_LEVELS: Final[dict[str, Durability]] = {each.name.lower(): each for each in Durability}


class GroupDurability(msgspec.Struct, frozen=True, gc=False):
    """The durability of an append on the master, and on each replica that counts, when the append is answered.

    If either value is less than SYNC, the answer says ``durable`` only if a majority happens to have synced the append.
    """

    local: DurabilityName
    replica: DurabilityName

    @property
    def levels(self) -> tuple[Durability, Durability]:
        """The master's and the replicas' durability, as two values of type ``Durability``."""
        return _LEVELS[self.local], _LEVELS[self.replica]

    @property
    def lower(self) -> bool:
        """True if either value is less than SYNC."""
        return self.local != "sync" or self.replica != "sync"

    def exceeds(self, other: GroupDurability) -> bool:
        """Returns whether this durability requires more of the master, or more of a replica, than ``other``."""
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
    """Returns the strongest durability that all of ``given`` guarantee. ``given`` must not be empty."""
    locals_, replicas = zip(*(each.levels for each in given), strict=True)
    return _PAIRS[min(locals_), min(replicas)]


GivenDurability = str | Durability | GroupDurability
"""All types that ``group_durability`` accepts."""


def group_durability(given: GivenDurability) -> GroupDurability:
    """Parses ``sync``, ``write_no_sync`` or ``no_sync``, which is then for the master and the replicas. Also parses two
    such words joined by a comma: first the master's durability, then the replicas'. Raises ``BadArgument`` for anything
    else."""
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


# In a message, a durability is one byte. The default is 0, as in messages from before durabilities existed.


def asked_code(asked: GroupDurability | None) -> int:
    """Packs the durability that an append requests in 16 bits; 0 if the append requests none."""
    if asked is None:
        return 0
    local, replica = asked.levels
    return local + 1 | (replica + 1) << 8


def asked_of(code: int) -> GroupDurability | None:
    """Unpacks a number that ``asked_code`` has packed. Raises ``ValueError`` for a number that it cannot have
    packed."""
    return _PAIRS[Durability((code & 0xFF) - 1), Durability((code >> 8) - 1)] if code else None


def answered_code(answered: GroupDurability) -> int:
    """Packs the durability with which an append was answered in 4 bits; 0 for ``SYNCED``."""
    local, replica = answered.levels
    return (Durability.SYNC - local) | (Durability.SYNC - replica) << 2


def answered_of(code: int) -> GroupDurability:
    """Unpacks a number that ``answered_code`` has packed. Raises ``ValueError`` for a number that it cannot have
    packed."""
    return _PAIRS[Durability(Durability.SYNC - (code & 3)), Durability(Durability.SYNC - (code >> 2))]
