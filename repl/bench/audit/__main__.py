"""``python -m repl.bench.audit``: the audit of three copies beside a loop of checksums in C over the same files.

For each size a log is made in a temporary directory (``TMPDIR``) and removed again.  Spark has its default
configuration and a process of its own for each size, that first does one small job; times are medians of the rounds,
in which the loop and the audits take turns.

    ratio       the audit's rate to the loop's, both on two cores
    one core    the same audit with ``local[1]``, all of its processes bound to one core
    memory      what each kind of process had resident at most
    cold        (``--cold``) loop and audit with nothing of the files in the page cache
    since       (``--since``) 1 % more log: all of it audited, and from the report of before
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from repl.bench.audit.checksums import ChecksumLoop
from repl.bench.audit.copies import bytes_of, forget, grow, paths
from repl.bench.audit.session import Answer, AuditSession
from repl.bench.target import check_space

SMALL_BYTES: Final = 60_000
GROWTH: Final = 100
"""The log grows by a hundredth of it."""
SPARE: Final = 1.2
Figures = dict[str, Any]


@click.command()
@click.option("--megabytes", default="100,1000,6000", show_default=True, help="Sizes of a log's three copies together.")
@click.option("--entries", default=64, show_default=True, help="Entries in a block.")
@click.option("--size", default=100, show_default=True, help="Bytes of an entry.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--cores", default="0,1", show_default=True, help="The processors to use.")
@click.option("--one-core/--no-one-core", default=True, help="Audit with local[1], too.")
@click.option("--since/--no-since", default=False, help="Audit 1 % more log, too, whole and with --since-last.")
@click.option("--cold/--no-cold", default=False, help="Time both with nothing in the page cache, too.")
@click.option("--checksums", default="sha256", show_default=True, help="sha256 or crc.")
@click.option("--json", "as_json", is_flag=True, help="One object a size, a line each.")
def main(
    megabytes: str,
    entries: int,
    size: int,
    rounds: int,
    cores: str,
    one_core: bool,
    since: bool,
    cold: bool,
    checksums: str,
    as_json: bool,
) -> None:
    """Time the audit of three copies: beside C, on one core and two, small and large, and after 1 % more log."""
    numbers = [int(core) for core in cores.split(",")]
    for each in megabytes.split(","):
        with TemporaryDirectory(prefix="vlsnlog-bench-") as directory:
            bench = AuditBench(
                Path(directory), entries=entries, entry_bytes=size, rounds=rounds, cores=numbers, checksums=checksums
            )
            bench.fill(int(each) * 1_000_000)
            for figures in bench.figures(one_core=one_core, since=since, cold=cold):
                if as_json:
                    click.echo(json.dumps(figures))
                    continue
                click.echo("  ".join(f"{name} {value}" for name, value in figures.items()))


class AuditBench:
    """Three copies of one log, and three of a small one, in ``root``."""

    def __init__(
        self, root: Path, *, entries: int, entry_bytes: int, rounds: int, cores: list[int], checksums: str
    ) -> None:
        self._small, self._large = root / "small", root / "large"
        self._report = root / "report.json"
        self._entries = entries
        self._entry_bytes = entry_bytes
        self._rounds = rounds
        self._cores = cores
        self._checksums = checksums

    def fill(self, size: int) -> None:
        """Makes the copies, ``size`` bytes all together."""
        check_space(self._large.parent, int(size * SPARE))
        for root, wanted in ((self._small, SMALL_BYTES), (self._large, size)):
            root.mkdir()
            self._grow(root, wanted)

    def figures(self, *, one_core: bool, since: bool, cold: bool = False) -> Iterator[Figures]:
        """Yields what was measured, a line each."""
        with ChecksumLoop(self._cores) as loop, AuditSession(self._cores, self._checksums) as session:
            fixed = self._small_job(session)
            yield {"made": f"{bytes_of(self._large) / 1e6:.0f} MB", "small job": f"{fixed:.2f} s"}
            loops, audits, answer = self._turns(lambda: loop.seconds(self._large), session)
            yield {
                "MB": round(answer["bytes"] / 1e6),
                "blocks": answer["blocks"],
                "tasks": answer["tasks"],
                "loop_s": _seconds(loops),
                "audit_s": _seconds(audits),
                "audit_MB_per_s": round(answer["bytes"] / 1e6 / median(audits)),
                "ratio": round(median(loops) / median(audits), 3),
                "peak_mb": answer["memory"],
            }
            if cold:
                yield self._from_disk(lambda: loop.seconds(self._large), session)
        if one_core:
            yield self._on_one_core(median(audits))
        if since:
            yield self._since_last()

    def _turns(self, loop: Callable[[], float], session: AuditSession) -> tuple[list[float], list[float], Answer]:
        loops, audits = [], []
        answer = self._audit(session)
        loop()
        for _ in range(self._rounds):
            loops.append(loop())
            answer = self._audit(session)
            audits.append(answer["seconds"])
        return loops, audits, answer

    def _from_disk(self, loop: Callable[[], float], session: AuditSession) -> Figures:
        """Times both while each byte comes from the disk, as in an audit of a log that is larger than memory."""
        loops, audits = [], []
        for _ in range(self._rounds):
            forget(self._large)
            loops.append(loop())
            forget(self._large)
            audits.append(self._audit(session)["seconds"])
        ratio = round(median(loops) / median(audits), 3)
        return {"cold_loop_s": _seconds(loops), "cold_audit_s": _seconds(audits), "cold_ratio": ratio}

    def _on_one_core(self, on_all: float) -> Figures:
        with AuditSession(self._cores[:1], self._checksums) as session:
            fixed = self._small_job(session)
            self._audit(session)
            audits = [self._audit(session)["seconds"] for _ in range(self._rounds)]
        times = round(median(audits) / on_all, 2)
        return {"small job on one core": f"{fixed:.2f} s", "audit_s": _seconds(audits), "times_of_all_cores": times}

    def _since_last(self) -> Figures:
        whole, daily = [], []
        with AuditSession(self._cores, self._checksums) as session:
            fixed = self._small_job(session)
            before = self._audit(session, out=str(self._report))
            self._grow(self._large, before["bytes"] // GROWTH)
            for _ in range(self._rounds):
                full = self._audit(session)
                since = self._audit(session, since=str(self._report))
                assert since["digests"] == full["digests"] and since["compared_to"] > before["compared_to"]
                whole.append(full["seconds"])
                daily.append(since["seconds"])
        spent = median(whole) - fixed
        share = f"{max(median(daily) - fixed, 0.0) / spent:.3f}" if spent > fixed else "none: the log is too small"
        return {
            "grown to MB": round(full["bytes"] / 1e6),
            "since read MB": round(since["bytes"] / 1e6),
            "small job": f"{fixed:.2f} s",
            "audit_s": _seconds(whole),
            "since_last_s": _seconds(daily),
            "share_past_fixed": share,
        }

    def _small_job(self, session: AuditSession) -> float:
        """Returns what an audit of nearly nothing costs, which warms Spark and its workers first."""
        times = [float(session.audit(paths(self._small))["seconds"]) for _ in range(self._rounds + 2)]
        return median(times[2:])

    def _audit(self, session: AuditSession, *, out: str = "", since: str = "") -> Answer:
        return session.audit(paths(self._large), out=out, since=since)

    def _grow(self, root: Path, size: int) -> None:
        grow(root, size=size, entries=self._entries, entry_bytes=self._entry_bytes)
        os.sync()


def _seconds(times: list[float]) -> str:
    return f"{median(times):.2f} ({min(times):.2f}-{max(times):.2f})"


if __name__ == "__main__":
    main()
