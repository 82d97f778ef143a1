"""Counters of one index, since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class IndexStats:
    """Hits and misses are exact on one thread; two threads at once may lose one."""

    hits: int = 0
    """Lookups that the tracker answered."""
    misses: int = 0
    """Lookups that went to the store."""
    buckets_created: int = 0
    buckets_deleted: int = 0
    flushes: int = 0
    """Transactions: of checkpoints, truncations and merges."""
    mended: int = 0
    """Parts of the store that could not be read, and were tracked from the log again."""
