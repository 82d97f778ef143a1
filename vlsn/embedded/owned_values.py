"""Converts the values and keys that a caller passes to ``bytes`` objects, which cannot change any more.

    b"a", [b"a", b"b"]                     used without a copy, after one check of all types, in C
    bytearray(b"a"), memoryview(b"a")      copied, each is one value: a buffer may change after the call
    "a", 5, [b"a", ["b"]]                  ``TypeError``

Values are converted before anything is queued. Once a value is queued, it must not cause an error, since an error would
fail all appends of the same group. A subclass of ``bytes`` is copied, too, since its methods may be overridden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from vlsn.limits import BATCH_ENTRIES_MAX
from vlsn.seams import Buffer

_BUFFERS = bytes, bytearray, memoryview
_PLAIN = frozenset({bytes})
_NO_KEYS = frozenset({type(None)})


def owned(piece: object) -> bytes:
    """Converts one value or key to ``bytes``. Raises ``TypeError`` for a type that is no buffer of bytes."""
    if type(piece) is bytes:
        return piece
    _check(type(piece))
    return bytes(memoryview(piece))  # type: ignore[arg-type]


def owned_values(values: Buffer | Iterable[Buffer]) -> list[bytes]:
    """Converts one value, or each of several values, to ``bytes``, like ``owned_list``."""
    return [owned(values)] if isinstance(values, _BUFFERS) else owned_list(values)


def owned_list(values: Iterable[Buffer]) -> list[bytes]:
    """Converts several values to ``bytes``. At most one value more than the limit is read. Raises ``TypeError``."""
    if not _is_many(values):
        _check(type(values))
    pieces = _listed(values)
    types = set(map(type, pieces))
    if types <= _PLAIN:
        return pieces
    for each in types:
        _check(each)
    return [bytes(memoryview(piece)) for piece in pieces]


def owned_keys(keys: Iterable[Buffer | None] | None) -> Sequence[bytes | None] | None:
    """Converts the keys to ``bytes``. Returns None if ``keys`` is None. Raises ``TypeError``."""
    if keys is None:
        return None
    if isinstance(keys, _BUFFERS) or not _is_many(keys):
        raise TypeError(f"keys are a sequence, a key or None for each value, not {type(keys).__name__}")
    listed = _listed(keys)
    types = set(map(type, listed))
    if types <= _PLAIN | _NO_KEYS:
        return listed
    return [None if key is None else owned(key) for key in listed]


def owned_with_keys(
    values: Buffer | Iterable[Buffer], key: Buffer | None, keys: Iterable[Buffer | None] | None
) -> tuple[list[bytes], Sequence[bytes | None] | None]:
    """Converts one value and its ``key``, or several values and their ``keys``, to ``bytes``. Raises ``TypeError``."""
    if key is None:
        return owned_values(values), owned_keys(keys)
    if keys is not None or not isinstance(values, _BUFFERS):
        raise TypeError("key is for a single value of bytes; use keys for several values")
    return [owned(values)], [owned(key)]


def _is_many(values: object) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str)


def _listed(pieces: Iterable[Any]) -> list[Any]:
    """Copies the pieces into a new list, since the caller's list may change."""
    if type(pieces) is list or type(pieces) is tuple:
        return list(pieces)
    return list(islice(pieces, BATCH_ENTRIES_MAX + 1))  # an iterator may be endless


def _check(kind: type) -> None:
    if not issubclass(kind, _BUFFERS):
        raise TypeError(f"a value or key is bytes, not {kind.__name__}; encode text first: value.encode()")
