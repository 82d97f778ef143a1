"""Gathers the entries for one answer to a reader, block after block.

An answer has at most ``limit`` entries and about ``bytes_max`` bytes of keys and values, but at least one entry if any
is wanted. Only the wanted entries of a block are decoded, so one entry of a block with 65 536 costs as little as one of
a small block. With a filter by key, windows of the log are searched by column, up to ``look_bytes_max`` bytes of
blocks, whether or not an entry matches.
"""

from __future__ import annotations

import numpy as np

from vlsn.format import block as block_format
from vlsn.format.block import BlockHeader, Entry
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import EntryRows
from vlsn.ids import Vlsn
from vlsn.seams import Buffer

NO_LIMIT = (1 << 63) - 1


class Gathering:
    """The gathered ``entries`` from ``from_vlsn`` on, of ``kinds`` (None: all kinds) and ``keys`` (None: all keys).
    ``next_vlsn`` is the first VLSN that was not searched."""

    def __init__(
        self,
        from_vlsn: int,
        *,
        limit: int,
        bytes_max: int,
        kinds: frozenset[int] | None,
        keys: KeyFilter | None = None,
        look_bytes_max: int = NO_LIMIT,
    ) -> None:
        self.entries: list[Entry] = []
        self.next_vlsn = Vlsn(from_vlsn)
        self._limit = limit
        self.room = bytes_max
        self._kinds = kinds
        self.keys = keys
        self.look_room = look_bytes_max

    @property
    def full(self) -> bool:
        if self.look_room <= 0:
            return True
        return bool(self.entries) and (len(self.entries) >= self._limit or self.room <= 0)

    def add(self, block: Buffer, header: BlockHeader) -> bool:
        """Adds the wanted entries of a checked block that contains ``next_vlsn``. Returns False if some wanted entries
        exceed the limits. ``add`` must not be used with a filter by key."""
        assert self.keys is None
        while self.next_vlsn <= header.last_vlsn:
            if self.full:
                return False
            found, after, size = block_format.take(
                block,
                header,
                from_vlsn=self.next_vlsn,
                limit=self._limit - len(self.entries),
                bytes_max=self.room,
                kinds=self._kinds,
            )
            if self.entries and size > self.room:
                return False
            self.entries += found
            self.room -= size
            self.next_vlsn = after
        return True

    def add_rows(self, rows: EntryRows) -> int | None:
        """Adds, by column, the wanted entries of many checked blocks. The first block must contain ``next_vlsn``.
        Returns the index of the block with the first entry that exceeds the limits, or None if all entries were
        added."""
        wanted_keys = self.keys.mask(rows) if self.keys is not None else None
        chosen = rows.chosen(self.next_vlsn, NO_LIMIT, self._kinds, wanted_keys)
        self.look_room -= int(rows.headers["body_bytes"].sum())
        totals = rows.sizes()[chosen].cumsum()
        count = min(int(np.searchsorted(totals, self.room, side="right")), self._limit - len(self.entries))
        if not self.entries:
            count = max(count, min(1, len(totals)))
        if count:
            wanted = slice(chosen.start, chosen.start + count) if isinstance(chosen, slice) else chosen[:count]
            self.entries += rows.entries(wanted)
            self.room -= int(totals[count - 1])
        if count == len(totals):
            self.next_vlsn = Vlsn(rows.first_vlsn + rows.rows)
            return None
        left_out = int(np.arange(rows.rows)[chosen][count])
        self.next_vlsn = Vlsn(rows.first_vlsn + left_out)
        return rows.block_of(left_out)
