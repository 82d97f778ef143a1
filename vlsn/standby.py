"""The standby: the next segment, made and filled with zeros while the current one fills up.

Overwriting zeros that are already on the medium costs about half of writing into blocks that are merely
reserved, so the standby is zeroed in the background, a little ahead of how full the current segment is.
It has its final name and number, and a PREPARED header page; size, zeros and name are synced before it is
taken.  Taken early (``late``), its rest is reserved instead, and that is counted.

At an open a PREPARED segment without frames is deleted and its number is never used again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from vlsn.limits import FREE_BYTES_MIN, MIB
from vlsn.seams import Disk, File, Worker
from vlsn.segment import FIRST_FRAME, SegmentHeader, segment_name

ZERO_STEP_BYTES = MIB
ZERO_BURST_BYTES = 4 * MIB
_ZEROS = bytes(ZERO_STEP_BYTES)
_AHEAD = 1.3
_HEAD_START = 0.06


@dataclass(slots=True)
class Taken:
    """A standby that became the current segment; ``allocate`` when its zeros were not complete."""

    header: SegmentHeader
    file: File
    allocate: bool


class Standby:
    """Makes one segment ahead on the keeper's thread.  Called at home only, under the log latch, which it takes itself
    for what the keeper answers."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        keeper: Worker,
        latch: AbstractContextManager[object],
        *,
        on_ready: Callable[[], None],
        free_bytes_min: int = FREE_BYTES_MIN,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._keeper = keeper
        self._latch = latch
        self._on_ready = on_ready
        self._free_bytes_min = free_bytes_min
        self._header: SegmentHeader | None = None
        self._file: File | None = None
        self._zeroed = 0
        self._busy = False
        self._epoch = 0
        self.no_space = False
        self.failed: BaseException | None = None
        self.late = 0
        self._closed = False

    @property
    def ready(self) -> bool:
        """A segment can be taken now (zeroed or not)."""
        return self._file is not None

    @property
    def complete(self) -> bool:
        """Ready, and zeros to its end."""
        return self._file is not None and self._header is not None and self._zeroed >= self._header.size

    @property
    def number(self) -> int | None:
        return self._header.number if self._header is not None and self._file is not None else None

    def prepare(self, header: SegmentHeader) -> None:
        """Starts making the segment that ``header`` (PREPARED) describes."""
        assert self._file is None and not self._busy
        self._header = header
        self._zeroed = FIRST_FRAME
        self._busy = True
        self._epoch += 1
        self._keeper.submit(lambda: self._create(header), self._created, self._create_failed)

    def retry(self) -> None:
        """Once more after there was no space."""
        if self._header is not None and self._file is None and not self._busy:
            self.prepare(self._header)

    def pace(self, filled: float) -> None:
        """The current segment is ``filled`` (0–1): keeps the zeros a little further than that."""
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
            lambda: _fill(file, start, end),
            lambda _: self._filled(epoch, end),
            lambda error: self._fill_failed(epoch, error),
        )

    def take(self) -> Taken:
        """Hands the segment over, never while a step is being written: its zeros would fall on frames."""
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
        """A step is being written right now; the segment must not be taken under it."""
        return self._busy

    def discard(self) -> None:
        """What failed is closed and deleted, as far as the disk lets it; its number is not used again."""
        assert self.failed is not None and self._header is not None
        file, path = self._file, f"{self._directory}/{segment_name(self._header.number)}"
        self._file = self._header = self.failed = None
        self._epoch += 1

        def remove() -> None:
            if file is not None:
                file.close()
            if self._disk.exists(path):
                self._disk.remove(path)

        self._keeper.submit(remove, lambda _: None, lambda _: None)

    def close(self) -> None:
        """Behind whatever the keeper still does with it; what that ends as is of no interest any more."""
        self._closed = True
        self._epoch += 1
        file, self._file = self._file, None
        if file is not None:
            self._keeper.submit(file.close, lambda _: None, lambda _: None)

    def _create(self, header: SegmentHeader) -> File:
        if self._disk.free_bytes(self._directory) < header.size + self._free_bytes_min:
            raise OSError(errno.ENOSPC, "too little free space for the next segment")
        path = f"{self._directory}/{segment_name(header.number)}"
        if self._disk.exists(path):
            self._disk.remove(path)  # ours: a try that ran out of space
        file = self._disk.open(path, create=True)
        try:
            file.allocate(header.size)
            file.write(0, [header.encode()])
            file.sync()
            self._disk.sync_directory(self._directory)
        except OSError:
            file.close()
            self._disk.remove(path)
            raise
        return file

    def _created(self, file: File) -> None:
        with self._latch:
            self._busy = False
            self._file = file
            if self._closed:
                self.close()
                return
            self.no_space = False
            self._on_ready()

    def _create_failed(self, error: BaseException) -> None:
        with self._latch:
            self._busy = False
            if self._closed:
                return
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.no_space = True
            else:
                self.failed = error
            self._on_ready()

    def _filled(self, epoch: int, end: int) -> None:
        with self._latch:
            if epoch == self._epoch:
                self._busy = False
                self._zeroed = end
                self._on_ready()

    def _fill_failed(self, epoch: int, error: BaseException) -> None:
        with self._latch:
            if epoch == self._epoch:
                self._busy = False
                self.failed = error
                self._on_ready()


def _fill(file: File, start: int, end: int) -> None:
    at = start
    while at < end:
        size = min(ZERO_STEP_BYTES, end - at)
        file.write(at, [_ZEROS if size == ZERO_STEP_BYTES else _ZEROS[:size]])
        at += size
    file.sync()


def active(header: SegmentHeader, *, prev_number: int, prev_end: int, prev_last_vlsn: int) -> SegmentHeader:
    """The header that a standby gets when it is taken."""
    from vlsn.segment import SegmentState

    return replace(
        header, state=SegmentState.ACTIVE, prev_number=prev_number, prev_end=prev_end, prev_last_vlsn=prev_last_vlsn
    )
