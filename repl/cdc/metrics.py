"""The metrics of a node's CDC consumers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from feeder.source import Mode
from repl.cdc.consumers import CdcConsumers
from repl.cdc.record import CdcState
from vlsn.histogram import Histogram


def cdc_metrics(consumers: CdcConsumers) -> Iterator[Metric]:
    """Yields the metrics of this node's CDC consumers, whether its log is open or not."""
    everything = consumers.told()
    if not everything:
        return
    told = [one for one in everything if one["state"] != CdcState.NOT_CONFIGURED]
    modes = GaugeMetricFamily("vlsnlog_cdc_mode", "1 for what a CDC consumer reads from", labels=["consumer", "mode"])
    states = GaugeMetricFamily("vlsnlog_cdc_state", "1 for what a CDC consumer does", labels=["consumer", "state"])
    switches = CounterMetricFamily("vlsnlog_cdc_switches", "Changes of mode", labels=["consumer", "to"])
    for one in told:
        for mode in Mode:
            modes.add_metric([one["name"], mode.value], float(one["mode"] == mode.value))
        for state in sorted(set(CdcState) - {CdcState.NOT_CONFIGURED}):
            states.add_metric([one["name"], state.value], float(one["state"] == state.value))
        switches.add_metric([one["name"], "BUFFER"], one["switches"]["to_buffer"])
        switches.add_metric([one["name"], "ARCHIVE"], one["switches"]["to_archive"])
    for one in everything:
        if one["state"] == CdcState.NOT_CONFIGURED:
            states.add_metric([one["name"], one["state"]], 1.0)
    yield from (modes, states, switches)
    for name, key, text in (
        ("next_vlsn", "next", "VLSN of the event that its stored position is at"),
        ("last_captured_vlsn", "last_captured", "VLSN of the event that it has taken last"),
        ("lag_vlsns", "lag_vlsns", "Durable VLSNs that it has not taken"),
        ("lag_seconds", "lag_s", "Since when what it took last lies in the log, while it is behind"),
        ("lag_segments", "lag_segments", "Segments from the event that it takes next to the durable end"),
        ("in_flight_bytes", "in_flight_bytes", "Bytes sent to its process and not taken"),
        ("buffer_bytes", "buffer_bytes", "Bytes of recent blocks in memory, which all consumers and feeds share"),
        ("failures", "failures", "Failures one after another"),
    ):
        family = GaugeMetricFamily(f"vlsnlog_cdc_{name}", text, labels=["consumer"])
        for one in told:
            if one[key] is not None:
                family.add_metric([one["name"]], one[key])
        yield family
    for name, key, text in (
        ("entries", "entries", "Events that it has taken, without the log's own entries"),
        ("segments", "segments", "Segments that it has taken entries of"),
        ("commits", "commits", "Positions stored"),
        ("starts", "starts", "Starts of its process"),
    ):
        counter = CounterMetricFamily(f"vlsnlog_cdc_{name}", text, labels=["consumer"])
        for one in told:
            counter.add_metric([one["name"]], one[key])
        yield counter
    for name, text in (
        ("events_seconds", "What its calls took, of one message each"),
        ("commit_seconds", "From a commit to its stored position"),
        ("capture_seconds", "From an entry's sealing until it was taken"),
    ):
        histogram = HistogramMetricFamily(f"vlsnlog_cdc_{name}", text, labels=["consumer"])
        for record in consumers.records.values():
            counts = record.counts
            held = {"events_seconds": counts.events, "commit_seconds": counts.stored}.get(name, counts.captured)
            histogram.add_metric([record.settings.name], buckets_of(held), held.sum)
        yield histogram


def buckets_of(held: Histogram) -> list[tuple[str, float]]:
    """Returns the cumulative count up to each bound, as Prometheus expects."""
    total, buckets = 0, []
    for bound, count in zip((*map(str, held.bounds), "+Inf"), held.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
