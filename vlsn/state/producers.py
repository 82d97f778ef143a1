"""Producers: which submissions of whom a log holds, so that none is taken twice.

What it says is a function of the visible log up to a VLSN and of nothing else, so it is the same on every node, after
every change of master, open and rollback:

1. A producer's *life* is a run of its submissions with sequences that rise by one.  Known of it are the next sequence
   and where the last ``remembered`` of them lie.
2. A producer whose last submission lies more than ``silent`` VLSNs back is forgotten, and of more than ``producers``
   the ones that were heard of longest ago.  Whoever was last heard of after ``forgotten_to`` is not among them: to such
   a one "unknown" means "never logged", to another it may mean "forgotten".
3. Above ``settle`` it can be taken back to any VLSN; below that nothing is kept for it.
4. A log that was cleaned, and has lost its state record, has noted nothing up to ``lacks_to``.  Until another copy of
   the table has filled that in, "unknown" and "not remembered" mean nothing there.

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
from operator import itemgetter

import msgspec
import numpy as np

from vlsn.format.producer_columns import Produced
from vlsn.ids import NULL_VLSN, NUMBER_MAX, Term, Vlsn
from vlsn.limits import PRODUCER_REMEMBERED_MAX, PRODUCER_SILENT_VLSNS, PRODUCERS_MAX

_LIFE_WORDS = 3


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """The same on every node, or nodes would not agree."""

    producers: int = PRODUCERS_MAX
    remembered: int = PRODUCER_REMEMBERED_MAX
    silent: int = PRODUCER_SILENT_VLSNS


class ProducersRecord(msgspec.Struct, frozen=True):
    """The producers as of a VLSN. ``lives``, u64 each, whoever was heard of longest ago first: producer, sequence of
    the first submission remembered, how many; then of these the first VLSNs, the last ones, and the terms."""

    forgotten_to: int = 0
    lives: bytes = b""
    lacks_to: int = 0
    """Nothing up to this VLSN is in it, though there may have been something; absent in older records."""

    def check(self) -> None:
        """Raises ``ValueError`` for lives that cannot be."""
        _read(self.lives)


class ProducerPlace(msgspec.Struct, frozen=True):
    """The place of a producer: ``next`` is the sequence that is due, then the submission before it."""

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
        """Returns the last VLSN of the first ``rows``."""
        return self._lasts[rows - 1]

    @property
    def rises(self) -> bool:
        """Each submission lies behind the one before."""
        firsts, lasts = (np.frombuffer(column, np.uint64) for column in (self._firsts, self._lasts))
        rising = (firsts <= lasts).all() and (lasts[:-1] < firsts[1:]).all()
        return bool(rising) and self._firsts[0] > 0 and self._lasts[-1] <= NUMBER_MAX

    def place(self, sequence: int, remembered: int) -> tuple[Vlsn, Vlsn, Term] | None:
        """Returns first and last VLSN and term of one of the last ``remembered`` submissions; None for any other."""
        row = sequence - self._begin
        if not max(0, len(self._lasts) - remembered) <= row < len(self._lasts):
            return None
        return Vlsn(self._firsts[row]), Vlsn(self._lasts[row]), Term(self._terms[row])

    def as_of(self, vlsn: int) -> ProducerPlace:
        """Tells what is known of it at ``vlsn``."""
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
        """Counts its rows at or before ``vlsn``."""
        return bisect_right(self._lasts, vlsn)

    def keep(self, start: int, end: int) -> None:
        """Keeps only rows ``start`` to ``end`` (exclusive)."""
        if start or end < len(self):
            # Other columns, for what was asked of ``rows`` before still reads these.
            columns = (self._firsts, self._lasts, self._terms)
            self._firsts, self._lasts, self._terms = (column[start:end] for column in columns)
            self._begin += start

    def behind(self, vlsn: int) -> list[Produced]:
        """Lists its submissions behind ``vlsn``."""
        start = self.upto(vlsn)
        places = zip(self._firsts[start:], self._lasts[start:], self._terms[start:], strict=True)
        return [(self.producer, self._begin + row, *place) for row, place in enumerate(places, start)]

    def part(self, after: int, upto: int, rows_max: int) -> tuple[int, array[int], array[int], array[int]] | None:
        """Returns its newest submissions of these VLSNs: the sequence of the first one, and their columns."""
        end = self.upto(upto)
        start = max(self.upto(after), end - rows_max)
        if start == end:
            return None
        return self._begin + start, self._firsts[start:end], self._lasts[start:end], self._terms[start:end]

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
        """The lives, the one first that was heard of longest ago."""
        self._evicted_to = record.forgotten_to
        self._ended: list[_Ended] = []
        self.lacks_to = record.lacks_to
        """The VLSN up to which submissions were cleaned away before they were noted; 0 for a whole table."""
        self.settled = max((life.last for life in self._lives.values()), default=self.lacks_to)
        """The VLSN from which on it is exact."""

    def __len__(self) -> int:
        """Counts the producers that are kept, silent ones that nobody has made room of yet included."""
        return len(self._lives)

    # What is known, with ``at`` the next VLSN to be given.

    def find(self, producer: int, *, at: int) -> Life | None:
        life = self._lives.get(producer)
        return life if life is not None and life.last + self.limits.silent >= at else None

    def place(self, life: Life, sequence: int) -> tuple[Vlsn, Vlsn, Term] | None:
        """Finds a submission; None where it is not remembered any more, or has not come yet."""
        return life.place(sequence, self.limits.remembered)

    def forgotten_to(self, *, at: int) -> Vlsn:
        """Returns the VLSN after which no submission was forgotten."""
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
        """Forgets whoever was last heard of before ``vlsn``."""
        self._evicted_to = max(self._evicted_to, vlsn - 1)

    def lose_before(self, vlsn: Vlsn) -> None:
        """Notes that what lies before ``vlsn`` was never noted here, and is in the log no more."""
        self.forget_before(vlsn)
        self.lacks_to = max(self.lacks_to, vlsn - 1)
        self.settled = max(self.settled, self.lacks_to)

    def give_up_lost(self) -> None:
        """Gives up what this table lacks, and nobody has: it is forgotten, as what was put out for room is."""
        self.lacks_to = NULL_VLSN

    def fill(self, known: Producers, vlsn: Vlsn) -> None:
        """Becomes ``known``, another copy's table as of ``vlsn``, with what was noted here behind that.  ``known`` is
        used up.  Raises ``ValueError``, nothing changed, unless it lacks less than this one and says the same of
        everything that this one has noted."""
        if not self.settled <= vlsn:
            raise ValueError(f"producers as of VLSN {vlsn}: what is known here is exact from {self.settled} on")
        if known.lacks_to >= self.lacks_to:
            raise ValueError(f"producers that are lost up to VLSN {known.lacks_to}; here they are to {self.lacks_to}")
        self._compare(known, vlsn)
        lives = (*self._lives.values(), *(ended.life for ended in self._ended))
        known.note(sorted((row for life in lives for row in life.behind(vlsn)), key=itemgetter(2)))
        self._lives, self._ended, self._evicted_to = known._lives, known._ended, known._evicted_to
        self.lacks_to, self.settled = known.lacks_to, vlsn

    def _compare(self, known: Producers, vlsn: Vlsn) -> None:
        """Compares both tables, which are functions of one log. Behind ``lacks_to`` they say the same, as far as it is
        remembered."""
        theirs, remembered = known._lives, self.limits.remembered
        if len(theirs) > self.limits.producers or max(map(len, theirs.values()), default=0) > remembered:
            raise ValueError(f"more than {self.limits.producers} producers, or of one over {remembered} submissions")
        if max(known.settled, known._evicted_to) > vlsn:
            raise ValueError(f"producers as of VLSN {vlsn} that were heard of later")
        mine = {life.producer: life for life in self._as_of(vlsn)[0]}
        for producer in mine.keys() | theirs.keys():
            noted, told = (
                lives[producer].part(self.lacks_to, vlsn, remembered) if producer in lives else None
                for lives in (mine, theirs)
            )
            is_forgotten = producer not in theirs and mine[producer].as_of(vlsn).last <= known._evicted_to
            if noted != told and not is_forgotten:
                raise ValueError(f"producer {producer:016x} has other submissions there than in this log")

    def settle(self, vlsn: Vlsn) -> None:
        """Settles everything up to ``vlsn``, which stays for ever."""
        self.settled = max(self.settled, vlsn)
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
        self._evicted_to = evicted_to if last >= self.settled else max(evicted_to, last)
        self.settled = min(self.settled, last)

    def record(self, vlsn: Vlsn) -> ProducersRecord:
        """Returns all of it as of ``vlsn``, for a checkpoint."""
        return self.snapshot(vlsn)()

    def snapshot(self, vlsn: Vlsn) -> Callable[[], ProducersRecord]:
        """Copies it; the returned call puts it together, on any thread, for its 24 MiB take long."""
        lives, forgotten_to = self._as_of(vlsn)
        if vlsn < self.settled:
            forgotten_to = max(forgotten_to, vlsn)
        remembered, lacks_to = self.limits.remembered, self.lacks_to
        ends = [life.upto(vlsn) for life in lives]
        parts = [life.rows(max(0, end - remembered), end) for life, end in zip(lives, ends, strict=True)]
        return lambda: ProducersRecord(forgotten_to, b"".join([part() for part in parts]), lacks_to)

    def _as_of(self, vlsn: int) -> tuple[list[Life], int]:
        """Returns the lives that were there at ``vlsn``, with later rows, and what had been evicted by then."""
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
