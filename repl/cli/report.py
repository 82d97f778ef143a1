"""Tables and figures on a terminal; plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def console(stream: TextIO | None = None) -> Console:
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, spare: Sequence[str] = ()
) -> None:
    """Prints a table for eyes; numbers to the right, its head bold on a terminal. Where that is too narrow, ``spare``
    columns are left out, the first one first; a line that is too long all the same wraps, and loses nothing."""
    table = [[name, *map(_cell, values)] for name, *values in zip(columns, *rows, strict=True)]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        for name in spare:
            if sum(_width(column) + 2 for column in table) - 2 > room:
                table = [column for column in table if column[0] != name]
    if title:
        print(title)
    aligned = [_aligned(column) for column in table]
    head, *lines = ("  ".join(cells).rstrip() for cells in zip(*aligned, strict=True))
    if sys.stdout.isatty():
        out = console()
        out.print(head, style="" if out.no_color else "bold", markup=False)
    else:
        print(head)
    for line in lines:
        print(line)


def print_json(value: Any) -> None:
    """Prints one object on one line."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def size(count: float) -> str:
    """Formats as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def count(number: int) -> str:
    """Formats as ``12,345``."""
    return f"{number:,}"


def several(number: int, one: str, many: str = "") -> str:
    """Formats as ``1 bucket``, ``12,345 buckets``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _aligned(column: Sequence[str]) -> list[str]:
    width = _width(column)
    _, *values = column
    right = bool(values) and all(map(_is_number, values))
    return [text.rjust(width) if right else text.ljust(width) for text in column]


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace(",", "").isdecimal()
