"""Codecs. A client's codec is the type of the values that it appends: ``bytes`` by default, or ``utf8`` or ``json``.

    connect(url)                    append(b"value", key=b"k")         anything but bytes is a TypeError
    connect(url, codec="utf8")      append("value", key="k")           so are bytes here
    connect(url, codec="json")      append({"a": 1}, key="k")
    append({"a": 1}, codec="json")                                     this call, whatever the client's codec

A codec applies to values, not to keys. With a named codec, a key may also be a str, which is encoded as UTF-8; a key of
bytes stays unchanged. The caller's thread encodes all values and keys before any of them is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from vlsn.embedded.owned_values import owned, owned_keys, owned_list
from vlsn.errors import BadArgument
from vlsn.format.codec import encode_json, encode_text
from vlsn.limits import BATCH_ENTRIES_MAX
from vlsn.seams import Buffer

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    V = TypeVarWithDefault("V", default=Buffer)
else:
    V = TypeVar("V")
T = TypeVar("T")
CodecName = Literal["bytes", "utf8", "json"]
NAME_A_CODEC: Final = 'or name a codec: codec="utf8" or "json"'


class Codec:
    """Encodes values and keys as bytes. Each method raises ``TypeError`` for a value of another type than the
    codec's."""

    def __init__(self, encode: Callable[[object], bytes]) -> None:
        self._encode = encode

    def value(self, value: Any) -> bytes:
        return self._encode(value)

    def key(self, key: Any) -> bytes | None:
        return encode_text(key) if isinstance(key, str) else None if key is None else owned(key)

    def values(self, values: Iterable[Any]) -> list[bytes]:
        """Encodes values. Reads at most ``BATCH_ENTRIES_MAX`` + 1 values, which is enough to notice that there are
        too many."""
        if isinstance(values, str | bytes | bytearray | memoryview | dict):
            raise TypeError(f"values are a sequence of values, not {type(values).__name__}")
        return [self._encode(value) for value in islice(values, BATCH_ENTRIES_MAX + 1)]

    def keys(self, keys: Iterable[Any] | None) -> Sequence[bytes | None] | None:
        if keys is None:
            return None
        if isinstance(keys, str | bytes | bytearray | memoryview):
            raise TypeError(f"keys are a sequence, a key or None for each value, not {type(keys).__name__}")
        return [self.key(key) for key in islice(keys, BATCH_ENTRIES_MAX + 1)]


class _Bytes(Codec):
    def value(self, value: Any) -> bytes:
        return _or_named(owned, value)

    def key(self, key: Any) -> bytes | None:
        return None if key is None else _or_named(owned, key)

    def values(self, values: Iterable[Any]) -> list[bytes]:
        return _or_named(owned_list, values)

    def keys(self, keys: Iterable[Any] | None) -> Sequence[bytes | None] | None:
        return _or_named(owned_keys, keys)


def _or_named(owned: Callable[[Any], T], given: Any) -> T:
    try:
        return owned(given)
    except TypeError as error:
        raise TypeError(f"{error}, {NAME_A_CODEC}" if "encode text" in str(error) else str(error)) from None


BYTES: Final = _Bytes(owned)
_CODECS: Final[dict[str, Codec]] = {"bytes": BYTES, "utf8": Codec(encode_text), "json": Codec(encode_json)}


def codec_of(name: str) -> Codec:
    """Returns the codec named ``name``. Raises ``BadArgument``."""
    try:
        return _CODECS[name]
    except (KeyError, TypeError):
        raise BadArgument(f"codec: {name!r} is not one of {', '.join(_CODECS)}") from None
