"""Reads the pages of a destination from the bytes of a disk, by offsets only, to compare a node with them.

It shares only the checksum with the product; the few fields that it reads are those of ``docs/format.md``.

    page     VLSNPAGE · version u16 · 0 u16 · salt u32 · uuid 8 · number u64 · 28 × 0 · crc
    record   magic u16 · flags u8 · 0 · length · count · blocks u32 · first · last · covers_from · covers_to u64
             key bytes · value bytes · salt ^ offset · crc u32, then ``length`` bytes of columns, padded to 8
    table    g ‖ uuid ‖ number u32: {"end": …, "superseded"}; g ‖ uuid: {"missing": [[first, last], …], …}
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vlsn.format.checksum import crc

MAGIC = b"VLSNPAGE"
HEADER_BYTES = RECORD_BYTES = 64
STRIDE = 4096
RECORD_MAGIC = 0x4750
WHOLE, KEYS, TXNS = 1, 2, 4
_SALT = struct.Struct("<12xI")
_RECORD = struct.Struct("<HBBIIIQQQQIIII")


@dataclass(slots=True)
class Paged:
    """All valid parts of one destination's pages: values of messages by VLSN, and whole blocks."""

    values: dict[int, bytes] = field(default_factory=dict)
    blocks: list[bytes] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """VLSNs that the node knows to have lost."""
    twice: list[int] = field(default_factory=list)
    """VLSNs of messages that are in more than one record."""
    pages: int = 0
    done: int = 0
    paged_to: int = 0
    since: int = 0
    """The VLSN of the COMMIT that has set the destination's beginning, by the table; 0 if it has none."""
    fault: str = ""
    """Why a page that counts does not read back."""
    short: list[int] = field(default_factory=list)
    """Pages whose files have fewer bytes than count, or are not there."""


def paged(files: Mapping[str, bytes | bytearray], table: Mapping[bytes, bytes | None], uuid: str) -> Paged:
    """Reads the valid parts of ``files`` (by name, of the destination's folder) by the page table. A None in the table
    is a row whose checksum does not match, which is ignored."""
    found = Paged()
    key = b"g" + bytes.fromhex(uuid)
    row = json.loads(table.get(key) or b"{}")
    found.missing = [(first, last) for first, last in row.get("missing", ())]
    found.done, found.paged_to = row.get("done", 0), row.get("paged_to", 0)
    found.since = row.get("since", 0)
    for name, value in table.items():
        if name.startswith(key) and len(name) > len(key):
            found.pages += 1
            number = int.from_bytes(name[len(key) :], "big")
            if value is None:
                found.fault = f"page {number}: its row has rotted"
                continue
            page = json.loads(value)
            if page.get("superseded"):
                continue  # from before a move: its messages must be elsewhere
            end = int(page["end"])
            plain = f"{number:09d}.page"
            data = bytes(files.get(plain, files.get(f"{plain}.damaged", b"")))  # aside: until its salvage has ended
            if len(data) < end:
                found.short.append(number)
            try:
                _read(data, end, found)
            except (ValueError, struct.error) as error:
                found.fault = f"page {number}: {error}"
    return found


def _read(data: bytes, end: int, found: Paged) -> None:
    if len(data) < end:
        raise ValueError(f"{len(data)} bytes of {end}")
    if data[:8] != MAGIC or crc(data[:60]) != int.from_bytes(data[60:64], "little"):
        raise ValueError("its header")
    (salt,) = _SALT.unpack_from(data)
    for flags, count, blocks, payload in _records(data, end, salt):
        if flags & WHOLE:
            found.blocks += _verbatim(payload, blocks)
        else:
            selected = _selected(payload, flags, count, blocks)
            found.twice += [vlsn for vlsn in selected if vlsn in found.values]
            found.values.update(selected)


def _records(data: bytes, end: int, salt: int) -> Iterator[tuple[int, int, int, bytes]]:
    at = HEADER_BYTES
    while at < end:
        if at % STRIDE and data[at : at + 2] == b"\0\0":  # zeros up to the next pass
            at = (at + STRIDE - 1) // STRIDE * STRIDE
            continue
        magic, flags, _, length, count, blocks, *_, place, stored = _RECORD.unpack_from(data, at)
        if magic != RECORD_MAGIC or place != (salt ^ at) & 0xFFFF_FFFF:
            raise ValueError(f"no record at {at}")
        payload = data[at + RECORD_BYTES : at + RECORD_BYTES + length]
        if len(payload) < length or crc(payload + data[at : at + 60]) != stored:
            raise ValueError(f"the record at {at}")
        yield flags, count, blocks, payload
        at += RECORD_BYTES + (length + 7) // 8 * 8


def _verbatim(payload: bytes, blocks: int) -> list[bytes]:
    ends = struct.unpack_from(f"<{blocks}I", payload)
    origin = (4 * blocks + 7) // 8 * 8
    starts = [0, *((end + 7) // 8 * 8 for end in ends[:-1])]
    return [payload[origin + start : origin + end] for start, end in zip(starts, ends, strict=True)]


def _selected(payload: bytes, flags: int, count: int, blocks: int) -> dict[int, bytes]:
    at = 0

    def column(code: str, length: int) -> tuple[int, ...]:
        nonlocal at
        values = struct.unpack_from(f"<{length}{code}", payload, at)
        at = (at + struct.calcsize(f"<{length}{code}") + 7) // 8 * 8
        return values

    vlsns = column("Q", count)
    if flags & TXNS:
        column("Q", count)
    column("I", blocks)
    column("Q", blocks)
    column("Q", blocks)
    key_ends = column("I", count) if flags & KEYS else ()
    value_ends = column("I", count)
    if key_ends:
        at = (at + key_ends[-1] + 7) // 8 * 8
    starts = (0, *value_ends[:-1])
    return {vlsn: payload[at + start : at + end] for vlsn, start, end in zip(vlsns, starts, value_ends, strict=True)}
