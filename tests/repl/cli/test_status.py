"""``vlsnlog status``: the members it asks, the reasons it gives, and its table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repl.cli.status import _behind, _mastership, _print, degraded, summarise
from tests.repl.cli.shell import NOWHERE, Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import TERM, master_of_two


def told(name: str, state: str, *, fed: list[str] | None = None, reason: str = "") -> dict[str, Any]:
    more = {"reason": reason} if reason else {}
    return {"node": name, "state": state, "feeders": [{"replica": each} for each in fed or []], **more}


def test_status_prints_a_table_or_one_object(shell: Shell) -> None:
    result = shell("status")
    assert result.status == 0
    assert b"group sim, master n1, term %d" % TERM in result.out
    assert b"MASTER" in result.out
    document = json.loads(shell("status", "--json").out)
    assert (document["group"], document["master"], document["term"]) == ("sim", "n1", TERM)
    assert [each["node"] for each in document["nodes"]] == ["n1"]


def test_status_asks_every_member_and_shows_the_silent(shell: Shell) -> None:
    with ServedNode(master_of_two) as served:
        result = shell("status", "--json", "--url", served.url)
        table = shell("status", "--url", served.url)
    assert result.status == 1
    nodes = {each["node"]: each for each in json.loads(result.out)["nodes"]}
    assert nodes["n2"]["state"] == "UNREACHABLE"
    assert nodes["n1"]["state"] == "MASTER"
    assert table.status == 1
    assert b"degraded: n2 is UNREACHABLE" in table.out


def test_a_node_that_answers_at_one_url_is_not_silent_at_another(shell: Shell) -> None:
    with ServedNode() as served:
        result = shell("status", "--json", "--url", f"{served.url},http://n1:7701")
    assert result.status == 0, result
    assert [each["url"] for each in json.loads(result.out)["nodes"]] == [served.url]


def test_status_that_reaches_no_node_says_so_and_nothing_of_a_master(shell: Shell) -> None:
    result = shell("status", "--url", f"{NOWHERE},http://127.0.0.1:10")
    assert result.status == 1
    [said] = [line for line in result.out.decode().splitlines() if line.startswith("degraded: ")]
    assert said.startswith("degraded: no node answers: ") and NOWHERE in said and "127.0.0.1:10" in said
    assert b"master" not in result.out


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([told("n1", "MASTER", fed=["n2"]), told("n2", "REPLICA")], []),
        ([told("n1", "MASTER"), told("n2", "REPLICA")], ["n2 has no feed from n1"]),
        ([told("n1", "MASTER", fed=["n2"]), told("n2", "MASTER")], ["there are several masters: n1, n2"]),
        ([told("n1", "UNKNOWN", reason="not-listed")], ["n1 is UNKNOWN (not-listed)", "there is no master"]),
        ([told("n1", "MASTER"), told("n2", "DAMAGED")], ["n2 is DAMAGED"]),
        (
            [told("n1", "MASTER", fed=["n2"]), {**told("n2", "REPLICA"), "damage": [{"file": "00000001.vlog"}]}],
            ["n2 has 1 damaged segment"],
        ),
    ],
)
def test_degraded_names_every_reason(nodes: list[dict[str, Any]], words: list[str]) -> None:
    assert degraded(nodes) == words


def test_status_shows_a_restore_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    running = {"from": "n2", "bytes_done": 25, "bytes_total": 100, "expected_s": 3.5, "last_error": ""}
    nodes = [{**told("n3", "RESTORING"), "url": "u", "restore": {"running": running}}]
    _print(summarise(nodes), [])
    assert "n3: restores from n2: 25 % of 100 B, 3.5 s left" in capsys.readouterr().out
    nodes[0]["restore"] = {"running": {**running, "from": "", "last_error": "n2: connection refused"}}
    _print(summarise(nodes), [])
    assert "n3: looks for a member to restore from (n2: connection refused)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("feed", "told"),
    [
        (None, ""),
        ({"lag_vlsns": 0, "lag_s": 0.0, "expected_s": 0.0}, "-"),
        ({"lag_vlsns": 9, "lag_s": 12.34, "expected_s": 4.0}, "12.3 s, 4.0 s left"),
        ({"lag_vlsns": 9, "lag_s": 12.34, "expected_s": None}, "12.3 s, not catching up"),
    ],
)
def test_status_tells_how_long_a_replica_is_behind(feed: dict[str, Any] | None, told: str) -> None:
    assert _behind(feed) == told


def test_status_tells_since_when_the_master_leads_and_what_ended_the_lead_before() -> None:
    def node_of(name: str, *history: dict[str, Any]) -> dict[str, Any]:
        return {"node": name, "elections": {"history": list(history)}}

    leads = {"event": "leads", "time": 2_000_000, "term": 5}
    old = {"event": "leads", "time": 1_000_000, "term": 3}
    summary = {"master": "n2", "nodes": [node_of("n1"), node_of("n2", leads, old)]}
    assert _mastership(summary).startswith("n2 leads term 5 since 1970-01-01")
    assert ";" not in _mastership(summary)
    over = {"event": "steps_down", "time": 1_900_000, "term": 4, "why": "no majority"}
    summary["nodes"] = [node_of("n1", over), node_of("n2", leads, old)]
    assert _mastership(summary).endswith("; n1 stepped down: no majority")
    handed = {"event": "hands_over", "time": 1_800_000, "term": 4, "to": "n2"}
    summary["nodes"] = [node_of("n1", over, handed), node_of("n2", leads, old)]
    assert _mastership(summary).endswith("; n1 handed over to n2")
    assert _mastership({"master": None, "nodes": [node_of("n1")]}) == ""
