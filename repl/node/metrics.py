"""Makes a node's metrics in Prometheus' text format, from the node's state at the time of the request."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from repl.cdc.metrics import buckets_of, cdc_metrics
from repl.destinations.metrics import destination_metrics
from repl.node.open_node import OpenNode
from repl.node.parts import NodeParts
from repl.node.status import long_status, readiness, status
from repl.web.limits import PIECE_BYTES
from repl.web.problem import TYPES
from vlsn.histogram import Histogram
from vlsn.segments.background import WORKS
from vlsn.write.local_log import LocalLog

_STATES = ("MASTER", "REPLICA", "UNKNOWN", "DAMAGED", "RESTORING", "HALTED")


SAMPLES_A_STEP = 200
"""The samples made in one step, which takes about a millisecond, like ``PIECE_BYTES``."""


def metrics_text(parts: NodeParts) -> Generator[int, None, bytes]:
    """Makes the text of all metrics in steps, each of some whole metrics, because metrics with many names take a
    while."""
    text, step = [], _Step()
    long = yield from long_status(parts)
    yield PIECE_BYTES
    for metric in chain(_metrics(parts, long), ProcessCollector(registry=None).collect()):
        step.metrics.append(metric)
        step.samples += len(metric.samples)
        if step.samples >= SAMPLES_A_STEP:
            text.append(generate_latest(step))
            step = _Step()
            yield PIECE_BYTES
    text.append(generate_latest(step))
    return b"".join(text)


class _Step(Collector):
    """Some of the metrics, as a registry."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.samples = 0

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def _metrics(parts: NodeParts, long: Mapping[str, Any]) -> Iterator[Metric]:
    said, counts = status(parts, long), parts.member.counts
    python = ".".join(map(str, sys.version_info[:3]))
    build = GaugeMetricFamily("vlsnlog_build_info", "1, of the version that runs", labels=["version", "python"])
    build.add_metric([said["version"], python], 1.0)
    yield build
    yield _gauge("insecure", "1 when other machines reach the node without TLS, key or tokens", said["insecure"])
    yield _gauge("first_vlsn", "First VLSN in the log", said["range"]["first"])
    yield _gauge("last_vlsn", "Last VLSN in the log", said["range"]["last"])
    yield _gauge("synced_vlsn", "Last VLSN synced on this node", said["range"]["last_sync"])
    yield _gauge("durable_vlsn", "DTVLSN: synced on a majority, as this node knows it", said["dtvlsn"])
    yield _gauge("term", "Stored term", said["term"])
    yield _gauge("time_seconds", "The node's wall clock, since the epoch", parts.member.seams.clock.wall_us() / 1e6)
    yield from _of_group(parts, said)
    role = GaugeMetricFamily("vlsnlog_role", "1 for the state that the node is in", labels=["state"])
    for state in _STATES:
        role.add_metric([state], float(said["state"] == state))
    yield role
    shown = GaugeMetricFamily("vlsnlog_alarms", "What needs a person, on all nodes", labels=["node", "kind"])
    for (node, kind), number in Counter((each["node"], each["kind"]) for each in said["alarms"]).items():
        shown.add_metric([node, kind], number)
    yield shown
    yield from cdc_metrics(parts.cdc)
    yield from destination_metrics(said["destinations"])
    yield _gauge("ready", "1 when the node serves durable reads", not readiness(parts))
    yield from _gauges(
        said["feeders"],
        {"replica": "replica"},
        ("feeder_lag_vlsns", "lag_vlsns", "VLSNs that a replica has not acknowledged"),
        ("feeder_lag_seconds", "lag_s", "Seconds since a replica was caught up"),
        ("feeder_vlsns_per_second", "vlsns_per_s", "VLSNs that a replica acknowledged in a second, of late"),
        ("feeder_acked_vlsn", "acked", "Last VLSN that a replica has synced"),
    )
    events = parts.member.events.counts
    yield _counter("elections", "Elections in which this node stood", events["stands"])
    yield _counter("elections_won", "Elections that this node has won", events["elected"])
    yield _counter(
        "master_changes", "How often this node has got another master, or a newer term of it", counts.master_changes
    )
    if counts.stood_still is not None:
        yield _gauge(
            "stood_still_seconds",
            "No append was acknowledged so long, before this node led last",
            counts.stood_still.seconds,
        )
    yield _counter("rollbacks", "Rollbacks of what was not durable", events["rolled_back"])
    refused = CounterMetricFamily("vlsnlog_refused_calls", "Calls answered with an error, by its type", labels=["type"])
    for type in TYPES:
        refused.add_metric([type], counts.refused[type])
    yield refused
    yield _histogram("append_seconds", "From submission to its acknowledgement", counts.appends)
    if parts.readers is not None:
        yield _gauge("waiting_readers", "Tails, and long-polls that wait", parts.readers.used)
        yield _gauge("waiting_readers_max", "How many of them are taken", parts.readers.limit)
    if parts.handed is not None:
        yield _gauge("handed_bytes", "Messages handed out that no worker's socket has yet", parts.handed.bytes)
        yield _counter("workers_given_up", "Workers cut off, who took nothing", parts.handed.given_up)
    if (listener := parts.listener) is not None:
        yield _gauge("untaken_bytes", "Sent to readers that have not taken it", listener.untaken_bytes)
        yield _counter("readers_given_up", "Readers cut off, whose bytes lay untaken", listener.given_up)
        yield _histogram("loop_late_seconds", "How late the event loop came to a timer", listener.lateness)
        if listener.tls_not_after_s:
            yield _gauge("tls_not_after_seconds", "When the node's certificate ends", listener.tls_not_after_s)
    if parts.open is not None:
        yield from _of_appends(parts, parts.open.log, said)
        yield from _of_files(parts, parts.open.log, said)
        yield from _of_care(parts, parts.open, said)
        yield from _of_log(parts.open.log)


