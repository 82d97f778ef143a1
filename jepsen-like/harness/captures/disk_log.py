"""Reads a node's log and the positions beside it from the bytes of its directory, by offsets only.

It shares only the checksum with the product; the few fields that it reads are those of ``docs/format.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from crc32c import crc32c

from harness.values import COMMIT, OWN, number_of

FIRST_FRAME = 4096
TAKEN = 2
OVERMARKED = 0xA5
BLOCK = 1
KINDS, TXNS, PRODUCERS, KEYS = 1, 2, 4, 8
DATA_KIND, COMMIT_KIND = 0, 3
SLOT_BYTES = 4096
_STATE = struct.Struct("<H")
_PREVIOUS = struct.Struct("<II")
_FRAME = struct.Struct("<HBBI")
_HEAD = struct.Struct("<BBBxIQQQQIIIIII")
_SLOT = struct.Struct("<8sII QQ")


@dataclass(slots=True)
class DiskLog:
    """The visible entries of one log."""

    rows: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """(term, number, transaction) by VLSN; ``values`` has the numbers of the log's own entries."""
    positions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(VLSN of the COMMIT, position) by the consumer's name, in the order of the log."""

    @property
    def data(self) -> list[int]:
        """The VLSNs of users' entries, rising."""
        return [vlsn for vlsn, (_, number, _) in self.rows.items() if number not in (OWN, COMMIT)]


def read_disk_log(directory: Path) -> DiskLog:
    """Reads the log of a node that has stopped. Raises ``ValueError`` for a log that cannot be read."""
    log, files = DiskLog(), {int(path.stem): path for path in directory.glob("*.vlog")}
    content = {number: path.read_bytes() for number, path in files.items()}
    taken = sorted(number for number, data in content.items() if _STATE.unpack_from(data, 10)[0] == TAKEN)
    ends = dict(_PREVIOUS.unpack_from(content[number], 40) for number in taken)
    for number in taken:
        data = content[number]
        for block in _blocks(data, ends.get(number, len(data)), files[number]):
            _read(block, log)
    return log


def stored_position(path: Path) -> tuple[int, int]:
    """Returns (position, sequence) of a position file, 0 and 0 if both slots are unreadable."""
    found = [(0, 0)]
    data = path.read_bytes() if path.exists() else b""
    for at in range(0, len(data), SLOT_BYTES):
        slot = data[at : at + SLOT_BYTES]
        if slot[:8] == b"VLSNCDCP" and crc32c(slot[:-4]) == int.from_bytes(slot[-4:], "little"):
            _, _, _, sequence, position = _SLOT.unpack_from(slot)
            found.append((sequence, position))
    sequence, position = max(found)
    return position, sequence


def _blocks(data: bytes, end: int, path: Path) -> Iterator[bytes]:
    at = FIRST_FRAME
    while at < end and any(data[at : at + 2]):
        magic, kind, flag, length = _FRAME.unpack_from(data, at)
        payload = data[at + 24 : at + 24 + length]
        summed = crc32c(data[at : at + 3] + data[at + 4 : at + 20] + payload)
        if magic != 0x564C or summed != int.from_bytes(data[at + 20 : at + 24], "little"):
            raise ValueError(f"{path}: no frame at {at}")
        if kind == BLOCK and flag != OVERMARKED:
            yield payload
        at += 24 + (length + 7) // 8 * 8


def _read(block: bytes, log: DiskLog) -> None:
    _, flags, kind, count, term, first, _, _, submissions, key_bytes, value_bytes, *_ = _HEAD.unpack_from(block)
    at = 64

    def column(dtype: str, rows: int) -> list[int]:
        nonlocal at
        values = np.frombuffer(block, dtype, rows, at)
        at = (at + values.nbytes + 7) // 8 * 8
        return values.tolist()  # type: ignore[no-any-return]

    kinds = column("<u1", count) if flags & KINDS else [kind] * count
    txns = column("<u8", count) if flags & TXNS else [0] * count
    if flags & PRODUCERS:
        at = (at + 20 * submissions + 7) // 8 * 8
    key_at = column("<i4", count + 1) if flags & KEYS else [0] * (count + 1)
    value_at = column("<i4", count + 1)
    keys = block[at : at + key_bytes]
    at = (at + key_bytes + 7) // 8 * 8 if flags & KEYS else at
    values = block[at : at + value_bytes]
    for row in range(count):
        value = values[value_at[row] : value_at[row + 1]]
        number = COMMIT if kinds[row] == COMMIT_KIND else OWN
        if kinds[row] == DATA_KIND:
            number = number_of(value, keys[key_at[row] : key_at[row + 1]])
        elif kinds[row] == COMMIT_KIND and value:
            _positions(first + row, value, log)
        log.rows[first + row] = (term, number, txns[row])


def _positions(vlsn: int, value: bytes, log: DiskLog) -> None:
    for name, put in (json.loads(value).get("put") or {}).items():
        kind, _, consumer = name.partition("/cdc.")
        if kind == "consumer" and consumer:
            log.positions.setdefault(consumer, []).append((vlsn, int(put["next"]) if put else 0))
