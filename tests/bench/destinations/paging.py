"""Paging: whole blocks beside plain writes of the same disk, and entries selected from blocks of 64.

A log of an embedded node is filled, and one destination's messages of all of it are paged as a cleaning does it, the
page table in LMDB.  Plain writes are a MiB each, synced as often.  A selected entry is every other one by its key; the
figure is the bytes of selected keys and values for each second of a thread's processor time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.bench.load import ratio
from tests.bench.report import Aimed, Figures
from vlsn import Log
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.limits import MIB, PAGING_STRIDE_BYTES
from vlsn.pages.manager import PagingManager
from vlsn.pages.page import PageWriter
from vlsn.pages.paging_pass import PagingPass
from vlsn.pages.subscription import Subscription
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.threads import CallerThreads
from vlsn.write.local_log import LocalLog

WHOLE_BYTES, SELECTED_BYTES = 512 * MIB, 192 * MIB
BLOCK_ENTRIES = 64
SIZES = (100, 1000, 4096)


def measured(rounds: int) -> Figures:
    """Measures in turns; medians of ``rounds``."""
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="vlsnlog-paging-") as place:
        directory = Path(place)
        with _filled(directory / "whole", 4096, WHOLE_BYTES) as log:
            plain, paged = [], []
            for number in range(rounds):
                plain.append(_plain(directory, WHOLE_BYTES))
                paged.append(_page(log, directory, number, b"")[0])
            found["plain_mb_per_s"] = round(median(plain), 1)
            found["whole_mb_per_s"] = round(median(paged), 1)
            found["whole_of_plain"] = Aimed(ratio(median(paged), median(plain)), "≥ 0.5")
        for size in SIZES:
            with _filled(directory / f"selected-{size}", size, SELECTED_BYTES) as log:
                cores = [_page(log, directory, number, b"wanted")[1] for number in range(rounds)]
                found[f"selected_{size}_mb_per_core_s"] = Aimed(round(median(cores), 1), "≥ 100")
    return found


@contextmanager
def _filled(directory: Path, size: int, total: int) -> Iterator[LocalLog]:
    """Fills a log with blocks of 64 entries, every other one under a key that begins with ``wanted``."""
    value = os.urandom(size // 2).hex().encode()
    keys = [b"wanted %d" % each if each % 2 else b"other %d" % each for each in range(BLOCK_ENTRIES)]
    with Log.open(directory) as log:
        for _ in range(total // (size * BLOCK_ENTRIES)):
            log.append([value] * BLOCK_ENTRIES, keys=keys)
        yield log._log


def _page(log: LocalLog, directory: Path, number: int, prefix: bytes) -> tuple[float, float]:
    """Pages all of the log: MB of messages a second, and a second of this thread."""
    place = directory / f"pages-{log.view.range.last}-{number}"
    place.mkdir()
    manager = PagingManager(PosixDisk(), CallerThreads().latch, SystemRandom().u32, str(place))
    subscription = Subscription(f"{number + 1:016x}", "bench", prefix, VlsnSet())
    upto = Vlsn(log.view.range.last)
    run = PagingPass(
        manager.wants([subscription], upto), log.view.reader(), log.view.index, upto, first=Vlsn(log.view.range.first)
    )
    start, busy = time.perf_counter(), time.thread_time()
    syncing: dict[PageWriter, Future[None]] = {}
    with ThreadPoolExecutor(1) as elsewhere:  # as the pager does
        while not run.over:
            run.step()
            for writer in run.full_pages():
                if writer not in syncing:
                    syncing[writer] = elsewhere.submit(writer.sync)
            if run.due:
                for each in syncing.values():
                    each.result()
                syncing.clear()
                run.committed(run.sync())
    seconds, core_s = time.perf_counter() - start, time.thread_time() - busy
    run.close()
    size = sum(row.bytes for row in manager.stores[subscription.uuid].pages.values())
    manager.close()
    shutil.rmtree(place)
    return size / seconds / 1e6, size / core_s / 1e6


def _plain(directory: Path, total: int) -> float:
    """Writes as many bytes in pieces of a MiB, synced as often as pages are; MB a second."""
    piece, path = os.urandom(MIB), directory / "plain"
    with path.open("wb", buffering=0) as file:
        start = time.perf_counter()
        for at in range(total // MIB):
            file.write(piece)
            if (at + 1) % (PAGING_STRIDE_BYTES // MIB) == 0:
                os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
        seconds = time.perf_counter() - start
    path.unlink()
    return total / seconds / 1e6
