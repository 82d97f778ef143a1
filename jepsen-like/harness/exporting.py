"""An export under SIGKILL: clients append to a group whose master is killed, and the export is killed at any moment.

    writers ─► group ─► vlsnlog export --continuous ─► directory ◄── readers that read no manifest
                 │                │
              SIGKILL of the    SIGKILL of the driver alone, or of the driver, its JVM and its tasks
              master            at a moment of the commit: a file is staged, a manifest exists, a file is published

After each kill the directory is read twice: every data file, and the files that the manifests name.  Both must equal
the log, each entry once; the first without files that are not published yet.  In the end both are the whole log.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cluster import ClusterFailed, Say, cluster_of, is_whole, kill_master, vlsnlog
from harness.standalone import kill_session
from repl import connect
from repl.cluster import Cluster
from repl.export.manifest import Manifest, decode

END_S = 300.0
MOMENT_S = 240.0
"""Seconds in which an export must reach the awaited moment, also on a loaded machine."""
MASTER_EVERY_S = 10.0
WRITERS = 2
WAYS = ("", "date", "key-prefix:1")
Row = tuple[int, bytes | None, bytes]


@dataclass(slots=True)
class Verdict:
    """The findings of a run."""

    killed_exports: int = 0
    killed_masters: int = 0
    batches: int = 0
    files: int = 0
    rows: int = 0
    unpublished: int = 0
    """Kills that left a committed file unpublished."""
    staged: int = 0
    """Kills that left files of a batch that was never committed."""
    differences: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return self.rows > 0 and not self.differences


async def run_exporting(directory: Path, *, kills: int, seed: int, say: Say) -> Verdict:
    """Kills the export ``kills`` times, lets it finish, and checks.  Raises ``ClusterFailed`` without a verdict."""
    chance, verdict = random.Random(seed), Verdict()
    way = chance.choice(WAYS)
    say(f"partitioned by {way or 'nothing'}")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(cluster_of(directory / "group", "g", 3))
        stop = asyncio.Event()
        writing = [asyncio.create_task(_write(cluster, number, stop)) for number in range(WRITERS)]
        masters = asyncio.create_task(_kill_masters(cluster, verdict, stop))
        export = _Export(directory, ",".join(cluster.urls), way)
        stack.callback(export.kill_all)
        while verdict.killed_exports < kills and not verdict.differences:
            export.start(batch_entries=chance.choice((50, 400)))
            await export.moment(chance)
            await asyncio.to_thread(export.kill, alone=chance.random() < 0.5)
            verdict.killed_exports += 1
            await asyncio.to_thread(check_target, export.to, verdict)
            if verdict.killed_exports % 5 == 0:
                say(f"{verdict.killed_exports} kills of the export, {verdict.killed_masters} of the master, "
                    f"{verdict.batches} batches")  # fmt: skip
        stop.set()
        written = [row for rows in await asyncio.gather(*writing) for row in rows]
        await masters
        say(f"{len(written):,} entries acknowledged; now the rest is exported")
        await _finish(export)
        await _judge(cluster, export.to, sorted(written), verdict)
    return verdict


class _Export:
    """Runs the command, one process after the other."""

    def __init__(self, directory: Path, urls: str, way: str) -> None:
        self.to = directory / "lake"
        self._log = directory / "export.log"
        self._command = [*vlsnlog(), "export", urls, "--to", str(self.to), "--format", "parquet", "--json"]
        if way:
            self._command += ["--partition-by", way]
        self._started: list[subprocess.Popen[bytes]] = []
        self._seen: Counter[str] = Counter()

    def start(self, *more: str, batch_entries: int, continuous: bool = True) -> subprocess.Popen[bytes]:
        self._seen = self._names()
        command = [*self._command, "--batch-entries", str(batch_entries), *more]
        if continuous:
            command += ["--continuous", "--interval", "0.2"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    async def moment(self, chance: random.Random) -> None:
        """Waits for a moment for a kill: mostly until a new file of one kind appears, and then a little more."""
        loop = asyncio.get_running_loop()
        kind = chance.choice(("claim", "staged", "manifest", "placed", "several"))
        counted = {"claim": "manifest", "several": "manifest"}.get(kind, kind)
        wanted = {"claim": 1, "manifest": 2, "several": chance.randrange(3, 9)}.get(kind, 1)
        end = loop.time() + MOMENT_S
        while (self._names() - self._seen)[counted] < wanted:
            if self._started[-1].poll() is not None:
                raise ClusterFailed(f"the export ended with {self._started[-1].returncode}: {self.last_words()}")
            if loop.time() > end:
                raise ClusterFailed(f"no {kind} within {MOMENT_S:.0f} s: {self.last_words()}")
            await asyncio.sleep(0.002)
        longest = {"claim": 3.0, "several": 0.5}.get(kind, 0.03)
        await asyncio.sleep(chance.choice((0.0, chance.uniform(0.0, longest))))

    def kill(self, *, alone: bool) -> None:
        process = self._started[-1]
        if alone:  # its JVM ends by itself, a little later
            process.kill()
            process.wait()
        else:
            kill_session(process.pid)
            process.wait()

    def kill_all(self) -> None:
        for process in self._started:
            kill_session(process.pid)
            process.wait()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-1000:] if self._log.exists() else ""

    def _names(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for _, _, names in os.walk(self.to):
            for name in names:
                kind = {"part": "staged", "json": "manifest", "parquet": "placed"}.get(name.rpartition(".")[2])
                if kind:
                    found[kind] += 1
        return found


async def _write(cluster: Cluster, number: int, stop: asyncio.Event) -> list[Row]:
    """Appends until ``stop``, every fifth time a transaction; returns the acknowledged rows."""
    found: list[Row] = []
    count = 0
    async with connect(",".join(cluster.urls), timeout_s=END_S, exactly_once=True) as log:
        while not stop.is_set():
            count += 1
            key = (b"a", b"b", b"cc", b"%2F", None)[count % 5]
            values = [f"{number}/{count}/{part}".encode() for part in range(4 if count % 5 == 0 else 1)]
            if len(values) == 1:
                found.append((await log.append(values[0], key=key), key, values[0]))
                continue
            async with log.transaction() as txn:
                await txn.append_many(values, keys=[b"t"] * len(values))
            assert txn.appended is not None
            found += [(txn.appended.first + part, b"t", value) for part, value in enumerate(values)]
            await asyncio.sleep(0.01)
    return found


async def _kill_masters(cluster: Cluster, verdict: Verdict, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), MASTER_EVERY_S)
            return
        except TimeoutError:
            pass
        if await is_whole(cluster):
            verdict.killed_masters += await kill_master(cluster, within_s=MASTER_EVERY_S, away_s=1.0)


async def _finish(export: _Export) -> None:
    process = export.start(batch_entries=10_000, continuous=False)
    try:
        status = await asyncio.wait_for(asyncio.to_thread(process.wait), END_S)
    except TimeoutError:
        raise ClusterFailed(f"the last export did not end: {export.last_words()}") from None
    if status:
        raise ClusterFailed(f"the last export ended with {status}: {export.last_words()}")


async def _judge(cluster: Cluster, to: Path, written: list[Row], verdict: Verdict) -> None:
    async with connect(",".join(cluster.urls)) as log:
        held = [(each.vlsn, each.key, each.value) async for each in log.read(consistency="linearizable")]
    if held != written:
        verdict.differences.append("the log itself is not what was acknowledged")
    bare, listed = await asyncio.to_thread(check_target, to, verdict)
    verdict.rows = len(listed)
    for name, rows in (("every file", bare), ("the manifests", listed)):
        if rows != held:
            first = next((a for a, b in zip(rows, held, strict=False) if a != b), "the end")
            verdict.differences.append(f"{name}: {len(rows)} rows of {len(held)}; they differ at {first}")


def check_target(to: Path, verdict: Verdict) -> tuple[list[Row], list[Row]]:
    """Checks what must hold at any moment; returns the rows of every data file, and those that manifests name."""
    manifests = [decode(path.read_bytes(), path.name) for path in sorted((to / "_manifests").glob("*.json"))]
    paths = sorted(path for path in to.rglob("*.parquet"))
    bare = sorted(row for path in paths for row in _rows(path))
    listed: list[Row] = []
    verdict.batches = sum(1 for manifest in manifests if manifest.files)
    verdict.files = sum(len(manifest.files) for manifest in manifests)
    due, total, missing = 1, 0, 0
    for number, manifest in enumerate(manifests, 1):
        rows = sorted(row for path in _places(to, manifest) for row in _rows(path))
        missing = sum(not (to / file.name).exists() for file in manifest.files)
        if missing and number < len(manifests):
            verdict.differences.append(f"manifest {number}: {missing} files are not in place, and another follows")
        if (manifest.number, manifest.first) != (number, due):
            verdict.differences.append(f"manifest {number} is {manifest.number}, from VLSN {manifest.first}, not {due}")
        if len(rows) != manifest.rows or any(not manifest.first <= row[0] <= manifest.last for row in rows):
            verdict.differences.append(f"manifest {number} has {len(rows)} rows, not {manifest.rows}")
        due, total = manifest.last + 1, total + manifest.rows
        listed += rows
    verdict.unpublished += missing > 0
    verdict.staged += any(path.suffix == ".part" for path in to.rglob("*"))
    vlsns = [row[0] for row in bare]
    if len(set(vlsns)) < len(vlsns):
        verdict.differences.append("a reader of every file sees an entry twice")
    if not set(bare) <= set(listed) or (not missing and bare != listed):
        verdict.differences.append(f"every file: {len(bare)} rows; the manifests: {len(listed)}")
    return bare, listed


def _places(to: Path, manifest: Manifest) -> Iterable[Path]:
    """Yields the paths of a manifest's files: final or still staged."""
    return (to / (file.name if (to / file.name).exists() else file.staged) for file in manifest.files)


def _rows(path: Path) -> list[Row]:
    import pyarrow.parquet as pq

    table: Any = pq.ParquetFile(path).read(columns=["vlsn", "key", "value"])
    columns = [column.to_pylist() for column in table.columns]
    rows = list(zip(*columns, strict=True))
    assert [row[0] for row in rows] == sorted({row[0] for row in rows}), f"{path}: not in order"
    return rows
