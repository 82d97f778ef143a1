"""The demonstration: real records, a master that is killed meanwhile, and the proof that nothing was lost.

    three nodes start ─► records appended in order ─► SIGKILL of the master, half way, under load ─► another one is
      elected, appends continue ─► the killed node restarts and catches up ─► every node reads everything back
      ─► Spark audit of all three

The verdict has a line for each promise. Every record is acknowledged, once and in order. Between the first and the last
record, the only other entry is the new master's own. Reading the records back from any node gives the SHA-256 of the
input. The audit finds the three logs equal up to the last record.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from repl.cli.progress import bars
from repl.cli.report import count, several
from repl.client.connect import Client, connect
from repl.cluster import Cluster, Node
from vlsn.errors import BadArgument, Unreachable
from vlsn.format.block import EntryKind

if TYPE_CHECKING:
    from repl.audit.report import AuditReport

LINES_AN_APPEND: Final = 50
APPENDS: Final = 64
"""The least number of appends. A short input is divided into appends with fewer lines, so that the master can be killed
in the middle."""
APPENDS_UNDER_WAY: Final = 8
START_S: Final = 60.0
CATCH_UP_S: Final = 60.0
KILL_AT: Final = 0.5
RESTART_AT: Final = 0.75
_CLEARED: Final = "\r\x1b[K"


class PlainTeller:
    """Reports the demonstration in plain lines, without a terminal."""

    def say(self, text: str) -> None:
        click.echo(text)

    def wait(self, text: str) -> None:
        """Shows what is being waited for, on a terminal."""

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        done = 0

        def show(count: int) -> None:
            nonlocal done
            done = count

        yield show
        self.say(f"{name}: {count(done)} of {count(total)}")

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        for name, text in rows:
            self.say(f"{name:<10}{text}")

    def check(self, kept: bool, text: str) -> None:
        self.say(("ok    " if kept else "FAILS ") + text)

    def verdict(self, holds: bool, text: str) -> None:
        self.say(text)


class TerminalTeller(PlainTeller):
    """Reports the demonstration with bars and colours."""

    def say(self, text: str) -> None:
        click.echo(_CLEARED + text)  # a progress bar on this line is drawn again on the next line

    def wait(self, text: str) -> None:
        self.say(f"{text} …")

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        with bars(sys.stdout) as show:
            yield lambda done: show(name, done, total)

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        for name, text in rows:
            self.say(click.style(f"{name:<10}", dim=True) + text)

    def check(self, kept: bool, text: str) -> None:
        self.say((click.style("✓ ", fg="green") if kept else click.style("✗ ", fg="red", bold=True)) + text)

    def verdict(self, holds: bool, text: str) -> None:
        self.say(click.style(text, fg="green" if holds else "red", bold=True))


@dataclass(slots=True)
class Outcome:
    """The results of a run of the demonstration."""

    records: int = 0
    bytes: int = 0
    sha256: str = ""
    first: int = 0
    last: int = 0
    append_s: float = 0.0
    killed: str = ""
    own: int = 0
    """The number of the log's own entries between the first and the last record: one TERM entry for each new master."""
    waited_s: float = 0.0
    """The longest time without an acknowledged append, in seconds."""
    catch_up_s: float = 0.0
    reads: dict[str, str] = field(default_factory=dict)
    audit: AuditReport | None = None

    def checks(self) -> list[tuple[bool, str]]:
        """Returns for each promise whether it was kept, and its text."""
        complete = self.records > 0 and self.last - self.first + 1 == self.records + self.own
        return [
            (
                complete,
                f"{several(self.records, 'record')} acknowledged on a majority, each once, in order, no gap",
            ),
            *(
                (digest == self.sha256, f"{name} gives back the same bytes, SHA-256 {digest[:16]}…")
                for name, digest in self.reads.items()
            ),
            (self._audited(), self._audit_words()),
        ]

    @property
    def holds(self) -> bool:
        return bool(self.killed) and len(self.reads) > 1 and all(kept for kept, _ in self.checks())

    def _audited(self) -> bool:
        report = self.audit
        return report is not None and report.equal and not report.findings and report.compared_to >= self.last

    def _audit_words(self) -> str:
        report = self.audit
        if report is None:
            return "the audit did not run"
        verdict = "equal" if report.equal else "NOT equal"
        found = f", {several(len(report.findings), 'finding')}" if report.findings else ""
        compared = f"from VLSN {report.compared_from} to {report.compared_to}"
        return f"audit: {len(report.sources)} logs {verdict} {compared}{found}"


def installed_records() -> list[bytes]:
    """Returns the RECORD and METADATA lines of every Python distribution in this environment, sorted by name: real,
    irregular data."""
    lines: list[bytes] = []
    for each in sorted(distributions(), key=lambda each: str(each.metadata["Name"]).lower()):
        for name in ("METADATA", "RECORD"):
            text = each.read_text(name)
            if text:
                lines += text.encode("utf-8", "surrogateescape").split(b"\n")
    return lines


def records_of(path: Path | None, entries: int | None) -> list[bytes]:
    """Returns at most ``entries`` records: built-in ones, or the lines of a file as ``vlsnlog append`` would append
    them. Raises ``BadArgument`` if there are none."""
    from repl.cli.lines import bodies

    if path is None:
        lines = installed_records()
    else:
        with path.open("rb") as source:
            lines = [line for body in bodies(source) for line in body.values]
    if not lines:
        raise BadArgument(f"input: {path} is empty; the demonstration needs at least one line")
    return lines[:entries]


