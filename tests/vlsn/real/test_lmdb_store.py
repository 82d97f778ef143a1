"""Traits of the real store alone: a map that fills, a file that can be cut, descriptors, threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

from vlsn.errors import Damaged, LogFailed
from vlsn.real.lmdb_store import LmdbStore, LmdbStores


def opened(path: Path, *, map_bytes: int = 1 << 20, read_only: bool = False) -> LmdbStore:
    store = LmdbStores().open(str(path), map_bytes=map_bytes, read_only=read_only)
    assert isinstance(store, LmdbStore)
    return store


def test_a_full_map_grows_and_the_write_is_whole(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", map_bytes=64 << 10)
    store.write([(b"before", b"x")])
    store.write([(number.to_bytes(4, "big"), bytes(4000)) for number in range(1000)], deletes=[b"before"])
    assert store.growths >= 1
    assert len(store.items(b"\x00", b"\xff")) == 1000
    assert store.get(b"before") is None
    store.close()
    again = opened(tmp_path / "s", map_bytes=64 << 10)
    assert again.get((999).to_bytes(4, "big")) == bytes(4000)
    again.write([(b"after", bytes(200_000))])
    assert again.get(b"after") == bytes(200_000)
    again.close()


def test_a_map_grows_while_other_threads_read(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", map_bytes=64 << 10)
    store.write([(b"\x00fixed", b"v" * 1000)])
    stop = threading.Event()
    wrong: list[object] = []
    reads = [0, 0]

    def read(me: int) -> None:
        while not stop.is_set():
            if store.get(b"\x00fixed") != b"v" * 1000:
                wrong.append(me)
            reads[me] += 1

    readers = [threading.Thread(target=read, args=(me,)) for me in range(2)]
    for reader in readers:
        reader.start()
    for round_ in range(6):
        store.write([(bytes([1 + round_, number]), bytes(4000)) for number in range(100)])
    stop.set()
    for reader in readers:
        reader.join()
    assert store.growths >= 3
    assert not wrong
    assert min(reads) > 0
    store.close()


def test_a_failed_write_is_log_failed_and_so_is_every_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "s")
    store.write([(b"k", b"v")])

    class Broken:
        def begin(self, **_: object) -> object:
            raise lmdb.DiskError("mdb_txn_commit", 5)

    environment = store._environment
    store._environment = Broken()  # type: ignore[assignment]
    with pytest.raises(LogFailed):
        store.write([(b"k", b"w")])
    store._environment = environment
    with pytest.raises(LogFailed):
        store.write([(b"k", b"w")])
    assert store.get(b"k") == b"v"
    store.close()


def test_a_full_disk_is_log_failed(tmp_path: Path) -> None:
    """The file may not grow past what it has: the commit fails, in a process of its own."""
    script = """
import resource, signal, sys
from vlsn.errors import LogFailed
from vlsn.real.lmdb_store import LmdbStores
store = LmdbStores().open(sys.argv[1], map_bytes=1 << 24)
store.write([(b"k", b"v")])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    store.write([(b"big", bytes(1 << 20))])
except LogFailed as failed:
    assert store.get(b"k") == b"v" and store.get(b"big") is None
    print("LogFailed", failed)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.startswith("LogFailed"), ran.stdout + ran.stderr


