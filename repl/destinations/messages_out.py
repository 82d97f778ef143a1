"""The messages of one destination that are out (delivered, not acknowledged): answer, deadline and attempts of each.

    answer 1   {41, 42, 44}    due at 30 s     not acknowledged by then: the messages come back, one attempt used
    number 2   {47}            delay to 35 s   47 came back with a delay: no worker has it until then

1. When a message comes back, the later messages of its key that are out come back with it. A message that comes back
   only for this reason uses no attempt.
2. Attempts are counted here from the first return on. Earlier attempts are in the table of acknowledgements
   (``noted``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from repl.destinations.limits import TRIES_MAX
from repl.destinations.message_columns import MessageColumns
from repl.destinations.out_table import NOBODY, OutTable, Removed
from repl.destinations.window import Hashes
from vlsn.format.rows import I64
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.state.acks import Tries

_SPARE: Final = 64


@dataclass(slots=True)
class Found:
    """Messages that may be delivered, collected from several windows (groups of blocks)."""

    owner: int
    parts: list[MessageColumns] = field(default_factory=list)
    before: list[Vlsns] = field(default_factory=list)
    keys: list[Hashes | None] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    blocked: int = 0
    """The number of messages that were skipped because earlier messages of their keys are out."""

    def add(self, part: MessageColumns, before: Vlsns, keys: Hashes | None) -> None:
        self.parts.append(part)
        self.before.append(before)
        self.keys.append(keys)
        self.count += len(part)
        self.bytes += part.bytes

    def clear(self) -> None:
        for columns in (self.parts, self.before, self.keys):
            columns.clear()
        self.count = self.bytes = 0

    def all_keys(self) -> Hashes | None:
        if all(keys is None for keys in self.keys):
            return None
        filled = [
            np.zeros(len(part), np.uint64) if keys is None else keys
            for part, keys in zip(self.parts, self.keys, strict=True)
        ]
        return np.concatenate(filled)


@dataclass(slots=True, eq=False)
class Answer:
    """One answer to a worker, while some of its messages are still out."""

    deadline: float
    left: int
    attempts: dict[int, int]


class MessagesOut:
    """The messages of one destination that are out. ``numbers`` yields numbers for answers and delays, and repeats
    none."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.table = OutTable()
        self._numbers = numbers
        self.delayed = 0
        """The number of messages that came back and wait for their delay."""
        self._delays: dict[int, int] = {}
        """For each delay's number, how many messages wait for that delay."""
        self._due: list[tuple[float, int]] = []
        """A heap of pairs: the time when a delay is over, and the delay's number. Some delays in the heap may have
        ended early."""
        self._answers: dict[int, Answer] = {}
        """The answers with messages out, by answer number, in the order of their deadlines."""
        self._tries: dict[int, int] = {}
        """The finished attempts of messages that came back, by VLSN."""

    def __len__(self) -> int:
        """The number of messages that are delivered and not acknowledged yet."""
        return len(self.table) - self.delayed

    # Attempts.

    def tried(self, vlsn: int, noted: Tries) -> int:
        """Returns how many attempts of a message are finished, 0 if none is known."""
        tried = self._tries.get(vlsn)
        return noted.of(vlsn) if tried is None else tried

    def has_tried(self, noted: Tries) -> bool:
        """Returns whether any message has been delivered before."""
        return bool(self._tries) or len(noted.vlsns) > 0

    def attempts(self, vlsns: Vlsns, noted: Tries) -> dict[int, int]:
        """Returns the number of attempts for each message. If a message is out, its present attempt is included."""
        mask, numbers = self.table.answers_of(vlsns)
        found = dict[int, int]()
        for vlsn, number in zip(vlsns[mask].tolist(), numbers.tolist(), strict=True):
            answer = self._answers.get(number)
            found[vlsn] = self.tried(vlsn, noted) if answer is None else answer.attempts.get(vlsn, 1)
        return found | {vlsn: self.tried(vlsn, noted) for vlsn in vlsns[~mask].tolist()}

    def learn(self, vlsns: Vlsns, noted: Tries) -> dict[int, int]:
        """Copies attempts from ``noted`` (the table of acknowledgements) for messages that have none here, and
        returns them."""
        new = {vlsn: noted.of(vlsn) for vlsn in vlsns.tolist() if vlsn not in self._tries}
        self._tries |= new
        return new

    def end_attempts(self, attempts: dict[int, int]) -> None:
        """Stores the attempts of messages that came back. Above ``TRIES_MAX`` messages the oldest counts are
        forgotten."""
        self._tries |= attempts
        while len(self._tries) > TRIES_MAX:
            del self._tries[next(iter(self._tries))]

    def forget_attempts(self, vlsns: VlsnSet) -> None:
        if self._tries:
            for vlsn in vlsns.vlsns().tolist():
                self._tries.pop(vlsn, None)

    # Hand-out.

    def hand_out(self, found: Found, vlsns: Vlsns, noted: Tries, deadline: float) -> tuple[int, dict[int, int]]:
        """Marks the messages of ``found`` as out. Returns the answer's number, and each attempt above 1."""
        attempts = dict[int, int]()
        if self.has_tried(noted):
            attempts = {vlsn: tried + 1 for vlsn in vlsns.tolist() if (tried := self.tried(vlsn, noted))}
        number = next(self._numbers)
        before = found.before[0] if len(found.before) == 1 else np.concatenate(found.before)
        self.table.add(vlsns, before, found.all_keys(), answer=number, owner=found.owner or number)
        self._answers[number] = Answer(deadline, len(vlsns), attempts)
        return number, attempts

    def delay(self, back: Removed, delays_s: Sequence[float], now_s: float) -> bool:
        """Delays messages that came back; each has its own delay, and 0 means none. Returns whether any message has
        to wait."""
        rows: dict[float, list[int]] = {}
        for row, delay_s in enumerate(delays_s):
            if delay_s > 0:
                rows.setdefault(delay_s, []).append(row)
        for delay_s, some in rows.items():
            number = next(self._numbers)
            self.table.add(back.vlsns[some], back.before[some], back.keys[some], answer=number, owner=NOBODY)
            self._delays[number] = len(some)
            self.delayed += len(some)
            if len(self._due) > 2 * len(self._delays) + _SPARE:
                self._due = [each for each in self._due if each[1] in self._delays]
                heapify(self._due)
            heappush(self._due, (now_s + delay_s, number))
        return bool(rows)

    # Returned messages.

    def shorten(self, deadline: float) -> None:
        """Moves every later deadline to ``deadline``."""
        for answer in self._answers.values():  # all deadlines are shortened alike, so their order does not change
            answer.deadline = min(answer.deadline, deadline)

    def late(self, now_s: float) -> I64:
        """Returns the messages of the first answer if its deadline has passed, otherwise an empty array."""
        number = next(iter(self._answers), None)
        if number is None or self._answers[number].deadline > now_s:
            return np.empty(0, np.int64)
        return self.table.vlsns_of(number)

    def due(self, now_s: float) -> I64:
        """Returns each message whose delay has ended since the last call."""
        numbers = []
        while self._due and self._due[0][0] <= now_s:
            number = heappop(self._due)[1]
            if number in self._delays:
                numbers.append(number)
        return self.table.vlsns_of(*numbers) if numbers else np.empty(0, np.int64)

    def acknowledge(self, vlsns: VlsnSet) -> Removed:
        removed = self.table.remove_set(vlsns)
        self._came_in(removed)
        self.forget_attempts(vlsns)
        return removed

    def take_back(self, vlsns: Vlsns) -> list[Removed]:
        """Takes back messages as if they had not been delivered. Returns two groups: the messages themselves, and the
        later messages of their keys."""
        removed = self.table.remove(vlsns)
        if not len(removed):
            return [removed]
        later = self.table.remove(np.sort(self.table.later(removed.keys, removed.vlsns)))
        for each in (removed, later):
            self._use_no_attempt(each)
            self._came_in(each)
        return [removed, later]

    def _use_no_attempt(self, removed: Removed) -> None:
        for number in np.unique(removed.answers).tolist():
            answer = self._answers.get(number)
            if answer is not None and (attempts := answer.attempts):
                back = removed.vlsns[removed.answers == number].tolist()
                self._tries |= {vlsn: attempts[vlsn] - 1 for vlsn in back if vlsn in attempts}

    def _came_in(self, removed: Removed) -> None:
        if not len(removed):
            return
        if (removed.answers == removed.answers[0]).all():
            known = [(int(removed.answers[0]), len(removed))]
        else:
            numbers, counts = np.unique(removed.answers, return_counts=True)
            known = list(zip(numbers.tolist(), counts.tolist(), strict=True))
        for number, count in known:
            if number in self._delays:
                self.delayed -= count
                self._delays[number] -= count
                if not self._delays[number]:
                    del self._delays[number]
                continue
            answer = self._answers[number]
            answer.left -= count
            if not answer.left:
                del self._answers[number]
