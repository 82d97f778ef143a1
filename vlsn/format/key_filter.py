"""A reader's filter by key, which is applied to the entries of many blocks at once.

    keys    | order-1 | order-22 |  | orders |      KeyFilter(b"order-", prefix=True)  →  1 1 0 0
                                                    KeyFilter(b"")                     →  0 0 1 0: entries without a key

For most entries the length of the key decides. If the length does not decide, the bytes of keys are compared in steps.
Each step includes only the entries whose keys were equal so far.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlsn.errors import BadArgument
from vlsn.format.columns import KEYS
from vlsn.format.rows import I64, Mask, Rows
from vlsn.limits import KEY_BYTES_MAX
from vlsn.seams import Buffer

_STRIDE_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A filter that wants one key, or with ``prefix`` all keys that begin with it. For the filter, an entry without a
    key has an empty key."""

    key: bytes
    prefix: bool = False

    @classmethod
    def of(cls, key: bytes | None, key_prefix: bytes | None) -> KeyFilter | None:
        """Makes the filter for a reader's arguments. Returns None if every key is wanted. Raises ``BadArgument`` if
        both are passed, or for a key over 64 KiB, which no entry can have."""
        if key is not None and key_prefix is not None:
            raise BadArgument("key and key_prefix: a reader asks for one key, or for a prefix, not for both")
        wanted = key_prefix if key is None else key
        if wanted is not None and len(wanted) > KEY_BYTES_MAX:
            raise BadArgument(f"a key of {len(wanted)} bytes is in no log; at most {KEY_BYTES_MAX}")
        if wanted is None or (key is None and not wanted):
            return None
        return cls(wanted, prefix=key is None)

    def has(self, key: bytes | None) -> bool:
        """Returns whether an entry with ``key`` is wanted."""
        held = key or b""
        return held.startswith(self.key) if self.prefix else held == self.key

    def mask(self, rows: Rows) -> Mask:
        """Marks the wanted entries."""
        wanted = self.key
        if not rows.has(KEYS).any():
            return np.full(rows.rows, not wanted)
        starts, ends = rows.key_cuts()
        mask = begin_with(rows.buf, starts, ends - starts, wanted)
        return mask if self.prefix else mask & (ends - starts == len(wanted))


def begin_with(buf: Buffer, starts: I64, sizes: I64, wanted: bytes) -> Mask:
    """Marks the pieces of ``buf``, from each of ``starts`` with the size in ``sizes``, that begin with ``wanted``."""
    mask: Mask = sizes >= len(wanted)
    left = np.flatnonzero(mask)
    for low in range(0, len(wanted), _STRIDE_BYTES):
        if not len(left):
            break
        part = np.frombuffer(wanted, np.uint8, min(_STRIDE_BYTES, len(wanted) - low), low)
        width = len(part)
        every = np.ndarray(len(buf) - width + 1, f"V{width}", buf, strides=(1,))
        found = every[starts[left] + low].view(np.uint8).reshape(-1, width)
        left = left[(found == part).all(axis=1)]
    mask[:] = False
    mask[left] = True
    return mask
