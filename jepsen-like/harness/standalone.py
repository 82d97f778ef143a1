"""A standalone Spark on this machine, from pyspark's own jars: a master, workers, and submitted programs.

    spark-class …Master ◄── spark-class …Worker ──► executor ──► Python workers
                        ◄── spark-class …Worker ──► executor ──► Python workers

Every process leads a session of its own, so that all its children can be found, and killed with it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

START_S: Final = 300.0
POLL_S: Final = 0.1
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"


class SparkFailed(Exception):
    """The cluster does not start; this is no verdict on the log."""


def spark_home() -> Path:
    """Returns pyspark's own directory, which is a whole Spark."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


class StandaloneSpark:
    """A master and ``workers`` of one core each, under ``directory``, as a context manager that removes all of it."""

    def __init__(self, directory: Path, *, workers: int = 2, memory: str = "1g") -> None:
        self.directory = directory
        self.url = ""
        self._workers, self._memory = workers, memory
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> StandaloneSpark:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def submit(
        self, script: Path, *arguments: str, conf: Mapping[str, str] | None = None, py_files: str = ""
    ) -> subprocess.Popen[bytes]:
        """Starts ``spark-submit`` with the driver here; its output is in ``directory/NAME.out`` and ``.err``. The
        driver has no activated environment: packages for the tasks must be shipped, or installed."""
        options = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        options |= conf or {}
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", self.url]
        for name, value in options.items():
            command += ["--conf", f"{name}={value}"]
        if py_files:
            command += ["--py-files", py_files]
        with self.out(script).open("ab") as out, self.err(script).open("ab") as err:
            process = subprocess.Popen(
                [*command, str(script), *arguments],
                cwd=self.directory, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def out(self, script: Path) -> Path:
        return self.directory / f"{script.stem}.out"

    def err(self, script: Path) -> Path:
        return self.directory / f"{script.stem}.err"

    def executors(self) -> list[int]:
        """Lists the running executors' processes of all workers."""
        sessions = {process.pid for process in self._started}
        return [pid for pid, session, command in processes() if session in sessions and _EXECUTOR in command]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a submitted program, the driver's JVM and its Python, by SIGKILL."""
        kill_session(process.pid)
        process.wait()

    def end(self) -> None:
        for process in reversed(self._started):
            self.kill(process)
        self._started.clear()

    def _start(self) -> None:
        listen = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._spawn("master", "master.Master", *listen)
        self.url = self._said("master", rb"Starting Spark master at (spark://\S+)")
        self._said("master", rb"New state: (ALIVE)")
        for number in range(1, self._workers + 1):
            name = f"worker{number}"
            work = ("--cores", "1", "--memory", self._memory, "--work-dir", str(self.directory / name))
            self._spawn(name, "worker.Worker", *listen, *work, self.url)
        for number in range(1, self._workers + 1):
            self._said(f"worker{number}", rb"Successfully (registered) with master")

    def _spawn(self, name: str, what: str, *arguments: str) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.directory, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._started.append(process)

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYSPARK", "SPARK_", "PYTHONPATH"))
        }
        ours = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_DRIVER_PYTHON": sys.executable}
        return kept | ours | {"SPARK_DAEMON_JAVA_OPTS": _JAVA, "SPARK_DAEMON_MEMORY": "256m"}

    def _said(self, name: str, words: bytes) -> str:
        log, deadline = self.directory / f"{name}.log", time.monotonic() + START_S
        while not (found := re.search(words, log.read_bytes())):
            ended = [process.poll() for process in self._started]
            if time.monotonic() > deadline or any(status is not None for status in ended):
                raise SparkFailed(f"{name} did not say {words!r}: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_S)
        return found[1].decode()


def processes() -> list[tuple[int, int, bytes]]:
    """Lists pid, session and command line of every process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat, command = (entry / "stat").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended
        found.append((int(entry.name), int(stat.rpartition(b")")[2].split()[3]), command))
    return found


def kill_session(leader: int) -> None:
    """Kills every process of the session, again and again until none is left, since one may just be forked."""
    while pids := [pid for pid, session, command in processes() if session == leader and command]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_S)
