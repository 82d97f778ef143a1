"""The rules of ``docs/watch``: each alert is whole, has its section of the page, and is fired by a situation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.watch import test_situations
from tests.watch.rules import PAGE, ROOT, RULES, alerts, expressions, promtool, recorded, recorded_in
from vlsn.errors import by_slug

NAMES = [rule["alert"] for rule in alerts()]
PARTS = ("**Meaning.**", "**See it.**", "**What to do.**", "**When it is not serious.**")


def test_promtool_reads_the_rules() -> None:
    result = promtool("check", "rules", RULES)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_reads_the_settings_of_prometheus() -> None:
    result = promtool("check", "config", ROOT / "docs/watch/prometheus.yml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("rule", alerts(), ids=NAMES)
def test_an_alert_says_how_bad_it_is_and_where_to_read(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Vlsnlog[A-Z][A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smhd]", rule["for"])
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    said = rule["annotations"]
    assert set(said) == {"summary", "description", "runbook_url"}
    assert "$labels.job" in said["summary"], "the summary names the group"
    assert said["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_alerts_are_named_once() -> None:
    assert len(set(NAMES)) == len(NAMES) > 30


def test_types_of_errors_in_the_rules_exist() -> None:
    named = {
        type for each in expressions() for text in re.findall(r'type=~?"([^"]+)"', each) for type in text.split("|")
    }
    assert named and named <= set(by_slug())


def test_recorded_series_that_are_used_are_recorded() -> None:
    used = set().union(*map(recorded_in, expressions()))
    assert used <= set(recorded()) and all(recorded_in(expr) == set() for expr in recorded().values())


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    sections = re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_section_says_what_to_do(name: str) -> None:
    section = re.split(r"^#{2,3} ", PAGE.read_text().split(f"\n### {name}\n")[1], flags=re.MULTILINE)[0]
    places = [section.find(part) for part in PARTS]
    assert -1 not in places and places == sorted(places)
    assert re.search(r"^```console\n\$ ", section, re.MULTILINE), "a command to paste"


@pytest.mark.parametrize("name", NAMES)
def test_a_situation_fires_each_alert(name: str) -> None:
    assert f'"{name}"' in Path(test_situations.__file__).read_text()
