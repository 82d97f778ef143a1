"""A client's history: a file with the entries that were acknowledged to the client, one line each, in any order.

    {"vlsn": 57, "digest": "9ae0daaf52d5a2f1"}             digest: ``digest.entry_digest`` of value and key
    {"vlsn": 58, "value": "paid 10", "key": "alice"}       or the entry itself, as ``vlsnlog read --json`` prints it
    {"vlsn": 59, "digest": "…", "once": true}              no other entry has this digest
    {"digest": "…", "once": true}                          no entry has this digest: its append was refused
    {"vlsn": 60, "digest": "…", "read": true}              a reader has received this entry at VLSN 60
    {"vlsn": 61, "digest": "…", "sent": 7.5, "acked": 8}   appends acknowledged before 7.5 have lower VLSNs

Each task reads a range of the file's bytes; a line belongs to the range in which it begins. Tasks exchange arrays of
(VLSN, digest), grouped by range of VLSNs, with ``RANGE_BITS`` as for the digests of blocks.
"""

from __future__ import annotations

import os
from binascii import Error, a2b_base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.digest import RANGE_BITS, U64, entry_digests
from repl.audit.source import Unreadable

PART_BYTES: Final = 16 << 20
LINE_BYTES_MAX: Final = 8 << 20
"""The most bytes of a line: enough for the largest entry and its key as JSON text with every byte escaped."""
DIGESTS_A_VLSN: Final = 2
"""The most digests that are kept for one VLSN. Two different digests are a finding already. The limit keeps an unusual
file from making a task large."""
APPEND: Final = np.dtype([("vlsn", "<u8"), ("digest", "<u8")])
Appends = NDArray[np.void]
TIMED: Final = np.dtype([("vlsn", "<u8"), ("sent", "<f8"), ("acked", "<f8")])
"""The columns for the times at which an append was sent and acknowledged, by one clock for the whole file."""
Bools = NDArray[np.bool_]

_DIGITS: Final = 16
_NIBBLES: Final = np.zeros(256, np.uint8)
_NIBBLES[[ord(each) for each in "0123456789abcdef"]] = np.arange(16)


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """The lines that begin at the bytes ``start`` to ``end`` (exclusive) of the file."""

    path: str
    start: int
    end: int


