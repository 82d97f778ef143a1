"""A group without key and TLS, on addresses beyond loopback, becomes one that refuses strangers; no append fails.

    previous version ─► this version ─► key, level 5 ─► tls = "allow" ─► group move ─► tls = "require"

Each node is started again in each step but for the moves, one after the other, as docs/access.md says.  Two programs
append meanwhile through the client: one exactly-once, one without.  Nothing outside the client sends an append again.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from harness.upgrading import Code

from repl.client.connect import connect
from repl.node.lifeline import PARENT_VARIABLE
from repl.tls_files import TlsFiles
from tests.e2e.commands import VLSNLOG, Ended, run
from tests.e2e.hosts import ROOT, networks
from vlsn.errors import VlsnLogError
from vlsn.levels import LEVELS, SIGNED

NAMES: Final = ("n1", "n2", "n3")
GROUP: Final = "rolled"
PORT: Final = 7701
WAIT_S: Final = 60.0
PAUSE_S: Final = 0.01
"""Seconds between two appends of a program."""
WORKED: Final = 20
"""Appends of each program that show that it goes on."""


UNPROTECTED: Final = "insecure = true"
"""Clients have no tokens in this test."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the revision in ``.ci/previous``; they run with this environment's packages."""
    revision = (ROOT / ".ci" / "previous").read_text().strip()
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip(f"the previous version is not in this clone: {packed.stderr.decode().strip()[:200]}")
    directory = tmp_path_factory.mktemp("previous")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
    return directory


@dataclass
class Program:
    """Appends its next number, again and again, until it is told to end."""

    urls: Sequence[str]
    exactly_once: bool
    tls: TlsFiles
    acknowledged: dict[int, int] = field(default_factory=dict)
    """The number at each VLSN."""
    failed: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    _ends: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    def end(self) -> None:
        self._ends.set()

    async def _run(self) -> None:
        async with connect(",".join(self.urls), exactly_once=self.exactly_once, tls=self.tls) as log:
            for number in itertools.count():
                if self._ends.is_set():
                    return
                began = time.monotonic()
                try:
                    vlsn = await log.append(self.value(number))
                    self.acknowledged[vlsn] = number
                except VlsnLogError as error:
                    self.failed.append(f"{number}: {type(error).__name__}: {error}")
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                await asyncio.sleep(PAUSE_S)

    def value(self, number: int) -> bytes:
        return b"%d of %s" % (number, b"once" if self.exactly_once else b"plain")


class Nodes:
    """Three nodes in namespaces: their settings, their processes, and what they report."""

    def __init__(self, directory: Path, addresses: dict[str, str], launchers: dict[str, tuple[str, ...]]) -> None:
        self.directory = directory
        self.addresses = addresses
        self._launchers = launchers
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lines: list[str] = []
        self.scheme = "http"

    def urls(self, scheme: str) -> dict[str, str]:
        return {name: f"{scheme}://{address}:{PORT}" for name, address in self.addresses.items()}

    def start(self, name: str, code: Path) -> None:
        members = [f'{each} = "{url}"' for each, url in self.urls(self.scheme).items()]
        own = [f'name = "{name}"', f'listen = "{self.addresses[name]}:{PORT}"', f'group = "{GROUP}"', 'dir = "data"']
        config = self.directory / name / "node.toml"
        config.parent.mkdir(exist_ok=True)
        lines = [line.replace("NAME", name) for line in self.lines]
        config.write_text("\n".join([*own, *lines, "[members]", *members, ""]))
        with (config.parent / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._launchers[name], VLSNLOG, "node", "--config", str(config)],
                env=os.environ | {"PYTHONPATH": str(code), PARENT_VARIABLE: str(os.getpid())},
                stderr=log,
                stdout=log,
            )

    def roll(self, code: Path, *lines: str) -> None:
        """Starts each node again, with ``lines`` among its settings, one after the other."""
        self.lines += lines
        for name in NAMES:
            process = self._processes.pop(name)
            process.terminate()
            assert process.wait(WAIT_S) == 0, self.logged()
            self.start(name, code)
            self.until(self.whole, f"{name} is fed")

    def status(self, name: str) -> dict[str, Any]:
        """Returns the status, by TLS or plain HTTP; empty while the node answers neither."""
        for url in (self.urls("https")[name], self.urls("http")[name]):
            with suppress(OSError), urlopen(f"{url}/v1/status", timeout=10, context=self._context()) as answer:
                document: dict[str, Any] = json.loads(answer.read())
                return document
        return {}

    def whole(self) -> bool:
        """Says whether there is one master, which feeds the two others."""
        statuses = [self.status(name) for name in NAMES]
        fed = [len(status.get("feeders") or []) for status in statuses if status.get("state") == "MASTER"]
        return fed == [2] and all(status.get("state") in ("MASTER", "REPLICA") for status in statuses)

    def all_report(self, holds: Callable[[dict[str, Any]], bool]) -> bool:
        return all(status and holds(status) for status in map(self.status, NAMES))

    def order(self, *words: str) -> None:
        ended = self._group(*words)
        assert ended.status == 0, (words, ended, self.logged())

    def _group(self, *words: str) -> Ended:
        urls = ",".join([*self.urls("https").values(), *self.urls("http").values()])
        return run("group", *words, "--url", urls, "--tls-ca", str(self.directory / "ca.pem"))

    def values(self) -> dict[int, bytes]:
        """Reads all entries of the log, by VLSN."""
        urls = ",".join(self.urls("https").values())
        ended = run("read", "--format", "json", "--url", urls, "--tls-ca", str(self.directory / "ca.pem"))
        assert ended.status == 0, ended.err
        return {entry["vlsn"]: entry["value"].encode() for entry in map(json.loads, ended.out.splitlines())}

    def raise_to(self, level: int) -> None:
        for _ in range(int(self.status(NAMES[0])["level"]), level):
            self.until(lambda: self._group("upgrade", "--dry-run").status == 0, "the level can be raised")
            self.order("upgrade")
        self.until(lambda: self.all_report(lambda status: status["level"] == level), f"level {level}")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, f"not within {WAIT_S} s: {what}\n{self.logged()}"
            time.sleep(0.1)

    def logged(self) -> str:
        return "\n".join((self.directory / name / "log").read_text()[-2_000:] for name in NAMES)

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "ca.pem"))


