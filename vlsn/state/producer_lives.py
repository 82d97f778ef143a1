"""Lives of producers. The life of a producer (a client that sends numbered submissions) has the producer's remembered
submissions, in memory or encoded as bytes.

    bytes   u64 each: producer, sequence of the first row, rows n; then n first VLSNs, n last ones, n terms

Columns of a life are only appended to. To forget rows, or to roll back rows that were copied for a checkpoint, a life
makes new columns. So the holder of a copy (``Rows``) may read it on any thread, as of any VLSN up to that of the copy.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

import msgspec
import numpy as np

from vlsn.format.producer_columns import Produced
from vlsn.ids import NUMBER_MAX, Term, Vlsn
from vlsn.limits import (
    PRODUCER_REMEMBERED_LEAST,
    PRODUCER_REMEMBERED_MAX,
    PRODUCER_SILENT_VLSNS,
    PRODUCERS_AT_LEVEL_1,
    PRODUCERS_RECENT,
)
from vlsn.seams import Buffer
from vlsn.state.producer_place import ProducerPlace as ProducerPlace

HEAD = Struct("<QQQ")
WORD = 8
_HEAD_WORDS = 3
_NEVER: array[int] = array("Q")
"""The crossings of a producer that never left the set of recent producers. This shared array must never be appended
to."""
SPARE_ROWS = 8
"""The most rows that a life may have beyond the remembered ones. With more rows, the columns are copied without
them."""


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """The limits of the table of producers. The limits must be the same on every node; otherwise the nodes' tables
    would differ. The *recent* producers are the ``recent`` ones with the newest submissions. Of a recent producer, the
    last ``remembered`` submissions are remembered. Of any other producer, the last ``least`` submissions are
    remembered."""

    producers: int = PRODUCERS_AT_LEVEL_1
    """The limit on the number of producers, unless an entry of the log has set another (``Producers.limit_from``)."""
    remembered: int = PRODUCER_REMEMBERED_MAX
    silent: int = PRODUCER_SILENT_VLSNS
    recent: int = PRODUCERS_RECENT
    least: int = PRODUCER_REMEMBERED_LEAST


class Rows(msgspec.Struct, frozen=True, gc=False):
    """Consecutive submissions of one producer. All columns have the same length, and have at least one row. Objects of
    this class are excluded from garbage collection, which would pause the process to visit them. Such an object is in
    no reference cycle."""

    begin: int
    """The sequence of the submission in the first row."""
    firsts: array[int]
    lasts: array[int]
    terms: array[int]
    crossed: array[int] = _NEVER
    """The VLSNs at which the producer left the set of recent producers, ascending."""

    def upto(self, vlsn: int) -> int:
        """Returns the number of rows whose VLSN is at or before ``vlsn``."""
        return bisect_right(self.lasts, vlsn)

    def start(self, end: int, vlsn: int, limits: ProducerLimits) -> int:
        """Returns the index of the first row that is remembered as of ``vlsn``. The life had ``end`` rows at that
        VLSN."""
        start = max(0, end - limits.remembered)
        if self.crossed and (times := bisect_right(self.crossed, vlsn)):
            start = max(start, self.upto(self.crossed[times - 1]) - limits.least)
        return start

    def cut(self, start: int, end: int, settled: int, upto: int) -> Rows:
        """Copies rows ``start`` to ``end`` (exclusive), which begin at or before VLSN ``settled``. Also copies the
        crossings (the VLSNs at which the producer left the recent ones) up to ``upto``."""
        times = bisect_right(self.crossed, settled)
        crossed = self.crossed[max(0, times - 1) : bisect_right(self.crossed, upto)]
        firsts, lasts, terms = (column[start:end] for column in (self.firsts, self.lasts, self.terms))
        return Rows(self.begin + start, firsts, lasts, terms, crossed or _NEVER)

    def encode(self, producer: int, start: int, end: int) -> bytes:
        head = HEAD.pack(producer, self.begin + start, end - start)
        return b"".join((head, self.firsts[start:end], self.lasts[start:end], self.terms[start:end]))


Part: TypeAlias = "tuple[int, array[int], array[int], array[int]] | None"
"""The columns of consecutive submissions, after the sequence of the first submission. None if there are no
submissions."""


class Life(msgspec.Struct, gc=False, eq=False):
    """The life of one producer: its submissions with consecutive sequences."""

    producer: int
    rows: Rows

    @classmethod
    def begun(cls, producer: int, sequence: int, first: int, last: int, term: int) -> Life:
        return cls(producer, Rows(sequence, array("Q", (first,)), array("Q", (last,)), array("Q", (term,))))

    @property
    def next(self) -> int:
        """The sequence that the producer's next submission must have."""
        return self.rows.begin + len(self.rows.lasts)

    @property
    def last(self) -> int:
        """The last VLSN of the newest submission."""
        return self.rows.lasts[-1]

    def __len__(self) -> int:
        return len(self.rows.lasts)

    def place(self, sequence: int, limits: ProducerLimits) -> tuple[Vlsn, Vlsn, Term] | None:
        """Returns the first VLSN, the last VLSN and the term of submission ``sequence``. Returns None if that
        submission is not remembered."""
        rows, row = self.rows, sequence - self.rows.begin
        if not rows.start(len(self), NUMBER_MAX, limits) <= row < len(self):
            return None
        return Vlsn(rows.firsts[row]), Vlsn(rows.lasts[row]), Term(rows.terms[row])

    def as_of(self, vlsn: int) -> ProducerPlace:
        """Returns the producer's place as of ``vlsn``."""
        rows, end = self.rows, self.rows.upto(vlsn)
        if not end:
            return ProducerPlace(rows.begin)
        return ProducerPlace(rows.begin + end, rows.firsts[end - 1], rows.lasts[end - 1], rows.terms[end - 1])

    def cross(self, vlsn: int) -> None:
        """Notes that from ``vlsn`` on the producer is not a recent one."""
        if self.rows.crossed is _NEVER:
            self.rows = msgspec.structs.replace(self.rows, crossed=array("Q", (vlsn,)))
        else:
            self.rows.crossed.append(vlsn)

    def behind(self, vlsn: int) -> list[Produced]:
        """Lists the submissions after ``vlsn``."""
        rows, start = self.rows, self.rows.upto(vlsn)
        places = zip(rows.firsts[start:], rows.lasts[start:], rows.terms[start:], strict=True)
        return [(self.producer, rows.begin + row, *place) for row, place in enumerate(places, start)]

    def part(self, after: int, upto: int, limits: ProducerLimits) -> Part:
        """Returns the remembered submissions after VLSN ``after`` and up to VLSN ``upto``."""
        rows = self.rows
        end = rows.upto(upto)
        start = max(rows.upto(after), rows.start(end, upto, limits))
        if start >= end:
            return None
        return rows.begin + start, rows.firsts[start:end], rows.lasts[start:end], rows.terms[start:end]

    def truncate(self, last: int, *, apart: bool) -> None:
        """Undoes the submissions after ``last``. With ``apart``, the rows are copied first, so that present holders of
        rows see no change."""
        rows, end = self.rows, self.rows.upto(last)
        if apart or end < len(self) or (rows.crossed and rows.crossed[-1] > last):
            self.rows = rows.cut(0, end, 0, last)

    def forget_spare(self, settled: int, limits: ProducerLimits) -> None:
        """Forgets the rows that no VLSN above ``settled`` needs, once there are enough of these rows to be worth a
        copy."""
        end = self.rows.upto(settled)
        if end > SPARE_ROWS:
            spare = self.rows.start(end, settled, limits)
            if spare > SPARE_ROWS:
                self.rows = self.rows.cut(spare, len(self), settled, NUMBER_MAX)


