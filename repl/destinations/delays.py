"""The delays of messages that came back: no worker holds them until their time comes.

    nack {41, 42} for 5 s ─► number 7, two messages, due at 105 s ─► 41 is acknowledged after all ─► 7 is over: 42 again

Messages that come back together, with one delay, have one number; the table (``out_table``) knows the messages.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

_SPARE: Final = 64


class Delays:
    """All delays of one destination."""

    def __init__(self) -> None:
        self.messages = 0
        """The messages that wait."""
        self._left: dict[int, int] = {}
        """Messages that wait yet, by number."""
        self._due: list[tuple[float, int]] = []
        """A heap of times and numbers, of which some may wait no more."""

    def __contains__(self, number: int) -> bool:
        return number in self._left

    def add(self, number: int, messages: int, due_s: float) -> None:
        """Lets ``messages`` under a new number wait until ``due_s``, the loop's time."""
        self.messages += messages
        self._left[number] = messages
        if len(self._due) > 2 * len(self._left) + _SPARE:
            self._due = [each for each in self._due if each[1] in self._left]
            heapify(self._due)
        heappush(self._due, (due_s, number))

    def came_in(self, number: int, messages: int) -> None:
        """Counts messages that wait no more."""
        self.messages -= messages
        self._left[number] -= messages
        if not self._left[number]:
            del self._left[number]

    def over(self, now_s: float) -> list[int]:
        """Returns the numbers whose time has come, once each; they wait until ``came_in`` says otherwise."""
        found = []
        while self._due and self._due[0][0] <= now_s:
            number = heappop(self._due)[1]
            if number in self._left:
                found.append(number)
        return found
