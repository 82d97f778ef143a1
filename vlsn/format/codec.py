"""Values as text and as JSON, where a caller asks for that: a log holds bytes, and nothing in it says which is which.

    "utf8"   str                                        its bytes in UTF-8
    "json"   None, bool, int, float, str, list, dict    one JSON text without blanks, in UTF-8: {"a":[1,"é"]}

Each refuses values that it would have to guess, before anything is logged: bytes are not text or JSON; NaN, infinities
and half a surrogate pair are not JSON. A decoded value equals the encoded one, except for types that JSON has not:
tuples come back as lists, keys of dictionaries as str.
"""

from __future__ import annotations

from json import JSONDecoder, JSONEncoder
from typing import Any, Final, NoReturn


def encode_text(value: object) -> bytes:
    """Encodes a str. Raises ``TypeError`` for anything else, ``ValueError`` for half a surrogate pair."""
    if not isinstance(value, str):
        raise TypeError(f"with the codec utf8 a value is str, not {type(value).__name__}")
    return value.encode()


def decode_text(value: bytes) -> str:
    """Decodes UTF-8. Raises ``ValueError``."""
    return value.decode()


def encode_json(value: object) -> bytes:
    """Encodes as ``json.dumps`` does. Raises ``TypeError`` for a type that JSON lacks, ``ValueError`` for NaN,
    infinities and a container that holds itself."""
    return _ENCODER.encode(value).encode()


def decode_json(value: bytes) -> Any:
    """Decodes one JSON text in UTF-8. Raises ``ValueError``, also where it is nested too deeply."""
    try:
        return _DECODER.decode(value.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_ENCODER: Final = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER: Final = JSONDecoder(parse_constant=_no_constant)
