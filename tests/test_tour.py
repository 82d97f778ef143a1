"""The tour names what there is: every link's file exists, and defines what the link's words say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"\[`([\w.]+)`\]\(([\w./-]+)\)")


def test_tour_names_what_its_files_define() -> None:
    links = _LINK.findall((DOCS / "tour.md").read_text())
    assert len(links) > 50
    lacking = [f"{name} in {path}" for name, path in links if name not in _defined(DOCS / path)]
    assert lacking == []


def test_tour_passes_through_every_journey() -> None:
    text = (DOCS / "tour.md").read_text()
    steps = {
        part.partition("\n")[0]: [int(number) for number in re.findall(r"^(\d+)\. \[`", part, re.MULTILINE)]
        for part in text.split("\n## ")[1:]
    }
    assert list(steps) == [
        "One append",
        "One feed message",
        "One read",
        "One opening after a crash",
        "One delivery and its acknowledgement",
        "One position commit",
        "One transaction",
        "One CDC event",
    ]
    assert {title: numbers for title, numbers in steps.items() if numbers != list(range(1, len(numbers) + 1))} == {}


def _defined(path: Path) -> set[str]:
    """Returns names of the classes and functions of a module; methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            within = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{each.name}" for each in within}
    return found
