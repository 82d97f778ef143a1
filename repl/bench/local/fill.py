"""A process that fills an embedded log with blocks of one size, and goes on until it is killed.

    python -m repl.bench.local.fill DIR MB ENTRIES SIZE      prints a line, then waits for SIGKILL

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
from concurrent.futures import Future
from dataclasses import replace
from itertools import accumulate

from vlsn.embedded.log import GROUP_NAME, NODE_NAME
from vlsn.errors import LogFailed, VlsnLogError
from vlsn.format.block import EntryKind, seal_body
from vlsn.format.block_run import BlockRun
from vlsn.format.columns import i32
from vlsn.ids import Term, Vlsn
from vlsn.limits import CHECKPOINT_BYTES, MIB
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import CallerThreads
from vlsn.recover.recovery import Recovered, recover
from vlsn.seams import Seams
from vlsn.state.options import LogOptions
from vlsn.state.state_store import Checkpoint
from vlsn.write.local_log import LocalLog
from vlsn.write.queue import Pending

RUN_BYTES = 4 * MIB
RUNS_UNDER_WAY = 2
DUE_FRACTION = 0.9
VALUES = 1024


class Filler:
    """An open log that blocks are handed to, and its listener, which has nothing to tell anybody."""

    def __init__(self, directory: str, node: str = NODE_NAME) -> None:
        seams = Seams(PosixDisk(), SystemClock(), SystemRandom(), CallerThreads(), LmdbStores())
        options = LogOptions()
        keeper = seams.threads.worker("filler-keeper")
        self._workers = [keeper]
        opened: Future[Recovered] = Future()
        keeper.submit(
            lambda: recover(directory, seams, group=GROUP_NAME, node=node, segment_bytes=options.segment_bytes),
            opened.set_result,
            opened.set_exception,
        )
        recovered = opened.result()
        writer = seams.threads.worker("filler-writer")
        self._workers.append(writer)
        self.log = LocalLog(recovered, options, seams, writer=writer, keeper=keeper, listener=self)
        self.term = Term(max(self.log.node_file.record.term, self.log.view.history.last_term, 1))
        self.log.node_file.replace(replace(self.log.node_file.record, term=self.term))
        self._under_way = threading.Semaphore(RUNS_UNDER_WAY)

    def append(self, run: BlockRun) -> None:
        """Waits while ``RUNS_UNDER_WAY`` are not synced yet."""
        self._under_way.acquire()
        with self.log.latch:
            self.log.append_blocks(run, self._done)

    def drain(self) -> None:
        for _ in range(RUNS_UNDER_WAY):
            self._under_way.acquire()
        self._under_way.release(RUNS_UNDER_WAY)

    def checkpoint(self) -> None:
        done: Future[Checkpoint] = Future()
        with self.log.latch:
            self.log.care.checkpointer.run(done=done.set_result)
        done.result()

    def close(self) -> None:
        """Closes the log cleanly, as a node that is stopped: all is synced, and the index complete."""
        closed: Future[None] = Future()
        with self.log.latch:
            self.log.close(lambda: closed.set_result(None))
        closed.result()
        self.log.node_file.close()
        for worker in self._workers:
            worker.close()

    def _done(self, error: VlsnLogError | None) -> None:
        if error is not None:
            self.failed(LogFailed(str(error)))
        self._under_way.release()

    def sealed(self, pendings: list[Pending]) -> None:
        raise AssertionError("nothing is sealed here")

    def handed_over(self, last_vlsn: Vlsn) -> None: ...

    def written(self, last_vlsn: Vlsn) -> None: ...

    def synced(self, last_vlsn: Vlsn) -> None:
        self.log.view.raise_dtvlsn(last_vlsn)

    def failed(self, error: LogFailed) -> None:
        print(f"the log failed: {error}", file=sys.stderr, flush=True)
        os._exit(1)


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
    filler = Filler(directory)
    log = filler.log
    runs = block_runs(log.view.allocated + 1, term=filler.term, entries=entries, size=size)
    have = sum(log.view.segments().values())
    while have < megabytes * 1_000_000:
        run = next(runs)
        filler.append(run)
        have += run.bytes
    filler.drain()
    filler.checkpoint()
    after = 0
    while after < CHECKPOINT_BYTES * DUE_FRACTION:
        run = next(runs)
        filler.append(run)
        after += run.bytes
    filler.drain()
    print(after, sum(log.view.segments().values()), int(log.view.range.last_sync), flush=True)
    threading.Event().wait()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
