"""A node's report about itself: ``GET /v1/status``, and the reasons why the node is not ready."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from errno import errorcode
from functools import cache
from importlib import metadata
from typing import Any

import msgspec

from repl.auth.exposure import missing_lines
from repl.destinations.description import told
from repl.follow.following import Following
from repl.group.lost_group import REASON, is_lost
from repl.group.member import Member
from repl.group.membership import listed_as
from repl.lead.leading import Leading
from repl.lead.logged_settings import settings_of
from repl.node.open_node import OpenNode
from repl.node.parts import NodeParts
from repl.web.limits import DESTINATION_COST, NAMES_COST
from repl.web.slices import at_once
from vlsn.durability import SYNCED
from vlsn.format.records import GroupEntry
from vlsn.format.segment import segment_name
from vlsn.ids import NodeName
from vlsn.limits import PRODUCERS_AT_LEVEL_1
from vlsn.write.local_log import LocalLog


@cache
def version() -> str:
    """Returns the version of the package that this process runs."""
    return metadata.version("vlsnlog")


def status(parts: NodeParts, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Makes the object of ``GET /v1/status``. The range of an empty log is all 0. ``long`` is a recent result of
    ``long_status``, which is made anew if ``long`` is None."""
    base = _unopened(parts)
    base["restore"] = restore_status(parts)
    base["alarms"] = _alarms(parts.member)
    base["elections"] = _elections(parts)
    base["syncups"] = parts.member.events.recent("syncup", "syncup")
    if parts.member.reason:
        base["reason"] = parts.member.reason
    base.update(at_once(long_status(parts)) if long is None else long)
    opened = parts.open
    if opened is None:
        return base
    log = opened.log
    base["founding"] = founding(parts)
    base["level"] = log.view.level
    span = log.view.range
    base["range"] = {
        "first": span.first,
        "last": span.last,
        "last_sync": span.last_sync,
        "last_txn_end": span.last_txn_end,
    }
    # The durable end as far as this node can show it: a replica may know of a durable end before it has the blocks.
    base["dtvlsn"] = parts.dtvlsn()
    base["checkpoint"] = _checkpoint(log)
    base["log"] = _log(log)
    base["settings"] = settings_of(log)
    base["damage"] = opened.mending.status()
    base["scrub"] = opened.scrub.status()
    base["cleaning"] = _cleaning(opened)
    group = log.view.history.group
    if group is not None:
        listed = listed_as(group, parts.member.config.name, parts.member.incarnation) is not None
        base["listed"] = listed and not parts.member.removed()
        base["members_at"] = log.view.history.group_vlsn if log.view.dtvlsn >= log.view.history.group_vlsn else 0
        base["members"] = _members(parts.member, group)
    if parts.leading is not None:
        base["feeders"] = _feeders(parts.leading)
        open_ones = parts.leading.transactions
        base["transactions"] = {"open": len(open_ones), "staged_bytes": open_ones.staged_bytes}
    if parts.following is not None:
        base["replica"] = _replica(parts.following)
    _place(parts, log, base["members"])
    return base


def _unopened(parts: NodeParts) -> dict[str, Any]:
    """Makes the status of a node whose log is not open."""
    return {
        "group": parts.member.config.group,
        "node": parts.member.config.name,
        "url": parts.member.config.url,
        "version": version(),
        "levels": parts.member.seams.levels,
        "state": parts.member.state,
        "master": parts.member.master_name(),
        "term": parts.member.record.term if parts.member.record is not None else 0,
        "incarnation": f"{parts.member.incarnation:016x}",
        "process": f"{parts.member.process:016x}",
        "listed": False,
        "founding": "",
        "members_at": 0,
        "level": 1,
        "settings": {"producers": PRODUCERS_AT_LEVEL_1, "durability": msgspec.to_builtins(SYNCED)},
        "range": {"first": 0, "last": 0, "last_sync": 0, "last_txn_end": 0},
        "dtvlsn": 0,
        "checkpoint": None,
        "feeders": [],
        "replica": None,
        "transactions": None,
        "log": None,
        "cleaning": None,
        "key": _key(parts.member),
        "insecure": bool(missing := missing_lines(parts.member.config)),
        "protection_missing": missing,
        "damage": [],
        "scrub": None,
        "members": [
            {
                "name": name,
                "url": url,
                "incarnation": "",
                "electable": True,
                "priority": 1,
                "joining": False,
                "silent": parts.member.members.silent.get(name, ""),
                "vlsn": None,
                "lag_vlsns": None,
            }
            for name, url in parts.member.config.members.items()
        ],
    }


def _key(member: Member) -> dict[str, Any] | None:
    """Formats which keys this node and the other members use, by their IDs, and the members that do not sign; None
    without a key."""
    if not member.keyring.ids:
        return None
    return {
        "signs": member.keyring.ids[0],
        "accepts": list(member.keyring.ids),
        "members": {name: list(ids) for name, ids in sorted(member.members.keys.items())},
        "unsigned": sorted(member.members.unsigned),
        "signed_only": member.trust.is_signed_only(),
    }


