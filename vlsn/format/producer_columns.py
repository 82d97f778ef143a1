"""The producer columns: the producer of each submission of a block, and the submission's sequence.

    0                  8 s                16 s              20 s, padded to 8
    | id u64[s]         | sequence u64[s]  | count u32[s]    |                   s = submissions

The producer columns are placed after ``txns`` (``columns.py``), and exist only if a submission has a producer. A
submission without a producer has id 0 and sequence 0. Counts are the submissions' numbers of entries, at least 1 each,
and add up to the block's count. A producer's sequences begin at 0 and rise by one with each of its submissions.

    Example: ids 7 0 7, sequences 4 0 5, counts 1 3 2, from VLSN 10 on: 7/4 is VLSN 10, and 7/5 is VLSNs 14 and 15.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from struct import Struct
from typing import TypeAlias

from vlsn.errors import BadBody
from vlsn.format.columns import SMALL_COLUMN, check_zero, producer_bytes
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Buffer

SEQUENCE_MAX = NUMBER_MAX - 2
HANDLE_SEQUENCE = NUMBER_MAX - 1
"""The sequence of a transaction with a handle; the handle is stored in place of the producer's id. No client uses a
sequence that high."""
PRODUCER_BYTES = 24
"""The bytes of the producer columns of one submission, with padding. Each further submission needs fewer bytes."""
_ONE = Struct("<QQII")

assert _ONE.size == PRODUCER_BYTES == producer_bytes(1)


Produced: TypeAlias = tuple[int, int, int, int, int]
"""One submission of a producer in the log: producer, sequence, first and last VLSN, term. A submission is a plain
tuple, since a block may have thousands of submissions."""


def columns(producers: Sequence[int], sequences: Sequence[int], counts: Sequence[int]) -> bytes:
    """Packs the three producer columns of a block, or of a batch, which has only one submission."""
    submissions = len(counts)
    assert submissions and any(producers), "producer columns without a producer"
    if submissions == 1:
        return _ONE.pack(producers[0], sequences[0], counts[0], 0)
    if submissions <= SMALL_COLUMN:
        return _small(submissions).pack(*producers, *sequences, *counts)
    return b"".join((array("Q", producers), array("Q", sequences), array("I", counts), bytes(-4 * submissions & 7)))


def one(buf: Buffer, at: int, count: int, sequence_max: int = HANDLE_SEQUENCE) -> tuple[int, int]:
    """Reads the producer and the sequence of a single submission of ``count`` entries. The producer columns are at
    ``at``. Raises ``BadBody``."""
    producer, sequence, entries, zero = _ONE.unpack_from(buf, at)
    if not producer or sequence > sequence_max or entries != count or zero:
        raise BadBody(f"producer {producer:#x}, sequence {sequence}, of {entries} entries in {count}")
    return producer, sequence


def check(buf: Buffer, at: int, submissions: int, count: int) -> None:
    """Checks the producer columns at ``at``. Raises ``BadBody`` if a block of ``count`` entries cannot have them."""
    if submissions == 1:
        one(buf, at, count)
        return
    producers, sequences, counts = _read(buf, at, submissions)
    if sum(counts) != count or not all(counts):
        raise BadBody(f"producer columns whose counts are not {count} in all, or 0")
    if not any(producers) or max(sequences) > HANDLE_SEQUENCE or (0 in producers and _of_nobody(producers, sequences)):
        raise BadBody("producer columns without a producer, or a sequence without a producer")
    check_zero(buf, at + 20 * submissions, at + producer_bytes(submissions))


def _of_nobody(producers: Sequence[int], sequences: Sequence[int]) -> bool:
    """Returns whether all submissions without a producer have sequence 0."""
    return any(sequence for producer, sequence in zip(producers, sequences, strict=True) if not producer)


def produced(buf: Buffer, at: int, submissions: int, first_vlsn: int, term: int) -> list[Produced]:
    """Lists, in order, the submissions with a producer of a checked block that begins with ``first_vlsn``."""
    producers, sequences, counts = _read(buf, at, submissions)
    if submissions == 1:
        return [(producers[0], sequences[0], first_vlsn, first_vlsn + counts[0] - 1, term)]
    firsts = list(accumulate(counts, initial=first_vlsn))
    lasts = [after - 1 for after in firsts[1:]]
    return [row for row in zip(producers, sequences, firsts, lasts, repeat(term), strict=False) if row[0]]


def _read(buf: Buffer, at: int, submissions: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    if submissions <= SMALL_COLUMN:
        words: tuple[int, ...] = _small(submissions).unpack_from(buf, at)
        return words[:submissions], words[submissions : 2 * submissions], words[2 * submissions :]
    view, counts_at = memoryview(buf), at + 16 * submissions
    names: list[int] = view[at:counts_at].cast("Q").tolist()
    counts: list[int] = view[counts_at : counts_at + 4 * submissions].cast("I").tolist()
    return names[:submissions], names[submissions:], counts


@lru_cache(maxsize=SMALL_COLUMN + 1)
def _small(submissions: int) -> Struct:
    return Struct(f"<{2 * submissions}Q{submissions}I{-4 * submissions & 7}x")
