"""Reads every mapping of a stored VLSN index, for tools that compare them with the log.

The index belongs to a stopped node, and is only read. An unreadable part of the index is reported as a fault and not
raised as an error, so that the log is verified all the same.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vlsn.errors import Damaged, WrongVersion
from vlsn.ids import NULL_VLSN, U64_MAX
from vlsn.index.stored import StoredBuckets
from vlsn.index.time_index import TimeIndex
from vlsn.levels import named
from vlsn.limits import INDEX_MAP_BYTES
from vlsn.recover.recovery import INDEX_NAME
from vlsn.seams import KeyValue, Stores

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""VLSNs, and the offset that the index has for each, ascending."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The steps of a stored time index (``time_index``) up to VLSN ``last``, as columns."""

    firsts: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    last: int

    def passed(
        self, firsts: npt.NDArray[np.int64], lasts: npt.NDArray[np.int64], clocks: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Marks the blocks that were sealed later than the bound of their step allows."""
        steps = np.searchsorted(self.firsts, firsts, side="right") - 1
        passed: npt.NDArray[np.bool_] = (steps >= 0) & (lasts <= self.last) & (clocks > self.bounds[steps])
        return passed


@dataclass(slots=True)
class Mappings:
    """The mappings of an index. ``bounds`` is None if there is no time index. ``faults`` has the reasons why the rest
    of the index could not be read."""

    by_segment: dict[int, Columns] = field(default_factory=dict)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each segment, the first VLSNs of its first and its last bucket (run of mappings). A reader of one part of the
    log then reads no other buckets."""
    bounds: Bounds | None = None
    faults: list[Damaged] = field(default_factory=list)


def read_mappings(stores: Stores, directory: str, first: int = 0, last: int = U64_MAX) -> Mappings:
    """Reads the mappings of the index in ``directory`` whose buckets begin at VLSNs ``first`` to ``last``. The result
    is empty if there is no index. Raises ``WrongVersion`` for an index of a later version."""
    found = Mappings()
    try:
        with closing(_opened(stores, directory)) as store:
            _read_buckets(store, found, first, last)
            found.bounds = _read_bounds(store)
    except FileNotFoundError:
        pass
    except Damaged as error:
        found.faults.append(error)
    except WrongVersion as error:
        raise named(error, f"{directory}/{INDEX_NAME}") from None
    return found


def read_times(stores: Stores, directory: str, owner: int) -> TimeIndex:
    """Reads the time index in ``directory``, if it belongs to the node with incarnation ``owner``. Returns an empty
    index if the time index is missing or unreadable."""
    times = TimeIndex()
    try:
        with closing(_opened(stores, directory)) as store:
            _load(times, store, owner)
    except (FileNotFoundError, Damaged, WrongVersion):
        times.forget()
    return times


def _opened(stores: Stores, directory: str) -> KeyValue:
    return stores.open(f"{directory}/{INDEX_NAME}", map_bytes=INDEX_MAP_BYTES, read_only=True)


def _read_bounds(store: KeyValue) -> Bounds | None:
    times = TimeIndex()
    _load(times, store, None)
    steps = times.steps()
    if not steps:
        return None
    firsts, _, bounds = zip(*steps, strict=True)
    return Bounds(np.array(firsts, dtype=np.int64), np.array(bounds, dtype=np.int64), int(times.last))


def _load(times: TimeIndex, store: KeyValue, owner: int | None) -> None:
    """Loads the steps that fit the buckets, if they belong to the node with incarnation ``owner`` (None: to any node).
    Raises ``WrongVersion``."""
    try:
        buckets = StoredBuckets(store)
        record = buckets.record()
        tail = buckets.at_or_before(record.range.last) if record is not None else None
        if record is not None and tail is not None and owner in (None, record.owner):
            span, mapping = record.range, tail.at_or_before(record.range.last)[1]
            times.load(store, record.checkpoint_id, span.first, span.last, mapping)
    except Damaged:
        times.forget()


def _read_buckets(store: KeyValue, found: Mappings, begin: int, end: int) -> None:
    parts: dict[int, list[Columns]] = {}
    last = NULL_VLSN
    buckets = StoredBuckets(store)
    fault: Damaged | None = None
    try:
        buckets.record()
    except Damaged as error:
        fault = error  # the fault of a single bucket, if there is one, is more precise
    try:
        for bucket in buckets.all(begin, end):
            bucket.verify()
            if bucket.first <= last:
                raise Damaged(f"the index bucket at {bucket.first} begins before {last}, where one ends", vlsn=last)
            last = bucket.last
            found.spans[bucket.file] = found.spans.get(bucket.file, (bucket.first, 0))[0], bucket.first
            vlsns = np.array(bucket.deltas, dtype=np.int64) + bucket.first
            parts.setdefault(bucket.file, []).append((vlsns, np.array(bucket.offsets, dtype=np.int64)))
    except Damaged as error:
        error.vlsn = error.vlsn or int(last) + 1
        fault = error
    if fault is not None:
        found.faults.append(fault)
    for number, columns in parts.items():
        vlsns_of, offsets_of = zip(*columns, strict=True)
        found.by_segment[number] = np.concatenate(vlsns_of), np.concatenate(offsets_of)
