"""The rules and the board of ``docs/watch``, and promtool, which evaluates them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "docs/watch/vlsnlog.rules.yml"
BOARD: Final = ROOT / "docs/watch/vlsnlog.board.json"
PAGE: Final = ROOT / "docs/alerts.md"
_METRIC: Final = re.compile(r"(?<![\w:])((?:vlsnlog|process)_\w+|up)(?![\w:(])")
_RECORDED: Final = re.compile(r"(?<![\w:])\w+:\w+:\w+")


@cache
def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return found


def alerts() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"] if "alert" in rule]


def recorded() -> dict[str, str]:
    """Returns the expression of each recorded series."""
    return {rule["record"]: rule["expr"] for group in groups() for rule in group["rules"] if "record" in rule}


def expressions() -> list[str]:
    return [rule["expr"] for group in groups() for rule in group["rules"]]


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """Returns the panels that show something, without the rows."""
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def metrics_in(expression: str) -> set[str]:
    """Returns the names of the samples that an expression reads from scrapes."""
    return set(_METRIC.findall(re.sub(r'"[^"]*"', '""', expression)))


def recorded_in(expression: str) -> set[str]:
    return set(_RECORDED.findall(re.sub(r'"[^"]*"', '""', expression)))


def promtool_path() -> str:
    """Returns the path of promtool. Skips the test on a machine that has none."""
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if found is None:
        pytest.skip(
            "promtool is not installed (Debian, Ubuntu: apt-get install prometheus; or set PROMTOOL=/path/to/it)"
        )
    return found


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool_path(), *map(str, arguments)], capture_output=True, text=True, timeout=300)
