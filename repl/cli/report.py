"""Tables and figures on a terminal; plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def console(stream: TextIO | None = None) -> Console:
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for eyes; numbers to the right.  Without a terminal: the same cells, padded with spaces."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[index]) for row in cells) for index in range(len(columns))]
    if sys.stdout.isatty():
        from rich.table import Table

        table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
        for name, right in zip(columns, numeric, strict=True):
            table.add_column(name, justify="right" if right else "left")
        for row in cells:
            table.add_row(*row)
        console().print(table)
        return
    if title:
        print(title)
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    for row in ([*columns], *cells):
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())


def print_json(value: Any) -> None:
    """One object on one line."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def size(count: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def count(number: int) -> str:
    """``12,345``."""
    return f"{number:,}"


def several(number: int, one: str, many: str = "") -> str:
    """``1 bucket``, ``12,345 buckets``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace(",", "").isdecimal()
