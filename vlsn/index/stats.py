"""The counters of one index, since the index was opened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class IndexStats:
    """The counters of an index. ``hits`` and ``misses`` are exact with one thread. If two threads count at the same
    moment, one count may be lost."""

    hits: int = 0
    """The number of lookups that were found in the tracker (in memory)."""
    misses: int = 0
    """The number of lookups that had to read the store."""
    buckets_created: int = 0
    buckets_deleted: int = 0
    flushes: int = 0
    """The number of transactions of checkpoints, truncations and merges."""
    mended: int = 0
    """The number of parts of the store that could not be read and were indexed again from the log."""
