"""The members that elect, as GROUP entries of a log name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vlsn.errors import BadBody
from vlsn.format.block import KIND_COLUMN, EntryKind, decode_header, entries
from vlsn.format.columns import TXNS
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.records import GroupEntry
from vlsn.seams import Buffer

if TYPE_CHECKING:
    from repl.audit.blocks import Blocks

_GROUPS = frozenset({int(EntryKind.GROUP)})


@dataclass(frozen=True, slots=True)
class GroupAt:
    """The members that elect from the GROUP entry at ``vlsn`` on."""

    vlsn: int
    voters: tuple[str, ...]


def group_at(vlsn: int, entry: GroupEntry) -> GroupAt:
    return GroupAt(vlsn, tuple(member.name for member in entry.members if member.electable))


def groups_in(buf: Buffer, visible: Blocks) -> Iterator[GroupAt]:
    """Yields the GROUP entries of a segment: blocks of the log's own entries are few."""
    kinds, flags = visible.headers["kind"], visible.headers["flags"]
    own = (kinds == EntryKind.GROUP) | ((kinds == KIND_COLUMN) & (flags & np.uint8(TXNS) == 0))
    view = memoryview(buf)
    for at in visible.offsets[own].tolist():
        block = view[at + FRAME_BYTES :]
        try:
            for entry in entries(block, decode_header(block), kinds=_GROUPS):
                yield group_at(int(entry.vlsn), GroupEntry.decode(entry.value))
        except BadBody:
            continue  # columns that cannot be, under right checksums: the copies are compared
