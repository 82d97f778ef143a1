"""Prints tables and figures: formatted on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from repl.aligned import aligned, width

T = TypeVar("T")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, spare: Sequence[str] = ()
) -> None:
    """Prints a table. Numbers are aligned to the right; on a terminal the head is bold. If the terminal is too narrow,
    ``spare`` columns are left out one after another. A line that is still too long wraps."""
    table = [[name, *map(_cell, values)] for name, *values in zip(columns, *rows, strict=True)]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        for name in spare:
            if width(table) > room:
                table = [column for column in table if column[0] != name]
    if title:
        print(title)
    head, *lines = aligned(table)
    print(styled(head, bold=True))
    for line in lines:
        print(line)


def styled(text: str, **style: Any) -> str:
    """Returns ``text`` in a style of ``click.style``, if stdout is a terminal with colours."""
    return click.style(text, **style) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def print_json(value: Any) -> None:
    """Prints one object on one line."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def print_found(found: T, as_json: bool, text: Callable[[T], None]) -> int:
    """Prints ``found`` as JSON or by ``text``. Returns the exit status 0."""
    if as_json:
        print_json(found)
    else:
        text(found)
    return 0


def print_list(name: str, found: Sequence[T], as_json: bool, text: Callable[[Sequence[T]], None], none: str) -> int:
    """Prints ``found`` as JSON under ``name``, or by ``text``; prints ``none`` if it is empty. Returns the exit status
    0."""
    if as_json:
        print_json({name: found})
    elif found:
        text(found)
    else:
        click.echo(none)
    return 0


def size(count: float) -> str:
    """Formats a number of bytes as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def age(seconds: float) -> str:
    """Formats an age in its largest unit, as ``12 s`` or ``3.4 h``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def count(number: int) -> str:
    """Formats a number as ``12,345``."""
    return f"{number:,}"


def several(number: int, one: str, many: str = "") -> str:
    """Formats a number of things as ``1 bucket`` or ``12,345 buckets``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
