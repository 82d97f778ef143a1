"""CDC consumers in real child processes: the events that they receive, and the harm that they can do to their node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.e2e.calls import OCTETS, call
from tests.e2e.commands import VLSNLOG, run
from tests.e2e.test_configuration import free_port

WAIT_S = 180.0
"""Seconds on a busy machine; a fault never ends."""
CONSUMERS = '''
import os, time
from repl.cdc import CdcConsumer

class Lines(CdcConsumer):
    """Writes each event to a file, and commits each time."""

    def start(self, context):
        self.file = open(context.options["path"], "ab", buffering=0)

    def on_events(self, events):
        self.file.write(b"".join(b"%d %s\\n" % (each.vlsn, each.value) for each in events))
        return True

class Spins(CdcConsumer):
    def on_events(self, events):
        while True:
            pass

class Eats(CdcConsumer):
    def on_events(self, events):
        eaten = []
        while True:
            eaten.append(bytearray(1 << 20))

class Exits(CdcConsumer):
    def on_events(self, events):
        os._exit(7)

class Prints(CdcConsumer):
    def on_events(self, events):
        while True:
            print("x" * 1000)

class Talks(Lines):
    """Prints a page for each event."""

    def on_events(self, events):
        return super().on_events(self.said(each) for each in events)

    def said(self, event):
        print("\\n".join(f"{event.vlsn}.{number} {'x' * 1000}" for number in range(100)))
        return event

class Sleeps(CdcConsumer):
    def on_events(self, events):
        time.sleep(3600)
'''


class One:
    """A node of a group of its own, whose settings have consumers."""

    def __init__(
        self,
        directory: Path,
        *tables: str,
        group: str = "g",
        url: str = "",
        launcher: tuple[str, ...] = (),
        settings: Mapping[str, int | str | bool] | None = None,
    ) -> None:
        """``launcher``: words before the command of the node."""
        self.directory = directory
        self.url = url or f"http://127.0.0.1:{free_port()}"
        self._launcher = launcher
        (directory / "consumers_of_a_test.py").write_text(CONSUMERS)
        more = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in (settings or {}).items()]
        lines = ['name = "n1"', 'dir = "data"', f'group = "{group}"', *more, "[members]", f'n1 = "{self.url}"', *tables]
        (directory / "node.toml").write_text("\n".join(lines))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.directory / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._launcher, VLSNLOG, "node", "--config", str(self.directory / "node.toml")],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(self.directory), os.environ.get("PYTHONPATH", "")]),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        eventually(lambda: self._takes_appends(), "it takes appends")

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def append(self, *values: bytes) -> None:
        for value in values:
            call("POST", f"{self.url}/v1/entries", body=value, headers=OCTETS).ok()

    def told(self, name: str) -> dict[str, object]:
        return dict(call("GET", f"{self.url}/v1/cdc/{name}").ok())

    def pid(self, name: str) -> int:
        """Waits until its process lives."""
        eventually(lambda: bool(self.told(name)["pid"]), f"{name} runs")
        pid = self.told(name)["pid"]
        assert isinstance(pid, int)
        return pid

    def _takes_appends(self) -> bool:
        try:
            return bool(call("GET", f"{self.url}/v1/status").ok()["state"] == "MASTER")
        except OSError:
            return False


def table(name: str, consumer: str, *more: str) -> str:
    return "\n".join(["[[cdc]]", f'name = "{name}"', f'consumer = "consumers_of_a_test:{consumer}"', *more])


def eventually(holds: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., One]]:
    made: list[One] = []

    def make(*tables: str, **settings: int | str) -> One:
        made.append(One(tmp_path, *tables, settings=settings))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        if each.process is not None and each.process.poll() is None:
            each.end()


@pytest.mark.feature("CDC")
def test_everything_is_given_in_order_over_kills_of_child_and_node(node: Callable[..., One], tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = node(table("lines", "Lines", f'options = {{ path = "{out}" }}'))
    sent = [b"%d" % number for number in range(60)]

    def given() -> list[bytes]:
        return [line.split(b" ", 1)[1] for line in out.read_bytes().splitlines()] if out.exists() else []

    one.append(*sent[:20])
    eventually(lambda: given()[-1:] == [b"19"], "the first are given")
    child = one.pid("lines")
    os.kill(child, signal.SIGKILL)
    one.append(*sent[20:40])
    eventually(lambda: given()[-1:] == [b"39"], "a new child goes on")
    child = one.pid("lines")
    one.end(signal.SIGKILL)
    eventually(lambda: not lives(child), "a child ends with its node")
    one.start()
    one.append(*sent[40:])
    eventually(lambda: given()[-1:] == [b"59"], "the next node goes on")
    got = given()
    assert sorted(set(got), key=got.index) == sent, "each is there, first in its order"
    assert len(got) <= len(sent) + 40, "what was committed is not given again"
    child = one.pid("lines")
    assert one.end(signal.SIGTERM) == 0
    assert not lives(child)


def test_what_a_consumer_may_do_to_itself_hurts_neither_its_node_nor_the_others(
    node: Callable[..., One], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fails, hangs = "retries_max = 1", "events_timeout_s = 1.0"  # a busy machine may need as long to eat, or to exit
    one = node(
        table("lines", "Lines", f'options = {{ path = "{out}" }}'),
        table("spins", "Spins", fails, hangs),
        table("eats", "Eats", fails, 'memory_bytes_max = "96MiB"'),
        table("exits", "Exits", fails),
        table("prints", "Prints", fails, hangs),
        table("sleeps", "Sleeps", fails, hangs),
        table("absent", "Absent", fails),
    )
    bad = {
        "spins": "events_timeout_s",
        "eats": "MemoryError",
        "exits": "status 7",
        "prints": "events_timeout_s",
        "sleeps": "events_timeout_s",
        "absent": "is no class",
    }
    one.append(*[b"%d" % number for number in range(50)])
    for name, why in bad.items():
        eventually(lambda name=name: one.told(name)["state"] == "parked", f"{name} is parked")  # type: ignore[misc]
        assert why in str(one.told(name)["reason"]), name
    assert one.told("lines")["state"] == "running"
    eventually(lambda: len(vlsns_in(out)) == 50, "the others are given everything")
    eventually(lambda: one.told("lines")["lag_vlsns"] == 0, "and the node has heard that they were")
    assert os.path.getsize(tmp_path / "node.log") < 4_000_000, "what is printed is bounded"

    listed = run("cdc", "list", "--url", one.url)
    assert listed.status == 1 and b"spins" in listed.out, "a parked consumer is a finding"
    said = msgspec.json.decode(run("cdc", "status", "lines", "--url", one.url, "--json").out)["consumers"][0]
    assert (said["node"], said["state"], said["lag_vlsns"]) == ("n1", "running", 0)
    assert "no CDC consumer is called" in run("cdc", "pause", "none", "--url", one.url).refused()
    assert run("cdc", "pause", "lines", "--url", one.url).status == 0
    assert one.told("lines")["state"] == "paused"
    one.append(b"50")
    assert run("cdc", "resume", "lines", "--url", one.url).status == 0
    eventually(lambda: len(vlsns_in(out)) == 51, "it goes on")
    skipped = run("cdc", "skip", "exits", "--to", "10", "--url", one.url)
    assert (skipped.status, b"skipped VLSNs 1 to 9" in skipped.out) == (0, True), skipped
    metrics = call("GET", f"{one.url}/metrics").body.decode()
    assert 'vlsnlog_cdc_state{consumer="spins",state="parked"} 1.0' in metrics
    assert 'vlsnlog_cdc_mode{consumer="lines",mode="BUFFER"} 1.0' in metrics


def vlsns_in(path: Path) -> list[int]:
    return [int(line.split(b" ", 1)[0]) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_one_that_prints_much_is_not_held_back(node: Callable[..., One], tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = node(table("talks", "Talks", f'options = {{ path = "{out}" }}', "events_timeout_s = 20.0"))
    one.append(*[bytes(10)] * 50)  # which print 5 MB, 80 times what the log takes in a second
    eventually(lambda: one.told("talks")["lag_vlsns"] == 0, "it is given everything")
    told = one.told("talks")
    assert (told["starts"], told["failures"], told["reason"], len(vlsns_in(out))) == (1, 0, "", 50)
    assert one.end(signal.SIGTERM) == 0
    log = (tmp_path / "node.log").read_text()
    lost = sum(int(count) for count in re.findall(r" cdc talks: \[(\d+) more lines are thrown away", log))
    assert len(re.findall(r" cdc talks: \d+\.\d+ x", log)) + lost == 5_000, "a line is in the log, or counted there"
    assert lost > 0


def test_one_that_is_stopped_and_never_reads_is_replaced_and_the_others_do_not_notice(
    node: Callable[..., One], tmp_path: Path
) -> None:
    lines, stopped = tmp_path / "lines", tmp_path / "stopped"
    one = node(
        table("lines", "Lines", f'options = {{ path = "{lines}" }}'),
        table("stopped", "Lines", f'options = {{ path = "{stopped}" }}', "events_timeout_s = 3.0"),
    )
    one.append(*[b"%d" % number for number in range(20)])
    for path in (lines, stopped):
        eventually(lambda path=path: len(vlsns_in(path)) == 20, "the first are given")  # type: ignore[misc]
    others, child = one.pid("lines"), one.pid("stopped")
    eventually(lambda: one.told("stopped")["lag_vlsns"] == 0, "it has taken them")
    os.kill(child, signal.SIGSTOP)
    many = [bytes([65 + number % 26]) * 100_000 for number in range(100)]  # more than any socket takes
    one.append(*many)
    eventually(lambda: len(vlsns_in(lines)) == 120, "the other one is given everything meanwhile")
    eventually(lambda: one.told("stopped")["pid"] not in (None, child), "it is replaced")
    assert not lives(child)
    eventually(lambda: one.told("stopped")["lag_vlsns"] == 0, "its next process goes on")
    assert sorted(set(vlsns_in(stopped))) == vlsns_in(lines), "each event came, and the other one has each once"
    told = one.told("lines")
    assert (told["starts"], told["pid"], told["failures"]) == (1, others, 0)
    events = call("GET", f"{one.url}/v1/events").ok()["events"]
    assert any(each["event"] == "cdc.failed" and "events_timeout_s" in each["why"] for each in events)


def test_one_that_is_behind_the_cap_is_parked_with_what_it_lost_and_what_to_type(
    node: Callable[..., One], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    one = node(
        table("lines", "Lines", f'options = {{ path = "{out}" }}'),
        segment_bytes="1MiB", retention_bytes="2MiB", hold_bytes_max="4MiB", cleaning_period_s=1, checkpoint_period_s=1,
    )  # fmt: skip
    one.append(b"first")
    eventually(lambda: len(vlsns_in(out)) == 1 and one.told("lines")["lag_vlsns"] == 0, "it is given the first")
    assert run("cdc", "pause", "lines", "--url", one.url).status == 0
    paused = one.told("lines")
    assert one.end(signal.SIGTERM) == 0
    one.start()
    assert one.told("lines")["state"] == "paused", "a restart does not let it go on"
    assert one.told("lines")["paused_us"] == paused["paused_us"]

    def first() -> int:
        return int(call("GET", f"{one.url}/v1/status").ok()["range"]["first"])

    for _ in range(60):
        one.append(*[bytes(100_000)] * 5)
        if first() > int(str(paused["next"])):
            break
    eventually(lambda: first() > int(str(paused["next"])), "what it needs is cleaned away")
    begins = 0
    while begins != first():  # until nothing more is to go
        begins = first()
        for command in ("checkpoint", "clean"):
            assert run(command, "--url", one.url).status == 0
    assert run("cdc", "resume", "lines", "--url", one.url).status == 0
    eventually(lambda: one.told("lines")["state"] == "parked", "it is parked")
    listed = run("cdc", "list", "--url", one.url)
    assert listed.status == 1 and f"VLSNs {paused['next']} to ".encode() in listed.out, listed
    typed = re.search(rb"`vlsnlog (cdc skip lines --to (\d+))`", listed.out)
    assert typed is not None, listed
    to = int(typed[2])
    assert one.told("lines")["lost"] == {"first": paused["next"], "last": to - 1}
    skipped = run(*typed[1].decode().split(), "--url", one.url)
    assert skipped.status == 0, skipped
    assert f"skipped VLSNs {paused['next']} to {to - 1}".encode() in skipped.out, skipped
    one.append(b"last")
    eventually(lambda: out.read_bytes().endswith(b" last\n"), "it goes on behind them")
    given = vlsns_in(out)
    assert given[1:] == list(range(to, given[-1] + 1)), "with all that is left, each once"


def test_a_spinning_child_ends_with_its_node(node: Callable[..., One]) -> None:
    one = node(table("spins", "Spins"))
    one.append(b"one")
    child = one.pid("spins")
    eventually(lambda: one.told("spins")["in_flight_bytes"] != 0, "it is in its call")
    eventually(lambda: os.sched_getscheduler(child) == os.SCHED_IDLE, "it has what nobody else wants")
    one.end(signal.SIGKILL)
    try:
        eventually(lambda: not lives(child), "it has ended")
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("niceness", [0, 5, 15])
def test_a_child_is_below_its_node_whatever_that_may_use(tmp_path: Path, niceness: int) -> None:
    """The node has a niceness and a limit of its own; without root a process cannot raise its limits again."""
    out = tmp_path / "out"
    limited = ("nice", "-n", str(niceness), "prlimit", f"--data={700 << 20}")
    one = One(
        tmp_path,
        table("lines", "Lines", f'options = {{ path = "{out}" }}', 'memory_bytes_max = "1GiB"'),
        launcher=limited,
    )
    one.start()
    try:
        one.append(b"one")
        eventually(lambda: len(vlsns_in(out)) == 1, "it is given its event")
        child = one.pid("lines")
        assert one.process is not None
        of_node = os.getpriority(os.PRIO_PROCESS, one.process.pid)
        assert os.getpriority(os.PRIO_PROCESS, child) == max(10, min(of_node + 10, 19)) >= of_node
        limits = Path(f"/proc/{child}/limits").read_text()
        assert re.search(rf"^Max data size +{700 << 20} +{700 << 20} ", limits, re.MULTILINE), limits
    finally:
        one.end()