def _checkpoint(log: LocalLog) -> dict[str, Any] | None:
    """Formats the last checkpoint, or None before the first one."""
    last = log.care.checkpointer.last
    if last is None:
        return None
    return {
        "id": last.id,
        "start_lsn": last.start_lsn,
        "end_lsn": last.end_lsn,
        "last": last.last_vlsn,
        "dtvlsn": last.dtvlsn,
        "time": last.time_us,
        "home_ms": round(log.care.checkpointer.home_s * 1e3, 3),
        "running": log.care.checkpointer.running,
    }


def _log(log: LocalLog) -> dict[str, Any]:
    """Formats the log's files, queue and refusals."""
    segments = log.view.segments()
    return {
        "segments": len(segments),
        "bytes": sum(segments.values()),
        "bytes_on_disk": log.placement.disk_bytes,
        "unpunched": log.placement.holes.fault,
        "queue_length": log.queue.entries,
        "queue_bytes": log.queue.bytes,
        "active": [segment_name(number) for number in log.placement.active_files()],
        "rolls": dict(log.stats.rolls),
        "late_standbys": log.placement.late_standbys,
        "groups": log.stats.groups,
        "no_space": bool(log.no_space),
        "refuses": refusal.slug if (refusal := log.refusal) is not None else "",
        "failing": _failing(log),
        "free_bytes": log.care.space.free_bytes,
    }


def _members(member: Member, group: GroupEntry) -> list[dict[str, Any]]:
    """Lists the members that the log's group has."""
    return [
        {
            "name": each.name,
            "url": each.url,
            "incarnation": each.incarnation,
            "electable": each.electable,
            "priority": each.priority,
            "joining": each.joining,
            "silent": member.members.silent.get(NodeName(each.name), ""),
        }
        for each in group.members
    ]


def founding(parts: NodeParts) -> str:
    """Returns the unique name of this node's log. It is empty until the log's first entry is known to be durable."""
    opened = parts.open
    return opened.log.view.history.founding if opened is not None and parts.dtvlsn() else ""


def long_status(parts: NodeParts) -> Generator[int, None, dict[str, Any]]:
    """Makes the fields of a status that grow with the names given by clients, which may be hundreds, in steps that tell
    what each costs (``repl.web.slices``). If the log closes between two steps, the rest stays empty."""
    found: dict[str, Any] = {"holds": [], "consumers": [], "destinations": [], "cdc": parts.cdc.told()}
    opened = parts.open
    if opened is None:
        return found
    log = opened.log
    yield NAMES_COST
    found["holds"] = holds(log)
    yield NAMES_COST
    found["consumers"] = msgspec.to_builtins(opened.consumers.told())
    yield NAMES_COST
    for view in log.care.destinations.views():
        yield DESTINATION_COST
        if parts.open is not opened:
            break
        deliveries = lead.destinations if (lead := parts.lead) is not None else None
        found["destinations"].append(told(log, view, deliveries, opened.pager))
    return found


def _place(parts: NodeParts, log: LocalLog, members: list[dict[str, Any]]) -> None:
    """Adds to each member how far it is, as this node knows it, and how far it is behind the most advanced member.
    The position comes from the member's feed, its report, or the feed that it serves. It is None before the first
    report."""
    known: dict[str, int] = {
        each["name"]: parts.member.members.heard.of(int(each["incarnation"] or "0", 16)).vlsn for each in members
    }
    if parts.leading is not None:
        known |= {feeder.replica: feeder.acked for feeder in parts.leading.feeders.values()}
    feed = parts.following.feed if parts.following is not None else None
    if parts.following is not None and feed is not None and feed.position is not None:
        known[str(parts.following.master)] = feed.position.last_vlsn
    known[parts.member.config.name] = log.view.range.last
    newest = max(known.values())
    for each in members:
        each["vlsn"] = known.get(each["name"]) or None
        each["lag_vlsns"] = newest - each["vlsn"] if each["vlsn"] is not None else None


def _alarms(member: Member) -> list[dict[str, Any]]:
    """Lists the known alarms of all members, this node's own first."""
    known, own = member.members, member.name
    told = {own: member.alarms(), **{name: known.alarms.get(name, []) for name in known.listed if name != own}}
    return [{"node": name, **msgspec.structs.asdict(each)} for name, found in told.items() for each in found]


def _elections(parts: NodeParts) -> dict[str, Any]:
    """Sums up the elections since this process started. ``last`` is the newest election, and ``history`` the last
    ten."""
    events = parts.member.events
    history = events.recent("election")
    return {
        "stood": events.counts["stands"],
        "won": events.counts["elected"],
        "master_changes": parts.member.counts.master_changes,
        "stood_still": still._asdict() if (still := parts.member.counts.stood_still) is not None else None,
        "last": history[0] if history else None,
        "history": history,
    }


