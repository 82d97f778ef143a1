"""Estimates when a replica will have caught up, from its positions in the last ten seconds.

10 s ago: 2 000 of 10 000;  now: 6 000 of 11 000      400 a second; 5 000 behind, 300 fewer each second: 16.7 s
"""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES: Final = 10
SAMPLE_S: Final = 1.0


class ReplicaLag:
    """Computes a replica's lag, and its expected time to catch up, from its positions and the log's ends."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=SAMPLES)
        self._since_s: float | None = None
        """The time at which the first VLSN that the replica is missing was seen in the log. None while no sample is old
        enough."""

    def note(self, now_s: float, have: int, wanted: int) -> None:
        """Notes the replica's position ``have`` and the log's end ``wanted``. The method may be called at any rate;
        about one sample a second is kept."""
        known = next((then_s for then_s, _, there in self._samples if there > have), None)
        self._since_s = known if known is None or self._since_s is None else min(known, self._since_s)
        if not self._samples or now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now_s, have, wanted))

    def status(self, now_s: float, have: int, wanted: int) -> dict[str, float | int | None]:
        """Returns ``lag_vlsns``, ``lag_s``, ``vlsns_per_s`` and ``expected_s``. ``lag_s`` is the age of the first
        missing VLSN, to a second. Beyond ten seconds, ``lag_s`` is the time for which the replica has been that far
        behind. ``expected_s`` is the time until nothing is missing, at the rate of the last seconds; it is None while
        the lag does not shrink or is not known yet."""
        lag = max(0, wanted - have)
        rate, expected = 0.0, 0.0 if not lag else None
        if self._samples and now_s > self._samples[0][0]:
            then_s, had, was_wanted = self._samples[0]
            seconds = now_s - then_s
            rate = max(0.0, (have - had) / seconds)
            nearer = (max(0, was_wanted - had) - lag) / seconds
            if lag and nearer > 0:
                expected = max(0.1, round(lag / nearer, 1))
        since = now_s if self._since_s is None or not lag else self._since_s
        return {
            "lag_vlsns": lag,
            "lag_s": round(max(0.0, now_s - since), 3),
            "vlsns_per_s": round(rate, 1),
            "expected_s": expected,
        }
