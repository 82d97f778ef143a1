"""Reads a log from the bytes of its disk, by offsets only, to compare a node with it.

It shares only the checksum and the names of files with the product; the few fields that it reads are those of
``docs/format.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from vlsn.format.checksum import crc
from vlsn.format.segment import segment_name
from vlsnlog.testing.fakes.disk import FakeDisk

Flips = Mapping[str, Mapping[int, int]]
"""The former value of each byte that rot changed, by path and offset."""
FIRST_FRAME = 4096
MAGIC = b"\x4c\x56"
FRAME_BYTES = 24
FLAGS = (0, 0xA5)
"""The flag of a visible frame and of an overmarked one; no checksum covers it."""
TAKEN = 2
_STATE = struct.Struct("<H")
_PREVIOUS = struct.Struct("<II")
_SYNCED = struct.Struct("<I")
_FRAME = struct.Struct("<2sBBI")
_BLOCK = struct.Struct("<4xIQQ")
_DTVLSN = struct.Struct("<24xQ")


class Block(NamedTuple):
    """One block by its name, and a value that stands for its content."""

    first: int
    last: int
    term: int
    check: int


def block_of(data: bytes) -> Block:
    count, term, first = _BLOCK.unpack_from(data)
    return Block(first, first + count - 1, term, crc32(data))


def visible(disk: FakeDisk, directory: str, flips: Flips | None = None) -> list[tuple[Block, int]]:
    """Returns every visible block of a log, as its disk reads, with its LSN, in the order of the log. A torn frame ends
    it; if a frame does not match its checksum, the bits in ``flips`` are restored first."""
    files = {int(path[-13:-5]): disk.content(path) for path in disk.files(directory) if path.endswith(".vlog")}
    found: list[tuple[Block, int]] = []
    segments = list(taken(files))
    for number, data, end in segments:
        path = f"{directory}/{segment_name(number)}"
        blocks, bad = _blocks(number, data, end)
        for offset, byte in sorted((flips or {}).get(path, {}).items()):
            if not bad:
                break
            if offset >= bad and data[offset] != byte:
                data = _put(data, offset, byte)
                blocks, bad = _blocks(number, data, end)
        assert not bad or number == segments[-1][0], f"{path}: nothing that can be read at {bad}"
        found += blocks
    return found


def said_synced(disk: FakeDisk, directory: str, lsn: int, flips: Flips) -> bool:
    """Says whether a readable record after ``lsn`` states that the bytes there were synced. Then they are damaged, and
    not a tail to be cut."""
    files = {int(path[-13:-5]): disk.content(path) for path in disk.files(directory) if path.endswith(".vlog")}
    number, start = lsn >> 32, lsn & 0xFFFF_FFFF
    segments = {each: data for each, data, _ in taken(files)}
    if max(segments) > number:
        return True
    now = right = segments[number]
    for offset, byte in flips.get(f"{directory}/{segment_name(number)}", {}).items():
        right = _put(right, offset, byte)
    at = start
    while right[at : at + 2] == MAGIC:
        _, _, _, length = _FRAME.unpack_from(right, at)
        end = at + FRAME_BYTES + (length + 7) // 8 * 8
        if at > start and now[at:end] == right[at:end] and _SYNCED.unpack_from(now, at + 12)[0] > start:
            return True
        at = end
    return False


def sound(disk: FakeDisk, directory: str, flips: Flips) -> bool:
    """Says whether all of a log can be read."""
    try:
        return visible(disk, directory) == visible(disk, directory, flips)
    except AssertionError:
        return False


def places(disk: FakeDisk, directory: str, flips: Flips | None = None) -> dict[Block, tuple[str, int, int]]:
    """Finds file, start and end of the payload of each visible block that can be read; with ``flips``, of those that
    could be read before these bytes were struck, too."""
    found: dict[Block, tuple[str, int, int]] = {}
    files = {int(path[-13:-5]): disk.content(path) for path in disk.files(directory) if path.endswith(".vlog")}
    for number in files:
        for offset, byte in (flips or {}).get(f"{directory}/{segment_name(number)}", {}).items():
            files[number] = _put(files[number], offset, byte)
    for number, data, end in taken(files):
        for start, stop in _payloads(data, end):
            found[block_of(data[start:stop])] = (f"{directory}/{segment_name(number)}", start, stop)
    return found


def said_durable(disk: FakeDisk, directory: str) -> int:
    """Returns the highest DTVLSN in a visible block: that node's durable end after any stop."""
    files = {int(path[-13:-5]): disk.content(path) for path in disk.files(directory) if path.endswith(".vlog")}
    said = (_DTVLSN.unpack_from(data, start)[0] for _, data, end in taken(files) for start, _ in _payloads(data, end))
    return max(said, default=0)