def read_lives(lives: bytes) -> list[Life]:
    """Decodes the concatenated lives of several producers, which are ordered by their last submissions, oldest first.
    Raises ``ValueError`` for bytes that are not such lives."""
    words = array("Q")
    words.frombytes(lives)
    found: list[Life] = []
    starts, counts = [], []
    at, size = 0, len(words)
    while at < size:
        producer, begin, count = words[at : at + _HEAD_WORDS] if at + _HEAD_WORDS <= size else (0, 0, 0)
        rows = at + _HEAD_WORDS
        if not producer or not 0 < count <= (size - rows) // 3 or begin + count > NUMBER_MAX:
            raise ValueError(f"producers: {count} submissions from {begin} on of producer {producer:#x}")
        ends = rows + count, rows + 2 * count
        at = rows + 3 * count
        found.append(Life(producer, Rows(begin, words[rows : ends[0]], words[ends[0] : ends[1]], words[ends[1] : at])))
        starts.append(rows)
        counts.append(count)
    _check_order(np.frombuffer(lives, "<u8"), found, np.array(starts, np.int64), np.array(counts, np.int64))
    if len({life.producer for life in found}) < len(found):
        raise ValueError("producers: one twice")
    return found


def _check_order(
    words: np.ndarray[tuple[int], np.dtype[np.uint64]],
    found: list[Life],
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    counts: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> None:
    """Checks that each submission is after the previous one of its producer, and that lives are ordered by their last
    submissions. Raises ``ValueError`` if not."""
    if not found:
        return
    total = int(counts.sum())
    begins = np.cumsum(counts) - counts
    at = np.arange(total) + np.repeat(starts - begins, counts)
    firsts, lasts = words[at], words[at + np.repeat(counts, counts)]
    wrong = (firsts > lasts) | (firsts == 0) | (lasts > NUMBER_MAX)
    wrong[1:] |= lasts[:-1] >= firsts[1:]
    wrong[begins[1:]] = (firsts > lasts)[begins[1:]] | (firsts == 0)[begins[1:]] | (lasts > NUMBER_MAX)[begins[1:]]
    newest = lasts[begins + counts - 1]
    order = np.concatenate(([False], newest[1:] <= newest[:-1]))
    bad = np.logical_or.reduceat(wrong, begins) | order
    if bad.any():
        producer = found[int(np.argmax(bad))].producer
        raise ValueError(f"producers: the submissions of producer {producer:#x} are out of order")


def split_lives(lives: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields each producer with the bytes of its life. ``lives`` must be bytes that ``read_lives`` can decode."""
    at = 0
    while at < len(lives):
        producer, _, count = HEAD.unpack_from(lives, at)
        end = at + HEAD.size + 3 * WORD * count
        yield producer, lives[at:end]
        at = end


def last_of(life: Buffer) -> int:
    """Returns the last VLSN of the encoded ``life``, or 0 if the bytes are too short to contain one."""
    if len(life) < HEAD.size:
        return 0
    count = HEAD.unpack_from(life)[2]
    at = (_HEAD_WORDS + 2 * count - 1) * WORD
    return int.from_bytes(life[at : at + WORD], "little")
