"""The events of a node: one line each in its log, the last thousand in memory. The last few of each kind stay at hand.

    2026-01-02 03:04:05,678 INFO n2 elected term=7            a line of the node's log
    GET /v1/events?from=41  ->  {"first":1,"next":57,"events":[{"number":41,"time":…,"event":"elected","term":7}, …]}

The level of an event says how an operator reacts: INFO not at all, WARNING to look, ERROR to act. A repeated report of
one state is one event. It takes the next number again, with ``count`` and, in ``since``, the time of the first one; its
line is logged for every power of two.

Names are stable: a search of a log, or a count, works after an upgrade, too. ``KINDS`` is the list of them, and
docs/operating.md says what each means.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

RING: Final = 1_000
RECENT: Final = 10
"""How many events of each kind are kept."""
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
    }
)
ERRORS: Final = frozenset({"damage", "damage.stays", "cdc.parked", "page.damaged"})
_STATE_LEVELS: Final = {"DAMAGED": logging.ERROR, "HALTED": logging.ERROR, "RESTORING": logging.WARNING}
REPEATING: Final = frozenset(
    {
        *("vote", "peer.silent", "group.waits", "feed.stopped", "feed.end", "integrity", "hand_over.failed", "syncup"),
        *("restore.again", "restore.failed", "restore.note", "damage", "damage.stays", "scrub.unreadable"),
        *("cleaning.paused", "hold.dropped", "unpunched", "producers.waits", "background.failed", "pages.unread"),
    }
)
"""Events that are repeated while their state lasts."""
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
        """Notes an event. Returns how often the same event was noted, as far as events are kept."""
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
        """Returns at most ``limit`` of the kept events from ``number`` on. ``first`` is the number of the oldest kept
        event, and ``next`` the number where the next call continues."""
        first = self._ring[0]["number"] if self._ring else self._next
        later = (event for event in self._ring if event["number"] >= number)
        events = list(islice(later, limit))
        return {"first": first, "next": events[-1]["number"] + 1 if events else self._next, "events": events}

    def recent(self, kind: str, *names: str) -> list[dict[str, Any]]:
        """Returns the last ten events of ``kind``, the newest first. If ``names`` are given, only events with these
        names."""
        return [event for event in reversed(self._recent[kind]) if not names or event["event"] in names]


def level_of(name: str, fields: Mapping[str, object]) -> int:
    """Returns the level of ``logging`` for an event."""
    if name == "state":
        return _STATE_LEVELS.get(str(fields.get("state", "")), logging.INFO)
    if name in ERRORS:
        return logging.ERROR
    return logging.WARNING if name in WARNINGS else logging.INFO


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else str(value)
