"""Our own cluster among the peers: the same works as ``vlsnlog bench``, on one cluster that stays up."""

from __future__ import annotations

from pathlib import Path

from repl.bench.peers.peer import VALUE_BYTES, Figure, Work
from repl.bench.target import Own
from repl.bench.works import WORKS, Load
from repl.bench.wrk import wrk_installed

BYTES_MAX = 4 << 30
"""Cap on what one work of one round writes, three copies together."""


class Ours:
    name = "vlsnlog"

    def __init__(self) -> None:
        self._cluster: Own | None = None

    def missing(self) -> str | None:
        return None

    async def start(self, directory: Path) -> list[Work]:
        self._cluster = await Own(within=directory).__aenter__()
        native = "native client (repl.connect), one process"
        posts = "wrk, 64 connections" if wrk_installed() else "own asyncio client, 64 connections"
        return [
            Work("1 writer", native, lambda seconds: self._run("append", 1, 1, seconds)),
            Work("64 writers", native, lambda seconds: self._run("append", 64, 1, seconds)),
            Work("1024 writers", native, lambda seconds: self._run("append", 1024, 1, seconds)),
            Work("batches of 1000", native + ", 16 under way", lambda seconds: self._run("bulk", 16, 1000, seconds)),
            Work("64 connections, POST", posts, lambda seconds: self._run("http", 64, 1, seconds)),
        ]

    async def stop(self) -> None:
        if self._cluster is not None:
            await self._cluster.__aexit__(None, None, None)

    async def _run(self, work: str, writers: int, batch: int, seconds: float) -> Figure:
        assert self._cluster is not None
        load = Load(
            seconds=seconds, writers=writers, size=VALUE_BYTES, batch=batch, acks="majority", bytes_max=BYTES_MAX
        )
        done = await WORKS[work].run(self._cluster, load)
        return Figure(done.entries / done.seconds, done.percentile(50), done.percentile(99), done.errors)
