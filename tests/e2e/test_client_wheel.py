"""The client's wheel, installed alone and beside another distribution's ``repl``: it does all that a client does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.e2e.test_wheel import ROOT, UV, run
from vlsnlog.testing import Group

pytestmark = pytest.mark.real
FOREIGN = 'raise ImportError("the other repl was imported")\n'
"""Another distribution's ``repl``, which the client must not import."""
PROGRAM = """\
import asyncio
import sys

import vlsnlog
from vlsnlog import NotMaster, VlsnLogError, connect, connect_sync

URL = sys.argv[1]


async def main() -> None:
    async with connect(URL, exactly_once=True) as log:
        first = await log.append(b"one", key=b"k-wheel")
        await log.append_many([b"two", b"three"])
        async with log.transaction() as txn:
            await txn.append(b"four")
            await txn.append(b"five", key=b"l-wheel")
        consumer = log.consumer("wheel-billing", from_vlsn=first)
        async for entry in consumer:
            await consumer.commit()
            if entry.value == b"five":
                break
        assert [entry.value async for entry in log.tail(first, limit=2)] == [b"one", b"two"]
        assert [entry.value async for entry in log.read(from_vlsn=first, key_prefix=b"l-wheel")] == [b"five"]
        await log.destinations.put("wheel-orders", prefix="wheel-")
        vlsn = await log.append(b"an order", key=b"wheel-1")
        async for message in log.destination("wheel-orders"):
            assert (message.vlsn, message.value) == (vlsn, b"an order")
            await message.ack()
            break


asyncio.run(main())
with connect_sync(URL) as log:
    print([entry.value for entry in log.read(from_vlsn=1)][-6:])
try:
    connect_sync("http://127.0.0.1:1", timeout_s=0.2).append(b"nowhere")
except VlsnLogError as error:
    print(type(error).__module__, issubclass(NotMaster, VlsnLogError))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"repl", "vlsn", "numpy", "lmdb", "click", "uvloop"}))
try:
    vlsnlog.read_arrow
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel with the locked packages that it needs. Returns the environment's Python."""
    place = tmp_path_factory.mktemp("client")
    python = place / "env" / "bin" / "python"
    own = {"VIRTUAL_ENV": str(Path(sys.executable).parents[1])}
    options = ["--wheel", "--no-build-isolation", "--quiet", "--out-dir"]
    build: list[str | Path] = [UV, "build", *options, place / "dist", ROOT / "repl/front"]
    done = run(build, cwd=ROOT, environment=own)
    assert done.returncode == 0, done.stderr
    (wheel,) = (place / "dist").glob("vlsnlog_client-*.whl")
    locked = subprocess.run(
        [UV, "export", "--frozen", "--no-default-groups", "--no-hashes", "--no-emit-project", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (place / "locked.txt").write_text(locked)
    steps: list[list[str | Path]] = [
        [UV, "venv", "--quiet", "--python", sys.executable, place / "env"],
        [UV, "pip", "install", "--quiet", "--python", python, "--constraint", place / "locked.txt", wheel],
    ]
    for step in steps:
        done = run(step, cwd=ROOT)
        assert done.returncode == 0, (step, done.stderr)
    packages = next((place / "env" / "lib").glob("python*/site-packages"))
    (packages / "repl.py").write_text(FOREIGN)
    return python


def test_it_installs_one_package(installed: Path) -> None:
    (wheel,) = (installed.parents[2] / "dist").glob("*.whl")
    names = ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {each for each in tops if not each.endswith(".dist-info")} == {"vlsnlog"}
    rooms = {"/".join(name.split("/")[:3]) for name in names if name.startswith("vlsnlog/_repl/")}
    servers = {"lead", "follow", "node", "cdc", "cli", "audit", "spark", "repair", "elect", "auth", "names", "bench"}
    assert not rooms & {f"vlsnlog/_repl/{room}" for room in servers} and "vlsnlog/_repl/client" in rooms


@pytest.mark.feature("small client")
def test_a_program_has_all_of_a_client_beside_anothers_repl(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with Group(1) as group:
        done = run([installed, "program.py", group.url], cwd=tmp_path)
    assert done.returncode == 0, done
    values, error, loaded, arrow = done.stdout.splitlines()
    assert values == str([b"one", b"two", b"three", b"four", b"five", b"an order"])
    assert (error, loaded) == ("vlsnlog._vlsn.errors True", "[]")
    assert arrow == "vlsnlog.read_arrow: the client has no read_arrow; install vlsnlog[arrow]"


def test_its_types_are_there(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + "connect_sync(URL).append(7)\n")
    done = run([sys.executable, "-m", "mypy", "--strict", "--python-executable", installed, "program.py"], cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and f"program.py:{PROGRAM.count(chr(10)) + 1}: " in errors[0], done.stdout
