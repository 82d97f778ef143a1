"""Formats tables as lines of text. Each column is as wide as its widest cell, with two spaces between columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

GAP = "  "


def aligned(columns: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """Returns one line for each row. The first cell of each column is its name. Columns of numbers, and the columns
    named in ``right``, are aligned to the right."""
    cells = [_column(column, right=column[0] in right or _are_numbers(column[1:])) for column in columns]
    return [GAP.join(row).rstrip() for row in zip(*cells, strict=True)]


def width(columns: Sequence[Sequence[str]]) -> int:
    """Returns the width of the widest line of the table."""
    return sum(_width(column) for column in columns) + len(GAP) * (len(columns) - 1)


def _column(cells: Sequence[str], *, right: bool) -> list[str]:
    size = _width(cells)
    return [cell.rjust(size) if right else cell.ljust(size) for cell in cells]


def _width(cells: Sequence[str]) -> int:
    return max(map(len, cells))


def _are_numbers(cells: Sequence[str]) -> bool:
    return bool(cells) and all(map(_is_number, cells))


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace(",", "").isdecimal()
