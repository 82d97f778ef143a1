"""The metrics of destinations: of each, by its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_GAUGES = (
    ("floor_vlsn", "floor", "VLSN up to which all is acknowledged"),
    ("lag_vlsns", "lag_vlsns", "VLSNs from there to the durable end, of other messages too"),
    ("intervals", "intervals", "Intervals of acknowledged VLSNs"),
    ("dead", "dead", "Dead messages that can be tried again"),
    ("out", "out", "Messages that are delivered, and not acknowledged yet"),
    ("delayed", "delayed", "Messages that came back, and wait for their delay"),
    ("waiting", "waiting", "Askers that wait for messages"),
    ("in_per_second", "in_per_s", "Messages appended a second, of late; by a sample where they are many"),
    ("oldest_age_seconds", "oldest_age_s", "Age of the first message that is not acknowledged"),
)
_COUNTERS = (
    ("delivered", "Messages delivered by this master"),
    ("delivered_again", "Of these, not for the first time"),
    ("acked", "Messages acknowledged at this master"),
    ("nacked", "Messages given back"),
    ("expired", "Messages that came back because nobody acknowledged them in time"),
    ("buried", "Messages that were moved to the dead letters"),
    ("dropped", "Messages that the master acknowledged because the destination was full"),
)


_PAGES = (
    ("paging", "mode", "1 while some of its messages lie in pages of this node"),
    ("pages", "pages", "Pages on this node"),
    ("page_bytes", "bytes", "Bytes of these"),
    ("page_messages", "messages", "Messages in these, acknowledged since or not"),
)
_PAGED = (
    ("paged_messages", "paged_messages", "Messages written to pages of this node"),
    ("paged_bytes", "paged_bytes", "Bytes of their keys and values"),
    ("pages_done", "pages_done", "Pages that went because their messages were acknowledged"),
)


def destination_metrics(told: Sequence[dict[str, Any]]) -> Iterator[Metric]:
    """Yields what a node tells of its destinations (``destinations_told``)."""
    if not told:
        return
    for name, key, text in _GAUGES:
        family = GaugeMetricFamily(f"vlsnlog_destination_{name}", text, labels=["destination"])
        for one in told:
            if key in one:
                family.add_metric([one["name"]], one[key])
        yield family
    paused = GaugeMetricFamily("vlsnlog_destination_paused", "1 while it is paused", labels=["destination"])
    for one in told:
        paused.add_metric([one["name"]], float(one["paused"]))
    yield paused
    full = GaugeMetricFamily("vlsnlog_destination_full", "1 while it has no room for appends", labels=["destination"])
    for one in told:
        if "full" in one:
            full.add_metric([one["name"]], float(one["full"] is not None))
    yield full
    for name, text in _COUNTERS:
        counter = CounterMetricFamily(f"vlsnlog_destination_{name}", text, labels=["destination"])
        for one in told:
            if "counts" in one:
                counter.add_metric([one["name"]], one["counts"]["dead" if name == "buried" else name])
        yield counter
    for name, key, text in (
        ("depth_messages", "messages", "Messages not acknowledged, of one that can be full"),
        ("depth_bytes", "bytes", "Their bytes"),
    ):
        family = GaugeMetricFamily(f"vlsnlog_destination_{name}", text, labels=["destination"])
        for one in told:
            if "depth" in one:
                family.add_metric([one["name"]], one["depth"][key])
        yield family
    for name, key, text in _PAGES:
        family = GaugeMetricFamily(f"vlsnlog_destination_{name}", text, labels=["destination"])
        for one in told:
            if "pages" in one:
                value = one["pages"][key]
                family.add_metric([one["name"]], float(value == "paged") if key == "mode" else value)
        yield family
    for name, key, text in _PAGED:
        counter = CounterMetricFamily(f"vlsnlog_destination_{name}", text, labels=["destination"])
        for one in told:
            if "pages" in one:
                counter.add_metric([one["name"]], one["pages"][key])
        yield counter
    refused = CounterMetricFamily(
        "vlsnlog_destination_refusals", "Messages or appends that met a full destination", labels=["destination", "how"]
    )
    for one in told:
        for how, count in one.get("refused", {}).items():
            refused.add_metric([one["name"], how], count)
    yield refused
