"""Runs a kind against a group, and checks its cost.

three nodes serve ─► watched ─► the attack ─► nodes still answer ─► all acknowledged entries are in the log
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.hostile.kind import Kind, Limits, Scene
from harness.hostile.watch import Watched, watching
from repl.client.connect import connect
from repl.cluster import Cluster, ending_with, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from vlsn.errors import VlsnLogError

NODES = 3
SERVES_S = 120.0
"""Seconds in which a group must start, and have its whole log on every node after the attack."""
SETTINGS: dict[str, str | int | float] = {"segment_bytes": 4 << 20}


@dataclass(slots=True)
class Row:
    """The row of one kind: its requests, and the state of the group afterwards."""

    kind: str
    sent: str = ""
    p99_ms: dict[str, float] = field(default_factory=dict)
    longest_ms: dict[str, float] = field(default_factory=dict)
    leads: list[tuple[int, str]] = field(default_factory=list)
    acknowledged: int = 0
    append_p99_ms: float = 0.0
    found: list[str] = field(default_factory=list)
    """Faults; empty if the kind holds."""

    @property
    def holds(self) -> bool:
        return not self.found

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


async def run_kind(
    kind: Kind, directory: Path, *, seconds: float, slack: float = 1.0, say: Callable[[str], None] = lambda _: None
) -> Row:
    """Runs one kind; everything may take ``slack`` times its limits."""
    row = Row(kind.name)
    network = AiohttpNetwork()
    try:
        settings = {"anonymous": "all", **SETTINGS, **kind.settings}
        made = prepare(directory, network, nodes=NODES, base_port=free_base_port(NODES), settings=settings)
        with ending_with(made) as cluster:
            for node in cluster.nodes:
                node.start()
            await _attacked(kind, cluster, row, seconds, slack, say)
            await cluster.stop()
    except TimeoutError as error:
        row.found.append(f"it did not come to an end: {error}")
    finally:
        await network.close()
    return row


async def _attacked(
    kind: Kind, cluster: Cluster, row: Row, seconds: float, slack: float, say: Callable[[str], None]
) -> None:
    async with asyncio.timeout(SERVES_S):
        scene = Scene(cluster, await cluster.serving(), seconds, say)
        await cluster.durable(1)
    urls = {node.name: node.url for node in cluster.nodes}
    watch = watching(urls)
    watcher = await asyncio.to_thread(watch.__enter__)
    try:
        row.sent = await kind.attack(scene)
        watched = await asyncio.to_thread(watcher.stop)
    finally:
        watch.__exit__(None, None, None)
    _tell(row, watched)
    limits = replace(
        kind.limits,
        p99_s=kind.limits.p99_s * slack,
        longest_s=kind.limits.longest_s * slack,
        append_p99_s=kind.limits.append_p99_s * slack,
    )
    row.found += [*scene.found, *judge(watched, limits)]
    row.found += [
        f"{node.name} {node.how_it_ended()}" for node in cluster.nodes if limits.nodes_up and not node.running
    ]
    row.found += await _lost(cluster, watched)


def _tell(row: Row, watched: Watched) -> None:
    row.p99_ms = {name: each.p99_s * 1000 for name, each in watched.answers.items()}
    row.longest_ms = {name: each.longest_s * 1000 for name, each in watched.answers.items()}
    row.leads = watched.leads
    row.acknowledged = len(watched.acknowledged)
    row.append_p99_ms = watched.append_p99_s * 1000


def judge(watched: Watched, limits: Limits) -> list[str]:
    """Lists the ``limits`` that were exceeded."""
    found = []
    for name, each in watched.answers.items():
        if each.p99_s > limits.p99_s:
            found.append(f"{name}: /healthz took {each.p99_s * 1000:,.0f} ms (p99), over {limits.p99_s * 1000:,.0f}")
        if each.longest_s > limits.longest_s:
            found.append(f"{name} was silent for {each.longest_s:.2f} s, over {limits.longest_s:g}")
        if each.failed and limits.nodes_up:
            found.append(f"{name}: {each.failed} of {len(each.seconds)} health checks were not answered")
    if limits.same_lead and len(watched.leads) > 1:
        found.append(f"the lead was lost: {', '.join(f'{name} in term {term}' for term, name in watched.leads)}")
    errors = watched.errors.total()
    if errors > limits.errors:
        found.append(f"{errors} appends failed: {dict(watched.errors)}")
    if not watched.acknowledged:
        found.append("no append was acknowledged")
    if watched.append_p99_s > limits.append_p99_s:
        found.append(f"appends took {watched.append_p99_s:.2f} s (p99), over {limits.append_p99_s:g}")
    return found


async def _lost(cluster: Cluster, watched: Watched) -> list[str]:
    """Lists acknowledged entries that are missing, once the group is at rest."""
    held: dict[int, bytes] = {}
    try:
        async with asyncio.timeout(SERVES_S), connect(",".join(cluster.urls)) as log:
            await cluster.serving()
            await cluster.durable(max(watched.acknowledged, default=0))
            async for entry in log.read(consistency="linearizable"):
                held[entry.vlsn] = entry.value
    except (VlsnLogError, TimeoutError) as error:
        return [f"the group does not serve again: {error!r}"]
    lost = [vlsn for vlsn, value in watched.acknowledged.items() if held.get(vlsn) != value]
    return [f"{len(lost)} acknowledged entries are not in the log, the first at VLSN {min(lost)}"] if lost else []


async def run_suite(
    kinds: list[Kind], directory: Path, *, seconds: float, slack: float, say: Callable[[str], None]
) -> list[Row]:
    """Runs each kind on a group of its own; removes the directories of those that hold."""
    rows = []
    for kind in kinds:
        say(f"{kind.name}: {kind.says}")
        row = await run_kind(kind, directory / kind.name, seconds=seconds, slack=slack, say=say)
        rows.append(row)
        if row.holds:
            shutil.rmtree(directory / kind.name)
    return rows
