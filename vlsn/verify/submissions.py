"""The submissions of producers as columns, and the pairs of submissions that cannot follow one another.

    A/0 A/1 B/0 A/2       right                 A/0 A/1 A/1       wrong: A/1 is there twice
    A/5 A/6 │ A/7         right: the earlier submissions were cleaned away

A producer that was forgotten may begin again with sequence 0. A producer is forgotten only after ``PRODUCERS_MIN``
other producers have submitted, and so at least that many VLSNs later. A transaction with a handle occurs only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vlsn.format.block_heads import layouts
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.scan import Headers, Offsets
from vlsn.limits import PRODUCERS_MIN
from vlsn.seams import Buffer

PRODUCERS_KEPT: Final = 4_096
"""The most producers of a segment that are compared with other segments."""
PAIRS_MAX: Final = 100
"""The most pairs of submissions that are reported at once."""
ROW: Final = np.dtype([("producer", "<u8"), ("sequence", "<u8"), ("first", "<u8"), ("last", "<u8"), ("offset", "<u8")])
"""One submission. ``offset`` is the offset of its block's frame."""
Submissions = NDArray[np.void]


def submissions_of(buf: Buffer, offsets: Offsets, headers: Headers, base: int = 0) -> Submissions:
    """Returns the submissions that have a producer or a handle, in log order. ``offsets`` are those of the frames; all
    the blocks in these frames must have producers. ``buf`` begins at offset ``base``."""
    counts = headers["submissions"].astype(np.int64)
    begins = np.cumsum(counts) - counts
    number = np.arange(int(counts.sum())) - np.repeat(begins, counts)
    rows = np.empty(len(number), ROW)
    if not len(number):
        return rows
    at = offsets - base + FRAME_BYTES + layouts(headers).producers
    longs, ints = np.frombuffer(buf, "<u8", len(buf) // 8), np.frombuffer(buf, "<u4", len(buf) // 4)
    rows["producer"] = longs[np.repeat(at >> 3, counts) + number]
    rows["sequence"] = longs[np.repeat((at >> 3) + counts, counts) + number]
    entries = ints[np.repeat((at + 16 * counts) >> 2, counts) + number].astype(np.int64)
    before = np.cumsum(entries) - entries
    firsts = before + np.repeat(headers["first_vlsn"].astype(np.int64) - before[begins], counts)
    rows["first"], rows["last"] = firsts, firsts + entries - 1
    rows["offset"] = np.repeat(offsets, counts)
    named: Submissions = rows[rows["producer"] != 0]
    return named


def by_producer(rows: Submissions) -> Submissions:
    """Sorts the rows by producer. Rows of the same producer keep their order."""
    found: Submissions = rows[np.argsort(rows["producer"], kind="stable")]
    return found


def ends_of(rows: Submissions) -> tuple[Offsets, Offsets]:
    """Returns the indices of the first and the last row of each producer. ``rows`` must be sorted by producer."""
    firsts = np.flatnonzero(np.diff(rows["producer"], prepend=np.uint64(0)) != 0)
    return firsts, np.append(firsts[1:], len(rows))[: len(firsts)] - 1


def is_handle(rows: Submissions) -> NDArray[np.bool_]:
    """Marks the rows that are transactions with handles, and not submissions of a producer."""
    handles: NDArray[np.bool_] = rows["sequence"] == HANDLE_SEQUENCE
    return handles


def wrong_pairs(rows: Submissions, *, anew: bool = True) -> Iterator[tuple[np.void, np.void]]:
    """Yields pairs of consecutive submissions of one producer of which the second cannot follow the first. ``rows``
    must be sorted by producer. With ``anew``, a producer that was forgotten may begin again."""
    away = rows["first"][1:] - rows["last"][:-1]
    right = rows["sequence"][1:] == rows["sequence"][:-1] + np.uint64(1)
    if anew:
        right |= (rows["sequence"][1:] == 0) & (away > PRODUCERS_MIN)
    wrong = (rows["producer"][1:] == rows["producer"][:-1]) & ~right
    for row in np.flatnonzero(wrong).tolist()[:PAIRS_MAX]:
        yield rows[row], rows[row + 1]


def said_of(before: np.void, after: np.void) -> tuple[str, dict[str, Any]]:
    """Returns the description of a pair of submissions that cannot follow one another, and its facts."""
    producer, sequence, expected = f"{int(after['producer']):016x}", int(after["sequence"]), int(before["sequence"]) + 1
    more = {
        "producer": producer,
        "sequence": sequence,
        "before": int(before["sequence"]),
        "before_vlsn": int(before["first"]),
    }
    if sequence == HANDLE_SEQUENCE:
        return f"transaction {producer} is at VLSN {before['first']} already", more
    what = "is there already" if sequence < expected else "does not follow on"
    return f"sequence {sequence} of producer {producer} {what}: VLSN {before['first']} is sequence {expected - 1}", more
