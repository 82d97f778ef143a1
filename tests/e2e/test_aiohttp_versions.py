"""A client with each minor version of aiohttp that it works with, against a node with the version of the lock file."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import commands
from tests.e2e.secure_node import SecureNode, secure_node
from tests.repl.net.tls.certificates import authority

ROOT = Path(__file__).parents[2]
SMOKE = Path(__file__).with_name("client_smoke.py")
PACKAGES = ("crc32c", "msgspec", "numpy>=2,<3", "tenacity>=9,<10", "uvloop>=0.21,<1")
"""A client's packages beside aiohttp, and uvloop, which a program may run."""
ROLES = "read,append,consume,define"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    """Yields a node that speaks TLS alone."""
    place = tmp_path_factory.mktemp("node")
    with secure_node(place, authority(place / "ca")) as made:
        yield made


@pytest.fixture(scope="module")
def token(node: SecureNode) -> str:
    made = commands.run("token", "create", "--roles", ROLES, "--url", node.url, "--tls-ca", node.ca)
    assert made.status == 0, made
    return made.out.split()[0].decode()


def run(command: list[str | Path]) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    path = f"{ROOT}{os.pathsep}{ROOT / 'repl/front'}"
    environment = kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_a_client_works_with(version: str, node: SecureNode, token: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"aiohttp=={version}.*", *PACKAGES])
    said = run([python, SMOKE, node.url, node.ca, token, f"with-{version}"])
    assert said.startswith(f"{version}.")
