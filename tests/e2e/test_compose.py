"""The three nodes of docs/deploy/compose.yaml, run without an engine: its commands, variables, secrets and names.

Each node has a network and a file tree of its own, as in a container: /etc/vlsnlog, /run/secrets and /var/lib/vlsnlog.
The commands are those of docs/install.md, which makes the secrets and calls the group.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.commands import VLSNLOG
from tests.e2e.hosts import networks
from tests.test_deploy import COMPOSE, DEPLOY, NODES, ROOT

WAIT_S: Final = 90.0
_MOUNTS: Final = """
mount --bind "$0/etc" /etc
mount -t tmpfs none /run
mkdir /run/secrets
mount --bind "$0/secrets" /run/secrets
mount -t tmpfs none /var/lib
mkdir /var/lib/vlsnlog
mount --bind "$0/data" /var/lib/vlsnlog
exec "$@"
"""


class Container:
    """A service as an engine runs it."""

    def __init__(self, service: dict[str, Any], directory: Path, launcher: tuple[str, ...], hosts: str) -> None:
        self.service, self.directory = service, directory
        own = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
        self._inside = [*launcher, *own, "sh", "-ec", _MOUNTS, str(directory)]
        shutil.copytree("/etc", directory / "etc", symlinks=True, ignore_dangling_symlinks=True)
        (directory / "etc" / "hosts").write_text(hosts)
        for name in ("etc/vlsnlog", "secrets", "data"):
            (directory / name).mkdir(parents=True)
        for each in service["configs"]:
            source = DEPLOY / COMPOSE["configs"][each["source"]]["file"]
            shutil.copy(source, directory / each["target"].removeprefix("/"))
        for each in service["secrets"]:
            source, target = (each["source"], each["target"]) if isinstance(each, dict) else (each, each)
            shutil.copy(directory.parent / COMPOSE["secrets"][source]["file"], directory / "secrets" / target)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "PYTHONPATH": str(ROOT), **self.service["environment"]}
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen([*self._inside, *command], env=environment, stdout=subprocess.PIPE, stderr=log)

    def run(self, *command: str) -> tuple[int, str]:
        """Runs a command as ``docker compose exec`` does."""
        with self.start(*command) as process:
            output, _ = process.communicate(timeout=WAIT_S)
            return process.returncode, output.decode()

    def logged(self) -> str:
        return (self.directory / "log").read_text()[-2000:]


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[dict[str, Container]]:
    for command in secrets_of_the_page():
        subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True, env=os.environ | on_path())
    names = list(NODES)
    with networks(names) as opened:
        hosts = "".join(f"{opened.address(name)} {NODES[name]['hostname']}\n" for name in names)
        hosts += "127.0.0.1 localhost\n"
        made = {}
        for name in names:
            (tmp_path / name).mkdir()
            made[name] = Container(NODES[name], tmp_path / name, opened.launcher(name), hosts)
        yield made


def on_path() -> dict[str, str]:
    return {"PATH": f"{Path(VLSNLOG).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def secrets_of_the_page() -> list[str]:
    """Returns the commands of docs/install.md that make the secrets, but for those that only root's files need."""
    section = (ROOT / "docs" / "install.md").read_text().partition("## Containers\n")[2].partition("\n## ")[0]
    block = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    typed = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    return [command for command in typed if not command.startswith(("cd ", "sudo ", "docker "))]


def test_three_nodes_of_the_compose_file_are_a_group(containers: dict[str, Container]) -> None:
    with ExitStack() as stack:
        for container in containers.values():
            process = container.start("vlsnlog", *container.service["command"])
            stack.callback(process.communicate)
            stack.callback(process.kill)
        one = containers["n1"]
        until(one, "vlsnlog", "status")
        for container in containers.values():
            until(container, *container.service["healthcheck"]["test"][1:])
        token = until(one, "vlsnlog", "token", "create", "--roles", "read,append", "--title", "app")
        (one.directory / "secrets" / "app.token").write_text(token)
        (one.directory / "secrets" / "app.token").chmod(0o600)
        client = COMPOSE["services"]["client"]["environment"]
        called = ["env", "-i", f"PATH={on_path()['PATH']}", f"PYTHONPATH={ROOT}"]
        called += [f"{name}={value}" for name, value in client.items()]
        assert until(one, *called, "vlsnlog", "append", "hello")
        for name in NODES:
            words = ("read", "--url", f"https://{name}:7701", "--consistency", "linearizable")
            assert until(one, *called, "vlsnlog", *words) == "hello\n"
        without = [each for each in called if not each.startswith("VLSNLOG_TOKEN_FILE")]
        status, _ = one.run(*without, "vlsnlog", "append", "by nobody")
        assert status != 0 and "401" in one.logged()


def until(container: Container, *command: str) -> str:
    """Runs a command until it succeeds. Returns its output."""
    end = time.monotonic() + WAIT_S
    while True:
        status, output = container.run(*command)
        if status == 0:
            return output
        assert time.monotonic() < end, (command, output, container.logged())
