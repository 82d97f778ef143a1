"""A reserve of memory that has been used, given back as fast as a work takes memory.

On a virtual machine the first use of a page that its host has not provided yet costs 2–12 µs, in the kernel's
zeroing, and a log uses new pages all the time: its page cache.  A host may also take memory back that lies
free for a few seconds (free page reporting of the balloon device), so having used it once is not enough.
Therefore as much as a run can fill is written to first and *held*; a thread gives back piece after piece,
so that a little more than the work takes lies free at any time, and never for long.

    free memory   |.. not provided ..|lead|            held             |
                                       └ the page cache takes from here; a piece is freed when it gets short

Pages cost 0.25 µs here where the host has them (huge pages), 9–12 µs where it has not.
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
"""The share of the available memory that is held at most."""
CHUNK_BYTES = 64 << 20
LEAD_BYTES = 256 << 20
"""Bytes kept free ahead of the work: a third of a second of 700 MB/s."""
LOOK_S = 0.01
PAGE_BYTES = 4096
FRESH_PAGE_US = 2.0
"""A chunk whose pages cost more than this on the average was not provided yet."""
_HUGE = getattr(mmap, "MADV_HUGEPAGE", 14)


@dataclass(frozen=True, slots=True)
class Touched:
    """The memory touched before a run; ``fresh_bytes`` of it the host had not provided."""

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
    """Reads what the kernel says of its memory under this name; 0 for an unknown name."""
    for line in meminfo.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


class Reserve:
    """A reserve of about ``bytes_max`` bytes, or ``AVAILABLE_FRACTION`` of what is available. It is a context manager,
    and held from its start to its end as far as it has not been given back."""

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
        """Frees pieces until ``lead_bytes`` more are free than when all of the reserve was held."""
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
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(_HUGE)
            memory[::PAGE_BYTES] = zeros
            if time.perf_counter() - start > len(zeros) * FRESH_PAGE_US * 1e-6:
                fresh += self._chunk
        self.touched = Touched(count * self._chunk, fresh, time.perf_counter() - began)
