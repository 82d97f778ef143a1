"""Appends beside a full scan of every node: what readers of the whole log cost whoever writes, which is to be little.

    pair     without │ with      with │ without      without │ with …       ``TURNS`` of each, in one run

The scan is a process of its own that asks for segments as tasks of Spark do, and gets what the nodes' budget
(``scan_bytes_per_s``) gives it.  It is stopped while a turn is without it, so that the two meet the same log and the
same machine.  The ratio is that of all turns together; the pairs' own
show how much each was disturbed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import numpy as np

from repl.bench.report import Outcome

TURNS = 10
"""Pairs; each begins with the one that the pair before has ended with."""


class Scan:
    """The process that scans; ``read`` counts the bytes that it got so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.read = 0

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def first_line(self) -> bool:
        assert self._process.stdout is not None
        return bool(await self._process.stdout.readline())

    async def count(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.read += int(line)


@asynccontextmanager
async def scanning(urls: str) -> AsyncIterator[Scan]:
    """Starts the scan, stopped, and ends it with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "repl.bench.segment_reads", *urls.split(",")), stdout=asyncio.subprocess.PIPE
    )
    scan = Scan(process)
    counting: asyncio.Task[None] | None = None
    try:
        if await scan.first_line():
            scan.stop()
        counting = asyncio.create_task(scan.count())
        yield scan
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if counting is not None:
            await counting


async def beside_scan(urls: str, append: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Runs ``append`` by turns, without and beside a scan of the nodes ``urls``; the latencies are those beside it."""
    pairs: list[dict[bool, Outcome]] = []
    async with scanning(urls) as scan:
        await append()  # connections are made
        read = 0
        for turn in range(TURNS):
            pair: dict[bool, Outcome] = {}
            for beside in (False, True) if turn % 2 == 0 else (True, False):
                before = scan.read
                if beside:
                    scan.go_on()
                pair[beside] = await append()
                if beside:
                    scan.stop()
                    read += scan.read - before
            pairs.append(pair)
    done, alone = [pair[True] for pair in pairs], [pair[False] for pair in pairs]
    seconds = sum(each.seconds for each in done)
    rates = [sum(each.entries for each in side) / sum(each.seconds for each in side) for side in (alone, done)]
    more = {
        "ratio": round(rates[1] / max(rates[0], 1e-9), 3),
        "pairs": [round(_rate(pair[True]) / max(_rate(pair[False]), 1e-9), 2) for pair in pairs],
        "entries_per_s_without": round(rates[0], 1),
        "p50_ms_without": round(float(np.median(np.concatenate([each.latencies_ms for each in alone]))), 4),
        "scanned_mb_per_s": round(read / 1e6 / seconds, 1),
    }
    return Outcome(
        sum(each.entries for each in done),
        sum(each.bytes for each in done),
        seconds,
        np.concatenate([each.latencies_ms for each in done]),
        sum(each.errors for each in (*done, *alone)),
        more,
    )


def _rate(outcome: Outcome) -> float:
    return outcome.entries / max(outcome.seconds, 1e-9)
