"""The closing of a sealed segment: its sidecar, then its file.

A sidecar is derived.  It is written from what the writer knew while it wrote (so that a byte that the disk
changed later is found), or, for a segment that was opened again, from the file itself.
"""

from __future__ import annotations

import errno

import numpy as np

from vlsn.seams import Disk
from vlsn.segment import sidecar_name
from vlsn.sidecar import Sidecar
from vlsn.tail import Tail


def seal_segment(disk: Disk, directory: str, tail: Tail) -> None:
    """On the keeper's thread: the sidecar is durable and the file closed on return.  A segment without frames,
    or one whose running checksum is not known, gets none: whoever verifies reads it frame by frame."""
    tail.file.close()
    if tail.crc is None or not tail.offsets:
        return
    sidecar = Sidecar(
        number=tail.number,
        salt=tail.header.salt,
        first_vlsn=tail.first_vlsn,
        last_vlsn=tail.last_vlsn,
        end=tail.offset,
        entries=tail.entries,
        crc=tail.crc,
        offsets=np.array(tail.offsets, dtype=np.uint32),
    )
    try:
        write_sidecar(disk, directory, sidecar)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            raise
        _drop(disk, directory, tail.number)


def _drop(disk: Disk, directory: str, number: int) -> None:
    """No room, or no descriptor, for what can be done without."""
    temporary = f"{directory}/{sidecar_name(number)}.new"
    if disk.exists(temporary):
        disk.remove(temporary)


def write_sidecar(disk: Disk, directory: str, sidecar: Sidecar) -> None:
    """Under a name of its own first: a crash leaves the whole sidecar or none."""
    path = f"{directory}/{sidecar_name(sidecar.number)}"
    temporary = path + ".new"
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.write(0, [sidecar.encode()])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)