@pytest.mark.parametrize("content", [b"", b"not an environment", bytes(8192)], ids=["empty", "text", "zeros"])
def test_a_file_that_is_no_environment_is_damage_or_an_empty_store(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s"
    path.mkdir()
    (path / "data.mdb").write_bytes(content)
    if not content:
        assert not LmdbStores().exists(str(path))
        with pytest.raises(FileNotFoundError):
            opened(path, read_only=True)
        opened(path).close()  # LMDB makes an environment of an empty file, which is what a crash at founding leaves
        return
    with pytest.raises(Damaged):
        opened(path)
    stores = LmdbStores()
    assert os.path.exists(stores.set_aside(str(path)))
    stores.open(str(path), map_bytes=1 << 20).close()


def test_a_read_that_a_signal_interrupts_holds_nobody_up(tmp_path: Path) -> None:
    """The handler raises between any two steps of it, thousands of times."""
    script = """
import random, signal, sys
from vlsn.real.lmdb_store import LmdbStores
store = LmdbStores().open(sys.argv[1], map_bytes=1 << 20)
store.write([(b"k%d" % number, b"v") for number in range(9)])
reads = [lambda: store.get(b"k3"), lambda: store.at_or_before(b"k3"), lambda: store.keys(b"k", b"l")]
class Interrupted(Exception):
    pass
def interrupt(*_):
    raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
count = 0
while count < 4000:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-5))
        while True:
            random.choice(reads)()
    except Interrupted:
        count += 1
    assert not store._gate.locked()
assert store.get(b"k8") == b"v"
store.write([(b"k8", b"w")])
store.close()
print("done")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "done\n", ran.stdout + ran.stderr


@pytest.mark.parametrize("fresh", [True, False])
def test_a_store_that_the_system_has_no_descriptors_for_is_not_damaged(tmp_path: Path, fresh: bool) -> None:
    """Anything set aside for it would be lost for nothing."""
    script = """
import os, resource, sys
from vlsn.errors import LogFailed
from vlsn.real.lmdb_store import LmdbStores
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
stores, refused = LmdbStores(), set()
for spare in range(1, 6):
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for descriptor in taken[:spare]:
        os.close(descriptor)
    try:
        stores.open(sys.argv[1], map_bytes=1 << 24).close()
    except (LogFailed, OSError) as error:
        refused.add(type(error).__name__)
    for descriptor in taken[spare:]:
        os.close(descriptor)
print(*sorted(refused))
"""
    if not fresh:
        store = opened(tmp_path / "s")
        store.write([(b"k", b"v")])
        store.close()
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=60
    )
    assert "LogFailed" in ran.stdout, ran.stdout + ran.stderr
    store = opened(tmp_path / "s")
    assert store.get(b"k") == (None if fresh else b"v")
    store.close()


@pytest.mark.parametrize("pages", [2, 3, 10])
def test_a_file_cut_short_is_damage_and_not_a_signal(tmp_path: Path, pages: int) -> None:
    path = tmp_path / "s"
    store = opened(path)
    store.write([(number.to_bytes(4, "big"), bytes(3000)) for number in range(100)])
    store.close()
    os.truncate(path / "data.mdb", pages * 4096)
    with pytest.raises(Damaged, match=r"cut short|needs|ends within"):
        opened(path)
    with pytest.raises(Damaged, match=r"cut short|needs|ends within"):
        opened(path, read_only=True)


def test_reading_only_takes_no_lock_and_changes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = opened(path)
    store.write([(b"k", b"v")])
    store.close()
    (path / "lock.mdb").unlink()
    before = (path / "data.mdb").read_bytes()
    path.chmod(0o500)
    try:
        reader = opened(path, read_only=True)
        assert reader.get(b"k") == b"v"
        reader.close()
    finally:
        path.chmod(0o700)
    assert sorted(each.name for each in path.iterdir()) == ["data.mdb"]
    assert (path / "data.mdb").read_bytes() == before


def test_a_killed_writer_leaves_the_last_commit(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from vlsn.real.lmdb_store import LmdbStores
store = LmdbStores().open(sys.argv[1], map_bytes=1 << 20)
for number in range(20):
    store.write([(b"k", b"%d" % number), (b"n%d" % number, bytes(5000))])
    print(number, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split()[-1] == "19"
    store = opened(tmp_path / "s")
    assert store.get(b"k") == b"19"
    assert len(store.items(b"n", b"o")) == 20
    store.close()


class Calls:
    """The calls of the kernel by name and path, while they are counted; every call is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        for name in ("fsync", "fdatasync", "posix_fadvise", "pread"):
            self._watch(monkeypatch, name, getattr(os, name))

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str, call: Any) -> None:
        def watched(fd: int, *arguments: Any) -> Any:
            kind = name if name != "posix_fadvise" else f"{name} {arguments[2]}"
            self.made.append((kind, os.readlink(f"/proc/self/fd/{fd}")))
            return call(fd, *arguments)

        monkeypatch.setattr(os, name, watched)


@pytest.mark.parametrize("fresh", [True, False])
def test_what_another_process_made_is_durable_before_anybody_rests_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """The other process may have been killed before it synced a byte or a name."""
    path = tmp_path / "s"
    if not fresh:
        opened(path).close()
    calls = Calls(monkeypatch)
    store = opened(path)
    assert {("fsync", str(path)), ("fsync", str(tmp_path))} <= set(calls.made)
    if not fresh:
        data = str(path / "data.mdb")
        of_data = [kind for kind, at in calls.made if at == data]
        assert of_data[:3] == ["fdatasync", f"posix_fadvise {os.POSIX_FADV_DONTNEED}", "pread"]
    store.close()
