"""The disk seam: ``PosixDisk`` and ``FakeDisk`` behave the same."""

from __future__ import annotations

import os
import posixpath
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from vlsn.errors import LogInUse, NoRegularFile
from vlsn.real.disk import IOV_MAX, PosixDisk
from vlsn.seams import Buffer, Disk
from vlsnlog.testing.fakes.disk import FakeDisk


@pytest.fixture(params=["posix", "fake"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return PosixDisk() if request.param == "posix" else FakeDisk()


@pytest.fixture
def at(disk: Disk, tmp_path: Path) -> Callable[[str], str]:
    """Returns a function that makes paths in a directory of the test."""
    disk.make_directory(str(tmp_path))
    return lambda name: posixpath.join(str(tmp_path), name)


At = Callable[[str], str]


def test_what_is_written_is_read_back_by_another_handle(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    file.write(5, [b"one", bytearray(b"two"), memoryview(b"xthreex")[1:6], b""])
    file.sync()
    file.close()
    again = disk.open(at("a"))
    assert again.size() == 16
    assert again.read(0, 100) == b"\0" * 5 + b"onetwothree"
    assert again.read(8, 3) == b"two"
    assert again.read(16, 10) == b""
    assert again.read(500, 10) == b""
    into = bytearray(b"." * 20)
    assert again.read_into(0, memoryview(into)[2:7]) == 5
    assert again.read_into(8, memoryview(into)[7:]) == 8
    assert again.read_into(16, memoryview(into)) == again.read_into(500, memoryview(into)) == 0
    assert into == b".." + bytes(5) + b"twothree" + b"." * 5
    again.close()


def test_a_write_of_more_buffers_than_one_call_takes_is_whole(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    buffers = [bytes([i % 251]) * (i % 5) for i in range(2 * IOV_MAX + 7)]
    file.write(3, buffers)
    assert file.read(3, 1 << 20) == b"".join(buffers)
    file.close()


def test_a_write_in_the_middle_changes_only_its_own_bytes(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    file.write(0, [b"0123456789" * 200])
    file.write(1000, [b"abc"])
    assert file.read(998, 7) == b"89abc34"
    assert file.size() == 2000
    file.close()


def test_allocate_gives_zeros_and_never_shortens(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    file.write(0, [b"data"])
    file.allocate(8192)
    assert file.size() == 8192
    assert file.read(0, 8192) == b"data" + bytes(8188)
    file.allocate(100)
    assert file.size() == 8192
    file.allocate(0)
    file.close()


def test_synced_bytes_survive_a_dropped_cache(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    file.write(0, [b"x" * 10_000])
    file.sync()
    file.drop_cache()
    assert file.read(0, 10_000) == b"x" * 10_000
    file.close()


def test_open_says_what_is_wrong(disk: Disk, at: At) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(at("a"))
    with pytest.raises(FileNotFoundError):
        disk.open(at("a"), write=True)
    with pytest.raises(FileNotFoundError):
        disk.open(at("no/a"), create=True)
    disk.open(at("a"), create=True).close()
    with pytest.raises(FileExistsError):
        disk.open(at("a"), create=True)


def test_a_directory_is_no_file(disk: Disk, at: At) -> None:
    disk.make_directory(at("d"))
    for write in (False, True):
        with pytest.raises(NoRegularFile, match="d is a directory where a regular file belongs"):
            disk.open(at("d"), write=write)
    with pytest.raises(NoRegularFile, match="d is a directory"):
        disk.lock(at("d"))


def test_a_file_opened_to_read_takes_no_write(disk: Disk, at: At) -> None:
    disk.open(at("a"), create=True).close()
    file = disk.open(at("a"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(0, [b"x"])
    file.close()


def test_a_closed_file_is_of_no_use_and_closes_again(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_a_close_that_fails_has_closed(tmp_path: Path) -> None:
    """The file's needed bytes were synced before; a caller that closes many files continues with the next."""
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    os.close(file._fd)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_list_is_sorted_names(disk: Disk, at: At) -> None:
    for name in ("b", "c", "a"):
        disk.open(at(name), create=True).close()
    disk.make_directory(at("aa/below"))
    assert disk.list(at(".")) == ["a", "aa", "b", "c"]
    assert disk.list(at("aa")) == ["below"]
    with pytest.raises(FileNotFoundError):
        disk.list(at("nothing"))
    with pytest.raises(NotADirectoryError):
        disk.list(at("a"))


def test_make_directory_twice_is_no_error(disk: Disk, at: At) -> None:
    disk.make_directory(at("d/e"))
    disk.make_directory(at("d/e"))
    assert disk.exists(at("d/e"))


def test_rename_replaces_and_an_open_file_goes_on(disk: Disk, at: At) -> None:
    old = disk.open(at("old"), create=True)
    old.write(0, [b"from old"])
    new = disk.open(at("new"), create=True)
    new.write(0, [b"from new"])
    disk.rename(at("old"), at("new"))
    assert not disk.exists(at("old"))
    assert new.read(0, 100) == b"from new"
    again = disk.open(at("new"))
    assert again.read(0, 100) == b"from old"
    for file in (old, new, again):
        file.close()
    with pytest.raises(FileNotFoundError):
        disk.rename(at("old"), at("new"))


def test_a_link_is_a_second_name_and_replaces_nothing(disk: Disk, at: At) -> None:
    one, other = (disk.open(at(name), create=True) for name in ("one", "other"))
    one.write(0, [b"from one"])
    disk.link(at("one"), at("name"))
    with pytest.raises(FileExistsError):
        disk.link(at("other"), at("name"))
    with pytest.raises(FileNotFoundError):
        disk.link(at("nothing"), at("third"))
    disk.remove(at("one"))
    again = disk.open(at("name"))
    assert again.read(0, 100) == b"from one"
    for file in (one, other, again):
        file.close()


def test_a_private_file_is_its_owners_alone(disk: Disk, at: At) -> None:
    private, plain = disk.open(at("private"), create=True, private=True), disk.open(at("plain"), create=True)
    assert private.protection()[0] == 0o600
    assert plain.protection()[0] & 0o600 == 0o600 and plain.protection()[0] & 0o044
    assert private.protection()[1] == plain.protection()[1] > -1
    private.protect(0o640, *private.protection()[1:])
    plain.protect(0o400, *plain.protection()[1:])
    assert [file.protection()[0] for file in (private, plain)] == [0o640, 0o400]
    private.close()
    plain.close()


def test_a_stamp_changes_with_the_bytes_and_with_the_file(disk: Disk, at: At) -> None:
    def stamp() -> tuple[int, ...]:
        file = disk.open(at("a"))
        try:
            return file.stamp()
        finally:
            file.close()

    written, other = disk.open(at("a"), create=True), disk.open(at("b"), create=True)
    seen = [stamp()]
    assert stamp() == seen[0]
    written.write(0, [b"longer"])
    seen.append(stamp())
    other.write(0, [b"longer"])
    disk.rename(at("b"), at("a"))
    seen.append(stamp())
    assert len(set(seen)) == 3
    written.close()
    other.close()


def test_a_removed_file_is_gone_but_for_who_has_it_open(disk: Disk, at: At) -> None:
    file = disk.open(at("a"), create=True)
    file.write(0, [b"still here"])
    disk.remove(at("a"))
    assert not disk.exists(at("a"))
    assert file.read(0, 100) == b"still here"
    file.close()
    with pytest.raises(FileNotFoundError):
        disk.remove(at("a"))


def test_exists_below_a_file_is_false(disk: Disk, at: At) -> None:
    disk.open(at("a"), create=True).close()
    assert not disk.exists(at("a/b"))


def test_sync_directory_asks_for_a_directory(disk: Disk, at: At) -> None:
    disk.sync_directory(at("."))
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(at("nothing"))


def test_free_bytes_is_a_number_of_bytes(disk: Disk, at: At) -> None:
    assert disk.free_bytes(at(".")) > 1 << 20


def test_a_lock_is_held_once_and_seen_from_outside(disk: Disk, at: At) -> None:
    assert not disk.is_locked(at("LOCK"))
    held = disk.lock(at("LOCK"))
    assert disk.exists(at("LOCK"))
    assert disk.is_locked(at("LOCK"))
    with pytest.raises(LogInUse):
        disk.lock(at("LOCK"))
    assert disk.is_locked(at("LOCK"))
    held.release()
    held.release()
    assert not disk.is_locked(at("LOCK"))
    disk.lock(at("LOCK")).release()


def test_releasing_twice_takes_nobody_elses_lock(disk: Disk, at: At) -> None:
    first = disk.lock(at("LOCK"))
    first.release()
    second = disk.lock(at("LOCK"))
    first.release()
    assert disk.is_locked(at("LOCK"))
    second.release()


def test_a_lock_outlives_its_file(disk: Disk, at: At) -> None:
    held = disk.lock(at("LOCK"))
    disk.remove(at("LOCK"))
    assert disk.is_locked(at("LOCK"))
    with pytest.raises(LogInUse):
        disk.lock(at("LOCK"))
    assert disk.is_locked(at("LOCK"))
    held.release()
    assert not disk.is_locked(at("LOCK"))
    disk.lock(at("LOCK")).release()


# The real one alone.


OLDER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
try:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
except OSError:
    print("refused", flush=True)
else:
    print("held", flush=True)
input()
"""
"""The lock of earlier releases, which locked only the file, not the directory."""


@contextmanager
def older(path: str) -> Iterator[str]:
    holder = subprocess.Popen([sys.executable, "-c", OLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        yield holder.stdout.readline().decode().strip()
        holder.kill()


def test_an_older_release_and_this_one_still_exclude_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    with older(path) as said:
        assert said == "held"
        assert PosixDisk().is_locked(path)
        with pytest.raises(LogInUse):
            PosixDisk().lock(path)
    held = PosixDisk().lock(path)
    with older(path) as said:
        assert said == "refused"
    held.release()
    with older(path) as said:
        assert said == "held"


def test_a_locked_directory_is_found_wherever_it_is_moved_and_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = PosixDisk()
    disk.make_directory("log")
    held = disk.lock("log/LOCK")
    os.rename("log", "moved")
    os.makedirs("elsewhere/log")
    os.mkdir("log")
    monkeypatch.chdir("elsewhere")
    file = disk.open("log/a", create=True)
    file.write(0, [b"x"])
    file.close()
    disk.rename("log/a", "log/b")
    disk.sync_directory("log")
    assert disk.list("log") == ["LOCK", "b"] and disk.exists("log/b") and not disk.exists("log/a")
    assert disk.free_bytes("log") > 0
    assert disk.open("log/b").read(0, 1) == b"x"
    with pytest.raises(FileNotFoundError, match="log/a"):
        disk.open("log/a")
    disk.remove("log/b")
    assert os.listdir(tmp_path / "moved") == ["LOCK"]
    assert not os.listdir(tmp_path / "log") and not os.listdir(tmp_path / "elsewhere" / "log")
    held.release()
    assert disk.list("log") == []


def test_what_is_no_file_is_refused_at_once_by_its_path(tmp_path: Path) -> None:
    """Nobody writes to the FIFO, so an open that waits for a writer would wait for ever."""
    disk, before = PosixDisk(), len(os.listdir("/proc/self/fd"))
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
    said = {"link": "a symbolic link that leads nowhere", "device": "a device", "fifo": "a FIFO", "s": "a socket"}
    for name, kind in said.items():
        path = str(tmp_path / name)
        assert disk.exists(path)
        for refused in (lambda: disk.open(path), lambda: disk.open(path, write=True), lambda: disk.lock(path)):  # noqa: B023
            with pytest.raises(NoRegularFile, match=f"{path} is {kind} where a regular file belongs"):
                refused()
    (tmp_path / "file").write_bytes(b"whole")
    (tmp_path / "good").symlink_to("file")
    good = disk.open(str(tmp_path / "good"))
    assert good.read(0, 10) == b"whole"
    good.close()
    assert not (tmp_path / "nowhere").exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_calls_that_the_kernel_ends_early_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals, quotas and calls over 2 GiB cause this: fewer bytes than requested."""
    write, read = os.pwritev, os.pread

    def write_little(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)[:7]
        return write(fd, [data], offset)

    monkeypatch.setattr(os, "pwritev", write_little)
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: read(fd, min(size, 11), offset))
    read_into = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, offset: read_into(fd, [into[0][:11]], offset))
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    buffers: list[Buffer] = [b"", b"0123456789", memoryview(b"abcdefgh"), b"", bytearray(b"XYZ" * 9), b"!"]
    file.write(5, buffers)
    assert file.size() == 5 + 46
    assert file.read(5, 46) == b"".join(buffers)
    assert file.read(0, 1000) == bytes(5) + b"".join(buffers)
    into = bytearray(60)
    assert file.read_into(0, memoryview(into)) == 51
    assert into == bytes(5) + b"".join(buffers) + bytes(9)
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: 0)
    with pytest.raises(OSError, match="wrote nothing"):
        file.write(0, [b"x"])
    file.close()


def test_a_lock_ends_with_its_process_and_asking_does_not_take_it(tmp_path: Path) -> None:
    disk, path = PosixDisk(), str(tmp_path / "LOCK")
    hold = f"from vlsn.real.disk import PosixDisk; held = PosixDisk().lock({path!r}); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        assert disk.is_locked(path)
        with pytest.raises(LogInUse):
            disk.lock(path)
        holder.kill()
        holder.wait()
        assert not disk.is_locked(path)
    held = disk.lock(path)
    assert disk.is_locked(path)
    held.release()


def test_to_drop_what_is_cached_is_asked_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open trusts no cached page: it reads the bytes that a power cut would leave."""
    asked: list[tuple[str, int, int, int]] = []
    advise = os.posix_fadvise

    def watched(fd: int, offset: int, size: int, advice: int) -> None:
        asked.append((os.readlink(f"/proc/self/fd/{fd}"), offset, size, advice))
        advise(fd, offset, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", watched)
    file = PosixDisk().open(str(tmp_path / "a"), create=True)
    file.drop_cache()
    file.close()
    assert asked == [(str(tmp_path / "a"), 0, 0, os.POSIX_FADV_DONTNEED)]


def test_a_failed_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    disk, path = PosixDisk(), str(tmp_path / "LOCK")
    held = disk.lock(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(LogInUse):
            disk.lock(path)
        assert disk.is_locked(path)
        disk.sync_directory(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before
    held.release()
