"""Writes events as lines of JSON to files that rotate, each event once, even after crashes.

    NAME.FIRST.open           the open file: lines are synced before the position after them is reported as stored
    NAME-FIRST-LAST.jsonl     a rotated file; it never changes again

1. The files themselves show the position: it is after the last complete line. Bytes that a crash left after the last
   complete line are removed before the first event is delivered; they were never reported as stored.
2. If a line that was reported as stored cannot be read back, that line and all later lines are delivered again. The
   damaged file is kept as ``NAME.FIRST.damaged``.
3. A rotation publishes the open file (``folder``), and the next event begins a new file.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from repl.cdc.consumer import CdcContext, CdcEvents, CdcPosition
from repl.cdc.shipped.file_consumer import FileConsumer
from repl.cdc.shipped.folder import OPEN, PART, room
from repl.cdc.shipped.options import options_of
from repl.cdc_settings import JsonLinesOptions
from repl.web import ndjson
from vlsn.format.records import JSON_FAULTS
from vlsn.limits import MIB
from vlsn.seams import Disk, File

READ_BYTES: Final = MIB
LINE_BYTES_MAX: Final = 8 * MIB
"""The longest line: an entry of the largest size in base64, with room to spare."""
LOOK_S: Final = 1.0
"""Seconds between two checks of the open file's age."""
DAMAGED: Final = "damaged"


class _Row(ndjson.Printed, gc=False):
    """The fields of a line from which the position is determined."""

    vlsn: int = 0
    term: int = 0
    time: int = 0


class _Found(NamedTuple):
    """The contents of an open file: the size of its complete lines, its first and its last event, and whether other
    bytes follow the complete lines."""

    size: int
    first: _Row
    last: _Row
    torn: bool


class JsonLines(FileConsumer):
    """Writes events as lines of JSON, as ``vlsnlog read --format json`` prints them. Events of a transaction also have
    ``txn``."""

    def __init__(self, disk: Disk | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(disk, monotonic_s)
        self._file: File | None = None
        self._name = ""
        self._size = 0

    def start(self, context: CdcContext) -> CdcPosition:
        self._options = options = options_of(JsonLinesOptions, context.options)
        self._gzip = options.compress == "gzip"
        pattern = options.pattern + (".jsonl.gz" if self._gzip else ".jsonl")
        self._open(context, options.directory, pattern, options.rotate_s)
        with room(options.directory):
            self._next, self._term = own = self._found(context)
            if self._folder.is_moved(context):
                self._publish()
                self._folder.move(context)
                self._next, self._term = own = CdcPosition(context.next, context.position_term)
        self._watch(LOOK_S)
        return own

    def on_events(self, events: CdcEvents) -> bool:
        with self._call():
            taken = list(events)
            if not taken:
                return False
            if self._file is None:
                self._begin(taken[0].vlsn, taken[0].time)
                self._name = self._folder.name_of(taken[0].vlsn, OPEN)
                self._file, self._size = self._folder.file(self._name, create=True), 0
                self._folder.sync()
            lines = ndjson.encode(taken, kinds=False, txns=True)
            self._file.write(self._size, [lines])
            self._file.sync()
            self._size += len(lines)
            self._last = taken[-1].vlsn
            self._next, self._term = events.next_vlsn, events.term
            if self._rotates():
                self._publish()
            return True

    def stop(self) -> None:
        self._overdue.close()
        if self._file is not None:
            self._file.close()
        self._folder.close()

    # The open file.

    def _rotates(self) -> bool:
        return self._size >= self._options.rotate_bytes

    def _publish(self) -> None:
        file, first, part = self._file, self._first, self._name
        if file is None or first is None:
            return
        if self._gzip:
            part = self._folder.name_of(first[0], PART)
            self._folder.write(part, _packed(_pieces(file, self._size)))
        file.close()
        self._file = None
        self._put(part)
        if self._gzip:
            self._folder.remove(self._name)

    # After a crash.

    def _found(self, context: CdcContext) -> CdcPosition:
        """Returns the position that the files show. Continues with the open file, and removes the incomplete line
        that a crash left."""
        state = self._folder.published
        own = CdcPosition(state.next, state.term) if state is not None else CdcPosition(0, 0)
        whole = True
        for begins in sorted(self._folder.unfinished(OPEN)):
            name = self._folder.name_of(begins, OPEN)
            if begins < own.next:  # the file was published, and its published copy is compressed
                self._folder.remove(name)
                continue
            file = self._folder.file(name)
            found = self._read(file)
            own = CdcPosition(begins, 0) if found is None else CdcPosition(found.last.vlsn + 1, found.last.term)
            whole = found is not None and not found.torn
            if not whole and own.next < context.next:
                self._folder.write(f"{name.removesuffix(OPEN)}{DAMAGED}", _pieces(file, file.size()))
            if found is None:
                file.close()
                self._folder.remove(name)
                continue
            if found.torn:  # the file is rewritten as a new one, because any bytes may follow the complete lines
                part = name.removesuffix(OPEN) + PART
                self._folder.write(part, _pieces(file, found.size))
                file.close()
                self._folder.rename(part, name)
                self._folder.sync()
                file = self._folder.file(name)
            self._file, self._name, self._size, self._last = file, name, found.size, found.last.vlsn
            self._begin(found.first.vlsn, found.first.time)
        if whole and own.next < context.next:  # only the log's own entries are between the two positions
            return CdcPosition(context.next, context.position_term)
        return own

    def _read(self, file: File) -> _Found | None:
        """Reads lines from the start up to the first line that is incomplete or out of order. Returns None if no
        line is complete."""
        size, first, last = 0, None, None
        for line in _lines(file):
            row = _row(line)
            if row is None or (last is not None and row.vlsn <= last.vlsn):
                break
            first, last = first or row, row
            size += len(line)
        if first is None or last is None:
            return None
        return _Found(size, first, last, size < file.size())


def _pieces(file: File, size: int) -> Iterator[bytes]:
    """Yields the first ``size`` bytes of ``file`` in pieces."""
    for offset in range(0, size, READ_BYTES):
        yield file.read(offset, min(READ_BYTES, size - offset))


def _packed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    yield from map(packer.compress, pieces)
    yield packer.flush()


def _lines(file: File) -> Iterator[bytes]:
    """Yields lines with their line ends. The last line may have no line end."""
    rest = b""
    for piece in _pieces(file, file.size()):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) > LINE_BYTES_MAX:
            break
    if rest:
        yield rest


_decoder: Final = msgspec.json.Decoder(_Row)


def _row(line: bytes) -> _Row | None:
    if not line.endswith(b"}\n") or b"\0" in line:  # bytes that were never written to the disk read as zeros
        return None
    try:
        row = _decoder.decode(line)
    except JSON_FAULTS:
        return None
    return row if row.vlsn > 0 else None
