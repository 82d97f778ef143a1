"""The counters of one index, since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class IndexStats:
    """The counters of an index. Hits and misses are exact with one thread. If two threads count at once, one count may
    be lost."""

    hits: int = 0
    """Lookups that the tracker answered."""
    misses: int = 0
    """Lookups that went to the store."""
    buckets_created: int = 0
    buckets_deleted: int = 0
    flushes: int = 0
    """The transactions of checkpoints, truncations and merges."""
    mended: int = 0
    """The parts of the store that could not be read and were tracked again from the log."""
