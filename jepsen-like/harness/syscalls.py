"""Syscalls: shows each append's own completed sync on a majority in a trace by strace.

strace is attached to every node of a running cluster; appends are sent one at a time by plain POST, each with its own
number in its value.  strace notes the beginning and the duration of a call while the traced process is stopped.  So
causes come before effects across all nodes' traces on one machine.
For one append

    n1  pwritev(00000001.vlog, … the value …)   fdatasync(00000001.vlog) = 0
    n2        the same                                        the same
    n1  write(socket, … "first":VLSN …)                                   the answer

a node *has synced it* under two conditions: a write with the value to a segment has completed, and an fdatasync of that
file began after it and completed before the answer's write began.  Of appends sent one at a time each needs its own
fdatasync. Under load (several writers) appends share one, and each must still show a completed one of its own group,
on whichever segment.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.cluster import NODES, ClusterFailed, Say, cluster_of
from harness.values import value_of
from repl.cluster import Node

APPENDS = 200
WRITERS_MAX = 256
CALLS = "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sendto,sendmsg"
_LINE = re.compile(
    r"^(?P<at>\d+\.\d+) (?P<call>\w+)\(\d+<(?P<path>[^>]*)>(?P<rest>.*)\)"
    r" += (?P<result>-?\d+).*<(?P<took>[\d.]+)>$"
)
_NUMBER = re.compile(r"(?=(0{9}[0-9a-f]{7}))")
"""The beginning of the value of one of the first 268 million appends."""
TEXT_BYTES = 1 << 18
"""Bytes of each string in the trace: more than a group of appends has."""
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
    """The trace of one append: the nodes whose own sync of it completed before its answer."""

    number: int
    vlsn: int
    synced: tuple[str, ...]


def may_trace() -> bool:
    """Says whether strace is installed and allowed to trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


async def trace_appends(directory: Path, *, appends: int, writers: int = 1, say: Say) -> list[Shown]:
    """Runs the cluster and the trace, and returns what the trace shows for each append. Appends are sent one at a time,
    or by ``writers`` at once, each of which awaits its own append before its next."""
    if shutil.which("strace") is None:
        raise ClusterFailed("strace is not installed: apt-get install strace")
    async with cluster_of(directory, "g", NODES) as cluster:
        names, master = [node.name for node in cluster.nodes], cluster.node(await cluster.serving())
        tracers = [_attach(node, directory) for node in cluster.nodes]
        try:
            sent = await asyncio.to_thread(_append, master.url, appends, writers)
        finally:
            for tracer in tracers:
                tracer.send_signal(signal.SIGINT)
            for tracer in tracers:
                tracer.wait(30)
        await cluster.stop()
    traces = {name: read_trace(directory.glob(f"{name}.trace.*")) for name in names}
    syncs = sum(call.name == "fdatasync" and call.path.endswith(".vlog") for call in traces[master.name])
    calls = sum(map(len, traces.values()))
    say(f"traced {calls:,} calls of {len(traces)} nodes; {master.name} made {syncs} syncs of its log")
    return judge(traces, sent, master=master.name, shared=writers > 1)


def _attach(node: Node, directory: Path) -> subprocess.Popen[bytes]:
    """Attaches strace to every thread of the node; returns once it is attached."""
    if node.pid is None:
        raise ClusterFailed(f"{node.name} is not running")
    command = ["strace", "-ff", "-ttt", "-T", "-y", "-s", str(TEXT_BYTES), "-e", f"trace={CALLS}", "-e", "signal=none"]
    command += ["-o", str(directory / f"{node.name}.trace"), "-p", str(node.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_traced(node.pid, tracer)
    return tracer


def wait_traced(pid: int, tracer: subprocess.Popen[bytes]) -> None:
    """Waits until every thread of ``pid`` is traced. Raises ``ClusterFailed``."""
    deadline = time.monotonic() + 20
    while not all(_traced(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline or tracer.poll() is not None:
            raise ClusterFailed("strace could not be attached (is ptrace allowed here?)")
        time.sleep(0.02)


def _traced(task: Path) -> bool:
    return "TracerPid:\t0" not in (task / "status").read_text()


def _append(url: str, appends: int, writers: int) -> list[tuple[int, int]]:
    """Appends, and returns (number, VLSN) of each."""
    shares = [range(1 + writer, 1 + appends, writers) for writer in range(writers)]
    with ThreadPoolExecutor(writers) as threads:
        sent = threads.map(lambda share: _append_one_at_a_time(url, share), shares)
        return [each for one in sent for each in one]


def _append_one_at_a_time(url: str, numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Appends in turn, and returns (number, VLSN) of each."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    sent = []
    for number in numbers:
        connection.request("POST", "/v1/entries", body=value_of(number), headers=_OCTETS)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ClusterFailed(f"an append was answered {answer.status}: {body[:300]!r}")
        sent.append((number, int(body.split(b'"first":')[1].split(b",")[0])))
    connection.close()
    return sent


_OCTETS = {"Content-Type": "application/octet-stream"}


def read_trace(paths: Iterable[Path]) -> list[Call]:
    """Reads the completed calls of one node, in the order of their beginnings."""
    calls = []
    for path in paths:
        for line in path.read_text(errors="replace").splitlines():
            match = _LINE.match(line)
            if match is not None:
                began = float(match["at"])
                ended = began + float(match["took"])
                calls.append(Call(began, ended, match["call"], match["path"], match["rest"], int(match["result"])))
    return sorted(calls, key=lambda call: call.began)


def judge(
    traces: dict[str, list[Call]], sent: list[tuple[int, int]], *, master: str, shared: bool = False
) -> list[Shown]:
    """Finds for each append the nodes that had synced it before the master began to write its answer. With ``shared``,
    appends of one group have one sync together."""
    answers: dict[int, float] = {}
    for call in traces[master]:
        if ".vlog" not in call.path and (match := _FIRST.search(call.text)) is not None:
            answers.setdefault(int(match[1] or match[2]), call.began)
    syncs = {node: first_syncs(calls, {number for number, _ in sent}) for node, calls in traces.items()}
    used: set[tuple[str, float]] = set()
    shown = []
    for number, vlsn in sent:
        synced = []
        for node in traces:
            sync = syncs[node].get(number)
            if sync is None or sync.ended > answers.get(vlsn, 0.0):
                continue
            if shared or (node, sync.began) not in used:
                used.add((node, sync.began))
                synced.append(node)
        shown.append(Shown(number, vlsn, tuple(synced)))
    return shown


def first_syncs(calls: list[Call], numbers: set[int]) -> dict[int, Call]:
    """Finds for each append the first completed sync of its file that began after its write."""
    waiting: dict[str, list[tuple[float, int]]] = {}
    """The times of completed writes and their appends, by file."""
    found: dict[int, Call] = {}
    for call in calls:
        if not call.path.endswith(".vlog"):
            continue
        if "write" in call.name and call.result > 0:
            waiting.setdefault(call.path, []).extend((call.ended, number) for number in numbers_in(call.text, numbers))
        elif call.name in ("fdatasync", "fsync") and call.result == 0:
            late = []
            for written, number in waiting.pop(call.path, []):
                if written > call.began:
                    late.append((written, number))
                elif number not in found or call.ended < found[number].ended:
                    found[number] = call
            waiting[call.path] = late
    return found


def numbers_in(text: str, numbers: set[int]) -> list[int]:
    """Returns the appends whose whole values are in ``text``."""
    found = []
    for match in _NUMBER.finditer(text):
        number = int(match[1], 16)
        if number in numbers and text.startswith(value_of(number).decode(), match.start()):
            found.append(number)
    return found
