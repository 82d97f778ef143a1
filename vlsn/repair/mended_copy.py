"""Replaces a damaged segment with a copy in which the damage is filled.

    1  the segment is copied with the new frames in place; the copy is synced, and its new bytes are read back
    2  the damaged bytes are kept in a file; a sidecar that does not match the copy is removed
    3  the copy is renamed over the segment, the directory synced                            ◄ commit point

If the mending is stopped before step 3, the segment is as damaged as it was. A reader that has the old file open still
finds the damage, until that reader opens the segment again.

The disk may fail to read some 4 KiB of a file now and succeed a moment later. So a place that the disk cannot read may
be replaced only by the right blocks. If several places of one segment cannot be read, one copy fills all of them, or no
copy is made. Damaged bytes are replaced only if they still read exactly as when the damage was found.

The functions block, and run on the keeper's thread (the log's background thread). During a mending no rollback,
checkpoint or cleaning runs, and nothing writes to the segment.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import closing

from vlsn.errors import BadBody, Damaged, NoSpace
from vlsn.format.checksum import crc
from vlsn.format.segment import segment_name, sidecar_name
from vlsn.format.sidecar import SIDECAR_BYTES_MAX, Sidecar
from vlsn.limits import MENDED_KEPT_MAX, MIB
from vlsn.repair.mending import Filling, Wound
from vlsn.seams import Disk, File
from vlsn.segments.bad_sectors import is_unread, read_given
from vlsn.segments.cut_bytes import free_name
from vlsn.segments.reader import SegmentFile

COPY_SUFFIX = ".mend"
_COPY_BYTES = MIB


def mend(
    disk: Disk,
    directory: str,
    fillings: Sequence[Filling],
    *,
    free_bytes_min: int,
    kept_max: int = MENDED_KEPT_MAX,
) -> list[str]:
    """Replaces the damaged bytes of one segment with ``fillings``. The change is durable on return. Returns the names
    of the files that keep the damaged bytes. Raises ``NoSpace``, or ``Damaged`` if the copy does not read back
    correctly. Raises ``OSError`` if the disk cannot read a place outside of the fillings, or reads the damaged bytes
    differently than before."""
    wound = fillings[0].wound
    path = f"{directory}/{wound.name}"
    copy = path + COPY_SUFFIX
    for name in disk.list(directory):
        if name.endswith(COPY_SUFFIX):
            disk.remove(f"{directory}/{name}")
    with closing(SegmentFile(disk, directory, wound.number, around=wound.around)) as source:
        size = source.header.size
        if disk.free_bytes(directory) < size + free_bytes_min:
            raise NoSpace(f"no room for a copy of {wound.name} ({size} bytes), which is damaged")
        sidecar, checksum = _read_sidecar(disk, directory, wound.number), 0
        with closing(disk.open(copy, create=True)) as file:
            file.allocate(size)
            for at in range(0, size, _COPY_BYTES):
                piece = bytearray(_read_but(source.file, at, min(_COPY_BYTES, size - at), fillings))
                # the file was cut short, so zeros replace the missing bytes
                piece.extend(bytes(min(_COPY_BYTES, size - at) - len(piece)))
                _fill(piece, at, fillings)
                file.write(at, [piece])
                if sidecar is not None:
                    checksum = crc(memoryview(piece)[: max(0, sidecar.end - at)], checksum)
            file.sync()
            file.drop_cache()
            _check_copy(file, fillings)
            if sidecar is None or checksum != sidecar.crc:
                _void_sidecar(disk, directory, wound.number)
    kept = [_keep_aside(disk, directory, filling.wound, kept_max) for filling in fillings]
    disk.rename(copy, path)
    disk.sync_directory(directory)
    return kept


def _read_but(file: File, at: int, size: int, fillings: Sequence[Filling]) -> bytes:
    """Reads like ``File.read``. A place that the disk cannot read must be covered by one of ``fillings``, or be after
    the log's end."""
    try:
        return file.read(at, size)
    except OSError as error:
        if not is_unread(error):
            raise
        data, unread = read_given(file, at, size)
        for place in unread:
            if not any(_covers(filling.wound, *place) for filling in fillings):
                raise
        return data


def _covers(wound: Wound, start: int, end: int) -> bool:
    """Returns whether bytes ``start`` to ``end`` (exclusive) contain no part of the log outside of ``wound``."""
    end = min(end, wound.log_end)
    return wound.around and (start >= end or (wound.start <= start and end <= wound.end))


def _fill(piece: bytearray, base: int, fillings: Sequence[Filling]) -> None:
    """Copies the fillings into ``piece``. Bytes that the disk can read again are not replaced, since they may be right:
    the function raises ``OSError`` instead."""
    for filling in fillings:
        wound = filling.wound
        low, high = max(base, wound.start), min(base + len(piece), wound.start + len(wound.data))
        if low < high and piece[low - base : high - base] != wound.data[low - wound.start : high - wound.start]:
            raise OSError(errno.EIO, f"{wound.name} at {wound.start} reads differently than a moment ago")
        filling.lay(piece, base)


def _check_copy(file: File, fillings: Sequence[Filling]) -> None:
    for filling in fillings:
        wound = filling.wound
        if file.read(wound.start, wound.bytes) != filling.data:
            text = f"the mended copy of {wound.name} does not read back"
            raise Damaged(text, file=wound.name, offset=wound.start)


def _read_sidecar(disk: Disk, directory: str, number: int) -> Sidecar | None:
    """Reads the sidecar of segment ``number``. Returns None if the sidecar is missing or unreadable."""
    path = f"{directory}/{sidecar_name(number)}"
    if not disk.exists(path):
        return None
    with closing(disk.open(path)) as file:
        try:
            return Sidecar.decode(file.read(0, min(file.size(), SIDECAR_BYTES_MAX)))
        except BadBody:
            return None


def _void_sidecar(disk: Disk, directory: str, number: int) -> None:
    """Removes the sidecar of segment ``number`` durably. A sidecar is removed if the ``synced`` field of a frame has
    changed, or if the sidecar could not be read."""
    path = f"{directory}/{sidecar_name(number)}"
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def damaged_name(number: int, offset: int) -> str:
    return f"{segment_name(number)[:-5]}.damaged-{offset}"


def _keep_aside(disk: Disk, directory: str, wound: Wound, kept_max: int) -> str:
    """Writes the damaged bytes durably to a file of their own, and returns the file's name. At most ``kept_max`` files
    of damaged bytes are kept. The files of the oldest segments are removed first."""
    kept = sorted(name for name in disk.list(directory) if ".damaged-" in name)
    for name in kept[: max(0, len(kept) + 1 - kept_max)]:
        disk.remove(f"{directory}/{name}")
    path = free_name(disk, f"{directory}/{damaged_name(wound.number, wound.start)}")
    with closing(disk.open(path, create=True)) as file:
        file.write(0, [wound.data])
        file.sync()
    disk.sync_directory(directory)
    return path.rpartition("/")[2]
