"""Scanners: cursors over the index that keep their bucket, and ask the index only when it runs out.

``ForwardScanner`` goes up, closest mapping at or before: each reader of an embedded log has one, so that reads of
VLSNs close to one another look a stored bucket up once.  ``BackwardScanner`` goes down, closest mapping at or after,
from where the log is walked back by ``prev``: JE's syncup does; here it compares terms, and walking back is what a
transaction's entries will be found by.  Neither answers from a
bucket that a truncation may have cut since (the index's ``epoch``).  Source: JE ``VLSNScanner``.
"""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.index.bucket import Bucket, Mapping
from vlsn.index.index import VlsnIndex


class _KeptBucket:
    """The bucket that answered last, as long as the index takes nothing away."""

    __slots__ = ("_bucket", "_epoch", "_index")

    def __init__(self, index: VlsnIndex) -> None:
        self._index = index
        self._bucket: Bucket | None = None
        self._epoch = index.epoch

    def holding(self, vlsn: Vlsn) -> Bucket | None:
        """Returns the bucket that holds or precedes ``vlsn``; ``None`` only outside the range."""
        bucket = self._bucket
        if bucket is None or not bucket.first <= vlsn <= bucket.last or self._epoch != self._index.epoch:
            self._epoch = self._index.epoch
            self._bucket = bucket = self._index.bucket_at_or_before(vlsn)
        return bucket


class ForwardScanner:
    """A scanner for rising VLSNs; any other is answered too, at the cost of a lookup."""

    def __init__(self, index: VlsnIndex) -> None:
        self._kept = _KeptBucket(index)

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """Answers as ``VlsnIndex.at_or_before``."""
        bucket = self._kept.holding(vlsn)
        return None if bucket is None else bucket.at_or_before(vlsn)


class BackwardScanner:
    """A scanner for falling VLSNs; any other is answered too, at the cost of a lookup."""

    def __init__(self, index: VlsnIndex) -> None:
        self._index = index
        self._kept = _KeptBucket(index)

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        """Answers as ``VlsnIndex.at_or_after``."""
        bucket = self._kept.holding(vlsn)
        found = None if bucket is None else bucket.at_or_after(vlsn)
        return self._index.at_or_after(vlsn) if found is None else found
