"""Replaces a segment of a running replica by a FIFO. Readers with the old file open continue, others get the error of
damage. Nothing hangs; the node ends on SIGTERM, and follows again once the file is back."""

from __future__ import annotations

import asyncio

from harness.hostile.files import END_S, HEAL_S, POLL_S, Victim, make_fifo, on_a_victim
from harness.hostile.kind import Kind, Limits
from vlsn.errors import VlsnLogError


async def _swapped(victim: Victim) -> str:
    node, found = victim.node, victim.scene.found
    await victim.roll()
    path = victim.sealed()[0][0]
    aside = path.with_name(path.name + ".was")
    path.rename(aside)
    make_fifo(path)
    try:
        url = f"{node.url}/v1/entries?from=1&kinds=all"
        response = await victim.network.request("GET", url, timeout_s=END_S)
        if response.status != 200 and b'"damaged"' not in bytes(response.body):
            found.append(f"a read of the FIFO was answered with {response.status}: {bytes(response.body)[:200]!r}")
    except VlsnLogError as error:
        found.append(f"a read of the FIFO: {error}")
    if not await _says_so(victim):
        found.append(f"{node.name} does not say that it is damaged")
    if not await victim.stop():
        found.append(f"{node.name} did not end when it was told to")
    path.unlink()
    aside.rename(path)
    victim.start()
    if not await victim.follows():
        found.append(f"{node.name} does not follow when the file is back: {await victim.status()}")
    return f"a FIFO in the place of {path.name} under {node.name}"


async def _says_so(victim: Victim) -> bool:
    """Waits until the scrub or a reader finds it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HEAL_S
    while loop.time() < deadline:
        if (await victim.status()).get("damage"):
            return True
        await asyncio.sleep(POLL_S)
    return False


KIND = Kind(
    "swapped",
    "a segment taken from under a running replica, a FIFO in its place",
    on_a_victim(_swapped),
    Limits(nodes_up=False),
    settings={"scrub_period_s": 1.0},
)