def parts_of(path: str, part_bytes: int = PART_BYTES) -> list[HistoryPart]:
    """Divides the whole file into parts. Raises ``Unreadable``."""
    path = os.path.abspath(path)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}; name a file of what was acknowledged") from None
    return [HistoryPart(path, at, min(at + part_bytes, size)) for at in range(0, size, part_bytes)]


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one part of the file, as ``APPEND`` rows. ``appends`` are the lines with a VLSN, sorted, without
    duplicates. ``once`` are the lines with ``"once"``; their VLSN is 0 for refused appends. ``reads`` are the lines
    with ``"read"``, in the form of ``appends``. ``times`` are the times of appends, as ``TIMED`` rows."""

    appends: Appends
    once: Appends
    reads: Appends
    times: Appends


def read_lines(part: HistoryPart) -> Lines:
    """Reads and parses the lines of one part of the file. Raises ``Unreadable``."""
    rows, once, read, times = _parsed(_lines(part), part)
    placed = rows["vlsn"] > 0
    return Lines(_distinct(rows[placed & ~read]), rows[once], _distinct(rows[placed & read]), times)


def by_range(appends: Appends) -> Iterator[tuple[int, bytes]]:
    """Yields each range of VLSNs, with its rows."""
    return grouped(appends, appends["vlsn"] >> np.uint64(RANGE_BITS))


def grouped(rows: Appends, keys: U64) -> Iterator[tuple[int, bytes]]:
    """Yields each key, with the rows that have this key. Keys and rows are ascending."""
    found, starts = np.unique(keys, return_index=True)
    for key, start, end in zip(found.tolist(), starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=False):
        yield key, rows[start:end].tobytes()


def merged_appends(pieces: list[bytes]) -> Appends:
    """Merges the rows that several parts of the file have for one range."""
    return _distinct(np.concatenate([np.frombuffer(piece, APPEND) for piece in pieces]))


def _distinct(rows: Appends) -> Appends:
    rows = np.unique(rows)
    first = np.searchsorted(rows["vlsn"], rows["vlsn"])
    return rows[np.arange(len(rows)) - first < DIGESTS_A_VLSN]


def _lines(part: HistoryPart) -> bytes:
    """Returns the bytes of the lines that begin in a part of the file."""
    try:
        with open(part.path, "rb") as file:
            file.seek(max(part.start - 1, 0))
            if part.start and file.read(1) != b"\n":
                file.readline(LINE_BYTES_MAX)
            start = file.tell()
            if start >= part.end:
                return b""
            data = file.read(part.end - start)
            rest = b"" if data.endswith(b"\n") else file.readline(LINE_BYTES_MAX)
    except OSError as error:
        raise Unreadable(f"{part.path}: {error.strerror}") from None
    if len(rest) == LINE_BYTES_MAX:
        raise _unfit(part, f"a line of more than {LINE_BYTES_MAX} bytes")
    return data + rest


def _parsed(data: bytes, part: HistoryPart) -> tuple[Appends, Bools, Bools, Appends]:
    """Returns four things: all lines, the marks of lines with ``"once"``, the marks of lines with ``"read"``, and the
    times of the lines that have times."""
    if not data.strip():
        return np.empty(0, APPEND), np.empty(0, np.bool_), np.empty(0, np.bool_), np.empty(0, TIMED)
    columns = _columns(data, part)
    once = columns["once"].fill_null(False).to_numpy(zero_copy_only=False)
    placed = columns["vlsn"].is_valid().to_numpy(zero_copy_only=False)
    vlsns = columns["vlsn"].fill_null(0).to_numpy()
    if not (placed | once).all() or (vlsns[placed] < 1).any():
        raise _unfit(part, 'a line without "vlsn", or with one below 1')
    rows = np.empty(len(vlsns), APPEND)
    rows["vlsn"] = vlsns
    rows["digest"] = _digests(columns, part)
    read = columns["read"].fill_null(False).to_numpy(zero_copy_only=False)
    if (read & (once | ~placed)).any():
        raise _unfit(part, 'a "read" line without "vlsn", or one that says "once" too')
    return rows, once, read, _times(columns, vlsns, read | ~placed, part)


def _times(columns: dict[str, Any], vlsns: U64, unfit: Bools, part: HistoryPart) -> Appends:
    """Returns the times at which appends were sent and acknowledged, for the lines with these times."""
    sent, acked = (columns[name].to_numpy(zero_copy_only=False) for name in ("sent", "acked"))
    said, both = ~np.isnan(sent) | ~np.isnan(acked), ~np.isnan(sent) & ~np.isnan(acked)
    if (said & (~both | unfit)).any() or (sent[both] > acked[both]).any():
        raise _unfit(part, 'a line with "sent" or "acked" and not both, rising, of an append that was acknowledged')
    rows = np.empty(int(both.sum()), TIMED)
    rows["vlsn"], rows["sent"], rows["acked"] = vlsns[both], sent[both], acked[both]
    return rows


def _columns(data: bytes, part: HistoryPart) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import json

    texts = ("digest", "value", "value_b64", "key", "key_b64")
    flags = [(name, pa.bool_()) for name in ("once", "read")]
    numbers = [("vlsn", pa.int64()), ("sent", pa.float64()), ("acked", pa.float64())]
    schema = pa.schema([*numbers, *flags, *((name, pa.string()) for name in texts)])
    parsing = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = json.read_json(pa.BufferReader(data), read_options=reading, parse_options=parsing)
    except pa.ArrowInvalid as error:
        raise _unfit(part, str(error)) from None
    return {name: table[name].combine_chunks() for name in schema.names}


def _digests(columns: dict[str, Any], part: HistoryPart) -> U64:
    """Returns each line's digest, which is in the line or is computed from the line's value and key."""
    given = columns["digest"]
    found = np.empty(len(given), np.uint64)
    stated = given.is_valid().to_numpy(zero_copy_only=False)
    if stated.any():
        found[stated] = _hex(given.drop_null(), part)
    if not stated.all():
        import pyarrow as pa

        rest = {name: column.filter(pa.array(~stated)) for name, column in columns.items()}
        values, keys = _bytes(rest, "value", part), _bytes(rest, "key", part)
        if None in values:
            raise _unfit(part, 'a line without "digest" and "value"')
        found[~stated] = entry_digests(values, keys if any(keys) else None)
    return found


def _hex(texts: Any, part: HistoryPart) -> U64:
    """Parses a whole column of texts at once, each of 16 hex digits."""
    digits = texts.cast("binary").to_pylist()
    joined = b"".join(digits)
    if set(map(len, digits)) != {_DIGITS} or joined.translate(None, b"0123456789abcdef"):
        raise _unfit(part, 'a "digest" that is not of 16 hex digits, in lower case')
    nibbles = _NIBBLES[np.frombuffer(joined, np.uint8)].reshape(-1, _DIGITS)
    packed = nibbles[:, 0::2] << 4 | nibbles[:, 1::2]
    return np.ascontiguousarray(packed).view(">u8").astype(np.uint64).ravel()


def _bytes(columns: dict[str, Any], name: str, part: HistoryPart) -> list[Any]:
    """Returns each line's bytes of field ``name``, or the bytes that ``name_b64`` encodes. For a line with neither
    field, the result is None."""
    import pyarrow as pa

    plain: list[Any] = columns[name].cast(pa.binary()).to_pylist()
    encoded = columns[f"{name}_b64"]
    if encoded.null_count == len(encoded):
        return plain
    try:
        decoded = [None if text is None else a2b_base64(text, strict_mode=True) for text in encoded.to_pylist()]
    except (Error, ValueError):
        raise _unfit(part, f'"{name}_b64" that is no base64') from None
    return [second if first is None else first for first, second in zip(plain, decoded, strict=True)]


def _unfit(part: HistoryPart, why: str) -> Unreadable:
    return Unreadable(
        f"{part.path}, from byte {part.start} to {part.end}: {why}; a line is an object with vlsn and digest"
    )
