"""The blocks of the pages can be pasted: each block parses, and a block that is not run says why."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.pasted import FILES, PAGES, ROOT, RUN, Block, blocks, commands

_PROSE = ("", "sql", "abnf")
"""Layouts, transcripts of nodes, and SQL for databases that are not here: shown, and never run."""


def syntax_of(block: Block) -> None:
    """Raises the error of a block that its language refuses."""
    match block.language:
        case "python":
            compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        case "toml":
            tomllib.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)
        case "json":
            _json(block)
        case "console" | "sh" | "bash":
            prompt = r"\w*\$ " if block.language == "console" else ""
            typed = re.sub(rf"^(?!{prompt}|> ).*\n", "", block.text, flags=re.MULTILINE) if prompt else block.text
            typed = re.sub(rf"^(?:{prompt}|> )", "", typed, flags=re.MULTILINE) if prompt else typed
            done = subprocess.run(["bash", "-n"], input=typed, capture_output=True, text=True, check=False)
            assert done.returncode == 0 and typed, f"{block}: {done.stderr}"
        case other:
            assert other in (*_PROSE, "ini"), f"{block}: {other} is no language of the pages"


def _json(block: Block) -> None:
    """Parses a block as one value, or as one for each line."""
    if "…" in block.text:
        assert block.reason, f"{block}: what is left out cannot be pasted, and the page's source has no reason"
        return
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_parses(page: Path) -> None:
    for block in blocks(page):
        syntax_of(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        if block.language in (*RUN, *FILES) and block.reason:
            assert len(block.reason.split()) >= 3, f"{block}: {block.reason!r} is no reason"
            for path in re.findall(r"\b(?:tests|docs)/[\w./-]+\.\w+", block.reason):
                assert (ROOT / path).exists(), f"{block}: there is no {path}"


def test_most_blocks_of_the_first_pages_run() -> None:
    counts = Counter(
        (block.page.name, not block.reason) for page in PAGES for block in blocks(page) if block.language in RUN
    )
    ran, left = (sum(count for (_, runs), count in counts.items() if runs is wanted) for wanted in (True, False))
    print(f"{ran} blocks run, {left} do not")
    assert counts["quick-start.md", False] == 0
    assert counts["README.md", False] == 1, "make demo and make test, which run this test"


def test_marks_reach_the_blocks_that_they_are_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# T\n<!-- setup: true -->\n```console\n$ a\nb\n```\n<!-- not run: it needs a cat -->\n```python\nx\n```\n"
        "## S\n<!-- not run below: it needs a dog -->\n### U\n```sh\nc\n```\n## V\n```toml\n# n.toml\nd = 1\n```\n"
    )
    found = [(block.language, block.reason, block.setup, block.file) for block in blocks(page)]
    assert found == [
        ("console", "", ("true",), ""),
        ("python", "it needs a cat", (), ""),
        ("sh", "it needs a dog", (), ""),
        ("toml", "", (), "n.toml"),
    ]
    page = tmp_path / "other.md"
    page.write_text("<!-- not run: it needs a cat -->\n\nprose\n")
    with pytest.raises(AssertionError, match="no block follows"):
        blocks(page)


def test_commands_are_taken_with_what_is_shown_below_them() -> None:
    assert commands("$ a\nb\n$ c <<E\n> d\n> E\ne\n$ f\n") == [("a", ["b"]), ("c <<E\nd\nE", ["e"]), ("f", [])]
