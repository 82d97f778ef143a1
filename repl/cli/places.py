"""Parses places in a log as a user types them: a VLSN, ``start``, ``end``, or a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX

F = TypeVar("F", bound=Callable[..., Any])
START: Final = "start"
END: Final = "end"
_DIGITS: Final = re.compile(r"[0-9]+\Z")
_DIGITS_MAX: Final = len(str(NUMBER_MAX))


def place_of(text: str, option: str) -> int | str:
    """Returns a VLSN as a number, or ``start`` or ``end`` unchanged. Raises ``BadArgument`` with the name of the
    option."""
    vlsn = _vlsn(text)
    if vlsn is None and text not in (START, END):
        raise BadArgument(f"{option} {text[:40]!r}: a VLSN from 1 on, start or end")
    return text if vlsn is None else vlsn


def place_option(flag: str, name: str = "to", *, help: str, required: bool = True) -> Callable[[F], F]:
    """Adds an option whose value is checked by ``place_of``."""

    def checked(_: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
        return None if text is None else place_of(text, flag)

    return click.option(flag, name, required=required, metavar="VLSN|start|end", callback=checked, help=help)


def _vlsn(text: str) -> int | None:
    """Returns the VLSN in ``text``, or None if there is none. A text that is too long for a VLSN is not converted."""
    vlsn = int(text) if _DIGITS.match(text) and len(text) <= _DIGITS_MAX else 0
    return vlsn if 1 <= vlsn <= NUMBER_MAX else None


@dataclass(frozen=True, slots=True)
class Place:
    """One place in a log: a VLSN or a time. ``time_us`` is in µs since the epoch."""

    text: str
    vlsn: int = 0
    time_us: int | None = None

    @property
    def is_end(self) -> bool:
        return self.text == END


class VlsnType(click.ParamType):  # type: ignore[type-arg]
    """Parses a VLSN in ASCII digits."""

    name = "vlsn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        vlsn = value if isinstance(value, int) else _vlsn(str(value))
        if vlsn is None:
            self.fail(f"{str(value)[:40]!r} is no VLSN, which are 1 to {NUMBER_MAX}", param, ctx)
        return vlsn


VLSN: Final = VlsnType()


class PlaceType(click.ParamType):  # type: ignore[type-arg]
    """Parses a place in a log. ``words`` allows ``start`` and ``end``."""

    name = "place"

    def __init__(self, *, words: bool) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if isinstance(value, Place):
            return value
        text = str(value)
        if self._words and text in (START, END):
            return Place(text)
        if _DIGITS.match(text):
            vlsn = _vlsn(text)
            if vlsn is None:
                self.fail(f"{text[:40]} is no VLSN, which are 1 to {NUMBER_MAX}", param, ctx)
            return Place(text, vlsn=vlsn)
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            words = ", start, end" if self._words else ""
            self.fail(f"{text[:40]!r} is no VLSN{words} and no time such as 2026-01-31T12:00:00Z", param, ctx)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        return Place(text, time_us=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
