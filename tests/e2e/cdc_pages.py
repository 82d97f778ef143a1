"""The examples of the pages on shipped consumers, with a test's own places."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

PAGES = Path(__file__).parents[2] / "docs" / "cdc"


def example(page: str, **options: Any) -> dict[str, Any]:
    """Returns the table of the page's first example, some of its options replaced."""
    [first, *_] = re.findall(r"^```toml\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    [table] = tomllib.loads(first)["cdc"]
    assert set(options) <= set(table["options"]), "the example has these options"
    return {**table, "options": {**table["options"], **options}}


def toml(table: dict[str, Any]) -> str:
    """Writes a table ``[[cdc]]``."""
    lines = [f"{key} = {_inline(value)}" for key, value in table.items()]
    return "\n".join(["[[cdc]]", *lines])


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(each)}" for key, each in value.items()) + " }"
    return msgspec.json.encode(value).decode()


def options_shown(page: str) -> dict[str, str]:
    """Returns the options in the page's table, each with its default as it is written."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|", (PAGES / page).read_text(), re.MULTILINE)
    return {name: default.strip().strip("`") for name, default, _ in rows}
