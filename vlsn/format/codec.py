"""Encodes values as text or as JSON, for callers that want this. A log stores bytes, and does not record their
encoding.

    "utf8"   str                                        bytes in UTF-8
    "json"   None, bool, int, float, str, list, dict    one JSON text without blanks, in UTF-8: {"a":[1,"é"]}

Each codec refuses values whose encoding would be a guess, before anything is logged. Values of type bytes are neither
text nor JSON. NaN, infinities and half a surrogate pair are not JSON. A decoded value equals the encoded one, except
for types that JSON does not have: tuples are decoded as lists, and keys of dictionaries as str.
"""

from __future__ import annotations

from json import JSONDecoder, JSONEncoder
from typing import Any, Final, NoReturn


def encode_text(value: object) -> bytes:
    """Encodes a str. Raises ``TypeError`` for any other type, and ``ValueError`` for half a surrogate pair."""
    if not isinstance(value, str):
        raise TypeError(f"with the codec utf8 a value is str, not {type(value).__name__}")
    return value.encode()


def decode_text(value: bytes) -> str:
    """Decodes UTF-8. Raises ``ValueError`` if the bytes are not UTF-8."""
    return value.decode()


def encode_json(value: object) -> bytes:
    """Encodes like ``json.dumps``. Raises ``TypeError`` for a type that JSON does not have. Raises ``ValueError`` for
    NaN, infinities and a container that contains itself."""
    return _ENCODER.encode(value).encode()


def decode_json(value: bytes) -> Any:
    """Decodes one JSON text in UTF-8. Raises ``ValueError`` if the bytes are not JSON, or if they are nested too
    deeply."""
    try:
        return _DECODER.decode(value.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_ENCODER: Final = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER: Final = JSONDecoder(parse_constant=_no_constant)
