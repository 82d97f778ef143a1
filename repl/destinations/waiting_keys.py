"""The keys whose messages wait: an earlier message of the key is out (delivered, not acknowledged).

41 (key k) is out    searched 42 43 44 (k) 45     ─►  k waits from 44 on; once 41 is acknowledged, 44 is found again
"""

from __future__ import annotations

import numpy as np

from repl.destinations.window import Hashes
from vlsn.format.rows import I64


class WaitingKeys:
    def __init__(self) -> None:
        self._keys: Hashes = np.empty(0, np.uint64)
        self._from = np.empty(0, np.int64)
        """For each key, the VLSN of the first message that waits. The search continues there once the key is
        released."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def first(self) -> int:
        """The lowest VLSN of a message that waits for its key."""
        return int(self._from.min())

    def add(self, keys: Hashes, vlsns: I64) -> None:
        """Notes for each of ``keys`` that its messages wait from the given VLSN on. ``keys`` has one element for
        each message. A key that waits already keeps its VLSN."""
        keys, rows = np.unique(keys, return_index=True)
        new = ~np.isin(keys, self._keys)
        self._keys = np.concatenate((self._keys, keys[new]))
        self._from = np.concatenate((self._from, vlsns[rows[new]]))

    def first_but(self, keys: Hashes) -> int | None:
        """Returns the lowest VLSN of all waiting keys, ``keys`` excepted. Returns None if no other key waits."""
        others = self._from[~np.isin(self._keys, keys)]
        return int(others.min()) if len(others) else None

    def release(self, keys: Hashes) -> int | None:
        """Ends the wait of these keys. Returns the lowest VLSN to search again, or None if none of these keys
        waited."""
        rows = np.isin(self._keys, keys)
        if not rows.any():
            return None
        lowest = int(self._from[rows].min())
        self._keep(~rows)
        return lowest

    def keep_below(self, vlsn: int) -> None:
        """Forgets the keys that wait from ``vlsn`` or from a later VLSN, because the messages from ``vlsn`` on are
        searched again."""
        if len(self._from):
            self._keep(self._from < vlsn)

    def _keep(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        self._keys, self._from = self._keys[rows], self._from[rows]
