"""Closes a sealed segment: first the segment's file is closed, then its sidecar (a file of frame offsets and a
checksum) is written.

A sidecar can be derived from its segment again. So a sidecar is written as background work (``background``), and a
failure does not make the log fail. The checksum in the sidecar is the one that the writer computed, so a byte that the
disk changes later is detected. A segment without frames gets no sidecar. A segment that was opened again gets no
sidecar either, since its running checksum is unknown. A verification reads a segment without a sidecar frame by frame.
"""

from __future__ import annotations

from contextlib import closing, suppress

import numpy as np

from vlsn.format.segment import sidecar_name
from vlsn.format.sidecar import Sidecar
from vlsn.seams import Disk
from vlsn.segments.tail import Tail


class Sealing:
    """Closes one segment on the keeper's thread (the log's background thread). A call after a failure continues with
    the step that failed."""

    def __init__(self, disk: Disk, directory: str, tail: Tail) -> None:
        self._disk = disk
        self._directory = directory
        self._tail: Tail | None = tail
        self._sidecar: Sidecar | None = None

    def __call__(self) -> None:
        """Closes the segment's file and writes its sidecar, which is durable on return."""
        if self._tail is not None:
            self._sidecar = _sidecar(self._tail)
            self._tail.file.close()
            self._tail = None  # free the memory of the tail, which is much larger than its sidecar
        if self._sidecar is None:
            return
        try:
            write_sidecar(self._disk, self._directory, self._sidecar)
        except OSError:
            with suppress(OSError):  # if this fails, the next try removes the file
                self._disk.remove(f"{self._directory}/{sidecar_name(self._sidecar.number)}.new")
            raise


def _sidecar(tail: Tail) -> Sidecar | None:
    if tail.crc is None or not tail.offsets:
        return None
    return Sidecar(
        number=tail.number,
        salt=tail.header.salt,
        first_vlsn=tail.first_vlsn,
        last_vlsn=tail.last_vlsn,
        end=tail.offset,
        entries=tail.entries,
        crc=tail.crc,
        offsets=np.array(tail.offsets, dtype=np.uint32),
    )


def write_sidecar(disk: Disk, directory: str, sidecar: Sidecar) -> None:
    """Writes the sidecar under a temporary name first, so that a crash leaves either the complete file or none."""
    path = f"{directory}/{sidecar_name(sidecar.number)}"
    temporary = path + ".new"
    if disk.exists(temporary):
        disk.remove(temporary)
    with closing(disk.open(temporary, create=True)) as file:
        file.write(0, [sidecar.encode()])
        file.sync()
    disk.rename(temporary, path)
    disk.sync_directory(directory)
