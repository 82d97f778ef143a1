"""The wheel, installed where nothing of ours lies: a node, a client, the command line, the types, and no Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
WAIT_S = 120.0
CALLER = """\
import sys

from repl import connect_sync

with connect_sync(sys.argv[1]) as log:
    vlsn = log.append(b"by a client", key=b"k")
    print([entry.value for entry in log.read(from_vlsn=vlsn)])
"""
TYPED = """\
from repl import connect_sync
from vlsn import Log

with connect_sync("http://localhost:7001") as log:
    log.append("text")
with Log.open("directory") as local:
    local.append(7)
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment of its own with the wheel and what it depends on."""

    place: Path

    def run(self, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run([self.place / "env" / "bin" / name, *arguments], cwd=self.place)


def run(
    command: list[str | Path], *, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=kept | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Installs the wheel with the locked packages of a node or a client, from the cache."""
    place = tmp_path_factory.mktemp("wheel")
    env = place / "env"
    steps: list[list[str | Path]] = [
        [UV, "build", "--wheel", "--no-build-isolation", "--quiet", "--out-dir", place / "dist", ROOT],
        [UV, "sync", "--frozen", "--no-default-groups", "--no-install-project", "--quiet", "--python", sys.executable],
        [UV, "pip", "install", "--no-deps", "--quiet", "--python", env / "bin" / "python"],
    ]
    for step in steps:
        if step[1] == "pip":
            step += list((place / "dist").glob("*.whl"))
        done = run(
            step,
            cwd=ROOT,
            environment={
                "UV_PROJECT_ENVIRONMENT": str(env),
                "VIRTUAL_ENV": str(Path(sys.executable).parents[1]),
            },
        )
        assert done.returncode == 0, (step, done.stderr)
    return Installed(place)


@pytest.fixture
def node(installed: Installed, tmp_path: Path) -> Iterator[str]:
    """Yields the URL of a node that serves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = ["--name", "n1", "--member", f"n1={url}", "--group", "g", "--dir", str(tmp_path / "n1")]
    process = subprocess.Popen(
        [installed.place / "env" / "bin" / "vlsnlog", "node", *settings], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + WAIT_S
    try:
        while (done := installed.run("vlsnlog", "append", "--url", url, "the first")).returncode:
            assert process.poll() is None and time.monotonic() < end, done.stderr
        yield url
    finally:
        process.kill()
        process.wait()


def test_a_node_and_a_client_run_from_it(installed: Installed, node: str, tmp_path: Path) -> None:
    read = installed.run("vlsnlog", "read", "--url", node)
    assert (read.returncode, "the first" in read.stdout) == (0, True), read
    caller = tmp_path / "caller.py"
    caller.write_text(CALLER)
    called = installed.run("python", caller, node)
    assert called.returncode == 0 and "[b'by a client']" in called.stdout, called


def test_the_commands_say_what_they_are(installed: Installed) -> None:
    helped = installed.run("vlsnlog", "--help")
    assert (helped.returncode, "append" in helped.stdout) == (0, True), helped
    assert installed.run("vlsnlog", "--version").stdout.startswith("vlsnlog ")


def test_neither_spark_nor_arrow_nor_tests_come_with_it_and_the_audit_says_what_it_needs(installed: Installed) -> None:
    look = "import importlib.util as u; print([n for n in ('pyspark', 'pyarrow', 'pytest', 'tests') if u.find_spec(n)])"
    assert installed.run("python", "-c", look).stdout.strip() == "[]"
    for command in (["audit", "a", "b"], ["demo"]):
        refused = installed.run("vlsnlog", *command)
        assert (refused.returncode, refused.stdout) == (2, ""), refused
        assert refused.stderr.count("\n") == 1 and "pip install 'vlsnlog[spark]'" in refused.stderr


def test_its_types_are_there(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(TYPED)
    python = installed.place / "env" / "bin" / "python"
    done = run([sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "caller.py"], cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    refused = ("incompatible type", "No overload variant")
    assert len(errors) == 2 and all(any(each in error for each in refused) for error in errors), done