def first_of(disk: FakeDisk, directory: str) -> int:
    """Returns the first VLSN of a log; 0 without a block."""
    files = {int(path[-13:-5]): disk.content(path) for path in disk.files(directory) if path.endswith(".vlog")}
    for _, data, end in taken(files):
        for start, stop in _payloads(data, end):
            return block_of(data[start:stop]).first
    return 0


def _payloads(data: bytes, end: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of visible blocks, whatever is between them."""
    at = FIRST_FRAME
    while at < end and data[at : at + 2] == MAGIC:
        _, kind, flag, length = _FRAME.unpack_from(data, at)
        payload = at + FRAME_BYTES
        if kind == 1 and flag == 0 and _matches(data, at, length):
            yield payload, payload + length
        at = payload + (length + 7) // 8 * 8


def _matches(data: bytes, at: int, length: int) -> bool:
    payload = at + FRAME_BYTES
    summed = crc(data[at : at + 3] + data[at + 4 : at + 20] + data[payload : payload + length])
    return summed == int.from_bytes(data[at + 20 : payload], "little")


def _put(data: bytes, offset: int, byte: int) -> bytes:
    return data[:offset] + bytes([byte]) + data[offset + 1 :]


def _blocks(number: int, data: bytes, end: int) -> tuple[list[tuple[Block, int]], int]:
    """Returns the visible blocks up to the first bad frame, and its offset; 0 for none."""
    found: list[tuple[Block, int]] = []
    at = FIRST_FRAME
    while at < end and data[at : at + 2] == MAGIC:
        _, kind, flag, length = _FRAME.unpack_from(data, at)
        payload = at + FRAME_BYTES
        if flag not in FLAGS or not _matches(data, at, length):
            return found, at
        if kind == 1 and flag == 0:
            found.append((block_of(data[payload : payload + length]), number << 32 | at))
        at = payload + (length + 7) // 8 * 8
    return found, at if at < end and any(data[at : at + FRAME_BYTES]) else 0


def taken(files: Mapping[int, bytes]) -> Iterator[tuple[int, bytes, int]]:
    """Yields number, content and end of the log of each segment of the log."""
    ends = {}
    for data in files.values():
        if len(data) >= FIRST_FRAME and _STATE.unpack_from(data, 10)[0] == TAKEN:
            previous, end = _PREVIOUS.unpack_from(data, 40)
            ends[previous] = end
    for number, data in sorted(files.items()):
        if len(data) >= FIRST_FRAME and _STATE.unpack_from(data, 10)[0] == TAKEN:
            yield number, data, ends.get(number, len(data))


class Medium:
    """Searches the medium of one machine; a block is mostly found at or after the last one."""

    def __init__(self, disk: FakeDisk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self._near = ("", 0)

    def holds(self, block: bytes, flips: Flips) -> bool:
        """Says whether this block, not overmarked, is there, except for the bytes in ``flips``."""
        name, at = self._near
        near = self._disk.on_medium(f"{self._directory}/{name}")
        if near is not None and self._found(name, near, block, at):
            return True
        files = self._disk.medium(self._directory)
        names = sorted((name for name in files if name.endswith(".vlog")), reverse=True)
        return any(self._found(name, files[name], block, 0) for name in names) or any(
            self._found(name, self._righted(name, files[name], flips), block, 0)
            for name in names
            if f"{self._directory}/{name}" in flips
        )

    def _righted(self, name: str, data: bytearray, flips: Flips) -> bytearray:
        right = bytearray(data)
        for offset, byte in flips[f"{self._directory}/{name}"].items():
            if offset < len(right):
                right[offset] = byte
        return right

    def _found(self, name: str, data: bytearray, block: bytes, start: int) -> bool:
        if len(data) < FIRST_FRAME or _STATE.unpack_from(data, 10)[0] != TAKEN:
            return False
        at = data.find(block[:64], start)
        while at >= 0:
            if data[at : at + len(block)] == block and not data[at - FRAME_BYTES + 3]:
                self._near = name, at
                return True
            at = data.find(block[:64], at + 1)
        return False
