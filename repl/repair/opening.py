"""Opens a node's log with the node's settings."""

from __future__ import annotations

from repl.config import NodeConfig
from repl.web.limits import AppendLimits
from vlsn.recover.recovery import Recovered, recover
from vlsn.seams import Seams
from vlsn.state.options import LogOptions


def open_recovered(config: NodeConfig, seams: Seams, *, restoring: bool = False) -> Recovered:
    """Opens the log. Opening blocks, so it runs on the keeper's thread. Raises the errors of ``recover``."""
    return recover(
        str(config.dir),
        seams,
        group=config.group,
        node=config.name,
        segment_bytes=config.segment_bytes,
        index_map_bytes=config.index_map_bytes,
        state_map_bytes=config.state_map_bytes,
        restoring=restoring,
    )


def log_options(config: NodeConfig) -> LogOptions:
    return LogOptions(
        segment_bytes=config.segment_bytes,
        block_bytes_max=config.block_bytes_max,
        queue_entries_max=config.queue_entries_max,
        queue_bytes_max=config.queue_bytes_max,
        ring_bytes_max=max(config.ring_bytes_max, config.cdc_buffer_bytes if config.cdc else 0),
        checkpoint_bytes=config.checkpoint_bytes,
        checkpoint_period_s=config.checkpoint_period_s,
        idle_end_s=config.idle_end_s,
        sync_interval_s=config.sync_interval_s,
        roll_period_s=config.roll_period_s,
        free_bytes_min=config.free_bytes_min,
        retention_bytes=config.retention_bytes,
        retention_age_s=config.retention_age_s,
        hold_bytes_max=config.hold_bytes_max,
    )


def append_limits(config: NodeConfig) -> AppendLimits:
    return AppendLimits(
        entry_bytes_max=config.entry_bytes_max,
        key_bytes_max=config.key_bytes_max,
        body_bytes_max=config.body_bytes_max,
        bodies_in_flight_bytes_max=config.bodies_in_flight_bytes_max,
        timeout_s=config.ack_timeout_s,
    )
