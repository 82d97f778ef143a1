"""Encodes values as text and as JSON, if a caller asks for that. A log holds bytes, and does not record which encoding
they have.

    "utf8"   str                                        its bytes in UTF-8
    "json"   None, bool, int, float, str, list, dict    one JSON text without blanks, in UTF-8: {"a":[1,"é"]}

Each codec refuses values whose encoding it would have to guess, before anything is logged. Bytes are neither text nor
JSON. NaN, infinities and half a surrogate pair are not JSON. A decoded value equals the encoded one, except for types
that JSON lacks: tuples are decoded as lists, and keys of dictionaries as str.
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
    """Encodes as ``json.dumps`` does. Raises ``TypeError`` for a type that JSON lacks, and ``ValueError`` for NaN,
    infinities and a container that contains itself."""
    return _ENCODER.encode(value).encode()


def decode_json(value: bytes) -> Any:
    """Decodes one JSON text in UTF-8. Raises ``ValueError`` if the bytes are not JSON, or nested too deeply."""
    try:
        return _DECODER.decode(value.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_ENCODER: Final = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER: Final = JSONDecoder(parse_constant=_no_constant)
