"""Runs one kind of work for the command ``vlsnlog bench``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repl.bench.ceilings import measure_ceilings
from repl.bench.memory import Reserve
from repl.bench.report import BenchReport, Ceilings, Outcome
from repl.bench.target import Given, Own, check_range, check_space
from repl.bench.works import WORKS, Load, Work
from repl.config import ACK_POLICIES
from repl.credentials.urls import split_urls
from vlsn.durability import group_durability
from vlsn.errors import BadArgument
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX

LONE_WRITERS = 256
BYTES_MAX = 16 << 30
"""The most bytes that one run writes, all nodes together."""
NODES_BYTES = 1 << 30
"""The bytes that a cluster needs as soon as it starts: its processes, and two zeroed segments for each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of a run. None means the default of the kind of work. Without ``url`` a cluster is started in a
    temporary directory."""

    work: str
    url: str | None = None
    seconds: float = 10.0
    writers: int | None = None
    size: int = 100
    batch: int | None = None
    acks: str = "majority"
    durability: str | None = None
    """The durability that each append requests, or None for the group's setting."""
    bytes_max: int = BYTES_MAX
    touch_memory: bool = True
    """Whether memory is used once before a temporary cluster starts (see ``memory``). The option has no effect with
    ``url``."""
    tls: bool = False
    """Whether the temporary cluster speaks TLS alone, with certificates that are made for the run."""


def run_bench(options: BenchOptions, works: Mapping[str, Work] = WORKS) -> BenchReport:
    """Runs the benchmark on a new event loop. Raises ``BadArgument``, ``NoSpace``, ``Unreachable``."""
    import uvloop

    work = works.get(options.work)
    if work is None:
        raise BadArgument(f"work: {options.work!r} is not one of {', '.join(works)}")
    writers = options.writers if options.writers is not None else work.writers
    batch = options.batch if options.batch is not None else work.batch
    settings = dict(work.settings)
    if work.fills and batch == 1:
        writers = options.writers or LONE_WRITERS
        settings["block_bytes_max"] = 1  # no appends share a block, so each entry of the log has its own block
    _check(options, writers, batch)
    if work.own_only and options.url is not None:
        raise BadArgument(f"{options.work} kills and starts nodes, so it runs on a cluster of its own: leave out --url")
    if options.tls and options.url is not None:
        raise BadArgument("tls: makes certificates for a cluster of its own: leave out --url, or give one of https://")
    given = Given(",".join(split_urls(options.url))) if options.url is not None else None
    load = Load(
        seconds=options.seconds,
        writers=writers,
        size=options.size,
        batch=batch,
        acks=options.acks,
        durability=None if options.durability is None else str(group_durability(options.durability)),
        bytes_max=options.bytes_max,
    )
    reserved = min(options.bytes_max, NODES_BYTES + int(work.cache_bytes_per_s * options.seconds))
    if given is not None or not options.touch_memory:
        reserved = 0
    with Reserve(reserved) as reserve:  # outside the event loop, which would delay Ctrl-C until all memory is touched
        outcome, ceilings = uvloop.run(_measured(work, given or Own(settings, tls=options.tls), load))
    shape = options.work, writers, options.size, batch, options.acks
    return BenchReport(*shape, outcome, ceilings, reserve.touched, load.durability)


async def _measured(work: Work, target: Given | Own, load: Load) -> tuple[Outcome, Ceilings]:
    async with target:
        check_space(target.directory, load.bytes_max)
        certificates = target.certificates if isinstance(target, Own) else None
        ceilings = await measure_ceilings(target.directory, certificates)
        return await work.run(target, load), ceilings


def _check(options: BenchOptions, writers: int, batch: int) -> None:
    check_range("seconds", options.seconds, 0.1, 3600)
    check_range("writers", writers, 1, 65_536)
    check_range("size", options.size, 1, ENTRY_BYTES_MAX)
    check_range("batch", batch, 1, BATCH_ENTRIES_MAX)
    check_range("bytes-max", options.bytes_max, 1, 1 << 50)
    if batch * (options.size + 4) > BODY_BYTES_MAX:
        raise BadArgument(f"batch: {batch} entries of {options.size} bytes are over {BODY_BYTES_MAX} bytes; lower one")
    if options.acks not in ACK_POLICIES:
        raise BadArgument(f"acks: {options.acks!r} is not one of {', '.join(ACK_POLICIES)}")
