"""The history of a run, and its judgement.

Every append carries a number of its own in the first 16 hex digits of its value; the rest of the value
follows from the number, so that a wrong byte is seen without keeping values.  An append ends as

    ok       acknowledged at a VLSN                      it must be there, at that VLSN, on every node
    refused  the answer says that nothing was logged     it must be nowhere
    unknown  no answer, or one that says so              it may be there, once, or not

The judgement of one node's log, read from the first VLSN of interest on:  1. every ok append of that range
is at its VLSN;  2. no refused number occurs;  3. no number occurs twice;  4. no number occurs that nobody
sent;  5. VLSNs rise;  6. every value is whole.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FILLER = "abcdefghijklmnopqrstuvwxyz0123456789" * 8
VALUE_BYTES = 100

Column = np.ndarray[Any, np.dtype[np.uint64]]


def value_of(number: int, *, size: int = VALUE_BYTES) -> str:
    """Returns the value that append ``number`` carries; ``size`` at most 250."""
    at = number % 36
    return f"{number:016x}" + _FILLER[at : at + size - 16]


def number_of(value: str) -> int | None:
    """Returns the append that ``value`` belongs to, None when it is not whole."""
    try:
        number = int(value[:16], 16)
    except ValueError:
        return None
    return number if value == value_of(number, size=len(value)) and len(value) == VALUE_BYTES else None


@dataclass(frozen=True, slots=True)
class Violation:
    """A breach of a rule: which one, on which node, at which VLSN, for which append."""

    rule: str
    node: str
    vlsn: int
    number: int

    def __str__(self) -> str:
        return f"{self.rule} on {self.node} at VLSN {self.vlsn} (append {self.number:016x})"


class History:
    """Outcomes, 16 bytes an acknowledged append.  Any thread may note its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._ok_vlsns = array("Q")
        self._ok_numbers = array("Q")
        self._refused = array("Q")
        self._unknown = array("Q")

    def sent(self) -> int:
        """Returns the number of an append that is about to be sent. Exactly one outcome must follow."""
        with self._lock:
            number = self._next
            self._next += 1
            return number

    def ok(self, number: int, vlsn: int) -> None:
        self._ok_vlsns.append(vlsn)
        self._ok_numbers.append(number)

    def refused(self, number: int) -> None:
        self._refused.append(number)

    def unknown(self, number: int) -> None:
        self._unknown.append(number)

    @property
    def counts(self) -> tuple[int, int, int]:
        """ok, refused, unknown."""
        return len(self._ok_vlsns), len(self._refused), len(self._unknown)

    @property
    def open(self) -> int:
        """Appends sent that have no outcome yet."""
        return self._next - 1 - sum(self.counts)

    @property
    def last_acknowledged(self) -> int:
        """The highest VLSN that anyone was told."""
        return max(self._ok_vlsns, default=0)

    def judge(self, node: str, log: LogRead) -> list[Violation]:
        """Lists what ``log``, as ``node`` gave it, breaks; leaves out acknowledged appends below ``log.from_vlsn``."""
        vlsns, numbers = log.columns()
        found = [Violation("value-not-whole", node, vlsn, 0) for vlsn in log.broken]
        found += _each("vlsn-not-rising", node, vlsns[1:], numbers[1:], vlsns[1:] <= vlsns[:-1])
        found += self._judge_acknowledged(node, log.from_vlsn, vlsns, numbers)
        refused = np.array(self._refused, dtype=np.uint64)
        found += _each("refused-but-there", node, vlsns, numbers, np.isin(numbers, refused))
        found += _each("never-sent", node, vlsns, numbers, numbers >= self._next)
        order = np.argsort(numbers, kind="stable")
        doubled = np.zeros(len(numbers), dtype=bool)
        doubled[order[1:]] = numbers[order][1:] == numbers[order][:-1]
        return found + _each("there-twice", node, vlsns, numbers, doubled)

    def _judge_acknowledged(self, node: str, from_vlsn: int, vlsns: Column, numbers: Column) -> list[Violation]:
        ok_vlsns = np.array(self._ok_vlsns, dtype=np.uint64)
        ok_numbers = np.array(self._ok_numbers, dtype=np.uint64)
        wanted = ok_vlsns >= from_vlsn
        ok_vlsns, ok_numbers = ok_vlsns[wanted], ok_numbers[wanted]
        rising = np.argsort(vlsns, kind="stable")
        at = np.searchsorted(vlsns, ok_vlsns, sorter=rising)
        inside = at < len(vlsns)
        place = rising[np.where(inside, at, 0)] if len(vlsns) else np.zeros(len(at), dtype=np.int64)
        there = inside & (vlsns[place] == ok_vlsns) if len(vlsns) else np.zeros(len(at), dtype=bool)
        lost = _each("acknowledged-but-lost", node, ok_vlsns, ok_numbers, ~there)
        if not len(vlsns):
            return lost
        return lost + _each(
            "another-value-at-its-vlsn", node, ok_vlsns, ok_numbers, there & (numbers[place] != ok_numbers)
        )


@dataclass(slots=True)
class LogRead:
    """A node's DATA entries from ``from_vlsn`` on, as (VLSN, number) columns."""

    from_vlsn: int
    broken: list[int] = field(default_factory=list)
    """VLSNs of values that no append carries."""
    _vlsns: array[int] = field(default_factory=lambda: array("Q"))
    _numbers: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, entries: Iterable[tuple[int, str]]) -> None:
        for vlsn, value in entries:
            number = number_of(value)
            if number is None:
                self.broken.append(vlsn)
            else:
                self._vlsns.append(vlsn)
                self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._vlsns) + len(self.broken)

    def columns(self) -> tuple[Column, Column]:
        return np.array(self._vlsns, dtype=np.uint64), np.array(self._numbers, dtype=np.uint64)


def differing(logs: Sequence[tuple[str, LogRead]]) -> list[Violation]:
    """Lists where logs, all read up to one VLSN, differ from the first: one finding a node."""
    (_, first), *others = logs
    vlsns, numbers = first.columns()
    found = []
    for node, log in others:
        their_vlsns, their_numbers = log.columns()
        size = min(len(vlsns), len(their_vlsns))
        apart = (vlsns[:size] != their_vlsns[:size]) | (numbers[:size] != their_numbers[:size])
        if apart.any():
            at = int(apart.argmax())
            found.append(Violation("differs-from-first", node, int(their_vlsns[at]), int(their_numbers[at])))
        elif len(vlsns) != len(their_vlsns):
            longer = vlsns if len(vlsns) > size else their_vlsns
            found.append(Violation("length-differs-from-first", node, int(longer[size]), 0))
    return found


_SHOWN_MAX = 5


def _each(
    rule: str, node: str, vlsns: Column, numbers: Column, broken: np.ndarray[Any, np.dtype[np.bool_]]
) -> list[Violation]:
    """Returns the first few places where ``broken`` holds."""
    at = np.flatnonzero(broken)[:_SHOWN_MAX]
    return [Violation(rule, node, int(vlsns[each]), int(numbers[each])) for each in at]
