"""Every mapping of a stored VLSN index, for tools that hold them against the log.

Of a stopped node's index, read only; what of it cannot be read is told as a fault, never raised, so that the
log is still verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vlsn.errors import Damaged, WrongVersion
from vlsn.ids import NULL_VLSN
from vlsn.index.stored import StoredBuckets
from vlsn.index.time_index import TimeIndex
from vlsn.levels import named
from vlsn.limits import INDEX_MAP_BYTES
from vlsn.recover.recovery import INDEX_NAME
from vlsn.seams import KeyValue, Stores

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""VLSNs and offsets, ascending."""


@dataclass(slots=True)
class Mappings:
    """``faults`` are what kept the rest of the index from being read."""

    by_segment: dict[int, Columns] = field(default_factory=dict)
    faults: list[Damaged] = field(default_factory=list)


def read_mappings(stores: Stores, directory: str) -> Mappings:
    """Reads all mappings of the index in ``directory``; none when there is no index. Raises ``WrongVersion``."""
    found = Mappings()
    try:
        store = stores.open(f"{directory}/{INDEX_NAME}", map_bytes=INDEX_MAP_BYTES, read_only=True)
    except FileNotFoundError:
        return found
    except Damaged as error:
        found.faults.append(error)
        return found
    try:
        _read_buckets(store, found)
    except WrongVersion as error:
        raise named(error, f"{directory}/{INDEX_NAME}") from None
    finally:
        store.close()
    return found


def read_times(stores: Stores, directory: str, owner: int) -> TimeIndex:
    """Reads the time index in ``directory``, if it is of the store ``owner``; one that covers nothing where it is not
    there, or cannot be read."""
    times = TimeIndex()
    try:
        store = stores.open(f"{directory}/{INDEX_NAME}", map_bytes=INDEX_MAP_BYTES, read_only=True)
    except (FileNotFoundError, Damaged):
        return times
    try:
        buckets = StoredBuckets(store)
        record = buckets.record()
        tail = buckets.at_or_before(record.range.last) if record is not None else None
        if record is not None and tail is not None and record.owner == owner:
            span, mapping = record.range, tail.at_or_before(record.range.last)[1]
            times.load(store, record.checkpoint_id, span.first, span.last, mapping)
    except (Damaged, WrongVersion):
        times.forget()
    finally:
        store.close()
    return times


def _read_buckets(store: KeyValue, found: Mappings) -> None:
    parts: dict[int, list[Columns]] = {}
    last = NULL_VLSN
    try:
        buckets = StoredBuckets(store)
        buckets.record()
        for bucket in buckets.all():
            bucket.verify()
            if bucket.first <= last:
                raise Damaged(f"the index bucket at {bucket.first} begins before {last}, where one ends", vlsn=last)
            last = bucket.last
            vlsns = np.array(bucket.deltas, dtype=np.int64) + bucket.first
            parts.setdefault(bucket.file, []).append((vlsns, np.array(bucket.offsets, dtype=np.int64)))
    except Damaged as error:
        found.faults.append(error)
    for number, columns in parts.items():
        vlsns_of, offsets_of = zip(*columns, strict=True)
        found.by_segment[number] = np.concatenate(vlsns_of), np.concatenate(offsets_of)
