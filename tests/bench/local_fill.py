"""A process that fills an embedded log with blocks of one size, and goes on until it is killed.

    python -m tests.bench.local_fill DIR MB ENTRIES SIZE      prints a line, then waits for SIGKILL

Blocks are handed over whole, as a replica gets them, so that a log of one-entry blocks is made as fast as a
node writes one.  When the log has its MB, a checkpoint is made, then nearly as many bytes more are logged as
make the next one due: the most that an open has to read.  The line: those bytes, those of the whole log, its
last VLSN.  The process ends with its standard input.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from vlsn import Log
from vlsn.errors import VlsnLogError
from vlsn.format.block import EntryKind, seal_body
from vlsn.format.block_run import BlockRun
from vlsn.format.columns import i32
from vlsn.ids import Term
from vlsn.limits import CHECKPOINT_BYTES, MIB

RUN_BYTES = 4 * MIB
RUNS_UNDER_WAY = 2
DUE_FRACTION = 0.9
VALUES = 1024


class Filler(Log):
    """A log that blocks are handed to, and that leads nothing."""

    def _take_term(self) -> None:
        node_file = self._log.node_file
        term = max(node_file.record.term, self._log.view.history.last_term, 1)
        node_file.replace(replace(node_file.record, term=Term(term)))
        self._under_way = threading.Semaphore(RUNS_UNDER_WAY)

    def runs(self, *, entries: int, size: int) -> Iterator[BlockRun]:
        """Yields runs of blocks that go on where the log ends, without end."""
        return block_runs(self._log.view.allocated + 1, term=self.term, entries=entries, size=size)

    def hand_over(self, run: BlockRun) -> None:
        """Waits while ``RUNS_UNDER_WAY`` are not synced yet."""
        self._under_way.acquire()
        with self._latch:
            self._log.append_blocks(run, self._done)

    def drain(self) -> None:
        for _ in range(RUNS_UNDER_WAY):
            self._under_way.acquire()
        self._under_way.release(RUNS_UNDER_WAY)

    @property
    def bytes(self) -> int:
        return sum(self._log.view.segments().values())

    def _done(self, error: VlsnLogError | None) -> None:
        if error is not None:
            print(f"the log failed: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        self._under_way.release()


def block_runs(
    first_vlsn: int, *, term: int, entries: int, size: int, run_bytes: int = RUN_BYTES
) -> Iterator[BlockRun]:
    """Runs of blocks of ``entries`` values of ``size`` bytes each, for ever."""
    values = [os.urandom(size) for _ in range(VALUES)]
    offsets = i32(entries + 1).pack(*accumulate([size] * entries, initial=0))
    offsets += bytes(-len(offsets) & 7)
    at = 0
    while True:
        blocks: list[bytes] = []
        firsts: list[int] = []
        total = 0
        clock_us = time.time_ns() // 1000
        while total < run_bytes:
            column = b"".join([values[(at + number) % VALUES] for number in range(entries)])
            at += entries
            block = seal_body(
                (offsets, column),
                flags=0,
                kind=int(EntryKind.DATA),
                count=entries,
                term=term,
                first_vlsn=first_vlsn,
                dtvlsn=first_vlsn - 1,
                clock_us=clock_us,
                submissions=1,
                key_bytes=0,
                value_bytes=len(column),
            )
            blocks.append(block)
            firsts.append(first_vlsn)
            first_vlsn += entries
            total += len(block)
        lasts = [first + entries - 1 for first in firsts]
        terms, kinds, clocks = ([each] * len(blocks) for each in (term, int(EntryKind.DATA), clock_us))
        yield BlockRun(blocks, firsts, lasts, terms, kinds, clocks, total)


def main(directory: str, megabytes: int, entries: int, size: int) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    log = Filler.open(directory)
    assert isinstance(log, Filler)
    runs = log.runs(entries=entries, size=size)
    have, after = log.bytes, 0
    while have < megabytes * 1_000_000:
        run = next(runs)
        log.hand_over(run)
        have += run.bytes
    log.drain()
    log.checkpoint()
    while after < CHECKPOINT_BYTES * DUE_FRACTION:
        run = next(runs)
        log.hand_over(run)
        after += run.bytes
    log.drain()
    print(after, log.bytes, int(log.range.last_sync), flush=True)
    threading.Event().wait()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
