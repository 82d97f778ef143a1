"""The figures of a benchmark, as a table a section or as JSON, and whether its aims were reached."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from repl.aligned import aligned

Figures = dict[str, Any]
Found = Figures | list[Figures]
"""Figures by name, or rows of a table."""
Section = tuple[str, Found]
Sections = Iterator[Section]
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "≥": operator.ge,
    "≤": operator.le,
    "<": operator.lt,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Aimed:
    """A figure and its aim, such as ``≥ 0.8``."""

    value: float
    aim: str

    @property
    def reached(self) -> bool:
        sign, wanted = self.aim.split()
        return _SIGNS[sign](self.value, float(wanted))

    def json(self) -> Figures:
        return {"value": self.value, "aim": self.aim, "reached": self.reached}


def lines(section: Section) -> list[str]:
    """Formats a section for a person; rows of a table have the same names."""
    title, found = section
    if isinstance(found, dict):
        return [f"{title}:", *aligned([["", *map(_words, found)], ["", *map(_cell, found.values())]])[1:]]
    columns = [[_words(name), *(_cell(row[name]) for row in found)] for name in found[0]]
    numbers = [_words(name) for name, value in found[0].items() if not isinstance(value, str)]
    return [f"{title}:", *aligned(columns, right=numbers)]


def missed(section: Section) -> list[str]:
    """Names the figures that did not reach their aims."""
    title, found = section
    rows = found if isinstance(found, list) else [found]
    figures = ((name, value) for row in rows for name, value in row.items() if isinstance(value, Aimed))
    return [
        f"{title}: {_words(name)} {value.value:,}, wanted {value.aim}" for name, value in figures if not value.reached
    ]


def json_of(value: Any) -> Any:
    """Converts figures into what JSON has."""
    if isinstance(value, Aimed):
        return value.json()
    if isinstance(value, dict):
        return {name: json_of(each) for name, each in value.items()}
    return [json_of(each) for each in value] if isinstance(value, list) else value


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if isinstance(value, Aimed):
        return f"{value.value:,} ({value.aim}{'' if value.reached else ', MISSED'})"
    if isinstance(value, dict):
        return ", ".join(f"{_words(name)} {_cell(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    return "-" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)
