"""Messages of a destination in columns. vlsnlog's own clients request this format instead of lines of JSON.

    0    4     8           12             16        16 + 8n        16 + 16n
    |VLM1|count|batch_bytes|attempts_bytes|vlsns …  |times …       |batch (``format/batch``) … |attempts, JSON …|

VLSNs (ascending) and times (µs since the epoch) are i64. ``attempts`` lists each attempt above 1, by VLSN. The batch
has its own checksum. No Python code runs for a single message until a caller reads the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import Final, NamedTuple

import msgspec
import numpy as np

from vlsn.errors import BadBody
from vlsn.format import batch
from vlsn.format.block import Entry, EntryKind
from vlsn.format.columns import Columns
from vlsn.format.records import JSON_FAULTS
from vlsn.format.rows import I64
from vlsn.ids import Term, Vlsn

CONTENT_TYPE: Final = "application/x-vlsnlog-messages"
UUID: Final = "Vlsnlog-Destination"
"""The header of such an answer that has the destination's UUID."""
_HEAD: Final = struct.Struct("<4sIII")
_MAGIC: Final = b"VLM1"
Row = tuple[int, int, int, bytes | None, bytes]
"""The VLSN, attempt, time, key and value of a message."""
_attempts: Final = msgspec.json.Decoder(dict[int, int])


def _none() -> I64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages by column, in ascending order of VLSN. ``key_lengths`` is None if no message has a key; otherwise a
    length of 0 means no key."""

    vlsns: I64 = field(default_factory=_none)
    times: I64 = field(default_factory=_none)
    value_lengths: I64 = field(default_factory=_none)
    values: bytes = b""
    key_lengths: I64 | None = None
    keys: bytes = b""

    def __len__(self) -> int:
        return len(self.vlsns)

    @property
    def bytes(self) -> int:
        """The total bytes of keys and values."""
        return len(self.keys) + len(self.values)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> MessageColumns:
        """Makes the columns from single entries."""
        if not entries:
            return cls()
        keys = [entry.key or b"" for entry in entries]
        key_bytes = b"".join(keys)
        return cls(
            np.array([entry.vlsn for entry in entries], np.int64),
            np.array([entry.time for entry in entries], np.int64),
            np.array([len(entry.value) for entry in entries], np.int64),
            b"".join([entry.value for entry in entries]),
            np.array(list(map(len, keys)), np.int64) if key_bytes else None,
            key_bytes,
        )

    @classmethod
    def joined(cls, parts: Sequence[MessageColumns]) -> MessageColumns:
        """Joins several groups of messages into one, in the same order."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls()
        keyed = any(part.key_lengths is not None for part in parts)
        return cls(
            np.concatenate([part.vlsns for part in parts]),
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.value_lengths for part in parts]),
            b"".join([part.values for part in parts]),
            np.concatenate([part.key_column for part in parts]) if keyed else None,
            b"".join([part.keys for part in parts]),
        )

    @property
    def key_column(self) -> I64:
        """The lengths of the keys; 0 for no key."""
        return np.zeros(len(self.vlsns), np.int64) if self.key_lengths is None else self.key_lengths

    def entries(self) -> list[Entry]:
        """Returns the messages as separate entries, without their terms."""
        keys: Iterable[bytes] = _cut(self.keys, self.key_column)
        values, data = _cut(self.values, self.value_lengths), EntryKind.DATA
        return [
            Entry(Vlsn(vlsn), Term(0), time, data, 0, key or None, value)
            for vlsn, time, key, value in zip(self.vlsns.tolist(), self.times.tolist(), keys, values, strict=True)
        ]


def _cut(data: bytes, lengths: I64) -> list[bytes]:
    return [data[start:end] for start, end in pairwise(_offsets(lengths).tolist())]


def _offsets(lengths: I64) -> I64:
    offsets: I64 = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def encode(messages: MessageColumns, attempts: Mapping[int, int], *, behind: bytes = b"") -> bytes:
    """Encodes messages and places them after the bytes of ``behind``. If there are no messages, returns ``behind``
    alone."""
    if not len(messages):
        return behind
    key_offsets = b"" if messages.key_lengths is None else _offsets(messages.key_lengths).astype("<i4").tobytes()
    value_offsets = _offsets(messages.value_lengths).astype("<i4").tobytes()
    body = batch.encode_columns(Columns(len(messages), value_offsets, messages.values, key_offsets, messages.keys))
    tried = msgspec.json.encode(attempts) if attempts else b""
    head = _HEAD.pack(_MAGIC, len(messages), len(body), len(tried))
    return b"".join((behind, head, messages.vlsns.astype("<i8").data, messages.times.astype("<i8").data, body, tried))


class Taken(NamedTuple):
    """Messages that were received and checked. All keys are still one buffer, and all values another."""

    vlsns: I64
    times: I64
    batch: batch.Batch | None
    attempts: Mapping[int, int]
    first: int = 0
    """The number of messages in the batch before the first message of this object."""

    def parts(self, most: int) -> list[Taken]:
        """Splits the messages into groups of up to ``most``, without a copy."""
        if len(self.vlsns) <= most:
            return [self]
        return [
            self._replace(vlsns=self.vlsns[at : at + most], times=self.times[at : at + most], first=self.first + at)
            for at in range(0, len(self.vlsns), most)
        ]

    def keys_and_values(self) -> tuple[Iterable[bytes | None], list[bytes]]:
        """Returns the keys and the values."""
        if self.batch is None:
            return (), []
        keys, values = batch.decode_columns(self.batch, self.first, len(self.vlsns))
        return (repeat(None) if keys is None else [key or None for key in keys]), values

    def rows(self) -> list[Row]:
        """Returns each message as a row with VLSN, attempt and time."""
        vlsns, tried = self.vlsns.tolist(), self.attempts
        attempts = [tried.get(vlsn, 1) for vlsn in vlsns] if tried else [1] * len(vlsns)
        keys, values = self.keys_and_values()
        # the iterator of keys may be endless, so lengths are not compared
        return list(zip(vlsns, attempts, self.times.tolist(), keys, values, strict=False))


def decode(data: bytes) -> Taken:
    """Decodes messages in columns. Raises ``BadBody``."""
    if not data:
        return Taken(_none(), _none(), None, {})
    try:
        magic, count, batch_bytes, tried_bytes = _HEAD.unpack_from(data)
        at = _HEAD.size + 16 * count
        if magic != _MAGIC or at + batch_bytes + tried_bytes != len(data):
            raise BadBody(f"{len(data)} bytes are no messages")
        vlsns, times = np.frombuffer(data, "<i8", 2 * count, _HEAD.size).reshape(2, count)
        entries = batch.decode(memoryview(data)[at : at + batch_bytes])
        attempts = _attempts.decode(data[at + batch_bytes :]) if tried_bytes else {}
    except (*JSON_FAULTS, ValueError, struct.error) as fault:
        raise BadBody(f"no messages: {fault}") from None
    if entries.count != count or entries.producer:
        raise BadBody(f"{entries.count} entries of {count} messages")
    if vlsns[0] < 1 or (vlsns[1:] <= vlsns[:-1]).any():
        raise BadBody("messages whose VLSNs do not ascend")
    return Taken(vlsns, times, entries, attempts)
