"""Mends wounds of the index. A wound is a run of stored buckets that cannot be read.

    1–400 │ 401–780, rotten │ 781–1200         start: the last mapping at or before 400   end: the mapping of 781
          └ tracked from the log again ┘

Each wound is mended in one transaction, entirely or not at all. The range and the store's record do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.index.bucket import Bucket, bucket_key
from vlsn.index.index import VlsnIndex
from vlsn.index.stored import END_KEY, FIRST_KEY

Columns = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Wound:
    """A part of the store without readable buckets, for the VLSNs after ``after`` and before ``before``."""

    after: Vlsn
    before: Vlsn
    start: Lsn
    """The LSN from which on the log has the blocks of the VLSNs in the wound."""
    end: Lsn
    """The exclusive end LSN of the wound; 0 if no later mapping is known."""


def find_wounds(index: VlsnIndex) -> list[Wound]:
    """Finds every run of buckets in the store that cannot be read or overlap others. Takes O(n) time."""
    wounds: list[Wound] = []
    good: Bucket | None = None
    open_wound, levels = False, index.levels
    for bucket in levels.stored.each(levels.covered):
        if bucket is None or (good is not None and bucket.first <= good.last):
            open_wound = True
            continue
        if open_wound or (good is None and bucket.first != index.range.first):
            wounds.append(_wound(index, good, bucket))
        good, open_wound = bucket, False
    if open_wound or (good is not None and good.last != levels.covered) or (good is None and levels.covered):
        wounds.append(_wound(index, good, None))
    return wounds


def heal(index: VlsnIndex, wound: Wound, runs: Iterable[Columns]) -> None:
    """Replaces the buckets of a wound. ``runs`` are the log's visible blocks from the wound's ``start`` to its ``end``.
    The call blocks, and the change is durable on return."""
    tracker = index.levels.tracker.scratch()
    for firsts, lasts, lsns, _ in runs:
        inside = [at for at, first in enumerate(firsts) if wound.after < first and lasts[at] < wound.before]
        if inside:
            part = slice(inside[0], inside[-1] + 1)
            tracker.track_run(firsts[part], lasts[part], lsns[part])
    tracker.close_current()
    start = bucket_key(Vlsn(wound.after + 1)) if wound.after else FIRST_KEY
    end = bucket_key(wound.before) if wound.before <= index.levels.covered else END_KEY
    index.replace_stored((start, end), tracker.buckets)
    index.stats.mended += 1


def _wound(index: VlsnIndex, low: Bucket | None, high: Bucket | None) -> Wound:
    if low is not None:
        after, start = low.last, low.at_or_before(low.last)[1]
    else:
        after, start = NULL_VLSN, index.levels.head[1]
    if high is not None:
        return Wound(after, high.first, start, high.at_or_before(high.first)[1])
    before = Vlsn(index.levels.covered + 1)
    following = index.at_or_after(before)
    return Wound(after, before, start, following[1] if following is not None else NULL_LSN)
