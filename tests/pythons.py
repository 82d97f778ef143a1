"""``make pythons``: the wheel, installed with each version of Python that this machine has, runs a node and a client.

The versions are looked for on PATH, among pyenv's and among uv's. Each has an environment of its own, with the newest
packages that vlsnlog accepts. Warnings of vlsnlog's own modules are errors there, deprecations among them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).parents[1]
UV: Final = Path(sys.executable).with_name("uv")
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
WAIT_S: Final = 600.0
_SMOKE: Final = """
import subprocess, sys, time
from pathlib import Path
from repl import connect_sync
from vlsn import Log

url, vlsnlog = sys.argv[1], str(Path(sys.executable).with_name("vlsnlog"))
python = [sys.executable, "-W", "error:::repl", "-W", "error:::vlsn", "-W", "error:::feeder", "-W", "error:::replica"]
command = [*python, vlsnlog, "node", "--name", "n1", "--member", f"n1={url}", "--group", "g", "--dir", "n1"]
with open("log", "wb") as log, subprocess.Popen(command, stderr=log) as node:
    with connect_sync(url, timeout_s=60) as client:
        vlsn = client.append(b"by a client", key=b"k")
        assert [entry.value for entry in client.read(from_vlsn=vlsn)] == [b"by a client"]
    subprocess.run([*python, vlsnlog, "append", "--url", url, "by the command line"], check=True)
    said = subprocess.run([*python, vlsnlog, "read", "--url", url], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["by a client", "by the command line"], said
    node.terminate()
    assert node.wait(60) == 0
assert "Traceback" not in Path("log").read_text(), Path("log").read_text()
subprocess.run([*python, vlsnlog, "verify", "n1"], check=True)
with Log.open("local") as local:
    local.append(b"alone")
"""


def interpreter(version: str) -> str:
    """Returns the path of an interpreter of this version; empty without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in sorted(pyenv.glob(f"{version}.*/bin/python")):
        return str(path)
    found = _run([UV, "python", "find", "--no-python-downloads", "--system", version])
    return found.stdout.strip() if found.returncode == 0 else ""


def tried(python: str, wheel: Path, place: Path) -> str:
    """Installs the wheel and runs the smoke test. Returns the fault; empty without one."""
    place.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    own = place / "env" / "bin" / "python"
    steps: list[list[str | Path]] = [
        [UV, "venv", "--quiet", "--python", python, place / "env"],
        [UV, "pip", "install", "--quiet", "--python", own, wheel],
        [own, "-W", "error:::repl", "-W", "error:::vlsn", "-c", _SMOKE, url],
    ]
    for step in steps:
        done = _run(step, cwd=place)
        if done.returncode:
            return f"{step[0]} {step[1]}: {done.stdout}{done.stderr}"
    return ""


def main() -> int:
    faults = 0
    with TemporaryDirectory() as directory:
        built = _run([UV, "build", "--wheel", "--quiet", "--out-dir", directory, ROOT])
        assert built.returncode == 0, built.stderr
        (wheel,) = Path(directory).glob("*.whl")
        for version in VERSIONS:
            python = interpreter(version)
            fault = tried(python, wheel, Path(directory) / version) if python else ""
            faults += bool(fault)
            full = _run([python, "-c", "import platform; print(platform.python_version())"]).stdout if python else ""
            said = f"{full.strip()}  {fault or 'passed'}" if python else "not on this machine"
            print(f"{version}  {said}", flush=True)
    return min(faults, 1)


def _run(command: list[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    kept = {name: value for name, value in kept.items() if not name.startswith("VLSNLOG_")}
    return subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False, timeout=WAIT_S)


if __name__ == "__main__":
    sys.exit(main())
