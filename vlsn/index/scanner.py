"""The scanner: a cursor over the index. A scanner keeps one bucket (run of mappings), and uses the index only for VLSNs
outside of that bucket.

A scanner is for rising VLSNs. For each VLSN a scanner returns the closest mapping at or before that VLSN. Each reader
of an embedded log has a scanner, so that reads of neighbouring VLSNs look up a stored bucket only once. A scanner does
not use its bucket any more once a truncation may have cut that bucket (the index's ``epoch``). The model is JE's
``VLSNScanner``.
"""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.index.bucket import Bucket, Mapping
from vlsn.index.index import VlsnIndex


class ForwardScanner:
    """A scanner for rising VLSNs. If a VLSN is lower than the one before, the scanner does a full lookup."""

    def __init__(self, index: VlsnIndex) -> None:
        self._index = index
        self._bucket: Bucket | None = None
        self._epoch = index.epoch

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the same as ``VlsnIndex.at_or_before``."""
        bucket = self._bucket
        if bucket is None or not bucket.first <= vlsn <= bucket.last or self._epoch != self._index.epoch:
            self._epoch = self._index.epoch
            self._bucket = bucket = self._index.bucket_at_or_before(vlsn)
        return None if bucket is None else bucket.at_or_before(vlsn)
