"""The base of all tables that follow the log (``producers``, ``handles``, ``small_state``, ``acks``).

A table can be rolled back to any VLSN from ``settled`` on. If a cleaned log has lost its state record, its tables miss
the entries up to ``lacks_to``. The missing part is then filled in from another copy of the table.

In the ``state`` store, each row of a table has a key of its own. A checkpoint writes only the rows that changed
(``TableChanges``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from vlsn.ids import NULL_VLSN, Vlsn

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The rows that a checkpoint writes, and the names whose rows the checkpoint deletes. With ``whole``, all earlier
    rows are deleted."""

    puts: Iterable[tuple[int, bytes]]
    """The name and the encoded bytes of each row to write. The store may iterate ``puts`` twice. Each row is encoded
    only when the iteration reaches it."""
    deletes: list[int]
    whole: bool


@dataclass(frozen=True, slots=True)
class Encoded(Generic[R]):
    """Rows of a table that are encoded only when they are iterated."""

    rows: Collection[R]
    encode: Callable[[R], tuple[int, bytes]]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return map(self.encode, self.rows)


class LogTable:
    """The base of all tables: the VLSNs from which and up to which a table is known. A table is used on the owner's
    thread only."""

    settled: int
    """The VLSN from which on the table can be rolled back exactly."""
    lacks_to: int
    """Entries up to this VLSN were cleaned away before the table noted them; 0 if the table is complete."""

    def lose_before(self, vlsn: Vlsn) -> None:
        """Notes that entries before ``vlsn`` were never noted here, and are no longer in the log."""
        self.lacks_to = max(self.lacks_to, vlsn - 1)
        self.settled = max(self.settled, self.lacks_to)

    def give_up_lost(self) -> None:
        """Gives up the missing part of the table. Values in the missing part are treated as never set, or as
        forgotten."""
        self.lacks_to = NULL_VLSN

    def check_exact(self, vlsn: Vlsn, what: str) -> None:
        """Raises ``ValueError`` if this table cannot be computed exactly as of ``vlsn``, the VLSN of another copy's
        table."""
        if vlsn < self.settled:
            raise ValueError(f"{what} as of VLSN {vlsn}: this table is exact from {self.settled} on")


class Ended(NamedTuple, Generic[T]):
    """A row that was removed to make room when the submission at VLSN ``at`` was noted. ``evicted_to`` is the table's
    value before the removal."""

    at: int
    name: int
    row: T
    evicted_to: int


class EvictingTable(LogTable, Generic[T]):
    """A table of limited size. When a new row would be one too many, the row with the oldest submission is removed."""

    def __init__(self, *, silent: int, forgotten_to: int, keyed: bool) -> None:
        self._silent = silent
        self._evicted_to = forgotten_to
        self._ended: deque[Ended[T]] = deque()
        self._changed: dict[int, Any] = {}
        """The rows that may have changed since the last checkpoint, by name. None stands for a removed row."""
        self._whole = not keyed
        """True if the next checkpoint writes every row."""

    def forgotten_to(self, *, at: int) -> Vlsn:
        """Returns the VLSN after which no submission was forgotten. ``at`` is the next VLSN that the log will
        assign."""
        return Vlsn(max(self._evicted_to, at - self._silent - 1, NULL_VLSN))

    def forget_before(self, vlsn: Vlsn) -> None:
        """Forgets all submissions before ``vlsn`` that have no row."""
        self._evicted_to = max(self._evicted_to, vlsn - 1)

    def lose_before(self, vlsn: Vlsn) -> None:
        self.forget_before(vlsn)
        super().lose_before(vlsn)

    def keep_all(self) -> None:
        """Makes the next checkpoint write every row, since the store no longer has the rows of the last checkpoint."""
        self._whole = True
        self._changed = {}

    def _ended_behind(self, vlsn: int) -> Iterator[Ended[T]]:
        """Yields the rows that were removed after ``vlsn``, starting with the newest."""
        for ended in reversed(self._ended):
            if ended.at <= vlsn:
                return
            yield ended

    def _undone(self, vlsn: int) -> tuple[dict[int, T], int]:
        """Returns the rows, by name, that were removed after ``vlsn``, and the last VLSN evicted before ``vlsn``."""
        rows: dict[int, T] = {}
        evicted_to = self._evicted_to
        for ended in self._ended_behind(vlsn):
            rows[ended.name], evicted_to = ended.row, ended.evicted_to
        return rows, evicted_to
