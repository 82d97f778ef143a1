"""Messages of a destination by column, as a node has them and sends them (``message_batch``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np

from repl.destinations.message_batch import HEAD, MAGIC
from vlsn.format import batch
from vlsn.format.block import Entry, EntryKind
from vlsn.format.block_heads import I64
from vlsn.format.columns import Columns
from vlsn.ids import Term, Vlsn


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
    head = HEAD.pack(MAGIC, len(messages), len(body), len(tried))
    return b"".join((behind, head, messages.vlsns.astype("<i8").data, messages.times.astype("<i8").data, body, tried))
