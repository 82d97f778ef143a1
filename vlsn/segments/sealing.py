"""The closing of a sealed segment: its file, then its sidecar.

A sidecar is derived, and written as background work (``background``): a failure ends nothing.  It is made from
the writer's own figures, so that a byte that the disk changed later is found.  A segment without frames, or one whose
running checksum is unknown, gets none: verifiers read it frame by frame.
"""

from __future__ import annotations

from contextlib import closing, suppress

import numpy as np

from vlsn.format.segment import sidecar_name
from vlsn.format.sidecar import Sidecar
from vlsn.seams import Disk
from vlsn.segments.tail import Tail


class Sealing:
    """Closes one segment on the keeper's thread; called again after a failure, it goes on where that was."""

    def __init__(self, disk: Disk, directory: str, tail: Tail) -> None:
        self._disk = disk
        self._directory = directory
        self._tail: Tail | None = tail
        self._sidecar: Sidecar | None = None

    def __call__(self) -> None:
        """Closes the file and writes its sidecar, durable on return."""
        if self._tail is not None:
            self._sidecar = _sidecar(self._tail)
            self._tail.file.close()
            self._tail = None  # which holds much more than its sidecar
        if self._sidecar is None:
            return
        try:
            write_sidecar(self._disk, self._directory, self._sidecar)
        except OSError:
            with suppress(OSError):  # else the next try removes it
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
    """Writes the sidecar under a name of its own first: a crash leaves all of it or none."""
    path = f"{directory}/{sidecar_name(sidecar.number)}"
    temporary = path + ".new"
    if disk.exists(temporary):
        disk.remove(temporary)
    with closing(disk.open(temporary, create=True)) as file:
        file.write(0, [sidecar.encode()])
        file.sync()
    disk.rename(temporary, path)
    disk.sync_directory(directory)
