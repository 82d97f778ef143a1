"""The audit of three copies beside a loop of checksums in C over the same files, its memory, and how it grows.

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

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

from repl.bench.target import check_space
from tests.bench.copies import forget, grow, paths
from tests.bench.process import Child
from tests.bench.report import Section, Sections

SMALL_BYTES: Final = 60_000
GROWTH: Final = 100
"""The log grows by a hundredth of it."""
SPARE: Final = 1.2
Answer = dict[str, Any]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", default="100,1000,6000", help="sizes of a log's three copies together")
    parser.add_argument("--entries", type=int, default=64, help="entries in a block")
    parser.add_argument("--size", type=int, default=100, help="bytes of an entry")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", default="0,1", help="the processors to use")
    parser.add_argument("--no-one-core", dest="one_core", action="store_false", help="no audit with local[1]")
    parser.add_argument("--since", action="store_true", help="audit 1 %% more log, too, whole and with --since-last")
    parser.add_argument("--cold", action="store_true", help="time both with nothing in the page cache, too")
    parser.add_argument("--checksums", choices=("sha256", "crc"), default="sha256")


def measured(options: argparse.Namespace) -> Sections:
    for each in options.megabytes.split(","):
        with TemporaryDirectory(prefix="vlsnlog-bench-") as directory:
            bench = AuditBench(Path(directory), options)
            bench.fill(int(each) * 1_000_000)
            yield from bench.figures()


class AuditBench:
    """Three copies of one log, and three of a small one, in ``root``."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self._small, self._large = root / "small", root / "large"
        self._report = root / "report.json"
        self._options = options
        self._cores = [int(core) for core in options.cores.split(",")]

    def fill(self, size: int) -> None:
        """Makes the copies, ``size`` bytes all together."""
        check_space(self._large.parent, int(size * SPARE))
        for root, wanted in ((self._small, SMALL_BYTES), (self._large, size)):
            root.mkdir()
            self._grow(root, wanted)

    def figures(self) -> Iterator[Section]:
        with ExitStack() as stack:
            loops = [stack.enter_context(Child("checksums", cores=[core])) for core in self._cores]
            session = stack.enter_context(self._session(self._cores))
            fixed = self._small_job(session)
            title = f"{self._audit(session)['bytes'] / 1e6:.0f} MB"
            self._loop_s(loops)
            audits, times = self._turns(loops, session, lambda: None)
            seconds, answer = [each["seconds"] for each in audits], audits[-1]
            yield (
                title,
                {
                    **{name: answer[name] for name in ("blocks", "tasks")},
                    "small_job_s": round(fixed, 2),
                    "loop_s": _seconds(times),
                    "audit_s": _seconds(seconds),
                    "audit_MB_per_s": round(answer["bytes"] / 1e6 / median(seconds)),
                    "ratio": round(median(times) / median(seconds), 3),
                    "peak_mb": answer["memory"],
                },
            )
            if self._options.cold:
                audits, times = self._turns(loops, session, lambda: forget(self._large))
                cold = [each["seconds"] for each in audits]
                yield (
                    f"{title}, nothing of it in the page cache",
                    {
                        "loop_s": _seconds(times),
                        "audit_s": _seconds(cold),
                        "ratio": round(median(times) / median(cold), 3),
                    },
                )
        if self._options.one_core:
            yield f"{title}, on one core", self._on_one_core(median(seconds))
        if self._options.since:
            yield f"{title}, and 1 % more", self._since_last()

    def _turns(
        self, loops: list[Child], session: Child, prepare: Callable[[], None]
    ) -> tuple[list[Answer], list[float]]:
        audits, times = [], []
        for _ in range(self._options.rounds):
            prepare()
            times.append(self._loop_s(loops))
            prepare()
            audits.append(self._audit(session))
        return audits, times

    def _loop_s(self, loops: list[Child]) -> float:
        """Returns how long the loops took over the segments, from the first's start to the last's end."""
        files = sorted(self._large.glob("*/*.vlog"), key=lambda path: (-path.stat().st_size, str(path)))
        begun = monotonic()
        for at, loop in enumerate(loops):
            loop.send([str(path) for path in files[at :: len(loops)]])
        for loop in loops:
            loop.answer()
        return monotonic() - begun

    def _on_one_core(self, on_all: float) -> dict[str, Any]:
        with self._session(self._cores[:1]) as session:
            fixed = self._small_job(session)
            self._audit(session)
            audits = [self._audit(session)["seconds"] for _ in range(self._options.rounds)]
        times = round(median(audits) / on_all, 2)
        return {"small_job_s": round(fixed, 2), "audit_s": _seconds(audits), "times_of_all_cores": times}

    def _since_last(self) -> dict[str, Any]:
        whole, daily = [], []
        with self._session(self._cores) as session:
            fixed = self._small_job(session)
            before = self._audit(session, out=str(self._report))
            self._grow(self._large, before["bytes"] // GROWTH)
            for _ in range(self._options.rounds):
                full = self._audit(session)
                since = self._audit(session, since=str(self._report))
                assert since["digests"] == full["digests"] and since["compared_to"] > before["compared_to"]
                whole.append(full["seconds"])
                daily.append(since["seconds"])
        spent = median(whole) - fixed
        return {
            "grown_to_MB": round(full["bytes"] / 1e6),
            "since_read_MB": round(since["bytes"] / 1e6),
            "small_job_s": round(fixed, 2),
            "audit_s": _seconds(whole),
            "since_last_s": _seconds(daily),
            "share_past_fixed": round(max(median(daily) - fixed, 0.0) / spent, 3) if spent > 0 else None,
        }

    def _session(self, cores: list[int]) -> Child:
        """Returns a Spark on these cores only."""
        return Child("audit_session", len(cores), cores=cores)

    def _small_job(self, session: Child) -> float:
        """Returns what an audit of nearly nothing costs, which warms Spark and its workers first."""
        times = [float(self._audit(session, self._small)["seconds"]) for _ in range(self._options.rounds + 2)]
        return median(times[2:])

    def _audit(self, session: Child, root: Path | None = None, *, out: str = "", since: str = "") -> Answer:
        """Audits the copies, which must be equal, without a finding."""
        sources = paths(root or self._large)
        session.send({"sources": sources, "out": out, "since": since, "checksums": self._options.checksums})
        answer: Answer = session.answer()
        return answer

    def _grow(self, root: Path, size: int) -> None:
        grow(root, size=size, entries=self._options.entries, entry_bytes=self._options.size)
        os.sync()


def _seconds(times: list[float]) -> str:
    return f"{median(times):.2f} ({min(times):.2f}-{max(times):.2f})"
