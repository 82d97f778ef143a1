"""The settings of a local log, and the counters that it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from vlsn.durability import Durability as Durability
from vlsn.errors import BadArgument
from vlsn.histogram import Histogram, Seconds
from vlsn.index.stats import IndexStats
from vlsn.limits import (
    BLOCK_BYTES_MAX,
    CHECKPOINT_BYTES,
    CHECKPOINT_BYTES_MIN,
    CHECKPOINT_PERIOD_S,
    FLUSH_INTERVAL_S,
    FREE_BYTES_MIN,
    GROUP_BYTES_MAX,
    HOLD_BYTES_MAX,
    IDLE_END_S,
    QUEUE_BYTES_MAX,
    QUEUE_BYTES_MIN,
    QUEUE_ENTRIES_MAX,
    RING_BYTES_MAX,
    SEGMENT_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_BYTES_STEP,
    SYNC_INTERVAL_S,
)
from vlsn.state.retention import Retention

ROLL_REASONS = ("size", "error", "slow_sync", "period", "request")
GROUP_BYTES = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
SHARES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


_MANY = 1 << 62
_BOUNDS: dict[str, tuple[float, float]] = {
    "segment_bytes": (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    "block_bytes_max": (1, BLOCK_BYTES_MAX),
    "group_bytes_max": (1, _MANY),
    "queue_entries_max": (1, _MANY),
    "queue_bytes_max": (QUEUE_BYTES_MIN, _MANY),
    "ring_bytes_max": (1, _MANY),
    "checkpoint_bytes": (CHECKPOINT_BYTES_MIN, _MANY),
    "checkpoint_period_s": (0.1, _MANY),
    "flush_interval_s": (0, _MANY),
    "sync_interval_s": (0, _MANY),
    "idle_end_s": (0, _MANY),
    "roll_period_s": (0, _MANY),
    "free_bytes_min": (0, _MANY),
    "retention_bytes": (0, _MANY),
    "retention_age_s": (0, _MANY),
    "hold_bytes_max": (0, _MANY),
}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Settings of a local log. Sizes are in bytes, times in seconds. If ``roll_period_s`` is 0, no segment is closed
    for its age. Raises ``BadArgument`` for a value that is out of range or not a number."""

    segment_bytes: int = SEGMENT_BYTES
    block_bytes_max: int = BLOCK_BYTES_MAX
    group_bytes_max: int = GROUP_BYTES_MAX
    queue_entries_max: int = QUEUE_ENTRIES_MAX
    queue_bytes_max: int = QUEUE_BYTES_MAX
    ring_bytes_max: int = RING_BYTES_MAX
    checkpoint_bytes: int = CHECKPOINT_BYTES
    checkpoint_period_s: float = CHECKPOINT_PERIOD_S
    flush_interval_s: float = FLUSH_INTERVAL_S
    sync_interval_s: float = SYNC_INTERVAL_S
    idle_end_s: float = IDLE_END_S
    roll_period_s: float = 0.0
    free_bytes_min: int = FREE_BYTES_MIN
    retention_bytes: int = 0
    """If all segment files together have more bytes than this, the oldest segments are removed. 0: no limit on size."""
    retention_age_s: float = 0.0
    """A segment is removed if its last entry is older than this. 0: no limit on age."""
    hold_bytes_max: int = HOLD_BYTES_MAX
    """The most bytes of log that one hold may keep from being removed. 0: no limit."""
    durable_when_synced: bool = True
    """If True, an embedded log treats entries as durable once it has synced them. If False, the log's owner reports
    which entries are durable (``Log.raise_durable``), and may roll back the other entries. The value False is for an
    owner that keeps copies elsewhere."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if type(value) is not int and not (type(value) is float and name.endswith("_s")):
                kind = "number" if name.endswith("_s") else "whole number"
                raise BadArgument(f"{name}: {value!r} is no {kind}")
            if not low <= value <= high:
                raise BadArgument(f"{name}: {value} is out of range; it must be {low} to {high}")
        if self.segment_bytes % SEGMENT_BYTES_STEP:
            raise BadArgument(f"segment_bytes: {self.segment_bytes} is no multiple of {SEGMENT_BYTES_STEP}")
        if type(self.durable_when_synced) is not bool:
            raise BadArgument(f"durable_when_synced: {self.durable_when_synced!r} is neither True nor False")

    @property
    def retention(self) -> Retention:
        return Retention(self.retention_bytes, self.retention_age_s, self.hold_bytes_max)


@dataclass(slots=True)
class LogStats:
    groups: int = 0
    blocks: int = 0
    bytes: int = 0
    cuts: int = 0
    index: IndexStats = field(default_factory=IndexStats)
    """The counters of the VLSN index, which the index itself updates."""
    write_errors: int = 0
    """The number of groups whose write or sync failed, and that were written again in the next segment."""
    unacked: int = 0
    """The number of entries that the writer has not acknowledged yet."""
    waiting_for_sync: int = 0
    """The number of submissions that are written but not synced yet."""
    appends_per_sync: Histogram = field(default_factory=lambda: Histogram(SHARES))
    group_bytes: Histogram = field(default_factory=lambda: Histogram(GROUP_BYTES))
    sync_seconds: Seconds = field(default_factory=Seconds)
    """The durations of writing and syncing one group, measured on the writer's thread."""
    rolls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLL_REASONS, 0))
