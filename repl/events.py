"""What happened to a node: one line each in its log, the last thousand in memory, the last few of each kind at hand.

    2026-01-02 03:04:05,678 INFO n2 elected term=7            a line of the node's log
    GET /v1/events?from=41  ->  {"first":1,"next":57,"events":[{"number":41,"time":…,"event":"elected","term":7}, …]}

Names are stable: whoever looks for one in a log or counts it finds it after an upgrade, too.  ``KINDS`` is the list of
them, and docs/operating.md says what each means.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

RING: Final = 1_000
RECENT: Final = 10
"""Of each kind."""
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "node": ("open", "opened", "state", "old_image"),
    "election": ("stands", "vote", "elected", "leads", "steps_down", "hands_over", "hand_over.failed", "master"),
    "founding": ("founding", "peer.silent"),
    "group": ("group.change", "group.durable", "group.promoted", "group.readmitted", "group.waits"),
    "feed": ("feed.start", "feed.mode", "feed.end", "feed.stopped"),
    "syncup": ("syncup", "rolled_back", "integrity"),
    "restore": (
        *("restore.begin", "restore.from", "restore.again", "restore.failed", "restore.note", "restore.done"),
        "restore.provides",
    ),
    "damage": ("damage", "damage.stays", "mended", "scrub.unreadable"),
    "cleaning": ("cleaned", "cleaning.paused", "cleaning.resumed", "hold.dropped"),
}
_KIND_OF: Final = {name: kind for kind, names in KINDS.items() for name in names}


class Events:
    """Numbered from 1 in each life of a process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._ring: deque[dict[str, Any]] = deque(maxlen=RING)
        self._recent: dict[str, deque[dict[str, Any]]] = {kind: deque(maxlen=RECENT) for kind in (*KINDS, "")}
        self._next = 1

    def note(self, name: str, time_us: int, fields: Mapping[str, object]) -> None:
        event = {"number": self._next, "time": time_us, "event": name, **{key: _plain(fields[key]) for key in fields}}
        self._next += 1
        self.counts[name] += 1
        self._ring.append(event)
        self._recent[_KIND_OF.get(name, "")].append(event)

    def since(self, number: int, limit: int) -> dict[str, Any]:
        """At most ``limit`` of those from ``number`` on that are kept; ``first`` is the oldest kept, ``next`` where to
        go on."""
        first = self._next - len(self._ring)
        start = max(0, number - first)
        events = list(islice(self._ring, start, start + limit))
        return {"first": first, "next": events[-1]["number"] + 1 if events else self._next, "events": events}

    def recent(self, kind: str, *names: str) -> list[dict[str, Any]]:
        """The last ten of ``kind``, the newest first; of ``names`` only, if there are any."""
        return [event for event in reversed(self._recent[kind]) if not names or event["event"] in names]


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else str(value)
