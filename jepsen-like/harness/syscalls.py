"""Syscalls: each append's own completed sync on a majority, shown in a trace by strace.

strace is attached to every node of a running cluster; appends are sent one at a time by plain POST, each
with a number of its own in its value.  strace stamps a call when it begins, and notes how long it took,
while the traced process is stopped, so cause comes before effect across all nodes' traces on one machine.
For one append

    n1  pwritev(00000001.vlog, … the value …)   fdatasync(00000001.vlog) = 0
    n2        the same                                        the same
    n1  write(socket, … "first":VLSN …)                                   the answer

a node *has synced it* if a write that holds the value, to a segment, completed, and an fdatasync of that
file began after it and completed before the answer's write began.  An fdatasync counts for one append only.
"""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.cluster import Cluster, ClusterFailed
from harness.history import History, value_of

APPENDS = 200
CALLS = "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sendto,sendmsg"
_LINE = re.compile(
    r"^(?P<at>\d+\.\d+) (?P<call>\w+)\(\d+<(?P<path>[^>]*)>(?P<rest>.*)\)"
    r" += (?P<result>-?\d+).*<(?P<took>[\d.]+)>$"
)
_FIRST = re.compile(r'"first\\": ?(\d+)|"first": ?(\d+)')


@dataclass(frozen=True, slots=True)
class Call:
    """One completed system call; times in seconds of the wall clock."""

    began: float
    ended: float
    name: str
    path: str
    text: str
    result: int


@dataclass(frozen=True, slots=True)
class Shown:
    """What the trace shows of one append: the nodes whose own sync of it completed before its answer."""

    number: int
    vlsn: int
    synced: tuple[str, ...]


def trace_appends(directory: Path, *, base_port: int, appends: int, say: Callable[[str], None]) -> list[Shown]:
    """Runs the cluster and the trace, and returns what it shows of each append in turn."""
    if shutil.which("strace") is None:
        raise ClusterFailed("strace is not installed: apt-get install strace")
    history = History()
    with Cluster(directory, base_port=base_port) as cluster:
        cluster.start()
        master = str(cluster.status(cluster.urls[0])["master"])
        url = cluster.urls[cluster.names.index(master)]
        tracers = [_attach(cluster, name) for name in cluster.names]
        try:
            sent = _append_one_at_a_time(url, history, appends)
        finally:
            for tracer in tracers:
                tracer.send_signal(signal.SIGINT)
            for tracer in tracers:
                tracer.wait(30)
        cluster.stop()
    traces = {name: read_trace(directory.glob(f"{name}.trace.*")) for name in cluster.names}
    say(f"traced {sum(map(len, traces.values())):,} calls of {len(traces)} nodes")
    return judge(traces, sent, master=master)


def _attach(cluster: Cluster, name: str) -> subprocess.Popen[bytes]:
    """strace on every thread of the node; returns when it is attached."""
    pid = cluster.pid(name)
    if pid is None:
        raise ClusterFailed(f"{name} is not running")
    command = ["strace", "-ff", "-ttt", "-T", "-y", "-s", "1024", "-e", f"trace={CALLS}", "-e", "signal=none"]
    tracer = subprocess.Popen(
        [*command, "-o", str(cluster.directory / f"{name}.trace"), "-p", str(pid)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 20
    while not all(_traced(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline or tracer.poll() is not None:
            raise ClusterFailed("strace could not be attached (is ptrace allowed here?)")
        time.sleep(0.02)
    return tracer


def _traced(task: Path) -> bool:
    return "TracerPid:\t0" not in (task / "status").read_text()


def _append_one_at_a_time(url: str, history: History, appends: int) -> list[tuple[int, int]]:
    """(number, VLSN) of each append, in turn."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    sent = []
    for _ in range(appends):
        number = history.sent()
        connection.request("POST", "/v1/entries", body=value_of(number).encode(), headers=_OCTETS)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ClusterFailed(f"an append was answered {answer.status}: {body[:300]!r}")
        vlsn = int(body.split(b'"first":')[1].split(b",")[0])
        history.ok(number, vlsn)
        sent.append((number, vlsn))
    connection.close()
    return sent


_OCTETS = {"Content-Type": "application/octet-stream"}


def read_trace(paths: Iterable[Path]) -> list[Call]:
    """The completed calls of one node, in the order of their beginnings."""
    calls = []
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            match = _LINE.match(line)
            if match is not None:
                began = float(match["at"])
                ended = began + float(match["took"])
                calls.append(Call(began, ended, match["call"], match["path"], match["rest"], int(match["result"])))
    return sorted(calls, key=lambda call: call.began)


def judge(traces: dict[str, list[Call]], sent: list[tuple[int, int]], *, master: str) -> list[Shown]:
    """For each append: which nodes had synced it before the master began to write its answer."""
    answers: dict[int, float] = {}
    for call in traces[master]:
        if ".vlog" not in call.path and (match := _FIRST.search(call.text)) is not None:
            answers.setdefault(int(match[1] or match[2]), call.began)
    used: set[tuple[str, float]] = set()
    shown = []
    for number, vlsn in sent:
        synced = []
        for node, calls in traces.items():
            sync = _own_sync(calls, value_of(number), answers.get(vlsn, 0.0))
            if sync is not None and (node, sync.began) not in used:
                used.add((node, sync.began))
                synced.append(node)
        shown.append(Shown(number, vlsn, tuple(synced)))
    return shown


def _own_sync(calls: list[Call], value: str, before: float) -> Call | None:
    """The first sync of the file that ``value`` was written to, begun after that write, completed ``before``."""
    written = None
    for call in calls:
        if call.began >= before:
            return None
        if written is None:
            if call.path.endswith(".vlog") and "write" in call.name and call.result > 0 and value in call.text:
                written = call
        elif _syncs(call, written) and call.ended <= before:
            return call
    return None


def _syncs(call: Call, written: Call) -> bool:
    same_file = call.name in ("fdatasync", "fsync") and call.path == written.path
    return same_file and call.result == 0 and call.began >= written.ended
