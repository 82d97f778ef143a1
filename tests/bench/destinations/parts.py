"""Destinations: delivery and acknowledgement, paging, a backlog, and peers, each beside its bounds.

delivery   by one consumer beside the plain tail, by one of eleven, and the log that it costs
shared     several workers of one destination beside one
paging     whole blocks beside plain writes, and selected entries
peers      the same beside Redis Streams and NATS JetStream
slowed     appends of 4 KiB at 20 MB/s, without and with a destination that nobody takes from
backlog    a destination without a consumer while more is written than the log keeps; then with one
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from tests.bench.destinations import backlog, deliveries, paging
from tests.bench.load import ratio
from tests.bench.peers.jetstream import JetStream
from tests.bench.peers.redis_streams import RedisStreams
from tests.bench.peers.works import home_of
from tests.bench.report import Aimed, Figures, Section

PARTS = ("delivery", "shared", "paging", "peers", "slowed", "backlog")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--messages", type=int, default=200_000, help="of 100 bytes, delivered and acknowledged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gib", type=float, help="what the backlog writes; default: 10 where 30 are free")


async def measured(options: argparse.Namespace) -> AsyncIterator[Section]:
    """Yields medians of the rounds."""
    messages, rounds = options.messages, options.rounds
    if "delivery" in options.only:
        yield "delivery", await deliveries.measured(messages, rounds)
    if "shared" in options.only:
        yield "shared", await deliveries.shared(messages, rounds)
    if "paging" in options.only:
        yield "paging", await asyncio.to_thread(paging.measured, rounds)
    if "peers" in options.only:
        yield "peers, messages a second", await _peers(messages, rounds)
    if "slowed" in options.only:
        yield "slowed", await backlog.slowed(rounds)
    if "backlog" in options.only:
        total = int(options.gib * backlog.GIB) if options.gib else backlog.affordable(Path(tempfile.gettempdir()))
        yield "backlog", await backlog.measured(total)


async def _peers(messages: int, rounds: int) -> Figures:
    """Measures ours and theirs in turns, each in a cluster that stays up."""
    rates: dict[str, list[float]] = {"vlsnlog": []}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vlsnlog-streams-")))
        peers: list[RedisStreams | JetStream] = []
        for peer in (RedisStreams(), JetStream()):
            if home := home_of(peer, directory):
                stack.push_async_callback(peer.stop)
                await peer.start(home)
                peers.append(peer)
                rates[peer.name] = []
        async with deliveries.deliveries(messages) as ours:
            for _ in range(rounds):
                rates["vlsnlog"].append(await ours.deliver(messages))
                for peer in peers:
                    await peer.fill(messages)
                    rates[peer.name].append(messages / await peer.consume(messages))
    found: Figures = {name: round(median(each)) for name, each in rates.items()}
    of = {peer.name: ratio(found["vlsnlog"], found[peer.name]) for peer in peers}
    return found | {f"of {name}": Aimed(each, "≥ 1.0") if name == JetStream.name else each for name, each in of.items()}
