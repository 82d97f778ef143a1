"""The metrics of each destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
_DEPTHS = (
    ("depth_messages", "messages", "Messages not acknowledged, of one that can be full"),
    ("depth_bytes", "bytes", "Their bytes"),
)
_PAGES = (
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
    """Yields the metrics from a node's documents of its destinations."""
    if not told:
        return
    for name, key, text in _GAUGES:
        yield _family(GaugeMetricFamily, name, text, told, key)
    yield _family(GaugeMetricFamily, "paused", "1 while it is paused", told, "paused")
    full = [{**one, "full": one["full"] is not None} for one in told if "full" in one]
    yield _family(GaugeMetricFamily, "full", "1 while it has no room for appends", full, "full")
    for name, text in _COUNTERS:
        yield _family(CounterMetricFamily, name, text, told, "counts", "dead" if name == "buried" else name)
    for name, key, text in _DEPTHS:
        yield _family(GaugeMetricFamily, name, text, told, "depth", key)
    paging = [{**one, "mode": one["mode"] == "paged"} for one in told if "mode" in one]
    yield _family(GaugeMetricFamily, "paging", "1 while some of its messages lie in pages of this node", paging, "mode")
    for name, key, text in _PAGES:
        yield _family(GaugeMetricFamily, name, text, told, "pages", key)
    for name, key, text in _PAGED:
        yield _family(CounterMetricFamily, name, text, told, "pages", key)
    refused = CounterMetricFamily(
        "vlsnlog_destination_refusals", "Messages or appends that met a full destination", labels=["destination", "how"]
    )
    for one in told:
        for how, count in one.get("refused", {}).items():
            refused.add_metric([one["name"], how], count)
    yield refused


def _family(
    kind: Callable[..., Any], name: str, text: str, told: Sequence[dict[str, Any]], key: str, part: str = ""
) -> Metric:
    """Makes a metric of the destinations that have ``key``, or of its ``part``."""
    family = kind(f"vlsnlog_destination_{name}", text, labels=["destination"])
    for one in told:
        if key in one:
            family.add_metric([one["name"]], float(one[key][part] if part else one[key]))
    return family  # type: ignore[no-any-return]  # one of the two kinds