def restore_status(parts: NodeParts) -> dict[str, Any]:
    """Reports this node's own restores, and the restores of other nodes that it provides for."""
    restoration = parts.restoration
    found: dict[str, Any] = {
        "running": None,
        "history": list(restoration.history),
        "providing": [
            {"peer": session.peer, "vlsn": session.hold.vlsn, "bytes": session.bytes}
            for session in (parts.open.providing.sessions if parts.open is not None else [])
        ],
    }
    progress = restoration.progress
    if progress is not None:
        seconds = max(0.0, parts.member.seams.clock.monotonic_s() - progress.began_s)
        rate = progress.bytes_done / seconds if seconds else 0.0
        left = max(0, progress.bytes_total - progress.bytes_done)
        found["running"] = {
            "from": progress.provider,
            "bytes_done": progress.bytes_done,
            "bytes_total": progress.bytes_total,
            "vlsn": progress.vlsn,
            "target": progress.target,
            "bytes_per_s": round(rate),
            "expected_s": round(left / rate, 1) if rate else None,
            "attempts": progress.attempts,
            "last_error": progress.last_error,
        }
    return found


def holds(log: LocalLog) -> list[dict[str, Any]]:
    """Lists what keeps how much of the log from cleaning, beginning with the one that is furthest behind."""
    with log.latch:
        log.care.consumer_holds.place(log.view.dtvlsn)
    found = [
        {
            "owner": str(hold.owner),
            "name": hold.name,
            "vlsn": hold.vlsn,
            "age_s": round(hold.age_s, 3),
            "lag_vlsns": max(0, log.view.range.last - hold.vlsn),
        }
        for hold in log.care.holds
    ]
    return sorted(found, key=lambda each: (each["vlsn"], each["owner"], each["name"]))


def _failing(log: LocalLog) -> list[dict[str, Any]]:
    """Lists the background work that fails now, as ``Background`` knows it."""
    now = log.seams.clock.monotonic_s()
    return [
        {
            "work": fault.work,
            "why": fault.why,
            "errno": errorcode.get(fault.errno, ""),
            "failures": fault.failures,
            "since_s": max(0.0, now - fault.since_s),
            "again_s": max(0.0, fault.due_s - now),
        }
        for fault in log.life.background.faults()
    ]


def _cleaning(opened: OpenNode) -> dict[str, Any]:
    log = opened.log
    last = log.care.cleaner.last
    return {
        "retention_bytes": log.options.retention_bytes,
        "retention_age_s": log.options.retention_age_s,
        "hold_bytes_max": log.options.hold_bytes_max,
        "segments": log.care.cleaner.segments,
        "bytes": log.care.cleaner.bytes,
        "holds_dropped": log.care.cleaner.drops,
        "paused": opened.cleaning.paused,
        "blocked": len(last.blocked) if last is not None else 0,
        "blocked_by": last.blocked[0].blocked_by if last is not None and last.blocked else [],
    }


def _feeders(role: Leading) -> list[dict[str, Any]]:
    now = role.member.seams.clock.monotonic_s()
    last = role.log.view.range.last
    return [
        {
            "replica": feeder.replica,
            "sent": feeder.sent,
            "acked": feeder.acked,
            **role.catching_up[feeder.replica].status(now, feeder.acked, last),
            "mode": str(feeder.mode),
            "streaming": feeder.streaming,
            "switches": feeder.source.switches if feeder.source is not None else 0,
        }
        for feeder in role.feeders.values()
    ]


def _replica(role: Following) -> dict[str, Any]:
    feed = role.feed
    position = feed.position if feed is not None else None
    now = role.member.seams.clock.monotonic_s()
    behind: dict[str, Any] = dict.fromkeys(("lag_vlsns", "lag_s", "vlsns_per_s", "expected_s"))
    if position is not None:
        behind = role.catching_up.status(now, role.log.view.range.last_sync, position.last_vlsn)
    return {
        "master": role.master,
        "streaming": feed is not None and feed.streaming,
        "term": feed.term if feed is not None else 0,
        "verified": feed.verified if feed is not None else 0,
        **behind,
        "silent_s": round(now - feed.heard_s, 3) if feed is not None else None,
        "feeds": role.feeds,
        "reason": role.reason,
    }


def readiness(parts: NodeParts) -> list[str]:
    """Lists the reasons why this node should not be asked for durable reads. The list is empty when the node is
    ready."""
    reasons = []
    opened = parts.open
    if opened is None:
        return [f"the log is not open: {parts.member.reason}"]
    if parts.member.state in ("UNKNOWN", "DAMAGED", "HALTED", "RESTORING"):
        reasons.append(f"state {parts.member.state}" + (f": {parts.member.reason}" if parts.member.reason else ""))
    if parts.member.master_name() is None:
        reasons.append("no master is known")
    lag = _replica(parts.following)["lag_vlsns"] if parts.following is not None else 0
    if lag is None:
        reasons.append("the lag is not known yet")
    elif lag > parts.member.config.ready_lag_vlsns_max:
        reasons.append(f"{lag} VLSNs behind the master, over {parts.member.config.ready_lag_vlsns_max}")
    reasons += [f"damaged: {each['file']} at {each['offset']}, VLSN {each['vlsn']}" for each in opened.mending.status()]
    if is_lost(opened.log):
        reasons.append(REASON)
    if (refusal := opened.log.refusal) is not None:
        reasons.append(f"{refusal.slug}: {refusal}")
    return reasons
