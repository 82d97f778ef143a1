"""The board for Grafana: it is whole, its expressions parse, and it names no data source of somebody else."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.watch.rules import board, panels, promtool

ROWS = [
    "Group",
    "Appends and latency",
    "Replication",
    "Disk",
    "Readers and consumers",
    "Destinations",
    "CDC",
    "Process",
]
VARIABLES = {"job", "instance", "__rate_interval", "datasource", "__all"}


def test_the_board_has_its_rows_and_variables() -> None:
    found = board()
    assert [panel["title"] for panel in found["panels"] if panel["type"] == "row"] == ROWS
    assert [each["name"] for each in found["templating"]["list"]] == ["datasource", "job", "instance"]
    assert found["schemaVersion"] >= 39 and found["title"] == "vlsnlog" and found["id"] is None


def test_the_board_names_no_data_source() -> None:
    def sources(part: Any) -> list[Any]:
        if isinstance(part, list):
            return [each for one in part for each in sources(one)]
        if isinstance(part, dict):
            own = [part["datasource"]] if "datasource" in part else []
            return own + [each for one in part.values() for each in sources(one)]
        return []

    found = sources(board())
    assert len(found) > len(panels())
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in found)
    assert board()["uid"] is None, "Grafana makes one, so that two boards do not replace each other"


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in board()["panels"]}) == len(board()["panels"])
    for one, two in itertools.combinations([panel["gridPos"] for panel in board()["panels"]], 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"], (one, two)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board()["panels"])


def test_variables_of_the_board_are_defined() -> None:
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(board()))) <= VARIABLES


def test_expressions_of_the_board_parse(tmp_path: Path) -> None:
    texts = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(texts) > 50 and all("$job" in text for text in texts)
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$job", ".*")}
        for number, text in enumerate(texts)
    ]
    file = tmp_path / "board.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    result = promtool("check", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr
