"""A pipeline in Spark under SIGKILL: streams one group's entries into another, each once, in order of its key.

    writers ─► group one ─► readStream ─► upper() ─► sink ─► group two
                  │              │           │                   │
             SIGKILL of      SIGKILL of  SIGKILL of          SIGKILL of
             its master      the driver  an executor         its master

The query is the documented example, submitted to a standalone Spark of two workers of a core each, and submitted again
whenever its driver has ended.  In the end ``vlsnlog read`` of the second group must be that of the first.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.cluster import ClusterFailed, Say, cluster_of, kill_master, vlsnlog, write
from harness.standalone import SparkFailed, StandaloneSpark
from repl import connect
from repl.cluster import Cluster
from vlsn.errors import VlsnLogError

SCRIPT: Final = Path(__file__).parents[2] / "docs/examples/spark/copy_stream.py"
PREFIX: Final = b"in-"
KEYS: Final = 7
WRITERS: Final = 2
PAUSE_S: Final = 0.02
BEGIN_S: Final = 300.0
"""Seconds in which the first entries must arrive."""
END_S: Final = 600.0
KILL_S: Final = 10.0
AWAY_S: Final = 2.0
READ_S: Final = 300.0


@dataclass(slots=True)
class Verdict:
    """The findings of a run."""

    acknowledged: int = 0
    outputs: int = 0
    killed_masters: int = 0
    killed_drivers: int = 0
    killed_executors: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return self.acknowledged > 0 and not self.differences


async def run_spark_pipeline(
    directory: Path, *, nodes: int, time_s: float, drivers: int, executors: int, seed: int, say: Say
) -> Verdict:
    """Runs and checks. The master of each group is killed every ``KILL_S``, the driver and an executor as often as
    requested. Raises ``ClusterFailed`` if there can be no verdict."""
    chance, verdict = random.Random(seed), Verdict()
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(cluster_of(directory / name, name, nodes)) for name in ("one", "two")
        ]
        try:
            spark = stack.enter_context(StandaloneSpark(directory / "spark"))
        except SparkFailed as error:
            raise ClusterFailed(str(error)) from None
        query = _Query(spark, one, two, directory / "checkpoint")
        stop = asyncio.Event()
        writing = [asyncio.create_task(write(one, number, stop, _key, PAUSE_S)) for number in range(WRITERS)]
        try:
            query.start()
            await _until(two, 1, query, BEGIN_S)
            say("entries come through; now the faults begin")
            await _disturb((one, two), query, verdict, chance, time_s, drivers, executors, say)
        finally:
            stop.set()
            written = sorted(each for found in await asyncio.gather(*writing) for each in found)
        verdict.acknowledged = len(written)
        say(
            f"{len(written):,} entries acknowledged; killed: {verdict.killed_masters} masters, "
            f"{verdict.killed_drivers} drivers, {verdict.killed_executors} executors; now the rest is copied"
        )
        await _until(two, len(written), query, END_S)
        await asyncio.sleep(KILL_S / 2)  # time for duplicates to arrive
        _judge(_read(one), _read(two), [value for _, value in written], verdict)
    return verdict


class _Query:
    """The submitted query."""

    def __init__(self, spark: StandaloneSpark, one: Cluster, two: Cluster, checkpoint: Path) -> None:
        self.spark = spark
        self._arguments = ",".join(one.urls), ",".join(two.urls), str(checkpoint), PREFIX.decode()
        self._driver: subprocess.Popen[bytes] | None = None
        self.ended_by_itself = 0

    def start(self) -> None:
        root = str(SCRIPT.parents[3])
        conf = {"spark.executorEnv.PYTHONPATH": root}
        self._driver = self.spark.submit(SCRIPT, *self._arguments, conf=conf)

    def keep(self) -> None:
        """Submits the query again once its driver has ended: a query fails if its source or sink is away for too
        long."""
        if self._driver is not None and self._driver.poll() is not None:
            self.ended_by_itself += 1
            self.start()

    def kill(self) -> None:
        if self._driver is not None:
            self.spark.kill(self._driver)
        self.start()

    def said(self) -> str:
        return self.spark.err(SCRIPT).read_text(errors="replace")[-3000:]


def _key(place: int) -> bytes:
    return PREFIX + b"%d" % (place % KEYS)


async def _disturb(
    groups: Sequence[Cluster],
    query: _Query,
    verdict: Verdict,
    chance: random.Random,
    time_s: float,
    drivers: int,
    executors: int,
    say: Say,
) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    due = [(time_s * (index + chance.uniform(0.3, 0.9)) / drivers, "driver") for index in range(drivers)]
    due += [(time_s * (index + chance.uniform(0.1, 0.9)) / executors, "executor") for index in range(executors)]
    due += [(KILL_S * index, "masters") for index in range(1, int(time_s // KILL_S) + 1)]
    for at, what in sorted(due):
        await asyncio.sleep(max(0.0, begin + at - loop.time()))
        query.keep()
        match what:
            case "driver":
                query.kill()
                verdict.killed_drivers += 1
            case "executor":
                running = query.spark.executors()
                if running:
                    os.kill(chance.choice(running), signal.SIGKILL)
                    verdict.killed_executors += 1
            case _:
                kills = (kill_master(cluster, within_s=KILL_S / 2, away_s=AWAY_S) for cluster in groups)
                verdict.killed_masters += sum(await asyncio.gather(*kills))
        say(f"{time_s - (loop.time() - begin):5.0f} s left  killed: {what}")


async def _until(cluster: Cluster, count: int, query: _Query, limit_s: float) -> None:
    """Waits until the log has this number of rows, and submits the query again if it has ended."""
    loop, found = asyncio.get_running_loop(), 0
    deadline, at = loop.time() + limit_s, 1
    while found < count:
        if loop.time() > deadline:
            raise ClusterFailed(f"{found} of {count} entries came through in {limit_s:.0f} s: {query.said()}")
        query.keep()
        try:
            async with connect(",".join(cluster.urls)) as log:
                async for entry in log.read(at, key_prefix=PREFIX):
                    found, at = found + 1, entry.vlsn + 1
        except VlsnLogError:
            pass  # the next call asks again
        await asyncio.sleep(1.0)


def _read(cluster: Cluster) -> list[tuple[str, str]]:
    """Returns key and value of each entry, as ``vlsnlog read`` prints them."""
    command = [*vlsnlog(), "read", "--url", ",".join(cluster.urls), "--consistency", "linearizable", "--json"]
    lines = subprocess.run(command, check=True, capture_output=True, timeout=READ_S, text=True).stdout.splitlines()
    return [(each.get("key", ""), each["value"]) for each in map(json.loads, lines)]


def _judge(one: list[tuple[str, str]], two: list[tuple[str, str]], written: list[bytes], verdict: Verdict) -> None:
    prefix = PREFIX.decode()
    inputs = [each for each in one if each[0].startswith(prefix)]
    outputs = [each for each in two if each[0].startswith(prefix)]
    verdict.outputs = len(outputs)
    if [value for _, value in inputs] != [value.decode() for value in written]:
        verdict.differences.append("the input itself is not what was acknowledged")
    by_key: list[dict[str, list[str]]] = [defaultdict(list), defaultdict(list)]
    for places, found in zip(by_key, (inputs, outputs), strict=True):
        for key, value in found:
            places[key].append(value.upper())
    for key in sorted(by_key[0].keys() | by_key[1].keys()):
        wanted, there = by_key[0][key], by_key[1][key]
        for at, (is_there, is_wanted) in enumerate(zip(there, wanted, strict=False)):
            if is_there != is_wanted:
                verdict.differences.append(f"entry {at} of key {key} is {is_there}, not {is_wanted}")
                break
        if len(there) != len(wanted):
            verdict.differences.append(f"{len(there)} entries of key {key}, not {len(wanted)}")