@contextmanager
def started(directory: Path, code: Path) -> Iterator[Nodes]:
    with networks(list(NAMES)) as opened, ExitStack() as ends:
        addresses = {name: opened.address(name) for name in NAMES}
        nodes = Nodes(directory, addresses, {name: opened.launcher(name) for name in NAMES})
        ends.callback(nodes.end)
        assert run("certs", "ca", directory).status == 0
        for name, address in addresses.items():
            made = run("certs", "node", name, directory, "--ca", directory, "--group", GROUP, "--host", address)
            assert made.status == 0, made
        assert run("key", "new", directory / "group.key").status == 0
        if "insecure" in Code("P", code, sys.executable).facts().settings:
            nodes.lines.append(UNPROTECTED)
        for name in NAMES:
            nodes.start(name, code)
        nodes.until(nodes.whole, "the group is founded")
        yield nodes


@contextmanager
def appending(*programs: Program) -> Iterator[Callable[[], None]]:
    """Runs the programs. Calling what it gives waits until each of them has appended some more."""
    threads = [threading.Thread(target=program.run) for program in programs]
    for thread in threads:
        thread.start()

    def went_on() -> None:
        wanted = [len(program.acknowledged) + WORKED for program in programs]
        end = time.monotonic() + WAIT_S
        while any(len(each.acknowledged) < number for each, number in zip(programs, wanted, strict=True)):
            assert time.monotonic() < end, [program.failed[-3:] for program in programs]
            time.sleep(0.05)

    try:
        yield went_on
    finally:
        for program in programs:
            program.end()
        for thread in threads:
            thread.join()
        with warnings.catch_warnings():  # a call by TLS that was cancelled may outlive the program's loop
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def test_a_group_of_the_previous_version_comes_to_require_and_no_append_fails(tmp_path: Path, previous: Path) -> None:
    with started(tmp_path, previous) as nodes:
        urls, tls = list(nodes.urls("http").values()), TlsFiles(ca=str(tmp_path / "ca.pem"))
        programs = [Program(urls, exactly_once, tls) for exactly_once in (True, False)]
        assert not nodes.status("n1").get("key")
        with appending(*programs) as went_on:
            went_on()
            nodes.roll(ROOT)
            nodes.raise_to(SIGNED - 1)
            went_on()

            nodes.roll(
                ROOT, f'group_key = "{tmp_path}/group.key"', *([] if UNPROTECTED in nodes.lines else [UNPROTECTED])
            )
            nodes.raise_to(LEVELS.max)
            went_on()

            files = [f'tls_{of} = "{tmp_path}/{name}"' for of, name in (("cert", "NAME.pem"), ("key", "NAME.key"))]
            nodes.roll(ROOT, 'tls = "allow"', f'tls_ca = "{tmp_path}/ca.pem"', *files)
            for name, url in nodes.urls("https").items():
                nodes.order("move", f"{name}={url}")
            went_on()

            nodes.scheme = "https"
            nodes.lines.remove('tls = "allow"')
            nodes.roll(ROOT, 'tls = "require"')
            went_on()
        for url in urls:
            with pytest.raises(HTTPError, match="421"):
                urlopen(f"{url}/v1/status", timeout=10)
        assert [program.failed for program in programs] == [[], []]
        values = nodes.values()
        for program in programs:
            once = [program.value(number) for number in program.acknowledged.values()]
            assert [values[vlsn] for vlsn in program.acknowledged] == once
            assert sorted(program.acknowledged.values()) == list(range(len(once)))
        appended = sum(len(program.acknowledged) for program in programs)
        assert len(values) == appended, "each append is in the log once"
