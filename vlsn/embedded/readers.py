"""Reads of an embedded log, from any thread. Each read borrows a reader, which keeps segment files open between reads.

A reader of VLSNs at random keeps up to ``SEGMENTS_OPEN`` segments open. A reader that moves from segment to segment
closes each segment that it leaves. ``READERS_KEPT`` readers are kept for the next reads. So at most ``READERS_KEPT``
times ``SEGMENTS_OPEN`` files stay open, and one or two more for each thread that is reading.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TypeVar

from vlsn.embedded.calls import LogCalls
from vlsn.errors import Damaged, Trimmed, VlsnLogError
from vlsn.format.block import Entry
from vlsn.ids import Lsn, Vlsn
from vlsn.index.scanner import ForwardScanner
from vlsn.segments.reader import DATA_ONLY, EntryRun, LogReader, PairRun, TimeRun
from vlsn.segments.time_search import LOOK_BYTES, TimeSearch
from vlsn.write.local_log import LocalLog

READERS_KEPT = 4
SEGMENTS_OPEN = 64
READ_BYTES = 1 << 20
READ_ENTRIES = 10_000
_Run = TypeVar("_Run", EntryRun, PairRun, TimeRun)


class LogReading:
    """The reads of one log. ``keeps`` is an object to keep alive as long as the iterator; without it the log could be
    closed during the iteration."""

    def __init__(self, log: LocalLog, calls: LogCalls) -> None:
        self._log = log
        self._calls = calls
        self._readers: list[tuple[LogReader, ForwardScanner]] = []

    def entries(
        self, from_vlsn: int, to_vlsn: int, kinds: frozenset[int] | None = DATA_ONLY, *, keeps: object = None
    ) -> Generator[Entry, None]:
        """Yields synced entries of ``kinds`` (None: all kinds) from ``from_vlsn`` (0: the first VLSN in the log) to
        ``to_vlsn`` (0: the last VLSN that is synced now). Raises ``Trimmed`` or ``Damaged``. If the log is rolled back
        meanwhile, the iteration ends at the matchpoint."""

        def some(reader: LogReader, at: Vlsn, start: Lsn, upto: int, wanted: int) -> EntryRun:
            limit = min(wanted - at + 1, READ_ENTRIES)
            return reader.entries(at, start=start, upto_vlsn=upto, limit=limit, bytes_max=READ_BYTES, kinds=kinds)

        for run in self._runs(from_vlsn, to_vlsn, some):
            for entry in run.entries:
                if to_vlsn and entry.vlsn > to_vlsn:
                    return
                yield entry

    def pairs(self, from_vlsn: int, to_vlsn: int, *, keeps: object = None) -> Iterator[tuple[int, bytes]]:
        """Yields the VLSN and the value of each DATA entry. The arguments and the errors are the same as for
        ``entries``."""

        def some(reader: LogReader, at: Vlsn, start: Lsn, upto: int, wanted: int) -> PairRun:
            return reader.pairs(at, start=start, upto_vlsn=upto, to_vlsn=wanted)

        return chain.from_iterable(run.pairs for run in self._runs(from_vlsn, to_vlsn, some, keeps))

    def find_time(self, time_us: int) -> Vlsn:
        """Returns the first VLSN of the first synced block that was sealed at ``time_us`` or later. If no block was
        sealed then, returns the VLSN after the last synced one. Raises ``Damaged``."""
        log = self._log
        while True:
            search = TimeSearch(log.view.index, time_us, log.view.range.first, log.view.range.last_sync)
            try:
                while (part := search.part()) is not None:
                    looked = next(self._runs(*part, partial(_sealed_at, time_us)), None)
                    if looked is None:
                        break  # a rollback has just removed the blocks that were searched
                    search.looked(looked)
                else:
                    return search.result
            except Trimmed:
                continue

    def close(self) -> None:
        while self._readers:
            self._readers.pop()[0].close()

    def _runs(
        self,
        from_vlsn: int,
        to_vlsn: int,
        some: Callable[[LogReader, Vlsn, Lsn, int, int], _Run],
        keeps: object = None,
    ) -> Iterator[_Run]:
        """Yields one run of the log after another, until everything up to ``to_vlsn`` was read."""
        log = self._log
        epoch = log.view.index.epoch
        upto = log.view.range.last_sync
        at = Vlsn(from_vlsn) or log.view.range.first
        self._check_first(at)
        wanted = min(to_vlsn, upto) if to_vlsn else upto
        start: Lsn | None = None
        settled: tuple[Vlsn, int] | None = None
        """Set when a failed read is repeated: the VLSN, once all work that was under way at the failure is finished,
        and the number of rollbacks that had begun or ended by then."""
        with self._reader() as (reader, scanner):
            while at and at <= wanted:
                # After a rollback or a cleaning, positions and the ends of the log have changed.
                if epoch != log.view.index.epoch:
                    epoch, start = log.view.index.epoch, None
                    self._check_first(at)
                    upto = min(upto, log.view.range.last_sync)
                    wanted = min(wanted, upto)
                    continue
                if start is None:
                    # VLSNs after the covered ones are looked up in the tracker (in memory), whose last bucket still
                    # grows.
                    stored = at <= log.view.index.levels.covered
                    mapping = (scanner if stored else log.view.index).at_or_before(at)
                    if mapping is None:  # a cleaning or a rollback is just removing the VLSN to read
                        self._check_first(at)
                        wanted = min(wanted, log.view.range.last)
                        continue
                    start = mapping[1]
                try:
                    run = some(reader, at, start, upto, wanted)
                except (Damaged, OSError):
                    # A failed write may have destroyed the page in which it began; that page's frames are written again
                    # elsewhere. A rollback sets flags before it cuts the index, and only the index limits the read.
                    if settled == (at, log.view.rollbacks):
                        raise
                    try:
                        if log.view.rollbacks % 2:
                            self._calls.in_turn(lambda: None)
                        self._calls.sync()
                        settled = at, log.view.rollbacks - log.view.rollbacks % 2
                    except VlsnLogError:  # the log has closed or failed, so the failed read is the result
                        settled = at, log.view.rollbacks
                    start = None
                    continue
                if run.next_vlsn == at:
                    return
                yield run
                at, start = run.next_vlsn, run.next_lsn

    def _check_first(self, vlsn: int) -> None:
        first = self._log.view.range.first
        if vlsn < first:
            raise Trimmed(f"VLSN {vlsn} was cleaned away; the first is {first}", first=first)

    @contextmanager
    def _reader(self) -> Iterator[tuple[LogReader, ForwardScanner]]:
        """Lends a reader to the caller. When the caller is finished, the reader is kept for the next read, with its
        open segments and a bucket of the index."""
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._log.view.reader(segments_max=SEGMENTS_OPEN), ForwardScanner(self._log.view.index)
        try:
            yield reader
        finally:
            if len(self._readers) < READERS_KEPT and not self._log.life.closed:
                self._readers.append(reader)
            else:
                reader[0].close()


def _sealed_at(time_us: int, reader: LogReader, at: Vlsn, start: Lsn, upto: int, wanted: int) -> TimeRun:
    return reader.sealed_at(time_us, at, start=start, upto_vlsn=min(upto, wanted), bytes_max=LOOK_BYTES)
