"""A PostgreSQL server for one test: a new cluster, a free port, a password; it ends with its process.

The server refuses to run as root; under root it runs as ``nobody``, which then owns its directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any, Final

import psycopg

START_S: Final = 120.0
PASSWORD: Final = "a password of a test"
USER: Final = "vlsnlog"
_NOBODY: Final = "nobody"


class NoPostgres(Exception):
    """There is no PostgreSQL on this machine."""


def binary(name: str) -> str:
    """Finds one of PostgreSQL's programs, in the path or in Debian's directory. Raises ``NoPostgres``."""
    found = shutil.which(name) or next(iter(sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)
    if found is None:
        raise NoPostgres(f"no PostgreSQL here: {name} is not in the path, nor under /usr/lib/postgresql")
    return found


class Postgres:
    """A server, as a context manager that removes all of it."""

    def __init__(self) -> None:
        """Creates the cluster. Raises ``NoPostgres``."""
        self._initdb, self._postgres = binary("initdb"), binary("postgres")
        self._as: dict[str, Any] = {"user": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.dsn = f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Postgres:
        self.directory = Path(tempfile.mkdtemp(prefix="vlsnlog-postgres-", dir="/tmp"))
        try:
            password = self.directory / "password"
            password.write_text(PASSWORD)
            if self._as:
                for path in (self.directory, password):
                    shutil.chown(path, _NOBODY)
            command = [self._initdb, "-D", str(self.directory / "data"), "-U", USER, "--pwfile", str(password)]
            self._run(*command, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C")
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def start(self) -> None:
        """Starts it, and returns once it accepts connections."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        options = [each for name, value in settings.items() for each in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + START_S
        while True:
            with (self.directory / "log").open("ab") as log:
                process = subprocess.Popen(
                    [self._postgres, "-D", str(self.directory / "data"), *options],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, **self._as,
                )  # fmt: skip
            while process.poll() is None:
                try:
                    self.connect().close()
                except psycopg.OperationalError:
                    time.sleep(0.05)
                else:
                    self._process = process
                    return
            if time.monotonic() > deadline:  # before that, it may still clean up after a killed server
                raise NoPostgres(f"it does not start: {(self.directory / 'log').read_text(errors='replace')[-1000:]}")
            time.sleep(0.1)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, password=PASSWORD, autocommit=True, connect_timeout=5)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all its processes, first to the one that would replace others."""
        if self._process is not None:
            pids = [self._process.pid, *_children(self._process.pid)]
            for pid in pids:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, number)

    def kill(self) -> None:
        """Kills all its processes, like a reset of the machine."""
        if self._process is not None:
            self.send(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._as)
        if done.returncode:
            raise NoPostgres(f"{command[0]}: {done.stderr.strip()}")


def _children(parent: int) -> list[int]:
    """Lists the processes that ``parent`` has started, since each backend leads a session of its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # has ended
                if int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
    return found
