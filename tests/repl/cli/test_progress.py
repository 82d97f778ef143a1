"""Bars as a terminal shows them."""

from __future__ import annotations

import io

from repl.cli.progress import bars
from repl.cli.report import size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_stage_has_a_line_of_its_own_that_ends_with_all_of_it_done() -> None:
    terminal = Terminal()
    with bars(terminal, figure=size) as show:
        for what, total in (("segments", 2048), ("index", 10)):
            for done in (0, total // 2, total):
                show(what, done, total)
    lines = [line.split("\r")[-1] for line in terminal.getvalue().replace("\x1b[?25h", "").split("\n")]
    segments, index, rest = (line.removeprefix("\x1b[?25l").split(maxsplit=2) for line in lines)
    assert (segments[0], segments[2], index[0], index[2]) == ("segments", "2.0 KiB of 2.0 KiB", "index", "10 B of 10 B")
    assert rest == []


def test_a_stage_of_nothing_is_shown() -> None:
    terminal = Terminal()
    with bars(terminal) as show:
        show("nothing", 0, 0)
    assert "nothing" in terminal.getvalue()
