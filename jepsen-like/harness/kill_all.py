"""Kill-all: every node killed by SIGKILL at once, under load, again and again, on one set of directories.

A round: the cluster starts on what the last round left; every node's log is read and judged; writers load
it; at a moment drawn from the seed all nodes die at once; ``vlsnlog verify`` must pass on each directory as
it was left.  After the last round the whole log of every node is judged against the whole history, the
cluster is stopped as Ctrl-C does, and verified once more.

Appends are also sent while nodes start, where most are refused, and such that must be refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster import Cluster
from harness.history import History, LogRead, Violation, differing
from harness.reading import read_log
from harness.writers import APPEND_TIMEOUT_S, post_once, write, write_in_vain
from repl import connect

LOAD_S = (0.3, 2.5)
Say = Callable[[str], None]


@dataclass(slots=True)
class Verdict:
    """The findings of a run. ``valid`` only if every check was made and none failed."""

    rounds: int = 0
    violations: list[Violation] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    """Directories on which ``vlsnlog verify`` did not exit 0, with its words."""
    torn: int = 0
    judged: int = 0
    """Entries read and judged, over all nodes."""

    @property
    def valid(self) -> bool:
        return not self.violations and not self.unverified and self.judged > 0


def kill_all(directory: Path, *, rounds: int, writers: int, seed: int, base_port: int, say: Say) -> Verdict:
    """Runs and judges.  Raises ``ClusterFailed`` when the cluster does not come back: that is no verdict,
    and no pass."""
    chance = random.Random(seed)
    history, verdict = History(), Verdict()
    judged_to = 0
    with Cluster(directory, base_port=base_port) as cluster:
        for number in range(1, rounds + 1):
            started = _start(cluster, history)
            judged_to = _judge(cluster, history, verdict, from_vlsn=judged_to + 1)
            delay = chance.uniform(*LOAD_S)
            before = history.counts
            asyncio.run(_load_and_kill(cluster, history, writers=writers, delay_s=delay))
            _verify(cluster, verdict)
            verdict.rounds = number
            ok, refused, unknown = (now - then for now, then in zip(history.counts, before, strict=True))
            say(
                f"round {number:3}/{rounds}  ready in {started:.1f} s, killed after {delay:.2f} s:"
                f" {ok:,} acknowledged, {refused} refused, {unknown} unknown;"
                f" log to VLSN {history.last_acknowledged:,}; {_state(verdict)}"
            )
        _start(cluster, history)
        _judge(cluster, history, verdict, from_vlsn=1)
        cluster.stop()
        _verify(cluster, verdict)
    assert history.open == 0, f"{history.open} appends have no outcome"
    _report(verdict, history, say)
    return verdict


def _start(cluster: Cluster, history: History) -> float:
    """Starts the nodes while appends knock at every one that answers; seconds until ready."""
    knocking = threading.Event()
    knocks: list[threading.Thread] = []

    def knock(url: str) -> None:
        while not knocking.wait(0.02):
            post_once(url + "/v1/entries", history)

    def answering(url: str) -> None:
        if not knocks:  # one thread: the history is not shared between several
            knocks.append(threading.Thread(target=knock, args=(url,), daemon=True))
            knocks[0].start()

    began = time.monotonic()
    try:
        cluster.start(on_answering=answering)
    finally:
        knocking.set()
        for thread in knocks:
            thread.join()
    return time.monotonic() - began


async def _load_and_kill(cluster: Cluster, history: History, *, writers: int, delay_s: float) -> None:
    """Returns when every append that was sent has its outcome."""
    stop = asyncio.Event()
    async with connect(",".join(cluster.urls), timeout_s=APPEND_TIMEOUT_S) as client:
        tasks = [asyncio.create_task(write(client, history, stop)) for _ in range(writers)]
        tasks.append(asyncio.create_task(write_in_vain(cluster.urls[-1], history, stop)))
        await asyncio.sleep(delay_s)
        await asyncio.to_thread(cluster.kill_all)
        stop.set()
        await asyncio.gather(*tasks)


def _judge(cluster: Cluster, history: History, verdict: Verdict, *, from_vlsn: int) -> int:
    """Reads every node up to one VLSN, which all serve as durable; that VLSN."""
    to_vlsn = max(history.last_acknowledged, *(int(cluster.status(url).get("dtvlsn", 0)) for url in cluster.urls))
    cluster.wait_for_durable(to_vlsn)
    logs: list[tuple[str, LogRead]] = []
    for name, url in zip(cluster.names, cluster.urls, strict=True):
        log = read_log(url, from_vlsn, to_vlsn=to_vlsn)
        logs.append((name, log))
        verdict.violations += history.judge(name, log)
        verdict.judged += len(log)
    verdict.violations += differing(logs)
    return to_vlsn


def _verify(cluster: Cluster, verdict: Verdict) -> None:
    for name, (code, output) in cluster.verify().items():
        if code != 0:
            verdict.unverified.append(f"{name}: exit {code}: {output[:1000]}")
        elif json.loads(output).get("torn_tail"):
            verdict.torn += 1


def _state(verdict: Verdict) -> str:
    if verdict.violations or verdict.unverified:
        return f"{len(verdict.violations)} violations, {len(verdict.unverified)} not verified"
    return "all verified"


def _report(verdict: Verdict, history: History, say: Say) -> None:
    ok, refused, unknown = history.counts
    rows = [
        ("rounds", verdict.rounds),
        ("acknowledged, each at its VLSN on every node", ok),
        ("refused, each nowhere", refused),
        ("unknown", unknown),
        ("entries read back and judged", verdict.judged),
        ("torn tails found by verify (normal)", verdict.torn),
        ("violations", len(verdict.violations)),
        ("verify failures", len(verdict.unverified)),
    ]
    say("")
    for label, count in rows:
        say(f"  {label:<48}{count:>14,}")
    for violation in verdict.violations[:20]:
        say(f"  VIOLATION {violation}")
    for words in verdict.unverified[:10]:
        say(f"  NOT VERIFIED {words}")
    say("valid" if verdict.valid else "NOT VALID")
