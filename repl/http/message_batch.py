"""Messages of a destination as columns: what a client of ours asks for in place of lines.

    0    4     8           12             16        16 + 8n        16 + 16n
    |VLM1|count|batch_bytes|attempts_bytes|vlsns …  |times …       |batch (``format/batch``) … |attempts, JSON …|

VLSNs ascend, times are µs since the epoch, i64 each; ``attempts`` are those of two and more, by VLSN.  The batch has
its own checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from vlsn.errors import BadBody
from vlsn.format import batch
from vlsn.format.block import Entry
from vlsn.format.records import JSON_FAULTS

CONTENT_TYPE: Final = "application/x-vlsnlog-messages"
_HEAD: Final = struct.Struct("<4sIII")
_MAGIC: Final = b"VLM1"
Row = tuple[int, int, int, bytes | None, bytes]
"""VLSN, attempt, time, key and value of a message."""
_attempts: Final = msgspec.json.Decoder(dict[int, int])


def encode(entries: Sequence[Entry], attempts: Mapping[int, int]) -> bytes:
    """Encodes messages; no bytes for none."""
    if not entries:
        return b""
    columns = np.array([[entry.vlsn for entry in entries], [entry.time for entry in entries]], "<i8")
    keys = [entry.key for entry in entries]
    body = batch.encode([entry.value for entry in entries], keys if any(keys) else None)
    tried = msgspec.json.encode(attempts) if attempts else b""
    return b"".join((_HEAD.pack(_MAGIC, len(entries), len(body), len(tried)), columns.tobytes(), body, tried))


def decode(data: bytes) -> list[Row]:
    """Raises ``BadBody``."""
    if not data:
        return []
    try:
        magic, count, batch_bytes, tried_bytes = _HEAD.unpack_from(data)
        at = _HEAD.size + 16 * count
        if magic != _MAGIC or at + batch_bytes + tried_bytes != len(data):
            raise BadBody(f"{len(data)} bytes are no messages")
        vlsns, times = np.frombuffer(data, "<i8", 2 * count, _HEAD.size).reshape(2, count).tolist()
        entries = batch.decode_entries(batch.decode(memoryview(data)[at : at + batch_bytes]))
        attempts = _attempts.decode(data[at + batch_bytes :]) if tried_bytes else {}
    except (*JSON_FAULTS, ValueError, struct.error) as fault:
        raise BadBody(f"no messages: {fault}") from None
    if len(entries) != count:
        raise BadBody(f"{len(entries)} entries of {count} messages")
    tried = [attempts.get(vlsn, 1) for vlsn in vlsns] if attempts else [1] * count
    return [
        (vlsn, attempt, time, key, value)
        for vlsn, attempt, time, (key, value) in zip(vlsns, tried, times, entries, strict=True)
    ]
