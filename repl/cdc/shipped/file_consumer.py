"""The base of consumers that write files into one directory. The files themselves show which events they contain.

An unfinished file is published (``folder``) once it is full or old; a thread checks its age. A file's name is made
from a pattern with placeholders. ``{first}`` and ``{last}`` are VLSNs of 20 digits. ``{date}`` and ``{hour}`` are
the date and hour of the first event in UTC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from repl.cdc.consumer import CdcConsumer, CdcContext
from repl.cdc.shipped.folder import Folder, room
from repl.cdc.shipped.options import check_runs_on
from repl.cdc.shipped.overdue import Overdue
from repl.cdc_settings import ON_NODE, PATTERN_PLACE
from vlsn.real.disk import PosixDisk
from vlsn.seams import Disk

TIME_US_MAX = 253_402_300_799_000_000
"""The last second of year 9999."""


class FileConsumer(CdcConsumer):
    """Writes one file after another. A subclass defines how a file is published (``_publish``)."""

    def __init__(self, disk: Disk | None = None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._disk = disk if disk is not None else PosixDisk()
        self._monotonic_s = monotonic_s
        self._first: tuple[int, int] | None = None
        """The VLSN and the time of the first event of the unfinished file, or None if there is no unfinished file."""
        self._last = 0
        self._began_s = 0.0
        self._next = self._term = 0

    def _open(self, context: CdcContext, directory: str, pattern: str, file_s: float) -> None:
        """Opens the directory. A file counts as old ``file_s`` seconds after its first event. Raises
        ``BadArgument``, ``Damaged``, ``CdcUnavailable``."""
        check_runs_on(context, "node", ON_NODE)
        self._pattern, self._file_s = pattern, file_s
        self._places = {"consumer": context.name, "node": context.node, "group": context.group}
        self._folder = Folder(self._disk, directory.rstrip("/") or "/", group=context.group, consumer=context.name)
        with room(directory):
            self._folder.open()

    def _watch(self, look_s: float) -> None:
        """Starts the thread that publishes old files; it checks every ``look_s`` seconds."""
        self._overdue = Overdue(self._close_old, look_s)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A context for one call from the node, in which no file is published by age. Raises an earlier error of the
        publishing thread, and ``CdcUnavailable``."""
        with self._overdue.call(), room(self._folder.path):
            yield

    def _is_old(self) -> bool:
        return self._first is not None and self._monotonic_s() - self._began_s >= self._file_s

    def _close_old(self) -> None:
        if self._is_old():
            with room(self._folder.path):
                self._publish()

    def _begin(self, vlsn: int, time_us: int) -> None:
        self._first, self._began_s = (vlsn, time_us), self._monotonic_s()

    def _publish(self) -> None:
        """Publishes the unfinished file, if there is one."""
        raise NotImplementedError

    def _put(self, part: str) -> None:
        """Publishes the unfinished file ``part``, which must be synced already."""
        assert self._first is not None
        first, time_us = self._first
        at = datetime.fromtimestamp(min(time_us, TIME_US_MAX) // 1_000_000, UTC)
        places = {"first": f"{first:020}", "last": f"{self._last:020}", "date": f"{at:%Y-%m-%d}", "hour": f"{at:%H}"}
        name = PATTERN_PLACE.sub(lambda place: (self._places | places)[place[1]], self._pattern)
        self._folder.publish(part, name, next_vlsn=self._next, term=self._term)
        self._first = None
