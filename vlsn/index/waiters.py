"""Waiters for a VLSN that is not logged yet. There may be any number of waiters, for any VLSN.

Cancelled waiters cost no more than live ones, since the heap is rebuilt when most of its waiters are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from vlsn.errors import VlsnLogError
from vlsn.ids import Vlsn

Wake = Callable[[VlsnLogError | None], None]
"""A callback that is called once: with ``None`` when the VLSN is in the index, or with the error that ended the
wait."""
Cancel = Callable[[], None]

NEVER = Vlsn(1 << 64)


class Waiters:
    """The waiters of one index. Every method is called under the log's latch. Methods return the callbacks to call
    after the latch is released."""

    __slots__ = ("_heap", "_next", "_wakes", "lowest")

    def __init__(self) -> None:
        self.lowest: Vlsn = NEVER
        """A lower bound of all VLSNs that are waited for, also by cancelled waiters."""
        self._heap: list[tuple[Vlsn, int]] = []
        self._wakes: dict[int, Wake] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._wakes)

    def add(self, vlsn: Vlsn, wake: Wake) -> int:
        number = self._next
        self._next += 1
        self._wakes[number] = wake
        heappush(self._heap, (vlsn, number))
        self.lowest = self._heap[0][0]
        return number

    def remove(self, number: int) -> None:
        """Ends wait number ``number``. A wait that was woken or removed before is ignored."""
        if self._wakes.pop(number, None) is not None and len(self._heap) > 2 * len(self._wakes) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._wakes]
            heapify(self._heap)
            self.lowest = self._heap[0][0] if self._heap else NEVER

    def take(self, vlsn: Vlsn) -> list[Wake]:
        """Removes and returns the callbacks that wait for ``vlsn`` or a lower VLSN, ordered by their VLSNs."""
        taken: list[Wake] = []
        while self._heap and self._heap[0][0] <= vlsn:
            wake = self._wakes.pop(heappop(self._heap)[1], None)
            if wake is not None:
                taken.append(wake)
        self.lowest = self._heap[0][0] if self._heap else NEVER
        return taken

    def take_all(self) -> list[Wake]:
        return self.take(NEVER)
