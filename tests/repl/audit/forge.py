"""A forge of faults: it edits a copied log's bytes from ``docs/format.md`` alone, and shares no code with the product.

    forge = Forge(path)                       a stopped node's directory
    block = forge.block(17)                   the block that VLSN 17 lies in
    forge.put(block, "dtvlsn", 3)             with its header, body and frame checksums made right again

Whatever is edited has no sidecar afterwards, as if it had never been written: a sidecar may be missing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb

PAGE = 4096
BLOCK, CHECKPOINT_START, CHECKPOINT_END, ROLLBACK_START, ROLLBACK_END = 1, 2, 3, 4, 5
OVERMARKED = 0xA5
DATA, TERM, GROUP, COMMIT = 0, 1, 2, 3
KINDS, TXNS, PRODUCERS, KEYS = 1, 2, 4, 8
FIELDS = {
    "version": ("<B", 0),
    "flags": ("<B", 1),
    "kind": ("<B", 2),
    "count": ("<I", 4),
    "term": ("<Q", 8),
    "first_vlsn": ("<Q", 16),
    "dtvlsn": ("<Q", 24),
    "clock_us": ("<Q", 32),
    "submissions": ("<I", 40),
    "key_bytes": ("<I", 44),
    "value_bytes": ("<I", 48),
    "body_bytes": ("<I", 52),
    "body_crc": ("<I", 56),
    "header_crc": ("<I", 60),
}
RECORDS = {
    CHECKPOINT_START: ("id", "first_vlsn", "last_vlsn", "dtvlsn", "clock_us"),
    CHECKPOINT_END: ("id", "start_lsn", "flags", "first_vlsn", "last_vlsn", "dtvlsn", "clock_us"),
    ROLLBACK_START: ("matchpoint", "matchpoint_lsn", "first_lsn", "end_lsn", "last_vlsn", "clock_us"),
    ROLLBACK_END: ("start_lsn", "clock_us"),
}


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes, seed: int = 0) -> int:
    """Computes CRC-32C, the polynomial of Castagnoli, a byte at a time."""
    total = seed ^ 0xFFFFFFFF
    for byte in data:
        total = _TABLE[(total ^ byte) & 0xFF] ^ total >> 8
    return total ^ 0xFFFFFFFF


def entry_digest(value: bytes, key: bytes = b"") -> str:
    """Computes the digest of an entry that a history names, as ``docs/audit.md`` has it."""
    said = len(key).to_bytes(4, "little") + key + value
    return f"{crc32c(said):08x}{crc32(said):08x}"


def forged(block: bytes, at: int, data: bytes) -> bytes:
    """Returns the block with ``data`` at ``at`` in place of what is there, and 8 bytes behind it such that the block's
    CRC-32C and CRC-32 are what they were: both are linear, so 64 bits are found by elimination."""
    changed = block[:at] + data + block[at + len(data) :]
    free, rest = at + len(data), len(block) - at - len(data)

    def sums(mask: bytes) -> int:
        """Returns how both checksums change when ``mask`` is laid over the block's end."""
        zeros = bytes(len(mask))
        return (crc32c(mask) ^ crc32c(zeros)) << 32 | crc32(mask) ^ crc32(zeros)

    wanted = sums(bytes(map(int.__xor__, changed, block)))
    rows: list[tuple[int, int]] = []
    for bit in range(64):
        image, bits = sums((1 << bit).to_bytes(8, "little") + bytes(rest - 8)), 1 << bit
        for lead, (had, which) in ((row[0].bit_length(), row) for row in rows):
            if image >> (lead - 1) & 1:
                image, bits = image ^ had, bits ^ which
        if image:
            rows.append((image, bits))
            rows.sort(reverse=True)
    chosen = 0
    for had, which in rows:
        if wanted >> (had.bit_length() - 1) & 1:
            wanted, chosen = wanted ^ had, chosen ^ which
    assert not wanted
    mended = bytes(map(int.__xor__, changed[free : free + 8], chosen.to_bytes(8, "little")))
    return changed[:free] + mended + changed[free + 8 :]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of segment ``number``: where it begins, its header's fields and its payload."""

    number: int
    offset: int
    kind: int
    flag: int
    payload: bytes

    @property
    def size(self) -> int:
        return 24 + -(-len(self.payload) // 8) * 8

    def get(self, name: str) -> int:
        if self.kind != BLOCK:
            return int(struct.unpack_from("<Q", self.payload, 8 * RECORDS[self.kind].index(name))[0])
        form, at = FIELDS[name]
        return int(struct.unpack_from(form, self.payload, at)[0])

    @property
    def first(self) -> int:
        return self.get("first_vlsn")

    @property
    def last(self) -> int:
        return self.first + self.get("count") - 1

    @property
    def visible(self) -> bool:
        return self.kind == BLOCK and not self.flag


class Forge:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {int(file.stem): file for file in sorted(path.glob("*.vlog"))}

    def salt(self, number: int) -> int:
        return int(struct.unpack_from("<I", self.files[number].read_bytes(), 12)[0])

    def active(self) -> list[int]:
        """Returns the numbers of the segments that were taken, ascending; standbys are left out."""
        return [
            number for number, file in self.files.items() if struct.unpack_from("<H", file.read_bytes(), 10)[0] == 2
        ]

    def end_of(self, number: int) -> int:
        """Returns where the log of a segment ends, as the next header says; else the file's size."""
        for after in self.active():
            data = self.files[after].read_bytes()[:PAGE]
            if struct.unpack_from("<I", data, 40)[0] == number:
                return int(struct.unpack_from("<I", data, 44)[0])
        return self.files[number].stat().st_size

    def frames(self, number: int | None = None) -> Iterator[Frame]:
        """Yields the frames of a segment, or of all, in the order of the log."""
        for each in self.active() if number is None else [number]:
            data, salt, at, end = self.files[each].read_bytes(), self.salt(each), PAGE, self.end_of(each)
            while at + 24 <= end:
                magic, kind, flag, length, _, _, field, _ = struct.unpack_from("<HBBIIIII", data, at)
                if magic != 0x564C or field != salt ^ at:
                    break
                frame = Frame(each, at, kind, flag, data[at + 24 : at + 24 + length])
                yield frame
                at += frame.size

    def blocks(self) -> list[Frame]:
        """Returns the visible blocks."""
        return [frame for frame in self.frames() if frame.visible]

    def block(self, vlsn: int) -> Frame:
        return next(frame for frame in self.blocks() if frame.first <= vlsn <= frame.last)

    def records(self, kind: int) -> list[Frame]:
        return [frame for frame in self.frames() if frame.kind == kind]

    # Edits.

    def put(self, frame: Frame, name: str, value: int) -> Frame:
        """Changes a field of a block's header, or of a local record."""
        payload = bytearray(frame.payload)
        if frame.kind != BLOCK:
            struct.pack_into("<Q", payload, 8 * RECORDS[frame.kind].index(name), value)
            return self.write(frame, bytes(payload))
        form, at = FIELDS[name]
        struct.pack_into(form, payload, at, value)
        return self.write(frame, bytes(payload))

    def body(self, frame: Frame, at: int, data: bytes) -> Frame:
        """Changes bytes of a block's body, ``at`` from the block's start."""
        return self.write(frame, frame.payload[:at] + data + frame.payload[at + len(data) :])

    def write(self, frame: Frame, payload: bytes, *, flag: int | None = None, checksums: str = "block") -> Frame:
        """Writes a frame's payload, of the same length, in its place. ``checksums``: those of the ``block``, too, or of
        the ``frame`` alone, or ``none``."""
        assert len(payload) == len(frame.payload)
        if checksums == "block" and frame.kind == BLOCK:
            payload = payload[:56] + struct.pack("<I", crc32c(payload[64:])) + payload[60:]
            payload = payload[:60] + struct.pack("<I", crc32c(payload[:60])) + payload[64:]
        with self.files[frame.number].open("r+b") as file:
            file.seek(frame.offset)
            header = bytearray(file.read(24))
            header[3] = frame.flag if flag is None else flag
            if checksums != "none":
                covered = bytes(header[0:3] + header[4:20])
                header[20:24] = struct.pack("<I", crc32c(covered + payload))
            file.seek(frame.offset)
            file.write(bytes(header) + payload)
        self.forget_sidecar(frame.number)
        return Frame(frame.number, frame.offset, frame.kind, header[3], payload)

    def salted(self, number: int, salt: int) -> None:
        """Makes a segment another one of its number: its header and frames get another salt."""
        frames, file = list(self.frames(number)), self.files[number]
        data = bytearray(file.read_bytes())
        struct.pack_into("<I", data, 12, salt)
        struct.pack_into("<I", data, PAGE - 4, crc32c(bytes(data[: PAGE - 4])))
        for frame in frames:
            at = frame.offset
            struct.pack_into("<I", data, at + 16, salt ^ at)
            covered = bytes(data[at : at + 3] + data[at + 4 : at + 20])
            struct.pack_into("<I", data, at + 20, crc32c(covered + frame.payload))
        file.write_bytes(data)
        self.forget_sidecar(number)

    def zero(self, frame: Frame) -> None:
        with self.files[frame.number].open("r+b") as file:
            file.seek(frame.offset)
            file.write(bytes(frame.size))
        self.forget_sidecar(frame.number)

    def cut_after(self, vlsn: int) -> None:
        """Makes the log end behind the block that ``vlsn`` lies in, as if nothing had come after it: later segments,
        ``state``, index and node file go."""
        block = self.block(vlsn)
        for number in [number for number in self.files if number > block.number]:
            self.files.pop(number).unlink()
            self.forget_sidecar(number)
        with self.files[block.number].open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(block.offset + block.size)
            file.write(bytes(size - block.offset - block.size))
        self.forget_sidecar(block.number)
        for name in ("state", "index"):
            for file_ in (self.path / name).glob("*"):
                file_.unlink()
            (self.path / name).rmdir()
        (self.path / "node.id").unlink()

    def flip(self, number: int, offset: int, bit: int = 1) -> None:
        with self.files[number].open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ bit]))

    def forget_sidecar(self, number: int) -> None:
        (self.path / f"{number:08}.vidx").unlink(missing_ok=True)

    def sidecar(self, number: int, at: int, data: bytes) -> None:
        """Changes bytes of a sidecar; its own checksum is right again."""
        file = self.path / f"{number:08}.vidx"
        old = file.read_bytes()
        new = (old[:at] + data + old[at + len(data) :])[:-4]
        file.write_bytes(new + struct.pack("<I", crc32c(new)))

    def reseal(self, number: int, sidecar: bytes) -> int:
        """Puts a segment's old sidecar back, with the checksum that its bytes have now."""
        (end,) = struct.unpack_from("<I", sidecar, 20)
        new = sidecar[:28] + struct.pack("<I", crc32c(self.files[number].read_bytes()[:end])) + sidecar[32:-4]
        (self.path / f"{number:08}.vidx").write_bytes(new + struct.pack("<I", crc32c(new)))
        return number

    def node_file(self, at: int, data: bytes) -> None:
        """Changes bytes of both slots of the node file."""
        file = self.path / "node.id"
        slot = file.read_bytes()[:4092]
        slot = slot[:at] + data + slot[at + len(data) :]
        file.write_bytes((slot + struct.pack("<I", crc32c(slot))) * 2)

    def store(self, name: str, key: bytes, change: Callable[[bytes], bytes]) -> None:
        """Changes a value of a store, its checksum over key and value made right again."""
        with lmdb.open(str(self.path / name), map_size=1 << 24) as environment, environment.begin(write=True) as inside:
            stored = inside.get(key)
            assert stored is not None
            value = change(bytes(stored[4:]))
            inside.put(key, struct.pack("<I", crc32c(key + value)) + value)

    def keys(self, name: str) -> list[bytes]:
        with lmdb.open(str(self.path / name), map_size=1 << 24) as environment, environment.begin() as inside:
            return [bytes(key) for key, _ in inside.cursor()]

    def state(self, key: str, change: Callable[[Any], Any]) -> None:
        """Changes a JSON value of ``state``."""
        self.store("state", key.encode(), lambda value: json.dumps(change(json.loads(value))).encode())
