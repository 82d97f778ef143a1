"""Partitions of a target: the folder that each row belongs to, and the names of the folders.

    date            date=2026-11-23/            the UTC date of the entry's time
    key-prefix:3    key_prefix=ord/             the first 3 bytes of its key, %XX for bytes that names cannot have
                    key_prefix=__HIVE_DEFAULT_PARTITION__/    an entry without a key

The names are Hive's, which Spark, DuckDB and Polars read as a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vlsn.errors import BadArgument

KEY_PREFIX_MAX: Final = 32
"""The most bytes of a key that may name a partition."""
NO_KEY: Final = "__HIVE_DEFAULT_PARTITION__"
_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal() - _EPOCH_DAY
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_KEY_PREFIX: Final = re.compile(r"key-prefix:([1-9]\d?)\Z")


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Partitions by ``date`` if ``key_bytes`` is 0, otherwise by the first ``key_bytes`` bytes of the key."""

    key_bytes: int = 0

    def split(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Yields the folders for a batch's rows, each with its rows in order. Folders without rows are left out."""
        if self.key_bytes:
            yield from _by_key(batch, self.key_bytes)
        else:
            yield from _by_date(batch)


def partitioning_of(text: str) -> Partitioning | None:
    """Parses ``date``, ``key-prefix:N`` or nothing. Raises ``BadArgument``."""
    if not text:
        return None
    if text == "date":
        return Partitioning()
    found = _KEY_PREFIX.match(text)
    if found is None or int(found[1]) > KEY_PREFIX_MAX:
        raise BadArgument(
            f"--partition-by is {text!r}; it must be date, or key-prefix:N with N from 1 to {KEY_PREFIX_MAX}"
        )
    return Partitioning(int(found[1]))


def _by_date(batch: Any) -> Iterator[tuple[str, Any]]:
    days = batch.column("time").cast(pa.int64()).to_numpy() // _DAY_US
    days = np.minimum(days, _LAST_DAY)  # names have no later date, which a clock that jumped far ahead could produce
    for day in np.unique(days).tolist():
        name = "date=" + date.fromordinal(_EPOCH_DAY + day).isoformat()
        mask = days == day
        yield name, batch if mask.all() else batch.filter(pa.array(mask))


def _by_key(batch: Any, size: int) -> Iterator[tuple[str, Any]]:
    prefixes = pc.binary_slice(batch.column("key"), 0, size)
    for prefix in pc.unique(prefixes).to_pylist():
        mask = pc.is_null(prefixes) if prefix is None else pc.equal(prefixes, prefix)
        yield "key_prefix=" + (NO_KEY if prefix is None else escaped(prefix)), batch.filter(mask)


def escaped(prefix: bytes) -> str:
    """Returns bytes as part of a name: each byte except letters, digits and ``_-.`` becomes ``%XX``."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in prefix)