class Demo:
    """One demonstration, on a cluster that is prepared and not started yet."""

    def __init__(self, cluster: Cluster, records: Sequence[bytes], teller: PlainTeller) -> None:
        self._cluster = cluster
        self._records = records
        self._teller = teller
        self.outcome = Outcome(records=len(records), bytes=sum(map(len, records)), sha256=digest_of(records))

    async def run(self) -> None:
        """Runs the whole demonstration except for the audit."""
        await self._start()
        victim = await self._master()
        await self._append(victim)
        await self._catch_up(victim)
        await self._read_back()

    async def _start(self) -> None:
        self._teller.say(f"starting {len(self._cluster.nodes)} nodes in {self._cluster.directory}")
        for node in self._cluster.nodes:
            node.start()
        self._teller.wait("they open their logs and found a group")
        async with _within(START_S, "the nodes did not found a group"):
            for node in self._cluster.nodes:
                await self._cluster.answering(node)
            await self._cluster.serving()

    async def _master(self) -> Node:
        master = await self._cluster.serving()
        return next(node for node in self._cluster.nodes if node.name == master)

    async def _append(self, victim: Node) -> None:
        """Appends all records in order. While appends run, the victim is killed and restarted."""
        total = len(self._records)
        async with connect(",".join(self._cluster.urls), exactly_once=True) as log:
            begun: list[asyncio.Task[Any]] = []
            try:
                with self._teller.bar("append", total) as show:
                    await self._append_all(log, victim, begun, show)
            except BaseException:
                for task in begun:
                    task.cancel()
                await asyncio.gather(*begun, return_exceptions=True)
                raise
        await asyncio.gather(*begun)

    async def _append_all(
        self, log: Client, victim: Node, begun: list[asyncio.Task[Any]], show: Callable[[int], None]
    ) -> None:
        """Appends the records, several appends at a time. ``begun`` collects the tasks of appends, and the task of the
        victim's restart."""
        outcome, total = self.outcome, len(self._records)
        loop = asyncio.get_running_loop()
        started = acknowledged = loop.time()
        done, restarted = 0, False
        bodies = self._bodies()
        under_way_max = min(APPENDS_UNDER_WAY, max(1, len(bodies) // APPENDS_UNDER_WAY))
        under_way: deque[asyncio.Task[tuple[int, int]]] = deque()
        for body in [*bodies, None]:
            if body is not None:
                under_way.append(asyncio.create_task(log.append_many(body)))
                begun.append(under_way[-1])
            while under_way and (body is None or len(under_way) == under_way_max):
                first, last = await under_way.popleft()
                outcome.first = outcome.first or first
                done += last - first + 1
                outcome.last = last
                now = loop.time()
                outcome.waited_s = max(outcome.waited_s, now - acknowledged)
                acknowledged = now
                show(done)
                if not outcome.killed and done >= total * KILL_AT:
                    self._kill(victim, done)
                if not restarted and done >= total * RESTART_AT:
                    restarted = True
                    begun.append(asyncio.create_task(self._restart(victim, done)))
        outcome.append_s = loop.time() - started

    def _bodies(self) -> list[Sequence[bytes]]:
        lines = min(LINES_AN_APPEND, max(1, len(self._records) // APPENDS))
        return [self._records[start : start + lines] for start in range(0, len(self._records), lines)]

    def _kill(self, victim: Node, done: int) -> None:
        victim.kill()
        self.outcome.killed = victim.name
        after = several(done, "record")
        self._teller.say(f"SIGKILL to {victim.name}, the master, after {after}; the others elect another one")

    async def _restart(self, victim: Node, done: int) -> None:
        leader = await self._cluster.serving()
        self._teller.say(f"{leader} leads; {victim.name} is started again after {several(done, 'record')}")
        victim.start()

    async def _catch_up(self, victim: Node) -> None:
        """Waits until every node serves durable reads up to the last record."""
        loop = asyncio.get_running_loop()
        self._teller.wait(f"{victim.name} catches up")
        async with _within(CATCH_UP_S, f"{victim.name} did not catch up"):
            await self._cluster.answering(victim)
            started = loop.time()
            await self._cluster.durable(self.outcome.last)
        self.outcome.catch_up_s = loop.time() - started

    async def _read_back(self) -> None:
        outcome, nodes = self.outcome, self._cluster.nodes
        count = 0
        with self._teller.bar(f"read back from {len(nodes)} nodes", len(nodes) * outcome.records) as show:
            for node in nodes:
                digest, own = hashlib.sha256(), 0
                async with connect(node.url) as log:
                    async for page in log.read_pages(outcome.first, outcome.last, all_kinds=True):
                        records = [entry for entry in page.entries if entry.kind == EntryKind.DATA]
                        for entry in records:
                            digest.update(entry.value + b"\n")
                        own += len(page.entries) - len(records)
                        count += len(records)
                        show(count)
                outcome.own = own
                outcome.reads[node.name] = digest.hexdigest()


@asynccontextmanager
async def _within(seconds: float, failure: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unreachable(f"{failure} within {seconds:.0f} s; each node's node.log says why") from None


def digest_of(records: Sequence[bytes]) -> str:
    """Returns the SHA-256 of the records as ``vlsnlog read`` prints them, each with a newline."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(record + b"\n")
    return digest.hexdigest()
