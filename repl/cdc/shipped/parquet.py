"""Events as Parquet files: each event once, whatever ends at whatever moment.

    NAME.FIRST.part           row groups, as they fill
    NAME-FIRST-LAST.parquet   published whole (``folder``); never changed again

The position is behind the last file that was published: what a part has when its process ends is given again, and so
the log is held for it.  That is why a file is closed by its age, too.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcPosition
from repl.cdc.shipped.folder import PART, Folder, room
from repl.cdc.shipped.names import FileNames
from repl.cdc.shipped.options import check_runs_on, options_of
from repl.cdc.shipped.overdue import Overdue
from repl.cdc_options import ON_NODE, ParquetOptions
from vlsn.real.disk import PosixDisk
from vlsn.seams import Disk, File

SCHEMA: Final = pa.schema(
    [
        pa.field("vlsn", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("txn", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""The columns that ``vlsnlog export`` writes."""
ENTRY_COST_BYTES: Final = 64
"""Bytes that each entry is counted with beside its own."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the age of the file."""


class ParquetFiles(CdcConsumer):
    """Writes events to Parquet files with the columns vlsn, term, time, txn, key, value."""

    def __init__(self, disk: Disk | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._disk = disk if disk is not None else PosixDisk()
        self._monotonic_s = monotonic_s
        self._sink: _Sink | None = None
        self._writer: Any = None
        self._first: CdcEvent | None = None
        self._last = 0
        self._rows = self._bytes = 0
        self._began_s = 0.0
        self._waiting: list[CdcEvent] = []
        self._waiting_bytes = 0
        self._next = self._term = 0
        self._told = 0
        """The position that the node was told last."""

    def start(self, context: CdcContext) -> CdcPosition | None:
        self._options = options = options_of(ParquetOptions, context.options)
        directory = options.directory.rstrip("/") or "/"
        check_runs_on(context, "node", ON_NODE)
        self._names = FileNames(options.pattern, ".parquet", context)
        self._folder = Folder(self._disk, directory, group=context.group, consumer=context.name)
        with room(directory):
            self._folder.open()
            if self._folder.is_moved(context) or self._folder.published is None:
                self._folder.move(context)
        state = self._folder.published
        assert state is not None
        self._told = state.next
        self._overdue = Overdue(self._close_old, LOOK_S)
        return CdcPosition(state.next, state.term)

    def on_events(self, events: CdcEvents) -> bool | int:
        with self._overdue.call(), room(self._options.directory):
            for event in events:
                self._add(event)
            self._next, self._term = events.next_vlsn, events.term
            if self._is_full():
                self._publish()
            state = self._folder.published
            if state is None or state.next == self._told:
                return False
            self._told = state.next  # also what was closed by its age since the last call
            return state.next

    def stop(self) -> None:
        """Closes the file that is being made, unless some of it failed: its events need not be given again."""
        self._overdue.close()
        with self._overdue.call(), room(self._options.directory):
            self._publish()
        self._folder.close()

    # The file that is being made.

    def _add(self, event: CdcEvent) -> None:
        if self._first is None:
            self._first, self._began_s = event, self._monotonic_s()
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

    def _is_old(self) -> bool:
        return self._first is not None and self._monotonic_s() - self._began_s >= self._options.file_s

    def _close_old(self) -> None:
        if self._is_old():
            with room(self._options.directory):
                self._publish()

    def _write_group(self) -> None:
        """Writes what waits as one row group."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._writer is None:
            assert self._first is not None
            part = self._folder.name_of(self._first.vlsn, PART)
            self._sink = _Sink(self._folder.file(part, create=True))
            self._writer = pq.ParquetWriter(
                self._sink,
                SCHEMA,
                compression=self._options.compression,
                use_dictionary=["term", "txn", "key"],
                write_statistics=["vlsn", "term", "time", "txn", "key"],
                sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index("vlsn"))],
            )
        self._writer.write_table(_table(waiting), row_group_size=len(waiting))

    def _publish(self) -> None:
        """Publishes the file that is being made, if there is one."""
        first = self._first
        if first is None:
            return
        if self._waiting:
            self._write_group()
        assert self._sink is not None
        self._writer.close()
        self._sink.file.sync()
        self._sink.file.close()
        name = self._names.of(first.vlsn, self._last, first.time)
        self._folder.publish(self._folder.name_of(first.vlsn, PART), name, next_vlsn=self._next, term=self._term)
        self._writer = self._sink = self._first = None
        self._rows = self._bytes = 0


class _Sink(io.RawIOBase):
    """A file as PyArrow writes to it."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.file.write(self._at, [view])
        self._at += len(view)
        return len(view)


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
