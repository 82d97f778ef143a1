"""The log as its bytes say: VLSN → (last VLSN, LSN) of every visible block, by offsets alone.

It shares no code with the product: the few fields that it reads are those of ``docs/format.md``.
"""

from __future__ import annotations

import struct

from vlsnlog.testing.fakes.disk import FakeDisk

Places = dict[int, tuple[int, int]]


def places(disk: FakeDisk, directory: str) -> Places:
    files = {int(name[:8]): disk.content(f"{directory}/{name}") for name in disk.list(directory) if name[8:] == ".vlog"}
    ends = {}
    for data in files.values():
        state, previous, end = struct.unpack_from("<H", data, 10)[0], *struct.unpack_from("<II", data, 40)
        if state == 2 and previous:
            ends[previous] = end
    found: Places = {}
    for number, data in sorted(files.items()):
        if struct.unpack_from("<H", data, 10)[0] == 2:
            found.update(_blocks(number, data, ends.get(number, len(data))))
    return found


def _blocks(number: int, data: bytes, end: int) -> Places:
    found: Places = {}
    at = 4096
    while at < end and data[at : at + 2] == b"\x4c\x56":
        kind, flag, length = data[at + 2], data[at + 3], struct.unpack_from("<I", data, at + 4)[0]
        if kind == 1 and flag == 0:
            count, first = (
                struct.unpack_from("<I", data, at + 24 + 4)[0],
                struct.unpack_from("<Q", data, at + 24 + 16)[0],
            )
            found[first] = first + count - 1, number << 32 | at
        at += 24 + (length + 7) // 8 * 8
    return found
