"""Describes destinations as JSON documents. Each node describes destinations from its own log; the master adds the
state of its deliveries."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from repl.destinations.deliveries import Deliveries
from repl.destinations.delivery import Delivery
from repl.destinations.pager import Pager
from vlsn.state.destinations import DestinationView
from vlsn.write.local_log import LocalLog


def destinations_of(log: LocalLog, deliveries: Deliveries | None, pager: Pager | None = None) -> list[dict[str, Any]]:
    """Returns the documents of all destinations that are durable and synced here, in order of name. Each document
    includes the destination's pages on this node."""
    return [told(log, view, deliveries, pager) for view in log.care.destinations.views()]


def told(
    log: LocalLog, view: DestinationView, deliveries: Deliveries | None, pager: Pager | None = None
) -> dict[str, Any]:
    """Makes the document of a destination. ``deliveries`` are the master's, ``pager`` is the node's. The field
    ``from`` is the first unacknowledged VLSN: a new destination with this ``from`` and the same settings would
    continue there."""
    acked = view.acked
    document: dict[str, Any] = {
        "name": view.name,
        **asdict(view.settings),
        "from": acked.floor + 1,
        "since": acked.since,
        "floor": acked.floor,
        "intervals": acked.done.intervals,
        "dead": acked.dead.count,
        "tried_again": len(acked.tries.vlsns),
        "lag_vlsns": max(0, min(log.view.dtvlsn, log.view.range.last) - acked.floor),
    }
    if pager is not None:
        document["pages"] = pages = pager.told(view.uuid)
        document["mode"] = pages["mode"]
    if deliveries is not None:
        delivery = deliveries.known(view.uuid)
        document |= _delivery(delivery)
        if delivery is not None:
            oldest = delivery.oldest
            age = max(0, log.seams.clock.wall_us() - oldest.time_us) / 1e6 if oldest.vlsn else 0.0
            document |= {"oldest_vlsn": oldest.vlsn, "oldest_age_s": round(age, 1)}
        full = deliveries.full.fullness(view.uuid)
        document["full"] = None if full is None else {"policy": full.policy, "why": full.why, "since_us": full.since_us}
        policy = deliveries.full.policy(view.uuid)
        if policy is not None and policy.bounded:
            document["depth"] = {
                "messages": policy.depth.messages,
                "bytes": policy.depth.bytes,
                "oldest": policy.depth.oldest,
                "counted": policy.counted,
            }
        if policy is not None:
            document["refused"] = {"dropped": policy.dropped, "blocked": policy.blocked, "failed": policy.failed}
    return document


def _delivery(delivery: Delivery | None) -> dict[str, Any]:
    if delivery is None:
        return {"out": 0, "delayed": 0, "waiting": 0, "blocked_by": ""}
    return {
        "out": delivery.out,
        "delayed": delivery.delayed,
        "waiting": delivery.waiting,
        "blocked_by": delivery.blocked_by,
        "in_per_s": round(delivery.incoming.per_s, 1),
        "delivered_per_s": round(delivery.pace.delivered, 1),
        "acked_per_s": round(delivery.pace.acked, 1),
        "counts": to_builtins(delivery.counts),
    }
