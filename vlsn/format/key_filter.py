"""A reader's filter by key, which is applied to the entries of many blocks at once.

    keys    | order-1 | order-22 |  | orders |      KeyFilter(b"order-", prefix=True)  →  1 1 0 0
                                                    KeyFilter(b"")                     →  0 0 1 0: entries without a key

``Rows`` finds the wanted entries of many blocks with NumPy. A client has only the filter's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlsn.errors import BadArgument
from vlsn.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from vlsn.format.rows import Mask, Rows


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
        return rows.with_key(self.key, prefix=self.prefix)
