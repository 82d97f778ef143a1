"""Cuts a sealed segment of a stopped replica short: the node mends it from its peers, without an operator."""

from __future__ import annotations

import os

from harness.hostile.files import HEAL_S, Victim, on_a_victim
from harness.hostile.kind import Kind, Limits
from vlsn.format.segment import FIRST_FRAME


async def _truncated(victim: Victim) -> str:
    name, found = victim.node.name, victim.scene.found
    await victim.roll()
    if not await victim.stop():
        found.append(f"{name} did not end when it was told to")
    path, end = victim.sealed()[0]
    size, left = path.stat().st_size, FIRST_FRAME + (end - FIRST_FRAME) // 2
    os.truncate(path, left)
    victim.start()
    if not await victim.until(lambda: path.stat().st_size == size, HEAL_S):
        found.append(f"{path.name} of {name} has {path.stat().st_size} bytes still, not {size}")
    if not await victim.follows():
        found.append(f"{name} does not follow: {await victim.status()}")
    return f"{path.name} of {name}, whose log ends at {end}, cut to {left} bytes while it was stopped"


KIND = Kind(
    "truncated",
    "a sealed segment of a stopped replica is cut short",
    on_a_victim(_truncated),
    Limits(nodes_up=False),
    settings={"scrub_period_s": 1.0},
)
