"""The CDC consumer ``postgres`` under faults: its table must equal the log, each entry once, whatever is killed when.

    writers ─► group of real nodes ─► child of the master ─► {rows, position} ─► PostgreSQL
                       │                      │                                      │
             SIGKILL, SIGSTOP of a node    SIGKILL                 SIGKILL, SIGSTOP, ended connections

A master that is stopped longer than an election takes leaves its child running: this is the worker to be refused.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg

from harness.cluster import Say, cluster_of, statuses_of
from harness.postgres import PASSWORD, Postgres
from repl import connect
from repl.cluster import Cluster

END_S = 300.0
WRITERS = 4
BY_FAULT_S = (1.0, 4.0)
PROGRESS_S = 20.0
"""Seconds for which a new row is awaited before the next fault, since a fault on a busy consumer finds more."""
PAUSE_S = (3.0, 6.0)
"""Longer than an election takes."""
NAME = "rows"
TABLE = """
[[cdc]]
name = "{name}"
consumer = "postgres"
run_on = "master"
options = {{ dsn = "{dsn}", password_file = "{password}", timeout_s = 10 }}
"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[int, int, int, int | None, bytes | None, bytes]


@dataclass(slots=True)
class Verdict:
    """The findings of a run."""

    entries: int = 0
    rows: int = 0
    digest: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return self.entries > 0 and not self.differences


async def run_cdc_postgres(directory: Path, *, nodes: int, time_s: float, seed: int, say: Say) -> Verdict:
    """Runs and checks.  Raises ``ClusterFailed``, ``NoPostgres`` if there can be no verdict."""
    chance, verdict = random.Random(seed), Verdict()
    with Postgres() as server:
        password = directory / "password"
        password.write_text(PASSWORD)
        table = TABLE.format(name=NAME, dsn=server.dsn, password=password)
        async with cluster_of(directory / "group", "g", nodes, table) as cluster:
            stop = asyncio.Event()
            writing = [asyncio.create_task(_write(cluster, number, stop)) for number in range(WRITERS)]
            try:
                await _disturb(cluster, server, verdict, chance, time_s, say)
            finally:
                stop.set()
            written = {vlsn: value for found in await asyncio.gather(*writing) for vlsn, value in found}
            done = ", ".join(f"{count} {what}" for what, count in sorted(verdict.faults.items()))
            say(f"{len(written):,} entries acknowledged; {done}; now the rest is stored")
            await _judge(cluster, server, written, verdict)
    return verdict


async def _write(cluster: Cluster, number: int, stop: asyncio.Event) -> list[tuple[int, bytes]]:
    """Appends until ``stop``, every other time a transaction; returns VLSN and value of the plain ones."""
    found: list[tuple[int, bytes]] = []
    async with connect(",".join(cluster.urls), timeout_s=END_S, exactly_once=True) as log:
        count = 0
        while not stop.is_set():
            count += 1
            value = f"{number}/{count}".encode()
            found.append((await log.append(value, key=b"%d" % number), value))
            async with log.transaction() as txn:
                await txn.append_many([value + b"/%d" % each for each in range(3)])
    return found


async def _disturb(
    cluster: Cluster, server: Postgres, verdict: Verdict, chance: random.Random, time_s: float, say: Say
) -> None:
    loop = asyncio.get_running_loop()
    end, told = loop.time() + time_s, loop.time()
    while loop.time() < end:
        before = await _stored(server)
        await asyncio.sleep(chance.uniform(*BY_FAULT_S))
        waited = loop.time() + PROGRESS_S
        while await _stored(server) <= before and loop.time() < waited:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.2)
        what = chance.choice(("node", "node pause", "child", "child", "server", "server pause", "connections"))
        if await _strike(what, cluster, server, chance):
            verdict.faults[f"{what} {'kills' if ' ' not in what else 's'}".replace(" s", "s")] += 1
        if loop.time() - told > 10:
            told = loop.time()
            say(f"{max(0.0, end - loop.time()):5.0f} s left  {await _stored(server):,} rows")


async def _strike(what: str, cluster: Cluster, server: Postgres, chance: random.Random) -> bool:
    """Causes one fault and ends it; returns whether it happened."""
    statuses = await statuses_of(cluster)
    if what in ("node", "node pause"):
        states = [each.document.get("state") for each in statuses]
        if len(states) < len(cluster.nodes) or not set(states) <= {"MASTER", "REPLICA"}:
            return False  # one node at a time: a group without a majority is not tested here
        masters = [each.node for each in statuses if each.document.get("state") == "MASTER"]
        node = cluster.node(chance.choice([*masters, chance.choice(cluster.nodes).name]))
        if what == "node":
            node.kill()
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            node.start()
        else:
            node.send(signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(*PAUSE_S))
            node.send(signal.SIGCONT)
        return True
    if what == "child":
        pids = [each["pid"] for status in statuses for each in status.document.get("cdc", ()) if each["pid"]]
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        return bool(pids)
    if what == "server":
        server.kill()
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        await asyncio.to_thread(server.start)
    elif what == "server pause":
        server.send(signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(*PAUSE_S))
        server.send(signal.SIGCONT)
    else:
        await asyncio.to_thread(_end_connections, server)
    return True


def _end_connections(server: Postgres) -> None:
    with suppress(psycopg.OperationalError), server.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'vlsnlog%'"
        )


async def _stored(server: Postgres) -> int:
    """Counts the rows; 0 while the table does not exist."""

    def count() -> int:
        with suppress(psycopg.Error), server.connect() as connection:
            [found] = connection.execute("SELECT count(*) FROM vlsnlog_events").fetchall()
            return int(found[0])
        return 0

    return await asyncio.to_thread(count)


# The verdict.


async def _judge(cluster: Cluster, server: Postgres, written: dict[int, bytes], verdict: Verdict) -> None:
    async with connect(",".join(cluster.urls)) as log:
        entries = [row async for row in _entries(log)]
    verdict.entries = len(entries)
    there = {row[0]: row[5] for row in entries}
    lost = [vlsn for vlsn, value in written.items() if there.get(vlsn) != value]
    if lost:
        verdict.differences.append(f"the log itself lacks what was acknowledged, from VLSN {min(lost)} on")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + END_S
    while await _stored(server) < len(entries) and loop.time() < deadline:  # noqa: ASYNC110  another process
        await asyncio.sleep(0.5)
    rows = await asyncio.to_thread(_rows, server)
    verdict.rows, verdict.digest = len(rows), digest_of(rows)
    if len(rows) != len(entries):
        verdict.differences.append(f"{len(rows)} rows of {len(entries)} entries")
    if verdict.digest != digest_of(entries):
        first = next((wanted for wanted, row in zip(entries, rows, strict=False) if wanted != row), entries[-1])
        verdict.differences.append(f"the rows' digest is not the log's: they differ at VLSN {first[0]}")


async def _entries(log: Any) -> AsyncIterator[Row]:
    async for entry in log.read(consistency="linearizable"):
        yield entry.vlsn, entry.term, entry.time, entry.txn or None, entry.key, entry.value


def _rows(server: Postgres) -> list[Row]:
    with server.connect() as connection:
        found = connection.execute(
            "SELECT vlsn, term, time, txn, key, value FROM vlsnlog_events ORDER BY vlsn"
        ).fetchall()
    return [
        (vlsn, term, (time - EPOCH) // timedelta(microseconds=1), txn, key, value)
        for vlsn, term, time, txn, key, value in found
    ]


def digest_of(rows: Iterable[Row]) -> str:
    digest = sha256()
    for row in rows:
        digest.update(repr(row).encode() + b"\n")
    return digest.hexdigest()
