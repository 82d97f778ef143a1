"""The scanner: a cursor over the index. It keeps a bucket, and asks the index only for VLSNs outside of it.

The scanner moves up, and returns the closest mapping at or before. Each reader of an embedded log has a scanner, so
that reads of VLSNs close to one another look up a stored bucket only once. The scanner does not answer from a bucket
that a truncation may have cut since (the index's ``epoch``). The model is JE's ``VLSNScanner``.
"""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.index.bucket import Bucket, Mapping
from vlsn.index.index import VlsnIndex


class ForwardScanner:
    """A scanner for rising VLSNs. Other VLSNs are answered, too, at the cost of a lookup."""

    def __init__(self, index: VlsnIndex) -> None:
        self._index = index
        self._bucket: Bucket | None = None
        self._epoch = index.epoch

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """Answers as ``VlsnIndex.at_or_before`` does."""
        bucket = self._bucket
        if bucket is None or not bucket.first <= vlsn <= bucket.last or self._epoch != self._index.epoch:
            self._epoch = self._index.epoch
            self._bucket = bucket = self._index.bucket_at_or_before(vlsn)
        return None if bucket is None else bucket.at_or_before(vlsn)
