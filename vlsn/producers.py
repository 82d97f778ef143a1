"""Producers: which submissions of whom a log holds, so that none is taken twice.

What it says is a function of the visible log up to a VLSN and of nothing else, so it is the same on every node, after
every change of master, open and rollback:

1. A producer's *life* is a run of its submissions with sequences that rise by one.  Known of it are the next sequence
   and where the last ``remembered`` of them lie.
2. A producer whose last submission lies more than ``silent`` VLSNs back is forgotten, and of more than ``producers``
   the ones that were heard of longest ago.  Whoever was last heard of after ``forgotten_to`` is not among them: to such
   a one "unknown" means "never logged", to another it may mean "forgotten".
3. Above ``settle`` it can be taken back to any VLSN; below that nothing is kept for it.

    appended   A/0 A/1 B/0 A/2 …      A: next 3, A/1 is VLSN 2      B: next 1
               VLSN 1   2   3   4     truncate(3):  A: next 2       settle(2): only VLSN 3 and 4 can be undone

Memory is bounded by ``producers`` × ``remembered`` × 24 bytes, and as many for each submission since ``settle``; a
submission costs some list operations, a record one copy of what is remembered.  Kafka's producer state manager (KIP-98,
KIP-360) is the model; its clocks are not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from vlsn.ids import NULL_VLSN, NUMBER_MAX, Term, Vlsn
from vlsn.limits import PRODUCER_REMEMBERED_MAX, PRODUCER_SILENT_VLSNS, PRODUCERS_MAX
from vlsn.produced import Produced

_LIFE_WORDS = 3


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """The same on every node, or nodes would not agree."""

    producers: int = PRODUCERS_MAX
    remembered: int = PRODUCER_REMEMBERED_MAX
    silent: int = PRODUCER_SILENT_VLSNS


class ProducersRecord(msgspec.Struct, frozen=True):
    """As of a VLSN.  ``lives``, u64 each, whoever was heard of longest ago first: producer, sequence of the first
    submission remembered, how many; then of these the first VLSNs, the last ones, and the terms."""

    forgotten_to: int = 0
    lives: bytes = b""

    def check(self) -> None:
        """Raises ``ValueError`` for lives that cannot be."""
        _read(self.lives)


class ProducerPlace(msgspec.Struct, frozen=True):
    """``next``: the sequence that is due; the VLSNs and the term of the submission before it, 0 where there is none."""

    next: int = 0
    first: int = 0
    last: int = 0
    term: int = 0


class Life:
    """Submissions of one producer, without a hole; the columns are as long as each other."""

    __slots__ = ("_begin", "_firsts", "_lasts", "_terms", "producer")

    def __init__(self, producer: int, sequence: int) -> None:
        self.producer = producer
        self._begin = sequence
        """The sequence of the first row."""
        self._firsts, self._lasts, self._terms = array("Q"), array("Q"), array("Q")

    @property
    def next(self) -> int:
        """The sequence that is due."""
        return self._begin + len(self._lasts)

    @property
    def last(self) -> int:
        """The last VLSN of its newest submission."""
        return self._lasts[-1]

    def __len__(self) -> int:
        return len(self._lasts)

    def last_of(self, rows: int) -> int:
        """The last VLSN of the first ``rows``."""
        return self._lasts[rows - 1]

    @property
    def rises(self) -> bool:
        """Each submission lies behind the one before."""
        firsts, lasts = (np.frombuffer(column, np.uint64) for column in (self._firsts, self._lasts))
        rising = (firsts <= lasts).all() and (lasts[:-1] < firsts[1:]).all()
        return bool(rising) and self._firsts[0] > 0 and self._lasts[-1] <= NUMBER_MAX

    def place(self, sequence: int, remembered: int) -> tuple[Vlsn, Vlsn, Term] | None:
        """First and last VLSN and term of one of the last ``remembered`` submissions; None for any other."""
        row = sequence - self._begin
        if not max(0, len(self._lasts) - remembered) <= row < len(self._lasts):
            return None
        return Vlsn(self._firsts[row]), Vlsn(self._lasts[row]), Term(self._terms[row])

    def as_of(self, vlsn: int) -> ProducerPlace:
        """What is known of it at ``vlsn``."""
        rows = self.upto(vlsn)
        if not rows:
            return ProducerPlace(self._begin)
        row = rows - 1
        return ProducerPlace(self._begin + rows, self._firsts[row], self._lasts[row], self._terms[row])

    def add(self, first: int, last: int, term: int) -> None:
        self._firsts.append(first)
        self._lasts.append(last)
        self._terms.append(term)

    def upto(self, vlsn: int) -> int:
        """How many of its rows lie at or before ``vlsn``."""
        return bisect_right(self._lasts, vlsn)

    def keep(self, start: int, end: int) -> None:
        """Only rows ``start`` to ``end`` (exclusive) stay."""
        if start or end < len(self):
            # Other columns, for what was asked of ``rows`` before still reads these.
            columns = (self._firsts, self._lasts, self._terms)
            self._firsts, self._lasts, self._terms = (column[start:end] for column in columns)
            self._begin += start

    def rows(self, start: int, end: int) -> Callable[[], bytes]:
        """Gives rows ``start`` to ``end`` (exclusive) as a record has them, on any thread, whatever comes and goes
        meanwhile."""
        head = array("Q", (self.producer, self._begin + start, end - start))
        columns = (self._firsts, self._lasts, self._terms)
        # Slices, not views: an array of which there is a view cannot grow.
        return lambda: b"".join((head, *(column[start:end] for column in columns)))

    @classmethod
    def of(cls, words: array[int]) -> Life:
        life = cls(words[0], words[1])
        count = words[2]
        life._firsts, life._lasts, life._terms = (
            words[at : at + count] for at in range(_LIFE_WORDS, _LIFE_WORDS + 3 * count, count)
        )
        return life


@dataclass(frozen=True, slots=True)
class _Ended:
    """A life that was over when the submission at VLSN ``at`` came; ``evicted_to`` as it was before."""

    at: int
    life: Life
    evicted_to: int


class Producers:
    """The table of one log, as of the last VLSN noted."""

    def __init__(self, record: ProducersRecord | None = None, limits: ProducerLimits | None = None) -> None:
        self.limits = limits or ProducerLimits()
        record = record or ProducersRecord()
        self._lives = {life.producer: life for life in _read(record.lives)}
        """Whoever was heard of longest ago first."""
        self._evicted_to = record.forgotten_to
        self._ended: list[_Ended] = []
        self._settled = max((life.last for life in self._lives.values()), default=0)

    def __len__(self) -> int:
        """How many producers are kept, the silent ones that nobody has made room of yet included."""
        return len(self._lives)

    # What is known, with ``at`` the next VLSN to be given.

    def find(self, producer: int, *, at: int) -> Life | None:
        life = self._lives.get(producer)
        return life if life is not None and life.last + self.limits.silent >= at else None

    def place(self, life: Life, sequence: int) -> tuple[Vlsn, Vlsn, Term] | None:
        """Where a submission lies; None where it is not remembered any more, or has not come yet."""
        return life.place(sequence, self.limits.remembered)

    def forgotten_to(self, *, at: int) -> Vlsn:
        """No submission after it was forgotten."""
        return Vlsn(max(self._evicted_to, at - self.limits.silent - 1, NULL_VLSN))

    # What changes it.

    def note(self, rows: Iterable[Produced]) -> None:
        """Submissions that follow on those noted before, in log order."""
        lives, silent = self._lives, self.limits.silent
        for producer, sequence, first, last, term in rows:
            life = lives.pop(producer, None)
            if life is None or life.next != sequence or life.last + silent < first:
                life = self._begin(producer, sequence, first, life)
            life.add(first, last, term)
            lives[producer] = life

    def _begin(self, producer: int, sequence: int, at: int, before: Life | None) -> Life:
        if before is not None:
            self._ended.append(_Ended(at, before, self._evicted_to))
        while len(self._lives) >= self.limits.producers:
            oldest = self._lives.pop(next(iter(self._lives)))
            self._ended.append(_Ended(at, oldest, self._evicted_to))
            self._evicted_to = max(self._evicted_to, oldest.last)
        return Life(producer, sequence)

    def forget_before(self, vlsn: Vlsn) -> None:
        """What lies before ``vlsn`` was never noted here."""
        self._evicted_to = max(self._evicted_to, vlsn - 1)

    def settle(self, vlsn: Vlsn) -> None:
        """Everything up to ``vlsn`` stays for ever."""
        self._settled = max(self._settled, vlsn)
        self._ended = [ended for ended in self._ended if ended.at > vlsn]
        for life in (*self._lives.values(), *(ended.life for ended in self._ended)):
            spare = life.upto(vlsn) - self.limits.remembered
            if spare > 0:
                life.keep(spare, len(life))

    def truncate(self, last: Vlsn) -> None:
        """Undoes what came after ``last``.  Below what was settled (an operator's truncation) not all can be known any
        more, and whoever was heard of up to ``last`` only may be forgotten."""
        lives, evicted_to = self._as_of(last)
        for life in lives:
            life.keep(0, life.upto(last))
        self._lives = {life.producer: life for life in lives}
        self._ended = [ended for ended in self._ended if ended.at <= last]
        self._evicted_to = evicted_to if last >= self._settled else max(evicted_to, last)
        self._settled = min(self._settled, last)

    def record(self, vlsn: Vlsn) -> ProducersRecord:
        """All of it as of ``vlsn``, for a checkpoint."""
        return self.snapshot(vlsn)()

    def snapshot(self, vlsn: Vlsn) -> Callable[[], ProducersRecord]:
        """The same, put together by the call of what is returned, on any thread, for its 24 MiB take long."""
        lives, forgotten_to = self._as_of(vlsn)
        if vlsn < self._settled:
            forgotten_to = max(forgotten_to, vlsn)
        remembered = self.limits.remembered
        ends = [life.upto(vlsn) for life in lives]
        parts = [life.rows(max(0, end - remembered), end) for life, end in zip(lives, ends, strict=True)]
        return lambda: ProducersRecord(forgotten_to, b"".join([part() for part in parts]))

    def _as_of(self, vlsn: int) -> tuple[list[Life], int]:
        """The lives that were there at ``vlsn``, later rows of theirs included, and what had been evicted by then."""
        undone = [ended for ended in self._ended if ended.at > vlsn]
        lives = [*self._lives.values(), *(ended.life for ended in undone)]
        placed = [(life.upto(vlsn), life) for life in lives]
        heard = sorted(((life.last_of(rows), life) for rows, life in placed if rows), key=lambda pair: pair[0])
        return [life for _, life in heard], undone[0].evicted_to if undone else self._evicted_to


def _read(lives: bytes) -> list[Life]:
    """Raises ``ValueError`` for bytes that are no record's."""
    words = array("Q")
    words.frombytes(lives)
    found: list[Life] = []
    at = heard = 0
    while at < len(words):
        producer, begin, count = words[at : at + _LIFE_WORDS] if at + _LIFE_WORDS <= len(words) else (0, 0, 0)
        end = at + _LIFE_WORDS + 3 * count
        if not producer or not count or end > len(words) or begin + count > NUMBER_MAX:
            raise ValueError(f"producers: {count} submissions from {begin} on of producer {producer:#x}")
        life = Life.of(words[at:end])
        if not life.rises or life.last <= heard:
            raise ValueError(f"producers: the submissions of producer {producer:#x} are out of order")
        found.append(life)
        at, heard = end, life.last
    if len({life.producer for life in found}) < len(found):
        raise ValueError("producers: one twice")
    return found
