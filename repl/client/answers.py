"""Decodes nodes' answers or raises their errors, and encodes requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Never, TypeVar

import msgspec

from repl.web import problem
from repl.web.types import Response
from vlsn.errors import BadArgument, BadBody, Forbidden, NotMaster, Unauthorized, VlsnLogError
from vlsn.format.records import JSON_FAULTS

T = TypeVar("T")


def right(answer: Response) -> Response:
    """Returns ``answer`` if its status is a success. If it is not, raises the error that the answer names."""
    if answer.status == 307:
        raise NotMaster("another node leads by now")
    if answer.status not in (200, 201, 204):
        raise problem.error_of(bytes(answer.body))
    return answer


def refused_by_half(faults: Sequence[VlsnLogError], nodes: int) -> VlsnLogError | None:
    """Returns the first refusal of the caller's token if at least half of ``nodes`` refuse it. Fewer may have missed a
    token that the group has, which is in the log of a majority before anyone gets it."""
    refusals = [fault for fault in faults if isinstance(fault, Unauthorized | Forbidden)]
    return refusals[0] if refusals and 2 * len(refusals) >= nodes else None


def encoded(asked: object) -> bytes:
    """Encodes a request as JSON. Raises ``BadArgument`` for a value that JSON cannot hold, such as a number past 64
    bits, NaN, or text that is not UTF-8."""
    try:
        body = msgspec.json.encode(asked, enc_hook=_no_json)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadArgument(f"the request cannot be sent as JSON: {error}") from None
    return body


def _no_json(given: object) -> Never:
    raise TypeError(f"{type(given).__name__} is neither a number nor text")


def decoded(answer: Response, kind: type[T], what: str) -> T:
    """Decodes an answer as ``kind``. Raises ``BadBody`` with a text that the answer is no ``what``."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except JSON_FAULTS:
        raise BadBody(f"the answer is no {what}; is it a vlsnlog node?") from None
