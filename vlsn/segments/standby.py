"""The standby: the next segment, which is made and filled with zeros while frames are written to the current segment.

Overwriting zeros on the medium costs about half as much as writing to disk space that is merely reserved. So the
standby is zeroed in the background, always a little further than the current segment is filled. The standby has its
final name and number, and a PREPARED header page. The standby's size, zeros and name are synced before it is used. If
the standby is needed before all of it is zeroed (``late``), the rest of its disk space is reserved instead, and the
case is counted.

If making a standby fails, it is deleted, and another is made (``background``). After a failure to zero a standby, the
next standby is used only once it is zeroed to its end. If zeros cannot be written to a file, neither can frames.

The opening of a log deletes a PREPARED segment without frames. The number of a deleted segment is never used again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial

from vlsn.format.segment import FIRST_FRAME, SegmentHeader, segment_name
from vlsn.limits import FREE_BYTES_MIN, MIB
from vlsn.seams import Disk, File, Worker

ZERO_STEP_BYTES = MIB
ZERO_BURST_BYTES = 4 * MIB
_ZEROS = bytes(ZERO_STEP_BYTES)
_AHEAD = 1.3
_HEAD_START = 0.06
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class Taken:
    """A standby that has become the current segment. ``allocate`` is true if it was not zeroed to its end."""

    header: SegmentHeader
    file: File
    allocate: bool


class Standby:
    """Makes one segment before it is needed, on the keeper's thread (the log's background thread). The methods are
    called on the owner's thread only, under the log's latch. The keeper's callbacks acquire the latch themselves."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        keeper: Worker,
        latch: AbstractContextManager[object],
        *,
        on_ready: Callable[[], None],
        on_failure: Callable[[BaseException, str], None],
        free_bytes_min: int = FREE_BYTES_MIN,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._keeper = keeper
        self._latch = latch
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._free_bytes_min = free_bytes_min
        self._header: SegmentHeader | None = None
        self._file: File | None = None
        self._zeroed = 0
        self.ahead_to = 0.0
        """The fill level of the current segment (0–1) for which the standby is zeroed far enough."""
        self._busy = False
        self._epoch = 0
        self._thrown_away = ""
        """The path of a file that could not be removed yet. Until this file is removed, no other segment file is made,
        since files that cannot be removed would fill the disk. Only the keeper's thread uses ``_thrown_away``."""
        self.no_space = False
        self.proving = False
        """True after zeros could not be written to the last standby."""
        self.late = 0
        self._closed = False

    @property
    def ready(self) -> bool:
        """True if there is a standby, zeroed or not."""
        return self._file is not None

    @property
    def complete(self) -> bool:
        """True if the standby is ready and zeroed to its end."""
        return self._file is not None and self._header is not None and self._zeroed >= self._header.size

    @property
    def usable(self) -> bool:
        """True if the standby may be used now. A standby may not be used while zeros are being written, since the zeros
        could overwrite frames."""
        return self.complete if self.proving else self.ready and not self.zeroing

    @property
    def number(self) -> int | None:
        return self._header.number if self._header is not None and self._file is not None else None

    def prepare(self, header: SegmentHeader) -> None:
        """Starts to make the segment that ``header`` (PREPARED) describes."""
        assert self._file is None and not self._busy
        self._header = header
        self._zeroed, self.ahead_to = FIRST_FRAME, 0.0
        self._busy = True
        self._epoch += 1
        self._keeper.submit(partial(self._create, header), self._created, partial(self._create_failed, header))

    def retry(self) -> None:
        """Tries again to make a standby, after the disk was full."""
        if self._header is not None and self._file is None and not self._busy:
            self.prepare(self._header)

    def pace(self, filled: float) -> None:
        """Zeroes the standby a little further than the current segment is ``filled`` (0–1)."""
        file, header = self._file, self._header
        if file is None or header is None or self._busy or self._zeroed >= header.size:
            return
        target = min(header.size, int(header.size * (filled * _AHEAD + _HEAD_START)))
        if target <= self._zeroed:
            return
        start, end = self._zeroed, min(header.size, max(target, self._zeroed + ZERO_STEP_BYTES))
        end = min(end, start + ZERO_BURST_BYTES)
        self._busy = True
        epoch = self._epoch
        self._keeper.submit(
            partial(_fill, file, start, end),
            lambda _: self._filled(epoch, end, header.size),
            lambda error: self._fill_failed(epoch, file, header, error),
        )

    def take(self) -> Taken:
        """Returns the standby, which must be usable, as the new current segment."""
        assert self._file is not None and self._header is not None and not self.zeroing
        allocate = self._zeroed < self._header.size
        self.late += allocate
        taken = Taken(self._header, self._file, allocate)
        self._file = None
        self._header = None
        self._epoch += 1
        return taken

    @property
    def zeroing(self) -> bool:
        """True while zeros are being written to the standby. The standby must not be used while this is true."""
        return self._busy

    def close(self) -> None:
        """Closes the standby, after the keeper's thread has finished its job on it."""
        self._closed = True
        self._epoch += 1
        file, self._file = self._file, None
        if file is not None:
            self._keeper.submit(file.close, lambda _: None, lambda _: None)

    def _create(self, header: SegmentHeader) -> File:
        if self._thrown_away:
            with suppress(FileNotFoundError):
                self._disk.remove(self._thrown_away)
            self._thrown_away = ""
        free = None
        with suppress(OSError):  # ``FreeSpace`` reports this error; without free space the reservation below fails, too
            free = self._disk.free_bytes(self._directory)
        if free is not None and free < header.size + self._free_bytes_min:
            raise OSError(errno.ENOSPC, "too little free space for the next segment")
        path = f"{self._directory}/{segment_name(header.number)}"
        if self._disk.exists(path):
            self._disk.remove(path)  # the file was made by this node, in a try that ran out of space
        file = self._disk.open(path, create=True)
        try:
            file.allocate(header.size)
            file.write(0, [header.encode()])
            file.sync()
            self._disk.sync_directory(self._directory)
        except OSError:
            file.close()
            self._throw_away(path)
            raise
        return file

    def _close_and_throw_away(self, file: File, name: str) -> None:
        file.close()
        self._throw_away(f"{self._directory}/{name}")

    def _throw_away(self, path: str) -> None:
        """Removes a file that is not needed, on the keeper's thread."""
        self._thrown_away = ""
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass
        except OSError:
            self._thrown_away = path

    def _created(self, file: File) -> None:
        with self._latch:
            self._busy = False
            self._file = file
            if self._closed:
                self.close()
                return
            self.no_space &= self.proving
            self._on_ready()

    def _create_failed(self, header: SegmentHeader, error: BaseException) -> None:
        with self._latch:
            self._busy = False
            if self._closed:
                return
            if isinstance(error, OSError) and error.errno in _FULL:
                self.no_space = True
                self._on_ready()
            else:
                self._header = None
                self.no_space = False
                self._on_failure(error, segment_name(header.number))

    def _filled(self, epoch: int, end: int, size: int) -> None:
        with self._latch:
            if epoch == self._epoch:
                self._busy = False
                self._zeroed = end
                self.ahead_to = (end / size - _HEAD_START) / _AHEAD
                if self.complete:
                    self.ahead_to = 1.0
                    self.proving = self.no_space = False
                self._on_ready()

    def _fill_failed(self, epoch: int, file: File, header: SegmentHeader, error: BaseException) -> None:
        with self._latch:
            if epoch != self._epoch:
                return
            self._busy = False
            self._file = self._header = None
            self._epoch += 1
            self.proving = True
            self.no_space = isinstance(error, OSError) and error.errno in _FULL
            name = segment_name(header.number)
            self._keeper.submit(partial(self._close_and_throw_away, file, name), lambda _: None, lambda _: None)
            self._on_failure(error, name)


def _fill(file: File, start: int, end: int) -> None:
    at = start
    while at < end:
        size = min(ZERO_STEP_BYTES, end - at)
        file.write(at, [_ZEROS if size == ZERO_STEP_BYTES else _ZEROS[:size]])
        at += size
    file.sync()


def active(header: SegmentHeader, *, prev_number: int, prev_end: int, prev_last_vlsn: int) -> SegmentHeader:
    """Returns the header that a standby gets when it becomes the current segment."""
    from vlsn.format.segment import SegmentState

    return replace(
        header, state=SegmentState.ACTIVE, prev_number=prev_number, prev_end=prev_end, prev_last_vlsn=prev_last_vlsn
    )
