"""Two thousand native clients at once, each of which awaits its answers: a load rather than an attack."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from harness.hostile.kind import ELECTION_TIMEOUT_S, Kind, Limits, Scene
from repl.client.connect import connect
from vlsn.errors import VlsnLogError

CLIENTS = 2_000
TIMEOUT_S = 30.0
LEAVE_S = 0.002
"""Seconds between two clients that leave."""
SHARE_MIN = 0.1
"""The smallest share of the median that the worst served client must have."""


@dataclass(slots=True)
class _Seen:
    ready: asyncio.Event
    waiting: int = CLIENTS
    """Clients that have had no answer yet."""
    counts: list[int] = field(default_factory=lambda: [0] * CLIENTS)
    """Appends since each client has had its first answer."""
    errors: Counter[str] = field(default_factory=Counter)


async def _attack(scene: Scene) -> str:
    loop = asyncio.get_running_loop()
    seen, began = _Seen(asyncio.Event()), loop.time()
    clients = asyncio.gather(*(_client(scene, number, seen) for number in range(CLIENTS)))
    await seen.ready.wait()
    connected_s = loop.time() - began
    await clients
    counts, middle = seen.counts, median(seen.counts)
    if seen.errors:
        scene.found.append(f"{seen.errors.total()} of their appends failed: {dict(seen.errors)}")
    if min(counts) < max(1, middle * SHARE_MIN):
        none = sum(not count for count in counts)
        scene.found.append(f"a client had {min(counts)} appends, the median is {middle:g}; {none} had none")
    return (
        f"{CLIENTS:,} clients, all served after {connected_s:.1f} s; then {sum(counts):,} appends,"
        f" {min(counts)} to {max(counts)} each, median {middle:g}"
    )


async def _client(scene: Scene, number: int, seen: _Seen) -> None:
    """Appends once; when all clients have, appends until the time is over, each awaited before the next."""
    loop = asyncio.get_running_loop()
    async with connect(",".join(scene.cluster.urls), timeout_s=TIMEOUT_S) as log:
        try:
            await log.append(b"%d" % number)
        except VlsnLogError as error:
            seen.errors[error.slug] += 1
        seen.waiting -= 1
        if not seen.waiting:
            seen.ready.set()
        await seen.ready.wait()
        until = loop.time() + scene.seconds + number * LEAVE_S
        while loop.time() < until:
            try:
                await log.append(b"%d" % number)
            except VlsnLogError as error:
                seen.errors[error.slug] += 1
                return
            seen.counts[number] += 1


KIND = Kind(
    "clients",
    f"{CLIENTS:,} native clients, each of which awaits its answers",
    _attack,
    Limits(p99_s=ELECTION_TIMEOUT_S, longest_s=2 * ELECTION_TIMEOUT_S, append_p99_s=TIMEOUT_S),
)
