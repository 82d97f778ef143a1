"""The blocks of README.md and of docs/**, without the decisions and the generated reference.

Readers do not see the comments that mark them:

    <!-- not run: REASON -->          the next block does not run, because REASON
    <!-- not run below: REASON -->    no block runs up to the next heading of the same level, or of a higher one
    <!-- setup: COMMAND -->           COMMAND is typed before the next block

A block that equals a file of docs/examples runs with that file's own tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name not in ("decisions", "reference")),
]
RUN: Final = ("console", "sh", "bash", "python")
"""The languages of blocks that run."""
FILES: Final = ("toml", "json", "ini", "yaml")
"""The languages of blocks that are parsed, and written to a file if their first line names one."""
_PART: Final = re.compile(
    r"^(?P<heading>#+) [^\n]*$|^<!-- (?P<mark>not run below|not run|setup): (?P<text>[^\n]+) -->$"
    r"|^```(?P<language>\w*)\n(?P<block>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NAMED: Final = re.compile(r"# ([\w/.-]+\.\w+)(?:$|: |\s)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page. ``reason`` is empty if it runs; ``setup`` are the commands before it."""

    page: Path
    line: int
    language: str
    text: str
    reason: str
    setup: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """The file that the block is to be saved as: its first line names it in a comment. Empty without one."""
        named = _NAMED.match(self.text)
        return named[1] if named else ""


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Returns the blocks of a page in their order."""
    text = page.read_text()
    found: list[Block] = []
    reason, setup = "", []
    below: tuple[int, str] = (0, "")
    level = 1
    for part in _PART.finditer(text):
        if part["heading"]:
            level = len(part["heading"])
            if level <= below[0]:
                below = (0, "")
        elif part["mark"] == "setup":
            setup.append(part["text"])
        elif part["mark"] == "not run":
            assert text[part.end() :].startswith("\n```"), f"{page}: no block follows {part[0]}"
            reason = part["text"]
        elif part["mark"]:
            below = (level, part["text"])
        else:
            why = reason or below[1] or _example(part["block"])
            line = text.count("\n", 0, part.start()) + 1
            found.append(Block(page, line, part["language"], part["block"], why, tuple(setup)))
            reason, setup = "", []
    assert not setup, f"{page}: no block follows {setup}"
    return tuple(found)


def _example(text: str) -> str:
    for path in sorted((ROOT / "docs/examples").rglob("*.py")):
        if path.read_text() == text:
            return f"{path.relative_to(ROOT)} has tests of its own"
    return ""


def commands(text: str, prompt: str = "$ ") -> list[tuple[str, list[str]]]:
    """Returns each command of a console block with the lines that the page shows below it. Lines that begin with
    ``> `` continue the command. A shell block is one command."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(prompt):
            found.append((line.removeprefix(prompt), []))
        elif found and not found[-1][1] and line.startswith("> "):
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            assert found, f"no command before {line!r}"
            found[-1][1].append(line)
    return found


def is_as_shown(output: str, shown: list[str]) -> bool:
    """Compares without the widths of columns. ``…`` is any text of a line; a line of its own, any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, " ".join(line.split()).split("…"))) + r"\n"
        for line in shown
    )
    said = "".join(" ".join(line.split()) + "\n" for line in output.splitlines())
    return re.fullmatch(pattern, said) is not None
