"""A look at the whole index: every bucket, every mapping, and whether they fit together.  O(n)."""

from __future__ import annotations

from collections.abc import Iterator

from vlsn.errors import Damaged
from vlsn.ids import NULL_VLSN
from vlsn.index.bucket import Mapping
from vlsn.index.index import VlsnIndex
from vlsn.index.report import check_follows


def mappings(index: VlsnIndex) -> Iterator[Mapping]:
    """Yields all mappings, ascending; nothing may truncate meanwhile."""
    for bucket in index.buckets():
        yield from bucket.mappings()


def verify(index: VlsnIndex) -> None:
    """Checks every bucket's order, that none overlap, and that they begin and end as the range. Raises ``Damaged``.
    Whether a mapping's block is there, the log alone can tell."""
    end, first = NULL_VLSN, NULL_VLSN
    for bucket in index.buckets():
        check_follows(bucket, end)
        first, end = first or bucket.first, bucket.last
    if (first, end) != (index.range.first, index.range.last):
        raise Damaged(f"the index's buckets cover {first}–{end}, its range is {index.range}", vlsn=first)
