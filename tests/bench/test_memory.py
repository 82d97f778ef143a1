"""The reserve: it holds memory, gives it back, and ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from repl.bench.memory import PAGE_BYTES, Reserve, memory_bytes

CHUNK = 1 << 20


class _Machine:
    """Free memory as set."""

    def __init__(self) -> None:
        self.free = 100 * CHUNK

    def __call__(self) -> int:
        return self.free


def _pages_in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_memory_of_the_reserve_is_in_use_until_it_is_given_back() -> None:
    before = _pages_in_use()
    with Reserve(64 * CHUNK, chunk_bytes=CHUNK, lead_bytes=0) as reserve:
        assert len(reserve.held) == 64
        assert reserve.touched.bytes == 64 * CHUNK
        assert _pages_in_use() - before >= 60 * CHUNK // PAGE_BYTES
        assert all(memory[-PAGE_BYTES] == 0 for memory in reserve.held)
    assert reserve.held == []
    assert _pages_in_use() - before < 8 * CHUNK // PAGE_BYTES


def test_reserve_gives_back_only_what_the_work_took(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _Machine()
    monkeypatch.setattr(Reserve, "_give", lambda self: None)  # no thread: looked at by hand
    with Reserve(10 * CHUNK, chunk_bytes=CHUNK, lead_bytes=2 * CHUNK, free=machine) as reserve:
        assert len(reserve.held) == 8  # the lead was given back at once
        machine.free += 2 * CHUNK
        reserve.give_back()
        assert len(reserve.held) == 8
        machine.free -= 3 * CHUNK // 2
        reserve.give_back()
        assert len(reserve.held) == 6
        machine.free -= 50 * CHUNK
        reserve.give_back()
        assert reserve.held == []


def test_reserve_watches_free_memory_by_itself() -> None:
    machine = _Machine()
    with Reserve(4 * CHUNK, chunk_bytes=CHUNK, lead_bytes=CHUNK, free=machine) as reserve:
        assert reserve.held
        machine.free = 0
        reserve._thread.join(60)  # it ends when there is nothing left to give
        assert reserve.held == []


def test_reserve_leaves_half_of_what_is_available() -> None:
    machine = _Machine()
    for available, held in ((9, 4), (100, 6), (1, 0)):
        told = partial(int, available * CHUNK)
        with Reserve(6 * CHUNK, chunk_bytes=CHUNK, lead_bytes=0, free=machine, available=told) as reserve:
            assert reserve.touched.bytes == held * CHUNK


def test_memory_bytes_reads_the_kernel_s_kilobytes(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24684532 kB\nMemFree:         1000 kB\n")
    assert memory_bytes("MemFree", meminfo) == 1_024_000
    assert memory_bytes("MemAvailable", meminfo) == 0
