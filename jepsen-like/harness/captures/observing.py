"""Observes a run's consumers: notes the nodes' reports of them, kills their processes, reads their files.

watch's status ─► ``cdc`` in the history        a node is gone ─► its position file ─► ``position``
SIGKILL or SIGSTOP of a consumer's process, every few seconds, while the faults last
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from harness.captures.disk_log import stored_position
from harness.captures.recorder import SETTLED
from harness.captures.settings import ON_MASTER, ON_NODE
from harness.group.nodes import Group
from harness.group.watch import Watch
from harness.ops import Recorder

LOOK_S = 0.1
NOTED_EACH_S = 0.5
"""Seconds between two notes of a consumer if only its position has changed."""
STRIKE_S = (0.5, 4.0)
STOPPED_S = (0.5, 12.0)


class Observer:
    """All consumers of one run."""

    def __init__(self, group: Group, watch: Watch, recorder: Recorder, folder: Path, seed: int) -> None:
        self.struck: Counter[str] = Counter()
        self._group = group
        self._watch = watch
        self._recorder = recorder
        self._folder = folder
        self._chance = Random(f"{seed} consumers")
        self._noted: dict[str, tuple[object, ...]] = {}
        self._noted_s: dict[str, float] = {}
        self.over = False
        """True once faults have ended."""
        group.gone = self._gone

    async def run(self) -> None:
        """Notes and kills until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._note())
            tasks.create_task(self._strike())

    def settle(self) -> None:
        """Makes consumers behave well, and ends the faults of their processes."""
        self.over = True
        (self._folder / SETTLED).touch()

    def behind(self, vlsn: int) -> list[str]:
        """Returns the consumers whose positions, by the nodes' reports, have not passed ``vlsn``."""
        consumers = {name: self._consumers(name) for name in self._group.listed}
        lacks = [name for name, told in consumers.items() if (told.get(ON_NODE, {}).get("next") or 0) <= vlsn]
        leads = max((told.get(ON_MASTER, {}).get("next") or 0 for told in consumers.values()), default=0)
        return [f"{ON_NODE} on {name}" for name in lacks] + ([ON_MASTER] if leads <= vlsn else [])

    def look_at_the_end(self) -> None:
        """Notes the positions on the stopped nodes' disks, and the consumers' processes that outlived their nodes."""
        for name in self._group.names:
            self._position(name, clean=self._group.node(name).ended == 0)
        pids = [pid for pid in self._started_pids() if self._is_ours(pid)]
        self._recorder.record("captures", "info", "left", {"pids": pids})
        for pid in pids:
            self._send(pid, signal.SIGKILL)

    def _consumers(self, node: str) -> Mapping[str, dict[str, Any]]:
        return {each["name"]: each for each in self._watch.statuses.get(node, {}).get("cdc") or ()}

    # Notes.

    async def _note(self) -> None:
        while True:
            for node in self._group.names:
                consumers = self._consumers(node)
                if consumers:
                    self._note_one(node, consumers)
            await asyncio.sleep(LOOK_S)

    def _note_one(self, node: str, consumers: Mapping[str, dict[str, Any]]) -> None:
        status, now_s = self._watch.statuses[node], self._recorder.now_s()
        kept = ("name", "state", "reason", "mode", "pid", "next", "switches")
        told = [{key: each[key] for key in kept} for each in consumers.values()]
        what = tuple(str({**each, "next": 0}) for each in told)
        if self._noted.get(node) == what and now_s - self._noted_s[node] < NOTED_EACH_S:
            return
        self._noted[node], self._noted_s[node] = what, now_s
        value = {"node": node, "process": str(status.get("process")), "term": int(status.get("term") or 0)}
        self._recorder.record("captures", "info", "cdc", {**value, "consumers": told})

    def _gone(self, node: str) -> None:
        self._position(node, clean=False)

    def _position(self, node: str, *, clean: bool) -> None:
        path = self._group.directory(node) / "cdc" / f"{ON_NODE}.position"
        if path.exists():
            position, sequence = stored_position(path)
            value = {"node": node, "name": ON_NODE, "next": position, "sequence": sequence, "clean": clean}
            self._recorder.record("captures", "info", "position", value)

    # Faults.

    async def _strike(self) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.uniform(*STRIKE_S))
            node, name = chance.choice(self._group.names), chance.choice((ON_NODE, ON_NODE, ON_MASTER))
            pid = self._consumers(node).get(name, {}).get("pid")
            if self.over or pid is None or not self._is_ours(pid):
                continue
            if chance.random() < 0.4:
                self._send(pid, signal.SIGKILL)
                self.struck["killed"] += 1
                continue
            self._send(pid, signal.SIGSTOP)
            self.struck["stopped"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.uniform(*STOPPED_S)):
                    while not self.over and self._is_ours(pid):  # noqa: ASYNC110  another process
                        await asyncio.sleep(LOOK_S)
            self._send(pid, signal.SIGCONT)

    def _started_pids(self) -> list[int]:
        return sorted({int(path.stem.rpartition("-")[2]) for path in self._folder.glob("*.jsonl")})

    def _is_ours(self, pid: int) -> bool:
        """Says whether that process has a recording file of this run open."""
        folder = f"/proc/{pid}/fd"
        try:
            links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
        except OSError:
            return False
        return any(link.startswith(f"{self._folder}/") for link in links)

    def _send(self, pid: int, number: signal.Signals) -> None:
        if self._is_ours(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
