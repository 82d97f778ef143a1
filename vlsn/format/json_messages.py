"""A message of another node as the type that it should be; whatever is wrong with it is a ``BadBody`` that names it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS

T = TypeVar("T")


def read_object(body: object, kind: type[T], what: str) -> T:
    """``body``, decoded JSON, as a ``kind``.  Raises ``BadBody``."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise BadBody(f"{what}: {error}") from None


def read_json(body: bytes, kind: type[T], what: str) -> T:
    """The JSON in ``body`` as a ``kind``.  Raises ``BadBody``."""
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_FAULTS as error:
        raise BadBody(f"{what}: {error}") from None
