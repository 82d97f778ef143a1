"""The GROUP entries of a segment."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from repl.audit.blocks import Blocks
from repl.audit.members import GroupAt, group_at
from vlsn.errors import BadBody
from vlsn.format.block import KIND_COLUMN, EntryKind, decode_header, entries
from vlsn.format.columns import TXNS
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.records import GroupEntry
from vlsn.seams import Buffer

_GROUPS = frozenset({int(EntryKind.GROUP)})


def groups_in(buf: Buffer, visible: Blocks) -> Iterator[GroupAt]:
    """Yields what each of them says: blocks of the log's own entries are few."""
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
