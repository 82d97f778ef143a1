"""The messages of a destination that are out (delivered, not acknowledged), in columns by VLSN.

    vlsns     41 42 44 47 48
    answers    1  1  2  2  3        the answer that each message was sent in
    owners     a  a  b  b  a        the worker or call that has the message
    keys       k  –  m  k' –        hashes of keys
    live       1  0  1  1  1        0: no longer out; such rows are removed when they are more than half

To add or remove the thousand messages of an answer takes a few operations on whole columns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from repl.destinations.window import NO_KEY, Hashes
from vlsn.format.rows import I64, Mask
from vlsn.format.vlsn_set import VlsnSet

_DTYPES: Final = (np.int64, np.int64, np.int64, np.int64, np.uint64, np.bool_)
_ROWS_MIN: Final = 256
NOBODY: Final = -(1 << 62)
"""The owner of messages that came back and wait for their delay. No worker has a message with this owner, but later
messages of its key wait for it."""


class Removed(NamedTuple):
    """Messages that were removed from the table, in columns."""

    vlsns: I64
    before: I64
    """For each message, the VLSN of the destination's message before it."""
    answers: I64
    keys: Hashes

    def __len__(self) -> int:
        return len(self.vlsns)


class OutTable:
    """The table of messages that are out, for one destination. No VLSN is in the table twice."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[np.generic]] = [np.empty(_ROWS_MIN, dtype) for dtype in _DTYPES]
        self._rows = 0
        self._count = 0
        self._keyed: dict[int, int] = {}
        """The number of messages that have keys, by owner."""

    def __len__(self) -> int:
        return self._count

    def _views(self) -> tuple[I64, I64, I64, I64, Hashes, Mask]:
        vlsns, before, answers, owners, keys, live = (column[: self._rows] for column in self._columns)
        return vlsns, before, answers, owners, keys, live  # type: ignore[return-value]  # by _DTYPES

    # Additions.

    def add(self, vlsns: I64, before: I64, keys: Hashes | None, *, answer: int, owner: int) -> None:
        """Adds messages in ascending order; none of them may be out already. ``keys`` are hashes of the messages'
        keys, or None if no message has a key."""
        count = len(vlsns)
        if keys is not None and (keyed := int(np.count_nonzero(keys))):
            self._keyed[owner] = self._keyed.get(owner, 0) + keyed
        added = (vlsns, before, answer, owner, NO_KEY if keys is None else keys, True)
        if self._rows and vlsns[0] <= self._columns[0][self._rows - 1]:
            self._compress()
            places = np.searchsorted(self._views()[0], vlsns)
            self._columns = [np.insert(column, places, new) for column, new in zip(self._views(), added, strict=True)]
        else:
            if self._rows + count > len(self._columns[0]):
                self._compress()
                room = max(2 * (self._rows + count), _ROWS_MIN)
                self._columns = [_grown(column, room) for column in self._views()]
            for column, new in zip(self._columns, added, strict=True):
                column[self._rows : self._rows + count] = new
        self._rows += count
        self._count += count

    def _compress(self) -> None:
        live = self._views()[-1]
        if self._count < self._rows:
            self._columns = [column[live] for column in self._views()]
            self._rows = self._count

    # Look-ups.

    def _rows_of(self, vlsns: I64) -> tuple[Mask, I64]:
        """Marks which of ``vlsns`` are out (delivered, not acknowledged), and returns the rows of these in the
        table."""
        known, *_, live = self._views()
        if not self._count:
            return np.zeros(len(vlsns), np.bool_), np.empty(0, np.int64)
        rows = np.minimum(np.searchsorted(known, vlsns), self._rows - 1)
        mask: Mask = (known[rows] == vlsns) & live[rows]
        return mask, rows[mask]

    @property
    def last(self) -> int:
        """The highest VLSN that is out, or was until its row is removed; 0 for an empty table."""
        return int(self._columns[0][self._rows - 1]) if self._count else 0

    @property
    def vlsns(self) -> I64:
        """All messages that are out, ascending."""
        vlsns, *_, live = self._views()
        found: I64 = vlsns[live]
        return found

    def has(self, vlsns: I64) -> Mask:
        """Marks which of ``vlsns`` are out (delivered, not acknowledged)."""
        return self._rows_of(vlsns)[0]

    def answers_of(self, vlsns: I64) -> tuple[Mask, I64]:
        """Marks which of ``vlsns`` are out, and returns the number of each message's answer."""
        mask, rows = self._rows_of(vlsns)
        return mask, self._views()[2][rows]

    def with_somebody(self, vlsns: I64) -> I64:
        """Returns the messages among ``vlsns`` that a worker or a call has now."""
        rows = self._rows_of(vlsns)[1]
        known, _, _, owners, *_ = self._views()
        found: I64 = known[rows][owners[rows] != NOBODY]
        return found

    def owned(self, vlsns: I64, owner: int) -> I64:
        """Returns the messages among ``vlsns`` that ``owner`` has now."""
        rows = self._rows_of(vlsns)[1]
        known, _, _, owners, *_ = self._views()
        found: I64 = known[rows][owners[rows] == owner]
        return found

    def vlsns_of(self, *numbers: int) -> I64:
        """Returns the VLSNs that were sent in these answers and are still out."""
        vlsns, _, answers, _, _, live = self._views()
        found: I64 = vlsns[live & (answers == numbers[0] if len(numbers) == 1 else np.isin(answers, numbers))]
        return found

    def keys_of_others(self, owner: int = 0) -> tuple[Hashes, I64]:
        """Returns the keys, ascending, of messages that other owners have; for owner 0, of all messages. Also returns,
        for each key, the VLSN after which messages of the key must wait. The VLSN for a key is 0 if a worker has a
        message of the key; otherwise it is that of the first message that waits for its delay."""
        if not self._keyed or (len(self._keyed) == 1 and owner in self._keyed):
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        vlsns, *_, owners, keys, live = self._views()
        rows = np.flatnonzero(live & (owners != owner) & (keys != NO_KEY))
        if NOBODY not in self._keyed:
            found = np.unique(keys[rows])
            return found, np.zeros(len(found), np.int64)
        behind = np.where(owners[rows] == NOBODY, vlsns[rows], 0)
        order = np.lexsort((behind, keys[rows]))
        found, first = np.unique(keys[rows][order], return_index=True)
        return found, behind[order[first]]

    def has_keys_of(self, owner: int) -> bool:
        """Returns whether ``owner`` has messages with keys."""
        return owner in self._keyed

    def out_keys(self, keys: Hashes) -> Mask:
        """Marks the keys that have a message out (delivered, not acknowledged)."""
        if not self._keyed:
            return np.zeros(len(keys), np.bool_)
        *_, known, live = self._views()
        return np.isin(keys, known[live])

    def later(self, keys: Hashes, vlsns: I64) -> I64:
        """Returns messages that come after a message of ``vlsns`` with the same key. Only messages that a worker or
        call has are returned, and only for ``keys``."""
        some = np.flatnonzero(keys != NO_KEY)
        if not len(some) or not self._keyed:
            return np.empty(0, np.int64)
        order = np.lexsort((vlsns[some], keys[some]))
        sorted_keys, lowest = keys[some][order], vlsns[some][order]
        first = np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1]))
        sorted_keys, lowest = sorted_keys[first], lowest[first]
        out, *_, owners, known, live = self._views()
        rows = np.flatnonzero(live & (owners != NOBODY) & np.isin(known, sorted_keys))
        found: I64 = out[rows]
        return found[found > lowest[np.searchsorted(sorted_keys, known[rows])]]

    # Removal.

    def remove(self, vlsns: I64) -> Removed:
        """Removes the messages among ``vlsns`` that are out. The VLSNs must ascend, without repeats."""
        return self._removed(self._rows_of(vlsns)[1])

    def remove_set(self, vlsns: VlsnSet) -> Removed:
        """Removes the messages among ``vlsns`` that are out."""
        known, *_, live = self._views()
        lows = np.searchsorted(known, vlsns.firsts)
        highs = np.searchsorted(known, vlsns.lasts, side="right")
        if len(lows) == 1:
            together = slice(int(lows[0]), int(highs[0]))
            if live[together].all():
                return self._removed(together)  # acknowledgements in order are the usual case
            rows = np.arange(lows[0], highs[0])
        else:
            sizes = highs - lows
            rows = np.arange(int(sizes.sum())) + np.repeat(lows - np.cumsum(sizes) + sizes, sizes)
        return self._removed(rows[live[rows]])

    def _removed(self, rows: I64 | slice) -> Removed:
        """Removes rows. If ``rows`` is a slice, returns views of the columns. The views stay valid, because a removed
        row is never written again."""
        vlsns, before, answers, owners, keys, live = self._views()
        removed = Removed(vlsns[rows], before[rows], answers[rows], keys[rows])
        live[rows] = False
        self._count -= len(removed)
        if self._keyed:
            self._forget_keys(owners[rows][removed.keys != NO_KEY])
        if self._rows > max(_ROWS_MIN, 2 * self._count):
            self._compress()
        return removed

    def _forget_keys(self, owners: I64) -> None:
        for owner, count in zip(*(column.tolist() for column in np.unique(owners, return_counts=True)), strict=True):
            self._keyed[owner] -= count
            if not self._keyed[owner]:
                del self._keyed[owner]


def _grown(column: npt.NDArray[np.generic], room: int) -> npt.NDArray[np.generic]:
    grown = np.empty(room, column.dtype)
    grown[: len(column)] = column
    return grown
