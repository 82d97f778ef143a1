"""A reserve of memory that was used before; it is freed as fast as a benchmark needs memory.

On a virtual machine, the first use of a memory page that the host has not provided yet costs 2–12 µs. A log uses new
memory all the time, for the operating system's file cache. A host may also take back memory that is free for a few
seconds (free page reporting of the balloon device), so using it once is not enough. Therefore the memory that a run can
fill is written to first and *held*. A thread then frees the held memory piece after piece. So at any time a little more
than the benchmark needs is free, and never for long.

    free memory   |.. not provided ..|lead|            held             |
                                       └ the page cache takes from here; a piece is freed when it gets short

A memory page costs 0.25 µs here if the host has provided it (huge pages), otherwise 9–12 µs.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

AVAILABLE_FRACTION = 0.5
"""The largest share of the machine's available memory that is held in reserve."""
CHUNK_BYTES = 64 << 20
LEAD_BYTES = 256 << 20
"""The bytes of memory that are kept free ahead of the benchmark: enough for a third of a second at 700 MB/s."""
LOOK_S = 0.01
PAGE_BYTES = 4096
FRESH_PAGE_US = 2.0
"""If the memory pages of a chunk cost more than this many µs on average, the host had not provided them yet."""
_HUGE = getattr(mmap, "MADV_HUGEPAGE", 14)


@dataclass(frozen=True, slots=True)
class Touched:
    """The memory that was used before a run. The host had not provided ``fresh_bytes`` of it."""

    bytes: int = 0
    fresh_bytes: int = 0
    seconds: float = 0.0

    def json(self) -> dict[str, float]:
        return {
            "memory_touched_mb": round(self.bytes / 1e6),
            "memory_fresh_mb": round(self.fresh_bytes / 1e6),
            "memory_touch_s": round(self.seconds, 3),
        }


def memory_bytes(field: str, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Returns the value of one field in the kernel's memory information, in bytes; 0 for an unknown field."""
    for line in meminfo.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


class Reserve:
    """A reserve of about ``bytes_max`` bytes, at most ``AVAILABLE_FRACTION`` of the available memory. A ``Reserve`` is
    a context manager; within the context it holds the memory that is not freed yet."""

    def __init__(
        self, bytes_max: int, *, chunk_bytes: int = CHUNK_BYTES, lead_bytes: int = LEAD_BYTES,
        free: Callable[[], int] = lambda: memory_bytes("MemFree"),
        available: Callable[[], int] = lambda: memory_bytes("MemAvailable"),
    ) -> None:  # fmt: skip
        self.touched = Touched()
        self.held: list[mmap.mmap] = []
        self._bytes_max = bytes_max
        self._chunk = chunk_bytes
        self._lead = lead_bytes
        self._free = free
        self._available = available
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._give, name="memory-reserve", daemon=True)

    def __enter__(self) -> Self:
        self._touch(min(self._bytes_max, int(self._available() * AVAILABLE_FRACTION)) // self._chunk)
        self._base = self._free()
        self.give_back()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        while self.held:
            self.held.pop().close()

    def give_back(self) -> None:
        """Frees pieces until ``lead_bytes`` more are free than when the whole reserve was held."""
        spare = self._free() - self._base
        while self.held and spare < self._lead:
            self.held.pop().close()
            spare += self._chunk

    def _give(self) -> None:
        while self.held and not self._ended.wait(LOOK_S):
            self.give_back()

    def _touch(self, count: int) -> None:
        began = time.perf_counter()
        fresh = 0
        zeros = bytes(self._chunk // PAGE_BYTES)
        for _ in range(count):
            start = time.perf_counter()
            memory = mmap.mmap(-1, self._chunk, flags=mmap.MAP_PRIVATE)
            self.held.append(memory)
            with contextlib.suppress(OSError):  # a kernel may have no huge pages
                memory.madvise(_HUGE)
            memory[::PAGE_BYTES] = zeros
            if time.perf_counter() - start > len(zeros) * FRESH_PAGE_US * 1e-6:
                fresh += self._chunk
        self.touched = Touched(count * self._chunk, fresh, time.perf_counter() - began)
