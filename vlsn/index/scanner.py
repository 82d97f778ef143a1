"""The scanner: a cursor over the index that keeps its bucket, and asks the index only when it runs out.

It goes up, closest mapping at or before: each reader of an embedded log has one, so that reads of VLSNs close to one
another look a stored bucket up once.  It does not answer from a bucket that a truncation may have cut since (the
index's ``epoch``).  Source: JE ``VLSNScanner``.
"""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.index.bucket import Bucket, Mapping
from vlsn.index.index import VlsnIndex


class ForwardScanner:
    """A scanner for rising VLSNs; any other is answered too, at the cost of a lookup."""

    def __init__(self, index: VlsnIndex) -> None:
        self._index = index
        self._bucket: Bucket | None = None
        self._epoch = index.epoch

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """Answers as ``VlsnIndex.at_or_before``."""
        bucket = self._bucket
        if bucket is None or not bucket.first <= vlsn <= bucket.last or self._epoch != self._index.epoch:
            self._epoch = self._index.epoch
            self._bucket = bucket = self._index.bucket_at_or_before(vlsn)
        return None if bucket is None else bucket.at_or_before(vlsn)
