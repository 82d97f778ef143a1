"""Submissions. A submission is a number of entries from one client that are logged together or not at all.

    Values       plain values, with or without keys
    Batch        a client's batch, whose bytes are used as received (``batch.py``)
    Transaction  several values and batches, and a COMMIT after them

All entries of a submission are in one block. In every file, feed and rollback, a block is either complete or absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from vlsn.errors import BadBody, TooLarge
from vlsn.format.batch import ENTRY_OVERHEAD_BYTES, Batch, key_column
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.columns import KEYS, PRODUCERS, layout
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.producer_columns import PRODUCER_BYTES
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX, TRANSACTION_BYTES_MAX

FRAME_OVERHEAD_BYTES = FRAME_BYTES + BLOCK_BYTES + 64
"""The bytes that a block needs besides its entries: the frame, the block's header, and the padding of its columns."""
TRANSACTION_OVERHEAD_BYTES = 9
"""The bytes that an entry needs in addition in a block with transactions: the id of its transaction, and its kind."""


def cost_of(entries: int, size: int) -> int:
    """Returns the bytes that ``entries`` entries of ``size`` bytes count for in the queue. In a segment, the entries
    occupy no more than that."""
    return size + entries * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES


class Values:
    """A submission of plain values. ``keys`` has as many keys as there are ``values`` (an empty key means no key), or
    is None if no entry has a key. ``producer`` is the producer's id and this submission's sequence."""

    __slots__ = ("bytes", "count", "keys", "plain", "producer", "sequence", "values")

    def __init__(
        self,
        values: list[bytes],
        keys: Sequence[bytes | None] | None = None,
        producer: tuple[int, int] = (0, 0),
    ) -> None:
        assert values and (keys is None or len(keys) == len(values))
        self.values = values
        self.keys = None if keys is None else key_column(keys)
        self.count = len(values)
        self.bytes = sum(map(len, values)) + ENTRY_OVERHEAD_BYTES * self.count
        """The most bytes that the submission occupies in a block and in the queue."""
        if self.keys is not None:
            self.bytes += sum(map(len, self.keys))
        self.producer, self.sequence = producer
        self.plain = self.keys is None and not self.producer
        """True if the submission has only values, without keys and without a producer."""
        if self.producer:
            self.bytes += PRODUCER_BYTES

    @property
    def keyed(self) -> bool:
        return self.keys is not None


class Transaction:
    """A transaction: parts that are logged together, and a COMMIT with the value ``commit`` after them. If there are no
    parts, only the COMMIT is logged. ``producer`` is the producer's id and this submission's sequence; the parts have
    no producer."""

    __slots__ = ("bytes", "commit", "count", "keyed", "parts", "producer", "sequence")

    def __init__(
        self, parts: Sequence[Values | Batch] = (), commit: bytes = b"", producer: tuple[int, int] = (0, 0)
    ) -> None:
        self.parts = parts
        self.commit = commit
        self.producer, self.sequence = producer
        count, size, keyed = 1, len(commit) + ENTRY_OVERHEAD_BYTES, False
        for part in parts:
            assert not part.producer
            count += part.count
            size += part.bytes
            keyed |= part.keyed
        self.count = count
        self.keyed = keyed
        self.bytes = size + TRANSACTION_OVERHEAD_BYTES * count + (PRODUCER_BYTES if self.producer else 0)
        """The most bytes that the transaction occupies in a block and in the queue."""


Submission: TypeAlias = Values | Batch | Transaction


def check_transaction(entries: int, size: int) -> None:
    """Checks that a transaction of ``entries`` entries, including its COMMIT, and of ``size`` bytes fits one block.
    Raises ``TooLarge``."""
    if entries > BATCH_ENTRIES_MAX or size > TRANSACTION_BYTES_MAX:
        most = f"at most {BATCH_ENTRIES_MAX - 1} and {TRANSACTION_BYTES_MAX}"
        raise TooLarge(f"a transaction of {entries - 1} entries, {size} bytes with what lies beside them; {most}")


def check_values(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    *,
    named: bool = False,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    key_bytes_max: int = KEY_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
    entries_max: int = BATCH_ENTRIES_MAX,
) -> None:
    """Checks the limits of one submission. ``named`` means that the submission has a producer. Raises ``TooLarge``.
    Raises ``BadBody`` if there are no values, or if the number of keys differs from the number of values."""
    if not values or (keys is not None and len(keys) != len(values)):
        raise BadBody(f"{len(values)} values and {len(keys or ())} keys")
    if len(values) > entries_max:
        raise TooLarge(f"{len(values)} entries; at most {entries_max}")
    longest = max(map(len, values))
    if longest > entry_bytes_max:
        raise TooLarge(f"an entry of {longest} bytes; at most {entry_bytes_max}")
    key_bytes = 0
    column = key_column(keys)
    if column is not None:
        longest = max(map(len, column))
        if longest > key_bytes_max:
            raise TooLarge(f"a key of {longest} bytes; at most {key_bytes_max}")
        key_bytes = sum(map(len, column))
    flags = (KEYS if key_bytes else 0) | (PRODUCERS if named else 0)
    size = layout(flags, len(values), key_bytes, sum(map(len, values)), 1).end - BLOCK_BYTES
    if size > body_bytes_max:
        raise TooLarge(f"a body of {size} bytes; at most {body_bytes_max}")


def values_of(
    values: list[bytes],
    keys: Sequence[bytes | None] | None = None,
    producer: tuple[int, int] = (0, 0),
    *,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    key_bytes_max: int = KEY_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
) -> Values:
    """Makes a submission of ``values`` after checking the limits. Raises ``TooLarge`` or ``BadBody``."""
    check_values(
        values,
        keys,
        named=producer[0] != 0,
        entry_bytes_max=entry_bytes_max,
        key_bytes_max=key_bytes_max,
        body_bytes_max=body_bytes_max,
    )
    return Values(values, keys, producer)
