"""Clients that leave in every state, for a set time: measures the memory and handles that a node keeps of them.

With more seconds it is the soak: ``--kind leaving --seconds 1800``.  Half of the clients close, the others reset.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from harness.hostile.kind import Kind, Scene
from harness.hostile.states import STATES, Client
from repl.client.connect import connect
from vlsn.limits import MIB

AT_ONCE = 16
LEAVES_S = 30.0
"""Seconds after which a client leaves, whatever state it has reached."""
WARM = 20
"""Clients of each state in one round before memory is first measured."""
ROUNDS_MAX = 6
"""Rounds until memory is first measured. Pools, caches and the ring are full once a round adds no more than
``SETTLED_MAX``; how many rounds that takes depends on the machine's speed."""
SETTLED_MAX = 0.02
REST_S = 5.0
"""Seconds from the last client to the last measurement."""
SAY_S = 30.0
MESSAGES = 48
MESSAGE_BYTES = MIB // 4
GROWS_MAX = 0.1
"""The largest share by which a node's memory may grow. A long run compares the medians of its first and second half,
since one measurement includes the clients of that moment; a short run compares its beginning with its end."""
LOOKS_MIN = 8


@dataclass(slots=True)
class _Seen:
    left: Counter[str] = field(default_factory=Counter)
    """Clients by their states."""
    cut: Counter[str] = field(default_factory=Counter)
    """Clients that did not reach their state, by the error that they got."""


async def _attack(scene: Scene) -> str:
    loop = asyncio.get_running_loop()
    await _prepare(scene)
    before = await _settled(scene)
    seen, began = _Seen(), loop.time()
    looks, until = list[int](), began + scene.seconds
    states = itertools.takewhile(lambda _: loop.time() < until, itertools.cycle(STATES))
    coming = asyncio.create_task(_come_and_leave(scene, seen, states))
    while not (await asyncio.wait([coming], timeout=SAY_S))[0]:
        looks.append(_memory(scene))
        scene.say(f"  {loop.time() - began:6,.0f} s  {seen.left.total():9,} clients  {looks[-1] / MIB:6.1f} MiB")
    await coming
    await asyncio.sleep(REST_S)
    after, half = _memory(scene), len(looks) // 2
    early, late = (median(looks[:half]), median(looks[-half:])) if half >= LOOKS_MIN else (before, after)
    if late > early * (1 + GROWS_MAX):
        scene.found.append(f"{scene.master} has grown from {early / MIB:.1f} to {late / MIB:.1f} MiB")
    cut = "".join(f", {count:,} of them {what}" for what, count in seen.cut.most_common(3))
    return (
        f"{seen.left.total():,} clients, {min(map(seen.left.__getitem__, STATES)):,} and more in each of {len(STATES)}"
        f" states{cut}; the master's memory: {before / MIB:.1f} MiB before, {max(before, after, *looks) / MIB:.1f} at"
        f" most, {after / MIB:.1f} after"
    )


async def _prepare(scene: Scene) -> None:
    """Makes the destinations that ``states`` uses."""
    async with connect(",".join(scene.cluster.urls)) as log:
        await log.destinations.put("none", prefix="nobody-", from_="start")
        await log.destinations.put("orders", prefix="left-", from_="start", ack_timeout_s=1.0, attempts_max=1_000)
        for number in range(MESSAGES):
            await log.append(b"." * MESSAGE_BYTES, key=b"left-%d" % number)


async def _settled(scene: Scene) -> int:
    """Returns the master's memory once rounds of clients no longer add to it. Memory that each round adds to is a
    finding."""
    before = 0
    for _ in range(ROUNDS_MAX):
        await _come_and_leave(scene, _Seen(), itertools.chain.from_iterable([STATES] * WARM))
        await asyncio.sleep(REST_S)
        last, before = before, _memory(scene)
        if before <= last * (1 + SETTLED_MAX):
            return before
    scene.found.append(
        f"{scene.master} grew in each of {ROUNDS_MAX} rounds, at last from {last / MIB:.1f} MiB to {before / MIB:.1f}"
    )
    return before


async def _come_and_leave(scene: Scene, seen: _Seen, states: Iterator[str]) -> None:
    await asyncio.gather(*(_one_after_another(scene, seen, states) for _ in range(AT_ONCE)))


async def _one_after_another(scene: Scene, seen: _Seen, states: Iterator[str]) -> None:
    for state in states:
        client = Client(scene.master_url)
        try:
            async with asyncio.timeout(LEAVES_S):
                await client.open()
                await STATES[state](client)
        except (OSError, TimeoutError) as error:
            seen.cut[f"met {type(error).__name__}"] += 1
        finally:
            seen.left[state] += 1
            client.close(reset=seen.left[state] % 2 == 0)


def _memory(scene: Scene) -> int:
    """Returns the bytes of the master's own memory, without files that it has mapped, which are the system's cache."""
    lines = Path(f"/proc/{scene.cluster.node(scene.master).pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(kib) * 1024


KIND = Kind(
    "leaving",
    f"clients that leave in each of {len(STATES)} states: half a message, a stage, a long-poll, messages not taken …",
    _attack,
    settings={"ring_bytes_max": 4 * MIB},
)
