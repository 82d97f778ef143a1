"""Decodes JSON from another node as a value of some type. If the JSON does not match the type, ``BadBody`` says
where."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS
from vlsn.ids import NUMBER_MAX

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A VLSN or a term in a message from another node."""
T = TypeVar("T")


def read_object(body: object, kind: type[T], what: str) -> T:
    """Converts ``body``, decoded JSON, to the type ``kind``. Raises ``BadBody`` if ``body`` does not match the type."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise BadBody(f"{what}: {error}") from None


def read_json(body: bytes, kind: type[T], what: str) -> T:
    """Decodes the JSON in ``body`` to the type ``kind``. Raises ``BadBody`` if the JSON does not match the type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_FAULTS as error:
        raise BadBody(f"{what}: {error}") from None
