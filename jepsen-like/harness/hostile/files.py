"""A replica with damaged files: stops it, starts it, and waits for its state."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from harness.hostile.kind import Attack, Scene
from harness.orders import order
from repl.cluster import LOG_FILE, Node
from repl.net.network import AiohttpNetwork
from vlsn.errors import VlsnLogError
from vlsn.real.disk import PosixDisk
from vlsn.segments.directory import survey

POLL_S = 0.1
END_S = 60.0
"""Seconds in which a node must end that is stopped, or cannot start."""
HEAL_S = 60.0
"""Seconds in which a started node must follow, with a whole log."""
ROLLS = 3


@dataclass(slots=True)
class Victim:
    """One replica of the scene."""

    scene: Scene
    node: Node
    network: AiohttpNetwork
    started_at: int = 0
    """The offset in the node's log file at which its last start begins."""

    @property
    def directory(self) -> Path:
        return self.node.directory

    def sealed(self) -> list[tuple[Path, int]]:
        """Returns the segments that another one follows, the oldest first, and the end of the log in each."""
        found = survey(PosixDisk(), str(self.directory))
        return [(Path(each.path), each.live_end) for each in found if each.live_end is not None]

    async def status(self) -> dict[str, Any]:
        """Asks the node for its status; empty without an answer."""
        try:
            response = await self.network.request("GET", f"{self.node.url}/v1/status", timeout_s=END_S)
        except VlsnLogError:
            return {}
        return msgspec.json.decode(bytes(response.body), type=dict[str, Any])

    async def roll(self) -> None:
        """Rolls until there are several segments, each with entries of the watch's writers."""
        async with asyncio.timeout(HEAL_S):
            while len(self.sealed()) < ROLLS:
                response = await order(self.network, self.node.url, "rotate", timeout_s=END_S)
                assert response.status == 200, bytes(response.body)
                await asyncio.sleep(POLL_S)

    def start(self) -> None:
        self.started_at = self.log.stat().st_size
        self.node.start()

    @property
    def log(self) -> Path:
        return self.directory / LOG_FILE

    def said(self) -> str:
        """Returns all lines that the node has logged since its last start. A line of another request may follow the one
        with the reason of its end."""
        return self.log.read_bytes()[self.started_at :].decode(errors="replace")

    async def stop(self) -> bool:
        """Stops it by SIGTERM, and says whether it ended in time; otherwise kills it."""
        self.node.send(signal.SIGTERM)
        if await self.until(lambda: not self.node.running, END_S):
            return True
        self.node.kill()
        return False

    async def follows(self) -> bool:
        """Says whether it follows within ``HEAL_S``, and knows of no damage."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEAL_S
        while loop.time() < deadline:
            told = await self.status()
            if told.get("state") == "REPLICA" and not told["damage"]:
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not holds() and loop.time() < deadline:  # noqa: ASYNC110  another process's state
            await asyncio.sleep(POLL_S)
        return holds()


def on_a_victim(hurt: Callable[[Victim], Awaitable[str]]) -> Attack:
    """Makes an attack: calls ``hurt`` with the first replica."""

    async def attack(scene: Scene) -> str:
        network = AiohttpNetwork()
        try:
            return await hurt(Victim(scene, scene.cluster.node(scene.replicas[0]), network))
        finally:
            await network.close()

    return attack


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    path.symlink_to("nowhere")