def _of_group(parts: NodeParts, said: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("knows_master", "1 while the node has a master, which may be itself", said["master"] is not None)
    yield _gauge("level", "Level of the group, as this node's log has it", said["level"])
    yield _gauge("level_max", "Highest level that this node speaks", said["levels"][1])
    key = said["key"] or {"accepts": [], "unsigned": []}
    yield _gauge(
        "keys_accepted", "Keys of the group that this node accepts; two during an exchange", len(key["accepts"])
    )
    yield _gauge("unsigned_members", "Members whose last call or answer was not signed", len(key["unsigned"]))
    silent = GaugeMetricFamily(
        "vlsnlog_member_silent", "1 while a member did not answer this node's last call", labels=["member"]
    )
    for each in said["members"]:
        if each["name"] != said["node"]:
            silent.add_metric([each["name"]], float(bool(each["silent"])))
    yield silent
    running = said["restore"]["running"] or {"bytes_done": 0, "bytes_total": 0}
    yield _gauge(
        "restore_done_bytes", "Bytes that the running restore has fetched; 0 without one", running["bytes_done"]
    )
    yield _gauge("restore_size_bytes", "Bytes that the running restore fetches; 0 without one", running["bytes_total"])


def _of_appends(parts: NodeParts, log: LocalLog, said: Mapping[str, Any]) -> Iterator[Metric]:
    counts = parts.member.counts
    yield _gauge("queue_entries", "Entries that wait for VLSNs", log.queue.entries)
    yield _gauge("queue_bytes", "Bytes that wait for VLSNs", log.queue.bytes)
    yield _gauge("producers", "Exactly-once producers that the log knows", len(log.view.history.producers))
    lacking = bool(log.view.history.lacks_to)
    yield _gauge("producers_lacking", "1 while it is asked for whom it knew before `state` was lost", lacking)
    yield _counter("duplicate_appends", "Appends that were in the log or its queue before", counts.duplicate_appends)
    staged = said["transactions"] or {"open": 0, "staged_bytes": 0}
    yield _gauge("transactions_open", "Transactions that are staged at this master", staged["open"])
    yield _gauge("transactions_staged_bytes", "Memory that their entries take", staged["staged_bytes"])
    yield _counter("transactions_committed", "Transactions submitted to be logged", counts.commits)
    yield _counter("transactions_aborted", "Transactions taken back by their clients", counts.aborted)
    yield _counter("transactions_expired", "Transactions that nobody called for too long", counts.expired)
    yield _counter("transactions_gone", "Calls for transactions that are neither staged nor logged", counts.gone)


def _of_files(parts: NodeParts, log: LocalLog, said: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("segments", "Live segment files", said["log"]["segments"])
    yield _gauge("disk_bytes", "What all segment files take of the disk", said["log"]["bytes_on_disk"])
    yield _counter("given_back_bytes", "Disk given back behind sealed ends", log.placement.holes.given_bytes)
    yield _gauge("log_bytes", "Synced bytes of all live segments", said["log"]["bytes"])
    yield _counter("groups", "Groups written and synced", log.stats.groups)
    yield _counter("blocks", "Blocks logged", log.stats.blocks)
    yield _counter("written_bytes", "Bytes of frames written", log.stats.bytes)
    yield _gauge("unacked_entries", "Entries that are with the writer", log.stats.unacked)
    yield _counter("write_errors", "Groups whose write or sync failed, written again", log.stats.write_errors)
    yield _counter("slow_syncs", "Writes and syncs of a group that took over 0.1 s", log.cycle.slow_syncs.total)
    yield _counter("late_standbys", "Standbys taken before they were zeroed", log.placement.late_standbys)
    if log.care.space.free_bytes is not None:
        yield _gauge(
            "free_bytes", "Free on the file system of the log, when it was looked at last", log.care.space.free_bytes
        )
    yield _gauge("free_bytes_min", "Free space below which appends are refused", parts.member.config.free_bytes_min)
    yield _gauge("no_space", "1 while appends are refused for lack of space", bool(log.no_space))
    yield _gauge(
        "no_segment", "1 while the next segment could not be made for another reason", bool(log.placement.unmade)
    )
    failures = CounterMetricFamily(
        "vlsnlog_background_failures", "Failures of work that the log does not rest on", labels=["work"]
    )
    failing = GaugeMetricFamily("vlsnlog_background_failing", "How much of it fails now", labels=["work"])
    now = Counter(fault.work for fault in log.life.background.faults())
    for work in WORKS:
        failures.add_metric([work], log.life.background.failures[work])
        failing.add_metric([work], now[work])
    yield failures
    yield failing


def _of_care(parts: NodeParts, opened: OpenNode, said: Mapping[str, Any]) -> Iterator[Metric]:
    log, counts = opened.log, parts.member.counts
    yield _gauge("damaged_segments", "Segments with damage that is not mended yet", len(said["damage"]))
    yield _counter("mended_blocks", "Damaged blocks put back from a peer", opened.mending.mended)
    yield _counter("scrubbed_bytes", "Bytes of sealed segments looked at for rot", opened.scrub.bytes)
    yield _counter("scrub_found", "Damaged places that the scrub has met", opened.scrub.found)
    yield _counter("old_images", "Starts with a disk older than what members had heard", counts.old_images)
    yield _counter("readmitted", "Members admitted again as another incarnation, by this master", counts.readmitted)
    yield _counter("restores", "Restores of this node's log since its start", parts.restoration.count)
    yield _counter("cleaned_segments", "Segments removed by cleaning", log.care.cleaner.segments)
    yield _counter("cleaned_bytes", "Bytes of files that cleaning freed", log.care.cleaner.bytes)
    yield _counter("holds_dropped", "Holds dropped for lying too far behind", log.care.cleaner.drops)
    yield _gauge("cleaning_blocked_segments", "Segments that a hold or limit keeps", said["cleaning"]["blocked"])
    yield from _gauges(
        said["holds"],
        {"owner": "owner", "name": "name"},
        ("hold_vlsn", "vlsn", "VLSN from which on a hold keeps the log"),
        ("hold_age_seconds", "age_s", "Since when a hold stands at its VLSN"),
    )
    yield from _gauges(
        said["consumers"],
        {"consumer": "name"},
        ("consumer_next_vlsn", "next", "VLSN that a named consumer reads next"),
        ("consumer_lag_vlsns", "lag_vlsns", "Durable VLSNs from a consumer's next entry on"),
        ("consumer_lag_seconds", "lag_s", "Since when a consumer's next entry lies there"),
    )


def _of_log(log: LocalLog) -> Iterator[Metric]:
    rolls = CounterMetricFamily("vlsnlog_rolls", "Segments rolled, by reason", labels=["reason"])
    for reason, count in log.stats.rolls.items():
        rolls.add_metric([reason], count)
    yield rolls
    index = log.stats.index
    yield _counter("index_hits", "Lookups of VLSNs that the index answered from memory", index.hits)
    yield _counter("index_misses", "Lookups of VLSNs that went to the index's store", index.misses)
    yield _counter("index_buckets_created", "Buckets that the index began", index.buckets_created)
    yield _counter("index_buckets_deleted", "Buckets that truncations took away", index.buckets_deleted)
    yield _counter("index_flushes", "Transactions of the index", index.flushes)
    yield _counter("index_mended", "Rotten parts of the index, tracked from the log again", index.mended)
    yield _histogram("appends_per_sync", "Submissions that shared a sync", log.stats.appends_per_sync)
    yield _histogram("group_bytes", "Bytes of a group as it was written", log.stats.group_bytes)
    yield _histogram("fdatasync_seconds", "Write and sync of one group", log.stats.sync_seconds)


def _gauges(
    rows: Iterable[Mapping[str, Any]], labels: Mapping[str, str], *named: tuple[str, str, str]
) -> Iterator[Metric]:
    """Yields a gauge for each of ``named`` (name, key, text). The gauge has a value for each row that has ``key``.
    ``labels`` maps each label to its key in the row."""
    for name, key, text in named:
        family = GaugeMetricFamily(f"vlsnlog_{name}", text, labels=[*labels])
        for row in rows:
            if row[key] is not None:
                family.add_metric([row[label] for label in labels.values()], row[key])
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"vlsnlog_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"vlsnlog_{name}", text, value=float(value))


def _histogram(name: str, text: str, held: Histogram) -> Metric:
    return HistogramMetricFamily(f"vlsnlog_{name}", text, buckets=buckets_of(held), sum_value=held.sum)
