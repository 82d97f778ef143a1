"""Durability: how far a node has taken an append when it counts as having it.

    SYNC           on the medium: outlives the machine's power
    WRITE_NO_SYNC  with the operating system: outlives the process, not the machine
    NO_SYNC        in the node's memory, on its way to the writer: outlives neither

A group has two, JE's ``Durability``: the master's (``local``) and that of each replica that its acks count.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal

import msgspec

from vlsn.errors import BadArgument


class Durability(IntEnum):
    """The state of an append when it returns. A group is treated as its strictest append asks."""

    NO_SYNC = 0
    """The append has its VLSNs, in this process's memory; it is written within the flush interval."""
    WRITE_NO_SYNC = 1
    """The append is written: a crash of this process does not lose it, one of the machine may. It is synced within the
    sync interval."""
    SYNC = 2
    """The append is on the medium."""


DurabilityName = Literal["sync", "write_no_sync", "no_sync"]
_LEVELS: Final[dict[str, Durability]] = {each.name.lower(): each for each in Durability}


class GroupDurability(msgspec.Struct, frozen=True, gc=False):
    """The durability that the master, and a replica that counts, have given an append when it is answered.

    Where that is less than SYNC and SYNC the answer says ``durable`` only if a majority had synced it all the same."""

    local: DurabilityName
    replica: DurabilityName

    @property
    def levels(self) -> tuple[Durability, Durability]:
        """The two as ``Durability``, the master's first."""
        return _LEVELS[self.local], _LEVELS[self.replica]

    @property
    def lower(self) -> bool:
        """It is less than SYNC and SYNC."""
        return self.local != "sync" or self.replica != "sync"

    def exceeds(self, other: GroupDurability) -> bool:
        """Says whether the master or a replica would have to do more than ``other`` asks of it."""
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
    """Returns what holds of all of these, of which there is one at least."""
    locals_, replicas = zip(*(each.levels for each in given), strict=True)
    return _PAIRS[min(locals_), min(replicas)]


GivenDurability = str | Durability | GroupDurability
"""All that ``group_durability`` reads."""


def group_durability(given: GivenDurability) -> GroupDurability:
    """Reads ``sync``, ``write_no_sync`` or ``no_sync`` for both, or two of them with a comma between: the master's and
    the replicas'. Raises ``BadArgument``."""
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


# In one byte of a message each: the default is 0, as before there was another.


def asked_code(asked: GroupDurability | None) -> int:
    """Packs what an append asks for in 16 bits; 0 for nothing."""
    if asked is None:
        return 0
    local, replica = asked.levels
    return local + 1 | (replica + 1) << 8


def asked_of(code: int) -> GroupDurability | None:
    """Unpacks it. Raises ``ValueError``."""
    return _PAIRS[Durability((code & 0xFF) - 1), Durability((code >> 8) - 1)] if code else None


def answered_code(answered: GroupDurability) -> int:
    """Packs what an append was answered for in 4 bits; 0 for ``SYNCED``."""
    local, replica = answered.levels
    return (Durability.SYNC - local) | (Durability.SYNC - replica) << 2


def answered_of(code: int) -> GroupDurability:
    """Unpacks it. Raises ``ValueError``."""
    return _PAIRS[Durability(Durability.SYNC - (code & 3)), Durability(Durability.SYNC - (code >> 2))]
