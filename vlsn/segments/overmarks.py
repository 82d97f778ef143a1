"""Overmarks. An overmark is a flag in a frame's header, which says that a rollback has abandoned the frame."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import groupby

from vlsn.format.frame import FLAG_AT, OVERMARKED
from vlsn.format.segment import segment_name, sidecar_name
from vlsn.ids import Lsn, lsn_file, lsn_offset
from vlsn.seams import Disk

_MARK = bytes([OVERMARKED])


def finish_rollback(disk: Disk, directory: str, frames: Sequence[Lsn]) -> None:
    """Does steps 2 and 3 of a rollback: sets the flags of the frames at ``frames`` (ascending). The flags are durable
    on return. Setting flags again does no harm."""
    voided = False
    for number in sorted({lsn_file(at) for at in frames}):
        path = f"{directory}/{sidecar_name(number)}"
        if disk.exists(path):
            disk.remove(path)
            voided = True
    if voided:
        disk.sync_directory(directory)
    for number, places in groupby(frames, lsn_file):
        with closing(disk.open(f"{directory}/{segment_name(number)}", write=True)) as file:
            for at in places:
                file.write(lsn_offset(at) + FLAG_AT, [_MARK])
            file.sync()
