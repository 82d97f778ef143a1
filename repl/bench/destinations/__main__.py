"""``make bench-destinations``: delivery, acknowledgement, paging, a backlog, and peers, each beside what it is held to.

    python -m repl.bench.destinations [--only PART …] [--messages N] [--rounds N] [--gib N]

The parts: delivery, beside (ten slow ones with pages), shared (by workers), paging, slowed, backlog, peers.

The JSON goes to ``--out``.  Exit status 0 when every measured bound holds, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from repl.aligned import aligned
from repl.bench.destinations import backlog, deliveries, paging
from repl.bench.destinations.jetstream import JetStream
from repl.bench.destinations.redis_streams import RedisStreams
from repl.bench.destinations.stream_peer import BATCH, StreamPeer
from vlsn.errors import VlsnLogError

PARTS = ("delivery", "beside", "shared", "paging", "slowed", "backlog", "peers")
Bounds = dict[str, tuple[str, Callable[[float], bool]]]
DELIVERY: Bounds = {
    "of_the_tail": ("≥ 0.5", lambda found: found >= 0.5),
    "of_alone": ("≥ 0.9", lambda found: found >= 0.9),
    "log_bytes_an_ack": ("≤ 5", lambda found: found <= 5),
}
BESIDE: Bounds = {"of_alone": ("≥ 0.9", lambda found: found >= 0.9)}
SHARED: Bounds = {
    f"{name}_of_one": ("≥ 1.0", lambda found: found >= 1.0) for name in (f"{deliveries.KEYS}_keys", "no_keys")
}
PAGING: Bounds = {
    "whole_of_plain": ("≥ 0.5", lambda found: found >= 0.5),
    **{f"selected_{size}_mb_per_core_s": ("≥ 100", lambda found: found >= 100) for size in paging.SIZES},
}
SLOWED: Bounds = {"slowed": ("≤ 0.05", lambda found: found <= 0.05)}
GROWN_MAX = 1.25
"""The resident memory at the end beside that of the first quarter."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m repl.bench.destinations", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--messages", type=int, default=200_000, help="of 100 bytes, delivered and acknowledged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, help="what the backlog writes; default: 10 where 30 are free")
    parser.add_argument("--out", type=Path, default=Path("bench-destinations.json"))
    options = parser.parse_args()
    try:
        return uvloop.run(_main(options))
    except (VlsnLogError, RuntimeError, OSError) as error:
        print(f"bench-destinations: {type(error).__name__} {error}", file=sys.stderr)
        return 2


async def _main(options: argparse.Namespace) -> int:
    document: dict[str, Any] = {}
    missed: list[str] = []
    if "delivery" in options.only:
        document["delivery"] = found = await deliveries.measured(options.messages, options.rounds)
        missed += _print("delivery and acknowledgement of 100 bytes, batches of 1,000, medians", found, DELIVERY)
    if "beside" in options.only:
        document["beside"] = turns = await deliveries.beside_pages(options.messages, options.rounds)
        missed += _print("one destination, alone and beside ten slow ones with pages", turns, BESIDE)
    if "shared" in options.only:
        document["shared"] = rates = await deliveries.shared(options.messages, options.rounds)
        missed += _print("workers of one destination, batches of 1,000", rates, SHARED)
    if "paging" in options.only:
        document["paging"] = rates = await asyncio.to_thread(paging.measured, options.rounds)
        missed += _print("paging, MB of keys and values, medians", rates, PAGING)
    if "peers" in options.only:
        document["peers"] = peers = await _peers(options.messages, options.rounds)
        missed += _print(f"the same beside other systems, {BATCH} a batch, messages a second", peers, {})
        missed += ["behind JetStream"] if peers.get("of_jetstream", 1.0) < 1.0 else []
    if "slowed" in options.only:
        document["slowed"] = turns = await backlog.slowed(options.rounds)
        missed += _print(
            "appends of 4 KiB at 20 MB/s, without and with a destination that nobody takes from", turns, SLOWED
        )
    if "backlog" in options.only:
        total = int(options.gib * backlog.GIB) if options.gib else backlog.affordable(Path(tempfile.gettempdir()))
        if total < backlog.WHOLE_BYTES:
            kept = backlog.retention(total) >> 20
            print(f"scaled: {total / backlog.GIB:.1f} GiB instead of 10, {kept} MiB of log kept instead of 1024")
        document["backlog"] = held = await backlog.measured(total)
        missed += _print("a destination without a consumer, then with one", held, {})
        missed += _wrong(held)
    options.out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    print(f"written: {options.out}")
    for each in missed:
        print(f"MISSED: {each}")
    return 1 if missed else 0


def _wrong(held: dict[str, Any]) -> list[str]:
    """Lists what a backlog must not show."""
    wrong = {
        "not all delivered": held["delivered"] != held["expected"] or held["left"],
        "delivered out of order": held["disordered"],
        "no page was there to flip": not held["flipped"],
        "memory grew": held["resident_end_mb"] > GROWN_MAX * held["resident_quarter_mb"],
        "the log was not cleaned": held["log_most_mb"] << 20 > 1.5 * held["retention_bytes"],
    }
    return [word for word, is_so in wrong.items() if is_so]


def _print(title: str, found: dict[str, Any], bounds: Bounds) -> list[str]:
    """Prints a table; the names of bounds that were missed."""
    rows = [("", "seen", "wanted", "")]
    missed = []
    for name, value in found.items():
        wanted, holds = bounds.get(name, ("", lambda _: True))
        good = holds(value) if isinstance(value, (int, float)) else True
        missed += [] if good else [f"{name} {value}, wanted {wanted}"]
        said = f"{value:,}" if isinstance(value, (int, float)) else str(value)
        rows.append((name.replace("_", " "), said, wanted, "" if not wanted else "reached" if good else "MISSED"))
    print(f"\n{title}")
    print("\n".join(aligned(list(zip(*rows, strict=True)), right=("seen",))))
    return missed


async def _peers(messages: int, rounds: int) -> dict[str, Any]:
    """Measures ours and theirs in turns, each in a cluster that stays up."""
    found: dict[str, Any] = {}
    directory = Path(tempfile.mkdtemp(prefix="vlsnlog-streams-"))
    rates: dict[str, list[float]] = {"vlsnlog": []}
    peers: list[StreamPeer] = []
    try:
        known: list[StreamPeer] = [RedisStreams(), JetStream()]
        for peer in known:
            missing = peer.missing()
            if missing is not None:
                print(f"left out: {peer.name} is not installed ({missing})")
                continue
            home = directory / peer.name.replace(" ", "")
            home.mkdir()
            peers.append(peer)
            await peer.start(home)
            rates[peer.name] = []
        async with deliveries.deliveries(messages) as ours:
            for _ in range(rounds):
                rates["vlsnlog"].append(await ours.deliver(messages))
                for peer in peers:
                    await peer.fill(messages)
                    rates[peer.name].append(messages / await peer.consume(messages))
    finally:
        for peer in peers:
            await peer.stop()
        shutil.rmtree(directory, ignore_errors=True)
    for name, each in rates.items():
        found[name] = round(median(each))
    for key, peer_name in (("of_jetstream", JetStream.name), ("of_redis", RedisStreams.name)):
        if peer_name in rates:
            found[key] = round(median(rates["vlsnlog"]) / median(rates[peer_name]), 3)
    return found


if __name__ == "__main__":
    sys.exit(main())
