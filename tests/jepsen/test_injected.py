"""System calls that fail, injected by strace into real processes: an embedded log, and a node.

``when=N`` counts the calls of each thread by itself; ``N+`` is the Nth and all after it.  After every fault each
acknowledged value is there, once, at its VLSN; no refused one is; the directory verifies and opens.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.syscalls import may_trace, wait_traced

from tests.e2e.group import NAMES, Group
from vlsn import Log
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.verify import verify

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not may_trace(), reason="strace is not installed, or may not trace here"),
]
THREADS, VALUES = 4, 60


@dataclass(slots=True)
class Outcome:
    opened: bool = False
    acked: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    ended: str = ""
    injected: int = 0

    def read(self, output: str) -> Outcome:
        for line in output.splitlines():
            match line.split():
                case ["OPEN"]:
                    self.opened = True
                case ["ACK", vlsn, value]:
                    self.acked[int(vlsn)] = value
                case ["REFUSED", value]:
                    self.refused.append(value)
                case ["UNKNOWN", value]:
                    self.unknown.append(value)
                case ["ENDED", *words]:
                    self.ended = " ".join(words)
        return self


def hurt(directory: Path, injection: str, *, path: str = "") -> Outcome:
    """Runs ``appending`` with this injected, in calls on ``path`` only where that is given."""
    call = injection.partition(":")[0]
    trace = directory.with_name("trace")
    command = ["strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={call}", "-e", f"inject={injection}"]
    if path:
        command += ["-P", str(directory / path)]
    command += [sys.executable, "-m", "tests.jepsen.appending", str(directory), str(THREADS), str(VALUES)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    outcome = Outcome().read(run.stdout)
    assert outcome.ended, run.stderr[-2000:]
    assert (run.returncode == 0) == (outcome.ended == "clean")
    outcome.injected = trace.read_text(errors="replace").count("(INJECTED)")
    return outcome


def check(directory: Path, outcome: Outcome) -> None:
    report = verify(PosixDisk(), LmdbStores(), str(directory))
    assert not report.findings
    with Log.open(directory) as log:
        found = {int(entry.vlsn): entry.value.decode() for entry in log.read()}
        assert {vlsn: found.get(vlsn) for vlsn in outcome.acked} == outcome.acked
        values = list(found.values())
        assert len(set(values)) == len(values), "a value twice"
        assert not set(outcome.refused) & set(values)
        assert set(values) <= set(outcome.acked.values()) | set(outcome.unknown)
        assert log.append(b"on") > (0, 0)
    assert verify(PosixDisk(), LmdbStores(), str(directory)).ok


SURVIVED, FAILED = "clean", "failed"
# Injected, in calls on, and how the process ends.
LIVES = [
    ("fdatasync:error=EIO:when=5", "00000001.vlog", SURVIVED),
    ("pwritev,pwritev2:error=ENOSPC:when=7", "00000001.vlog", SURVIVED),
    ("fdatasync:error=EIO:when=12+", "", FAILED),
    ("fdatasync:error=EIO:when=1", "state/data.mdb", FAILED),
    # Calls that durability does not rest on, failing for good: the next segment, a sidecar, the look at free space.
    ("fallocate:error=EMFILE:when=1+", "00000003.vlog", SURVIVED),
    ("fdatasync:error=EIO:when=1+", "00000001.vidx.new", SURVIVED),
    ("fstatfs:error=EIO:when=1+", "", SURVIVED),
]
MORE_LIVES = [
    ("fdatasync:error=EIO:when=9", "00000001.vlog", SURVIVED),
    ("pwritev,pwritev2:error=EIO:when=6", "00000001.vlog", SURVIVED),
    ("fallocate:error=ENOSPC:when=1", "00000003.vlog", SURVIVED),
    ("pwritev,pwritev2:error=EIO:when=2+", "00000003.vlog", SURVIVED),
    ("fdatasync:error=EIO:when=1+", "00000003.vlog", SURVIVED),
    ("pwritev,pwritev2:error=ENOSPC:when=1+", "00000001.vidx.new", SURVIVED),
    ("pwritev,pwritev2:error=EIO:when=9+", "", FAILED),
    ("fdatasync:error=EIO:when=1", "index/data.mdb", FAILED),
    ("pwrite64:error=ENOSPC:when=3+", "state/data.mdb", FAILED),
]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long" or "SEEDS" in os.environ
if LONG:
    LIVES += MORE_LIVES


@pytest.mark.parametrize(("injection", "path", "ends"), LIVES, ids=[f"{each[0]} {each[1]}".strip() for each in LIVES])
def test_nothing_acknowledged_is_lost_when_a_call_fails(tmp_path: Path, injection: str, path: str, ends: str) -> None:
    directory = tmp_path / "log"
    outcome = hurt(directory, injection, path=path)
    told = f"{len(outcome.acked)} acknowledged, {len(outcome.unknown)} unknown"
    print(f"{injection}: {outcome.injected} injected, {outcome.ended}, {told}")
    assert outcome.injected, "no such call was made"
    assert outcome.opened
    assert outcome.ended.split()[0] == ends
    if ends == SURVIVED:
        assert len(outcome.acked) == THREADS * VALUES
    check(directory, outcome)


@pytest.mark.parametrize("number", range(1, 16) if LONG else (2, 7))
def test_a_sync_that_fails_while_opening_leaves_a_log_that_opens(tmp_path: Path, number: int) -> None:
    directory = tmp_path / "log"
    first = hurt(directory, "fdatasync:error=EIO:when=60000")
    assert first.ended == SURVIVED
    again = hurt(directory, f"fdatasync,fsync:error=EIO:when={number}")
    again.acked |= first.acked
    with Log.open(directory) as log:
        found = {int(entry.vlsn): entry.value.decode() for entry in log.read()}
    assert {vlsn: found.get(vlsn) for vlsn in again.acked} == again.acked


def test_an_open_reads_nothing_that_only_the_page_cache_held(tmp_path: Path) -> None:
    """Each file is synced and dropped from the cache before its contents are trusted. The headers of segments and the
    node file are read before as well, for the names in them and for whether a later release wrote them."""
    directory, trace = tmp_path / "log", tmp_path / "opening"
    with Log.open(directory) as log:
        log.append(b"value")
    command = ["strace", "-f", "-qq", "-y", "-o", str(trace), "-e", "trace=fdatasync,fadvise64,read,pread64,mmap"]
    command += [sys.executable, "-m", "tests.jepsen.appending", str(directory), "0", "0"]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    lines = trace.read_text(errors="replace").splitlines()
    for name in ("node.id", "state/data.mdb", "index/data.mdb", "00000001.vlog"):
        calls = [
            (line.split()[1].partition("(")[0], line)
            for line in lines
            if f"{directory}/{name}>" in line and "SIGNAL" not in line
        ]
        names = [call for call, line in calls if not (name.endswith(".vlog") and ", 4096, 0)" in line)]
        if name == "node.id":
            # The version of each slot: a later one is refused before anything is touched.
            assert [names.pop(0), names.pop(0)] == ["pread64", "pread64"]
        assert names[:2] == ["fdatasync", "fadvise64"], f"{name}: {names[:6]}"
        assert set(names[2:]) & {"read", "pread64", "mmap"}, f"{name} was not read: {names}"


# A node.


class Hurt:
    """strace on every thread of a running node, with something injected from now on."""

    def __init__(self, pid: int, trace: Path, injection: str) -> None:
        call = injection.partition(":")[0]
        self._tracer = subprocess.Popen(
            ["strace", "-f", "-o", str(trace), "-e", f"trace={call}", "-e", f"inject={injection}", "-p", str(pid)],
            stderr=subprocess.DEVNULL,
        )
        wait_traced(pid, self._tracer)

    def end(self) -> None:
        """Waits for the end of the node, or of the tracing."""
        if self._tracer.poll() is None:
            self._tracer.send_signal(signal.SIGINT)
        self._tracer.wait(120)


OCTETS = {"Content-Type": "application/octet-stream"}


def post(url: str, value: str) -> int:
    """Returns the VLSN of an acknowledged append; 0 for any other end."""
    request = urllib.request.Request(f"{url}/v1/entries?timeout=60", data=value.encode(), headers=OCTETS)
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return int(json.load(answer)["first"])
    except (OSError, ValueError, http.client.HTTPException):
        return 0


NODES = [("fdatasync:error=EIO:when=4", True)]
if LONG:
    NODES += [("pwritev,pwritev2:error=EIO:when=4", True), ("fdatasync:error=EIO:when=4+", False)]


@pytest.mark.parametrize(("injection", "lives"), NODES, ids=[each[0] for each in NODES])
def test_a_node_loses_nothing_that_it_acknowledged_when_a_call_fails(
    tmp_path: Path, injection: str, lives: bool
) -> None:
    acked: dict[int, str] = {}
    group = Group(tmp_path)
    try:
        group.start()
        url = group.urls["n1"]
        hurt_node = Hurt(group.pid("n1"), tmp_path / "trace", injection)
        try:
            for number in range(12):
                value = f"value {number}"
                if vlsn := post(url, value):
                    acked[vlsn] = value
            assert group.running("n1") == lives
            if lives:
                assert len(acked) == 12
                assert group.status("n1")["log"]["rolls"]["error"] >= 1
        finally:
            hurt_node.end()
        assert "(INJECTED)" in (tmp_path / "trace").read_text(errors="replace")
        if not lives:
            group.kill(*NAMES)
            group.start()
        with urllib.request.urlopen(f"{url}/v1/entries?limit=10000", timeout=60) as answer:
            rows = [json.loads(line) for line in answer]
        assert {row["vlsn"]: row["value"] for row in rows if row["vlsn"] in acked} == acked
        assert len({row["value"] for row in rows}) == len(rows)
    finally:
        group.end()
    for name in NAMES:
        assert not verify(PosixDisk(), LmdbStores(), str(group.path(name))).findings


READING = """
import sys
from vlsn import Log
from vlsn.errors import Damaged
with Log.open(sys.argv[1]) as log:
    print("OPEN", flush=True)
    sys.stdin.readline()
    try:
        for entry in log.read():
            print("READ", entry.vlsn)
    except Damaged as error:
        print("DAMAGED", error.file, error.offset, error.vlsn, flush=True)
"""


def test_a_read_of_an_open_log_that_the_disk_does_not_give_is_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with Log.open(directory) as log:
        for number in range(40):
            log.append(b"%d" % number * 500)
    command = [sys.executable, "-c", READING, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reading:
        assert reading.stdin is not None and reading.stdout is not None
        assert reading.stdout.readline() == "OPEN\n"
        # Each call is counted by itself: the header page is given, and of the window's pages, read again, the first.
        hurt_reading = Hurt(reading.pid, tmp_path / "trace", "pread64,preadv,preadv2:error=EIO:when=2+")
        said, _ = reading.communicate("go on\n", timeout=60)
        hurt_reading.end()
    assert "(INJECTED)" in (tmp_path / "trace").read_text(errors="replace")
    *read, damaged = said.splitlines()
    assert read and read == [f"READ {vlsn}" for vlsn in range(2, len(read) + 2)]  # VLSN 1 is no client's
    assert damaged == f"DAMAGED 00000001.vlog 4096 {len(read) + 2}"
