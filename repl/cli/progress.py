"""Progress bars, one for each stage of work, each below the one before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

import click

from repl.cli.report import count

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

Show = Callable[[str, int, int], None]
"""A function that shows progress; the arguments are the name of a stage, the amount done, and the total amount."""
_LABEL = 16


@contextmanager
def bars(stream: TextIO | None = None, *, figure: Callable[[int], str] = count) -> Iterator[Show]:
    """Yields a function that draws a stage's bar on ``stream``, by default stderr. A stage ends when another one is
    shown."""
    with ExitStack() as stage:
        bar: ProgressBar[str] | None = None
        shown = ""

        def show(what: str, done: int, total: int) -> None:
            nonlocal bar, shown
            if bar is None or what != shown:
                stage.close()
                bar = stage.enter_context(_bar(what, total, stream or sys.stderr))
                shown = what
            bar.update(done - bar.pos, f"{figure(done)} of {figure(total)}")

        yield show


def _bar(what: str, total: int, stream: TextIO) -> ProgressBar[str]:
    return click.progressbar(
        length=total, label=f"{what:<{_LABEL}}", file=stream, item_show_func=lambda text: text, show_percent=False
    )
