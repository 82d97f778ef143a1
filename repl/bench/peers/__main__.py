"""``make bench-peers``: all clusters up at once, measured in turns, medians and ratios.

The JSON goes to ``--out``; the table to standard output.  Exit status 0 when every ratio that could be
taken is reached, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from repl.aligned import aligned
from repl.bench.ceilings import measure_ceilings
from repl.bench.memory import Reserve
from repl.bench.peers.etcd import Etcd
from repl.bench.peers.ours import Ours
from repl.bench.peers.peer import VALUE_BYTES, Figure, Peer, Work
from repl.bench.peers.postgres import Postgres
from repl.bench.peers.redis import Redis
from repl.bench.peers.table import Key, Ratio, Row, ratios, rows
from repl.bench.target import check_space
from vlsn.errors import VlsnLogError

DISK_BYTES = 30 << 30
CACHE_BYTES_PER_S = 256 << 20
"""Page cache that a work takes, on the average; whose pages are new (see ``memory``) all pay alike."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m repl.bench.peers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each work in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench-peers.json"))
    options = parser.parse_args()
    try:
        return uvloop.run(_main(options))
    except (VlsnLogError, RuntimeError, OSError) as error:
        print(f"bench-peers: {error or type(error).__name__}", file=sys.stderr)
        return 2


async def _main(options: argparse.Namespace) -> int:
    peers: list[Peer] = [Ours()]
    for peer in (Etcd(), Postgres(), Redis()):
        missing = peer.missing()
        if missing is None:
            peers.append(peer)
        else:
            print(f"left out: {peer.name} is not installed ({missing})")
    directory = Path(tempfile.mkdtemp(prefix="vlsnlog-peers-"))
    directory.chmod(0o755)  # PostgreSQL runs as a user of its own
    try:
        check_space(directory, DISK_BYTES)
        ceilings = await measure_ceilings(directory)
        figures, clients = await _measure(peers, directory, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    measured = rows(figures, clients)
    reached = ratios(measured)
    _print(measured, reached)
    document: dict[str, Any] = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "size": VALUE_BYTES,
        "ceilings": asdict(ceilings),
        "works": [row.json() for row in measured],
        "ratios": [ratio.json() for ratio in reached],
    }
    options.out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    print(f"written: {options.out}")
    return 0 if all(ratio.reached for ratio in reached) else 1


async def _measure(
    peers: list[Peer], directory: Path, options: argparse.Namespace
) -> tuple[dict[Key, list[Figure]], dict[Key, str]]:
    """Starts all clusters, then runs rounds over all works of all of them."""
    figures: dict[Key, list[Figure]] = {}
    clients: dict[Key, str] = {}
    async with AsyncExitStack() as stack:
        works: list[tuple[str, Work]] = []
        for peer in peers:
            home = directory / peer.name
            home.mkdir()
            stack.push_async_callback(peer.stop)
            works += [(peer.name, work) for work in await peer.start(home)]
            print(f"up: {peer.name}")
        for number in range(1, options.rounds + 1):
            with Reserve(int(CACHE_BYTES_PER_S * options.seconds * len(works))):
                for system, work in works:
                    figure = await work.run(options.seconds)
                    figures.setdefault((system, work.key), []).append(figure)
                    clients[system, work.key] = work.client
                    latency = f", p50 {figure.p50_ms:.2f} ms" if figure.p50_ms is not None else ""
                    print(f"round {number}: {system:<10} {work.key:<22} {figure.per_s:>12,.0f}/s{latency}")
                    await asyncio.sleep(0.5)  # what the work left behind (flushes, compaction) is not the next one's
    return figures, clients


def _print(measured: list[Row], reached: list[Ratio]) -> None:
    clients = list(dict.fromkeys(row.client for row in measured))
    table = [("system", "work", "appends/s", "least – most", "p50 ms", "p99 ms", "errors", "driven by")]
    for row in measured:
        spread = f"{min(row.rounds):,.0f} – {max(row.rounds):,.0f}"
        p50, p99 = ("-" if time is None else f"{time:.2f}" for time in (row.p50_ms, row.p99_ms))
        driver = f"[{clients.index(row.client) + 1}]"
        table.append((row.system, row.work, f"{row.per_s:,.0f}", spread, p50, p99, str(row.errors), driver))
    print(f"\nEntries of {VALUE_BYTES} bytes, medians of the rounds")
    print("\n".join(aligned(list(zip(*table, strict=True)), right=("least – most",))))
    for number, client in enumerate(clients, 1):
        print(f"  [{number}] {client}")
    against = [("against", "ours", "theirs", "ratio", "wanted", "")]
    for ratio in reached:
        figures = [f"{figure:,.2f}" for figure in (ratio.ours, ratio.theirs, ratio.ratio)]
        verdict = "reached" if ratio.reached else "MISSED"
        against.append((ratio.what, figures[0], figures[1], figures[2], ratio.json()["wanted"], verdict))
    print("\nAgainst the peers")
    print("\n".join(aligned(list(zip(*against, strict=True)))))


if __name__ == "__main__":
    sys.exit(main())
