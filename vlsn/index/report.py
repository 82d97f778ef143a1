"""A report on an index's store, for ``vlsnlog index``: the range, the buckets, how sparse the index is, and its faults.

The report only reads the store. For a running node, it reads a copy of the store as of the last flush. The report does
not compare the index with the log; ``verify`` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from vlsn.errors import Damaged, WrongVersion
from vlsn.ids import NULL_VLSN
from vlsn.index.bucket import HEADER, Bucket, decode
from vlsn.index.range import EMPTY, VlsnRange
from vlsn.index.stored import END_KEY, FIRST_KEY, RECORD_KEY, UNFINISHED, decode_record
from vlsn.levels import named
from vlsn.limits import INDEX_MAP_BYTES
from vlsn.seams import KeyValue, Stores


@dataclass(frozen=True, slots=True)
class BucketRow:
    """The report's row for one bucket. Sizes are in bytes."""

    first: int
    last: int
    file: int
    mappings: int
    bytes: int
    """The size of the bucket's value in the store."""
    distance_max: int
    """The largest distance in the segment between two neighbouring mappings. A lookup has to walk no more than this."""


@dataclass(slots=True)
class IndexReport:
    checkpoint: int | None = None
    """The id of the checkpoint that last flushed the index."""
    unfinished: bool = False
    """True if an earlier rebuild of the index was interrupted. The next opening of the log begins the rebuild again."""
    owner: int = 0
    """The incarnation of the node whose log is indexed."""
    range: VlsnRange = EMPTY
    buckets: list[BucketRow] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def mappings(self) -> int:
        return sum(bucket.mappings for bucket in self.buckets)

    @property
    def vlsns_per_mapping(self) -> float:
        """The average number of VLSNs for each mapping; 0 if the index is empty."""
        vlsns = self.range.last - self.range.first + 1
        return round(vlsns / self.mappings, 2) if self.mappings else 0.0

    @property
    def bytes(self) -> int:
        """The bytes of all buckets. The page cache needs this many bytes if the whole index is in use."""
        return sum(bucket.bytes for bucket in self.buckets)

    @property
    def distance_max(self) -> int:
        return max((bucket.distance_max for bucket in self.buckets), default=0)


def read_report(stores: Stores, path: str, *, live: bool = False) -> IndexReport:
    """Reads the index at ``path``. Each unreadable part is reported as a finding. Raises ``FileNotFoundError`` if there
    is no index, and ``LogInUse`` if a running node wrote to it during every attempt to copy it."""
    try:
        if live:
            store = stores.open_copy(path, map_bytes=INDEX_MAP_BYTES)
        else:
            store = stores.open(path, map_bytes=INDEX_MAP_BYTES, read_only=True)
    except Damaged as error:
        return IndexReport(findings=[str(error)])
    try:
        report = IndexReport()
        try:
            _read_record(store, report)
            _read_buckets(store, report)
        except Damaged as error:
            report.findings.append(str(error))
        except WrongVersion as error:
            raise named(error, path) from None
        return report
    finally:
        store.close()


def _read_record(store: KeyValue, report: IndexReport) -> None:
    value = store.get(RECORD_KEY)
    if value is None:
        return
    record = decode_record(value)
    report.range, report.owner = record.range, record.owner
    report.unfinished = record.checkpoint_id == UNFINISHED
    report.checkpoint = None if report.unfinished else record.checkpoint_id


def _read_buckets(store: KeyValue, report: IndexReport) -> None:
    end = NULL_VLSN
    for key in store.keys(FIRST_KEY, END_KEY):
        try:
            bucket = decode(key, store.get(key) or b"")
            check_follows(bucket, end)
        except Damaged as error:
            report.findings.append(str(error))
            continue
        end = bucket.last
        report.buckets.append(_row(bucket))
    covers = (report.buckets[0].first, report.buckets[-1].last) if report.buckets else (0, 0)
    if not report.findings and covers != (report.range.first, report.range.last):
        report.findings.append(
            f"the buckets cover {covers[0]}–{covers[1]}, the record says {report.range.first}–{report.range.last}"
        )


def _row(bucket: Bucket) -> BucketRow:
    farthest = max((high - low for low, high in pairwise(bucket.offsets)), default=0)
    size = HEADER.size + 8 * len(bucket)
    return BucketRow(bucket.first, bucket.last, bucket.file, len(bucket), size, farthest)


def check_follows(bucket: Bucket, end: int) -> None:
    """Raises ``Damaged`` unless ``bucket`` is valid and begins after ``end``."""
    bucket.verify()
    if bucket.first <= end:
        raise Damaged(f"the index bucket at {bucket.first} begins before {end}, where one ends", vlsn=end)
