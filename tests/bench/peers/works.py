"""All clusters up at once, measured in turns, so that whatever the machine does beside falls on all alike.

Systems that are not installed are named and left out.  Figures are medians of the rounds; ratios are ours by a peer's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from repl.bench.ceilings import measure_ceilings
from repl.bench.memory import Reserve
from repl.bench.target import Own, check_space
from repl.bench.works import WORKS
from repl.bench.wrk import wrk_installed
from tests.bench.load import plain_load
from tests.bench.peers.etcd import Etcd
from tests.bench.peers.peer import VALUE_BYTES, Figure, Peer, Work, figure_of
from tests.bench.peers.postgres import Postgres
from tests.bench.peers.redis import Redis
from tests.bench.report import Aimed, Section

DISK_BYTES = 30 << 30
CACHE_BYTES_PER_S = 256 << 20
"""Page cache that a work takes, on the average; whose pages are new (see ``repl.bench.memory``) all pay alike."""
Key = tuple[str, str]
"""The system and its work."""
POST = "64 connections, POST"
RATES: tuple[tuple[str, Key, str], ...] = (
    ("64 writers", ("PostgreSQL", "64 clients"), "≥ 5"),
    ("1024 writers", ("etcd", "at best"), "≥ 25"),
    (POST, ("PostgreSQL", "64 clients"), "≥ 1"),
    (POST, ("etcd", "64 connections, JSON"), "≥ 2"),
)
"""Our work, the peer's, and the ratio wanted of their rates."""
P50S = "1 writer", ("PostgreSQL", "1 client"), "≤ 1.3"


class Ours(Peer):
    """Our own cluster among the peers: the same works as ``vlsnlog bench``, on one cluster that stays up."""

    name = "vlsnlog"
    _cluster: Own | None = None

    async def start(self, directory: Path) -> list[Work]:
        self._cluster = await Own(within=directory).__aenter__()
        native = "native client (repl.connect), one process"
        posts = "wrk, 64 connections" if wrk_installed() else "own asyncio client, 64 connections"
        return [
            Work("1 writer", native, lambda seconds: self._run("append", 1, 1, seconds)),
            Work("64 writers", native, lambda seconds: self._run("append", 64, 1, seconds)),
            Work("1024 writers", native, lambda seconds: self._run("append", 1024, 1, seconds)),
            Work("batches of 1000", native + ", 16 under way", lambda seconds: self._run("bulk", 16, 1000, seconds)),
            Work(POST, posts, lambda seconds: self._run("http", 64, 1, seconds)),
        ]

    async def stop(self) -> None:
        if self._cluster is not None:
            await self._cluster.__aexit__(None, None, None)

    async def _run(self, work: str, writers: int, batch: int, seconds: float) -> Figure:
        assert self._cluster is not None
        return figure_of(await WORKS[work].run(self._cluster, plain_load(seconds, writers, batch=batch)))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="of each work in each round")
    parser.add_argument("--rounds", type=int, default=5)


async def measured(options: argparse.Namespace) -> AsyncIterator[Section]:
    with tempfile.TemporaryDirectory(prefix="vlsnlog-peers-", ignore_cleanup_errors=True) as place:
        directory = Path(place)
        directory.chmod(0o755)  # PostgreSQL runs as a user of its own
        check_space(directory, DISK_BYTES)
        yield "this machine alone", asdict(await measure_ceilings(directory))
        figures, clients = await _rounds(directory, options)
    yield f"entries of {VALUE_BYTES} bytes", [_row(key, rounds, clients[key]) for key, rounds in figures.items()]
    if against := ratios(figures):
        yield "against the peers", against


async def _rounds(directory: Path, options: argparse.Namespace) -> tuple[dict[Key, list[Figure]], dict[Key, str]]:
    """Starts all clusters, then runs rounds over all works of all of them."""
    figures: dict[Key, list[Figure]] = {}
    clients: dict[Key, str] = {}
    async with AsyncExitStack() as stack:
        works: list[tuple[str, Work]] = []
        for peer in (Ours(), Etcd(), Postgres(), Redis()):
            if home := home_of(peer, directory):
                stack.push_async_callback(peer.stop)
                works += [(peer.name, work) for work in await peer.start(home)]
        for number in range(1, options.rounds + 1):
            with Reserve(int(CACHE_BYTES_PER_S * options.seconds * len(works))):
                for system, work in works:
                    figure = await work.run(options.seconds)
                    figures.setdefault((system, work.key), []).append(figure)
                    clients[system, work.key] = work.client
                    print(f"round {number}: {system}, {work.key}: {figure.per_s:,.0f}/s", file=sys.stderr)
                    await asyncio.sleep(0.5)  # flushes and compaction that the work left behind end before the next one
    return figures, clients


def home_of(peer: Peer, directory: Path) -> Path | None:
    """Makes the directory of a peer that is installed; names it otherwise."""
    if missing := peer.missing():
        print(f"left out: {peer.name} is not installed ({missing})", file=sys.stderr)
        return None
    home = directory / peer.name.replace(" ", "")
    home.mkdir()
    return home


def _row(key: Key, rounds: list[Figure], client: str) -> dict[str, Any]:
    rates = [round(figure.per_s) for figure in rounds]
    return {
        "system": key[0],
        "work": key[1],
        "appends_per_s": round(median(rates)),
        "least": min(rates),
        "most": max(rates),
        "p50_ms": _median([figure.p50_ms for figure in rounds]),
        "p99_ms": _median([figure.p99_ms for figure in rounds]),
        "errors": sum(figure.errors for figure in rounds),
        "driven by": client,
    }


def ratios(figures: Mapping[Key, list[Figure]]) -> list[dict[str, Any]]:
    """Computes those of the wanted ratios that both sides were measured for."""
    rates = {key: median([figure.per_s for figure in rounds]) for key, rounds in figures.items()}
    if best := max((rate for (system, _), rate in rates.items() if system == "etcd"), default=None):
        rates["etcd", "at best"] = best
    p50s = {key: _median([figure.p50_ms for figure in rounds]) for key, rounds in figures.items()}
    rows = []
    for of, wanted, unit in ((rates, RATES, "a second"), (p50s, (P50S,), "p50 ms")):
        for work, theirs, aim in wanted:
            ours, other = of.get(("vlsnlog", work)), of.get(theirs)
            if ours and other:
                rows.append(
                    {
                        "": f"{work} / {', '.join(theirs)}",
                        "of": unit,
                        "ours": round(ours, 2),
                        "theirs": round(other, 2),
                        "ratio": Aimed(round(ours / other, 3), aim),
                    }
                )
    return rows


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 4) if known else None
