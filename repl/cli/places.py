"""Places in a log as a person names them: a VLSN, ``start``, ``end``, or a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click

from vlsn.ids import NUMBER_MAX

START: Final = "start"
END: Final = "end"


@dataclass(frozen=True, slots=True)
class Place:
    """One of them; ``time_us`` since the epoch."""

    text: str
    vlsn: int = 0
    time_us: int | None = None

    @property
    def is_end(self) -> bool:
        return self.text == END


class PlaceType(click.ParamType):  # type: ignore[type-arg]
    """``words``: whether ``start`` and ``end`` name a place here."""

    name = "place"

    def __init__(self, *, words: bool) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if isinstance(value, Place):
            return value
        text = str(value)
        if self._words and text in (START, END):
            return Place(text)
        if text.isascii() and text.isdigit():
            if not 1 <= int(text) <= NUMBER_MAX:
                self.fail(f"{text} is no VLSN; the first one is 1", param, ctx)
            return Place(text, vlsn=int(text))
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            words = ", start, end" if self._words else ""
            self.fail(f"{text!r} is no VLSN{words} and no time such as 2026-01-31T12:00:00Z", param, ctx)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        return Place(text, time_us=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
