"""Healthy histories that are audited while they are made: groups of real processes that write and are killed meanwhile.

    python -m tests.repl.audit.live [HISTORIES] [FIRST_SEED]      so many groups (20), and what was found: nothing

A seed is a group.  While its nodes write it is audited again and again, over its directories, over HTTP and mixed; at
drawn moments, and so in the middle of an audit, a node is killed, the master as often as not, and started again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Thread

from repl.audit.source import Unreadable
from tests.e2e.calls import OCTETS, call
from tests.e2e.group import NAMES, Group
from tests.repl.audit.jobs import audited
from vlsn.limits import MIB

KILLS = 6
"""Kills in one history."""
UP_S = (0.0, 1.5)
DOWN_S = (0.0, 0.5)


@dataclass(slots=True)
class Told:
    """The outcome of all audits; ``unreadable`` are those that could not begin, for a node was down."""

    audits: int = 0
    equal: int = 0
    partial: int = 0
    unreadable: int = 0
    kills: int = 0
    entries: int = 0
    findings: list[str] = field(default_factory=list)


class Writers:
    """Threads that append to every node on its own word, so that a deposed master has something to roll back."""

    def __init__(self, group: Group) -> None:
        self._group, self._over = group, Event()
        self._threads = [Thread(target=self._write, args=(name,)) for name in NAMES]
        self.written = 0

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, name: str) -> None:
        number = 0
        while not self._over.is_set():
            with suppress(OSError, ValueError):  # it is down, or ends within the answer
                url = f"{self._group.urls[name]}/v1/entries?acks=none&timeout=1"
                value = b"%s %d " % (name.encode(), number) + b"." * 2000
                self.written += call("POST", url, body=value, headers=OCTETS, timeout_s=5).status == 200
            number += 1
            self._over.wait(0.002)


def audited_live(directory: Path, seed: int, told: Told, kills: int = KILLS) -> None:
    """Audits one group until so many nodes were killed, and once more at rest."""
    group, rng = Group(directory, segment_bytes=MIB), Random(f"live/{seed}")
    paths, urls = [group.path(name) for name in NAMES], list(group.urls.values())
    over = Event()

    def audits() -> None:
        kinds: list[Sequence[Path | str]] = [paths, urls, [paths[0], *urls[1:]]]
        for sources in cycle(kinds):
            if over.is_set():
                break
            _audit(sources, told, f"seed {seed}, under kills")

    try:
        group.start()
        with Writers(group) as writers, ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(audits)
            try:
                for _ in range(kills):  # by this thread: a process ends with the thread that started it
                    _kill_one(group, rng)
                    told.kills += 1
            finally:
                over.set()
            under_way.result()
        group.settle()
        told.entries += writers.written
        before = told.equal
        _audit(paths, told, f"seed {seed}, at rest")
        if told.equal == before:
            told.findings.append(f"seed {seed}: not equal at rest")
    finally:
        group.end()


def _kill_one(group: Group, rng: Random) -> None:
    """Kills a node and starts it again, each after a drawn time; returns once it answers."""
    time.sleep(rng.uniform(*UP_S))
    masters = [name for name in NAMES if group.status(name).get("state") == "MASTER"]
    name = rng.choice(masters) if masters and rng.random() < 0.5 else rng.choice(NAMES)
    group.kill(name)
    time.sleep(rng.uniform(*DOWN_S))
    group.launch(name)
    group.until(lambda: bool(group.status(name)), f"{name} is back")


def _audit(sources: Sequence[Path | str], told: Told, what: str) -> None:
    try:
        report = audited(*sources)
    except Unreadable:
        told.unreadable += 1
        return
    told.audits += 1
    told.equal += report.equal
    told.partial += bool(report.not_audited)
    told.findings += [f"{what}: {finding.as_dict()}" for finding in report.findings]


def main(histories: int = 20, first: int = 1) -> int:
    told = Told()
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for seed in range(first, first + histories):
        found = len(told.findings)
        with TemporaryDirectory(prefix="vlsnlog-live-", dir=fast) as directory:
            audited_live(Path(directory, "group"), seed, told)
        print(f"seed {seed}: {told}" if told.findings[found:] else f"seed {seed}: no finding", flush=True)
    print(f"{histories} histories from seed {first} on: {told.entries:,} entries, {told.kills} kills")
    print(
        f"{told.audits} audits: {told.equal} equal, {told.partial} partial; {told.unreadable} met a node that was down"
    )
    print(f"{len(told.findings)} findings")
    return 1 if told.findings else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
