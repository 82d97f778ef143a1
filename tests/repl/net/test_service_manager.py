"""Messages of a node to a service manager, whose side of the socket is played here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl.cluster import free_base_port
from repl.net.service_manager import PID_VARIABLE, SOCKET_VARIABLE, WATCHDOG_VARIABLE, ServiceManager
from tests.e2e.calls import call
from tests.e2e.commands import VLSNLOG
from vlsn.errors import BadArgument

WAIT_S = 60.0


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        yield manager


def heard(manager: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().split("\n"))


def test_the_variables_are_taken_from_the_environment_so_that_no_child_speaks_for_the_node() -> None:
    environment = {SOCKET_VARIABLE: "/run/x", WATCHDOG_VARIABLE: "3000000", PID_VARIABLE: "7", "OTHER": "1"}
    ServiceManager(environment)
    assert environment == {"OTHER": "1"}


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({SOCKET_VARIABLE: "run/x"}, "NOTIFY_SOCKET"),
        ({SOCKET_VARIABLE: "vsock:2:9999"}, "NOTIFY_SOCKET"),
        ({WATCHDOG_VARIABLE: "0"}, "WATCHDOG_USEC"),
        ({WATCHDOG_VARIABLE: "-5"}, "WATCHDOG_USEC"),
        ({WATCHDOG_VARIABLE: "soon"}, "WATCHDOG_USEC"),
    ],
)
def test_a_malformed_variable_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(BadArgument, match=named):
        ServiceManager(environment)


async def test_what_the_manager_does_not_take_is_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    manager = ServiceManager({SOCKET_VARIABLE: str(path), WATCHDOG_VARIABLE: "20000"})
    manager.ready(asyncio.get_running_loop(), lambda: "UNKNOWN:\nopening")  # nobody listens yet
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as late:
        late.bind(str(path))
        late.setblocking(False)
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(late, 4096), WAIT_S)
        assert data == b"READY=1\nSTATUS=UNKNOWN: opening\nWATCHDOG=1"
        assert await asyncio.get_running_loop().sock_recv(late, 4096) == b"WATCHDOG=1"


async def test_a_name_with_an_at_sign_is_an_abstract_one() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0vlsnlog-test-{os.getpid()}")
        ServiceManager({SOCKET_VARIABLE: f"@vlsnlog-test-{os.getpid()}"}).stopping()
        manager.settimeout(WAIT_S)
        assert manager.recv(4096) == b"STOPPING=1"


@pytest.mark.real
@pytest.mark.feature("service manager")
def test_a_manager_hears_when_a_node_answers_that_it_lives_and_when_it_stops(
    listening: socket.socket, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_base_port(1)}"
    settings = ["--name", "n1", "--member", f"n1={url}", "--group", "g", "--dir", str(tmp_path / "n1")]
    environment = {SOCKET_VARIABLE: str(tmp_path / "notify"), WATCHDOG_VARIABLE: "1000000"}
    with subprocess.Popen([VLSNLOG, "node", *settings], env=os.environ | environment) as process:
        try:
            first = heard(listening)
            assert (first["READY"], call("GET", f"{url}/healthz").status) == ("1", 200)
            states, begun = [first["STATUS"]], time.monotonic()
            while states[-1] != "MASTER":
                message = heard(listening)
                assert message.keys() <= {"STATUS", "WATCHDOG"} and time.monotonic() - begun < WAIT_S
                states.append(message.get("STATUS", states[-1]))
            assert heard(listening) == {"WATCHDOG": "1"}
            process.send_signal(signal.SIGTERM)
            while "STOPPING" not in (message := heard(listening)):
                assert message == {"WATCHDOG": "1"}
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
