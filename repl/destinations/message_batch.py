"""Messages of a destination in columns, as a client reads them. vlsnlog's own clients request this format instead of
lines of JSON. A node builds it in ``message_columns``.

    0    4     8           12             16        16 + 8n        16 + 16n
    |VLM1|count|batch_bytes|attempts_bytes|vlsns …  |times …       |batch (``format/batch``) … |attempts, JSON …|

VLSNs (ascending) and times (µs since the epoch) are i64. ``attempts`` lists each attempt above 1, by VLSN. The batch
has its own checksum. No Python code runs for a single message until a caller reads the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Final, NamedTuple

import msgspec

from vlsn.errors import BadBody
from vlsn.format import batch
from vlsn.format.arrays import works_for
from vlsn.format.records import JSON_FAULTS

CONTENT_TYPE: Final = "application/x-vlsnlog-messages"
UUID: Final = "Vlsnlog-Destination"
"""The header of such an answer that has the destination's UUID."""
HEAD: Final = struct.Struct("<4sIII")
MAGIC: Final = b"VLM1"
Row = tuple[int, int, int, bytes | None, bytes]
"""The VLSN, attempt, time, key and value of a message."""
_attempts: Final = msgspec.json.Decoder(dict[int, int])
_NONE: Final = memoryview(b"").cast("q")


class Taken(NamedTuple):
    """Messages that were received and checked. All keys are still one buffer, and all values another. VLSNs and times
    are views (i64) of the received bytes."""

    vlsns: memoryview[int]
    times: memoryview[int]
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
        return Taken(_NONE, _NONE, None, {})
    try:
        magic, count, batch_bytes, tried_bytes = HEAD.unpack_from(data)
        at = HEAD.size + 16 * count
        if magic != MAGIC or at + batch_bytes + tried_bytes != len(data):
            raise BadBody(f"{len(data)} bytes are no messages")
        columns = memoryview(data)[HEAD.size : at].cast("q")
        vlsns, times = columns[:count], columns[count:]
        entries = batch.decode(memoryview(data)[at : at + batch_bytes])
        attempts = _attempts.decode(data[at + batch_bytes :]) if tried_bytes else {}
    except (*JSON_FAULTS, ValueError, struct.error) as fault:
        raise BadBody(f"no messages: {fault}") from None
    if entries.count != count or entries.producer:
        raise BadBody(f"{entries.count} entries of {count} messages")
    if vlsns[0] < 1 or not works_for(count).ascends(vlsns):
        raise BadBody("messages whose VLSNs do not ascend")
    return Taken(vlsns, times, entries, attempts)
