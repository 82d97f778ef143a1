"""The events of a node. Each event is a line in the node's log. The last thousand are kept in memory, and the last few
of each kind.

    2026-01-02 03:04:05,678 INFO n2 elected term=7            a line of the node's log
    GET /v1/events?from=41  ->  {"first":1,"next":57,"events":[{"number":41,"time":…,"event":"elected","term":7}, …]}

The level of an event tells an operator what to do: INFO nothing, WARNING look, ERROR act. A warning with ``expected``
belongs to a start, a hand-over or an orderly stop, and has the level INFO. If the same state is reported
again, the reports are one event. Each report moves the event to the next number, with ``count``, and with the time of
the first report in ``since``. A repeated event is logged again only when its count is a power of two.

The names of events are stable, so searches of a log still work after an upgrade. ``KINDS`` lists all events, and
docs/monitoring.md explains each.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

RING: Final = 1_000
RECENT: Final = 10
"""The number of events of each kind that are kept in memory."""
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "node": ("open", "opened", "state", "old_image", "unpunched", "no_space", "has_space"),
    "election": ("stands", "vote", "elected", "leads", "steps_down", "hands_over", "hand_over.failed", "master"),
    "founding": ("founding", "peer.silent"),
    "group": (
        *("group.change", "group.durable", "group.level", "group.promoted", "group.readmitted", "group.waits"),
        *("group.found", "group.settings"),
    ),
    "feed": ("feed.start", "feed.mode", "feed.end", "feed.stopped"),
    "syncup": ("syncup", "rolled_back", "integrity"),
    "restore": (
        *("restore.begin", "restore.from", "restore.again", "restore.failed", "restore.note", "restore.done"),
        *("restore.provides", "restore.refused"),
    ),
    "damage": ("damage", "damage.stays", "mended", "scrub.unreadable", "state.rotten"),
    "producers": ("producers.lost", "producers.waits", "producers.found", "producers.forgotten"),
    "tls": ("tls.reloaded", "tls.reload-failed"),
    "background": ("background.failed", "background.works"),
    "cdc": (
        "cdc.starts",
        "cdc.mode",
        "cdc.failed",
        "cdc.waits",
        "cdc.parked",
        "cdc.paused",
        "cdc.resumed",
        "cdc.moved",
        "cdc.order_failed",
        "cdc.skipped",
        "cdc.resent",
        "cdc.not_resent",
        "cdc.not_configured",
    ),
    "destinations": (
        *("destination.made", "destination.dropped", "destination.moved"),
        *("destination.full", "destination.dead", "destination.lost"),
    ),
    "pages": (
        *("destination.paged", "destination.depaged", "page.damaged", "pages.filled", "pages.note", "pages.unread"),
        *("pages.no_space", "pages.has_space"),
    ),
    "key": ("key.changed", "key.unread", "insecure"),
    "orders": ("admin.called", "admin.refused", "audit.lost"),
    "tokens": ("token.created", "token.rotated", "token.revoked"),
    "cleaning": ("cleaned", "cleaning.paused", "cleaning.resumed", "hold.dropped"),
}
WARNINGS: Final = frozenset(
    {
        *("old_image", "unpunched", "no_space", "steps_down", "hand_over.failed", "peer.silent", "group.waits"),
        *("feed.stopped", "rolled_back", "integrity", "restore.begin", "restore.again", "restore.failed"),
        *("restore.refused", "destination.full", "destination.dead", "destination.lost"),
        *("scrub.unreadable", "state.rotten", "cleaning.paused", "hold.dropped", "background.failed"),
        "tls.reload-failed",
        *("producers.lost", "producers.waits", "producers.forgotten"),
        *("cdc.failed", "cdc.waits", "cdc.skipped", "cdc.not_resent", "cdc.not_configured", "cdc.order_failed"),
        *("pages.note", "pages.unread", "pages.no_space", "key.unread", "insecure"),
        "audit.lost",
    }
)
ERRORS: Final = frozenset({"damage", "damage.stays", "cdc.parked", "page.damaged"})
_STATE_LEVELS: Final = {"DAMAGED": logging.ERROR, "HALTED": logging.ERROR, "RESTORING": logging.WARNING}
REPEATING: Final = frozenset(
    {
        *("vote", "peer.silent", "group.waits", "feed.stopped", "feed.end", "integrity", "hand_over.failed", "syncup"),
        *("restore.again", "restore.failed", "restore.note", "damage", "damage.stays", "scrub.unreadable"),
        *("cleaning.paused", "hold.dropped", "unpunched", "producers.waits", "background.failed", "pages.unread"),
        *("admin.refused", "audit.lost"),
    }
)
"""Events that are reported repeatedly while a state lasts."""
_KIND_OF: Final = {name: kind for kind, names in KINDS.items() for name in names}


class Events:
    """The events of one process, numbered from 1."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._ring: deque[dict[str, Any]] = deque()
        self._repeated: dict[tuple[object, ...], dict[str, Any]] = {}
        self._recent: dict[str, deque[dict[str, Any]]] = {kind: deque(maxlen=RECENT) for kind in (*KINDS, "")}
        self._next = 1

    def note(self, name: str, time_us: int, fields: Mapping[str, object]) -> int:
        """Records an event. Returns how often the same event was recorded, as far as events are kept."""
        plain = {key: _plain(fields[key]) for key in fields}
        said: tuple[object, ...] = (name, *plain.items())
        before = self._repeated.get(said) if name in REPEATING else None
        level = logging.getLevelName(level_of(name, fields)).lower()
        event: dict[str, Any] = {"number": self._next, "time": time_us, "level": level, "event": name, **plain}
        recent = self._recent[_KIND_OF.get(name, "")]
        if before is not None:
            event |= {"count": before.get("count", 1) + 1, "since": before.get("since", before["time"])}
            self._ring.remove(before)
            if before in recent:
                recent.remove(before)
        elif len(self._ring) == RING:
            oldest = self._ring.popleft()
            self._repeated = {key: each for key, each in self._repeated.items() if each is not oldest}
        if name in REPEATING:
            self._repeated[said] = event
        self._next += 1
        self.counts[name] += 1
        self._ring.append(event)
        recent.append(event)
        return int(event.get("count", 1))

    def since(self, number: int, limit: int) -> dict[str, Any]:
        """Returns at most ``limit`` of the kept events, from number ``number`` on. ``first`` is the number of the
        oldest kept event, and ``next`` the number at which the next call continues."""
        first = self._ring[0]["number"] if self._ring else self._next
        later = (event for event in self._ring if event["number"] >= number)
        events = list(islice(later, limit))
        return {"first": first, "next": events[-1]["number"] + 1 if events else self._next, "events": events}

    def shown(self, most: int) -> list[dict[str, Any]]:
        """Returns the newest ``most`` events, and the newest ``most`` warnings and errors; the newest first."""
        looks = [event for event in self._ring if event["level"] != "info"][-most:]
        newest = list(islice(reversed(self._ring), most))
        return newest + [event for event in reversed(looks) if event["number"] < newest[-1]["number"]]

    def recent(self, kind: str, *names: str) -> list[dict[str, Any]]:
        """Returns the last ten events of ``kind``, the newest first. With ``names``, returns only events with these
        names."""
        return [event for event in reversed(self._recent[kind]) if not names or event["event"] in names]


def level_of(name: str, fields: Mapping[str, object]) -> int:
    """Returns the ``logging`` level of an event."""
    if name == "state":
        return _STATE_LEVELS.get(str(fields.get("state", "")), logging.INFO)
    if name in ERRORS:
        return logging.ERROR
    return logging.WARNING if name in WARNINGS and not fields.get("expected") else logging.INFO


def expected_if(expected: bool) -> dict[str, bool]:
    """Returns the field of an event that needs no look, because it belongs to a start, a hand-over or an orderly
    stop."""
    return {"expected": True} if expected else {}


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else str(value)
