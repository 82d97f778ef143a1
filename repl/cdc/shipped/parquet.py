"""Writes events to Parquet files, each event once, even after crashes.

    NAME.FIRST.part           an unfinished file: row groups are written as they fill
    NAME-FIRST-LAST.parquet   a published file (``folder``); it never changes again

The position is after the last published file. If the process ends, the events of an unfinished file are delivered
again, so cleaning keeps the log for them. So that cleaning need not wait long, a file is also closed by its age.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from repl.cdc.consumer import CdcContext, CdcEvent, CdcEvents, CdcPosition
from repl.cdc.shipped.file_consumer import FileConsumer
from repl.cdc.shipped.folder import PART, room
from repl.cdc.shipped.options import options_of
from repl.cdc_settings import ParquetOptions
from repl.files.parquet import SCHEMA, ParquetFile, Sink
from vlsn.seams import Disk

ENTRY_COST_BYTES: Final = 64
"""The overhead in bytes that is counted for each entry, in addition to its key and value."""
LOOK_S: Final = 1.0
"""Seconds between two checks of the unfinished file's age."""


class ParquetFiles(FileConsumer):
    """Writes events to Parquet files with the columns vlsn, term, time, txn, key, value."""

    def __init__(self, disk: Disk | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(disk, monotonic_s)
        self._sink: Sink | None = None
        self._writer: ParquetFile | None = None
        self._rows = self._bytes = 0
        self._waiting: list[CdcEvent] = []
        self._waiting_bytes = 0
        self._told = 0
        """The position that was last reported to the node."""

    def start(self, context: CdcContext) -> CdcPosition:
        self._options = options = options_of(ParquetOptions, context.options)
        self._open(context, options.directory, options.pattern + ".parquet", options.file_s)
        if self._folder.is_moved(context) or self._folder.published is None:
            with room(options.directory):
                self._folder.move(context)
        state = self._folder.published
        assert state is not None
        self._told = state.next
        self._watch(LOOK_S)
        return CdcPosition(state.next, state.term)

    def on_events(self, events: CdcEvents) -> bool | int:
        with self._call():
            for event in events:
                self._add(event)
            self._next, self._term = events.next_vlsn, events.term
            if self._is_full():
                self._publish()
            state = self._folder.published
            if state is None or state.next == self._told:
                return False
            self._told = state.next  # the thread may have closed a file by its age since the last call of the consumer
            return state.next

    def stop(self) -> None:
        """Publishes the unfinished file, so that its events need not be delivered again. A file that an earlier
        error left incomplete is not published."""
        self._overdue.close()
        with self._call():
            self._publish()
        self._folder.close()

    # The unfinished file.

    def _add(self, event: CdcEvent) -> None:
        if self._first is None:
            self._begin(event.vlsn, event.time)
        size = len(event.value) + len(event.key or b"") + ENTRY_COST_BYTES
        self._waiting.append(event)
        self._waiting_bytes += size
        self._last = event.vlsn
        self._rows += 1
        self._bytes += size
        if self._waiting_bytes >= self._options.group_bytes:
            self._write_group()

    def _is_full(self) -> bool:
        return self._rows >= self._options.file_rows or self._bytes >= self._options.file_bytes or self._is_old()

    def _part(self) -> str:
        assert self._first is not None
        return self._folder.name_of(self._first[0], PART)

    def _write_group(self) -> None:
        """Writes the waiting events as one row group."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._writer is None:
            self._sink = Sink(self._folder.new_file(self._part()))
            self._writer = ParquetFile(self._sink, self._options.compression)
        self._writer.write_group(_table(waiting))

    def _publish(self) -> None:
        if self._first is None:
            return
        if self._waiting:
            self._write_group()
        assert self._sink is not None and self._writer is not None
        self._writer.close()
        self._sink.output.close()
        self._put(self._part())
        self._writer = self._sink = None
        self._rows = self._bytes = 0


def _table(events: list[CdcEvent]) -> Any:
    return pa.table(
        [
            pa.array([event.vlsn for event in events], pa.int64()),
            pa.array([event.term for event in events], pa.int64()),
            pa.array([event.time for event in events], pa.timestamp("us", "UTC")),
            pa.array([event.txn or None for event in events], pa.int64()),
            pa.array([event.key for event in events], pa.binary()),
            pa.array([event.value for event in events], pa.binary()),
        ],
        schema=SCHEMA,
    )
