"""``vlsnlog group upgrade --dry-run`` and the line of ``vlsnlog status``: what they report, from what nodes say."""

from __future__ import annotations

from typing import Any

import pytest

from repl.cli.upgrade import may_be_raised, plan, print_plan
from vlsn.levels import BRINGS


def document(**more: Any) -> dict[str, Any]:
    members = [{"name": name, "url": f"http://{name}", "levels": None} for name in ("n1", "n2")]
    told = {"group": "g", "node": "n1", "state": "MASTER", "master": "n1", "term": 7, "level": 3, "members": members}
    return {**told, **more}


def node(name: str, levels: list[int] | None, **more: Any) -> dict[str, Any]:
    said = {"node": name, "state": "REPLICA", "version": "0.1.0", "level": 3, **more}
    return said if levels is None else {**said, "levels": levels}


def test_a_plan_says_what_the_master_says_and_what_each_member_runs() -> None:
    found = plan(
        document(upgrade={"level": 4, "why_not": ""}), [node("n1", [1, 4], state="MASTER"), node("n2", [1, 5])]
    )
    assert (found["possible"], found["why_not"], found["level"], found["next"]) == (True, "", 3, 4)
    assert found["brings"] == BRINGS[4] and "no way back" in found["ends"]
    assert [(each["name"], each["state"], each["version"], each["levels"]) for each in found["members"]] == [
        ("n1", "MASTER", "0.1.0", [1, 4]),
        ("n2", "REPLICA", "0.1.0", [1, 5]),
    ]


def test_a_plan_takes_a_silent_members_levels_from_the_master() -> None:
    said = document(upgrade={"level": 4, "why_not": "level 4 is not spoken by n2 (1-3)"})
    said["members"][1]["levels"] = [1, 3]
    found = plan(said, [node("n1", [1, 4]), {"node": "n2", "state": "UNREACHABLE", "url": "http://n2"}])
    assert (found["possible"], found["why_not"]) == (False, "level 4 is not spoken by n2 (1-3)")
    assert [found["members"][1][each] for each in ("state", "version", "levels")] == ["UNREACHABLE", None, [1, 3]]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (document(), "runs a vlsnlog that does not report this: upgrade that node first"),
        (document(state="REPLICA", upgrade=None), "no master answers"),
    ],
)
def test_a_plan_without_a_masters_word_is_no_promise(said: dict[str, Any], words: str) -> None:
    found = plan(said, [node("n1", None), node("n2", None)])
    assert not found["possible"] and words in found["why_not"]


def test_a_plan_beyond_this_vlsnlog_says_that(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan(document(level=64, upgrade={"level": 65, "why_not": ""}), [node("n1", [1, 65]), node("n2", None)]))
    said = capsys.readouterr().out
    assert "level 65 brings: unknown to this vlsnlog" in said and "1-65" in said
    assert said.endswith("it can be raised: `vlsnlog group upgrade`\n")


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([node("n1", [1, 4]), node("n2", [1, 5])], "every member speaks level 4, the group is at level 3"),
        ([node("n1", [1, 4]), node("n2", [1, 3])], ""),
        ([node("n1", [1, 4]), node("n2", None)], ""),
        ([node("n1", [1, 3]), node("n2", [1, 3])], ""),
        ([node("n1", [1, 4]), {"node": "n2", "state": "UNREACHABLE"}], ""),
        ([node("n1", [1, 4], level=4), node("n2", [1, 4])], ""),
        ([], ""),
    ],
)
def test_status_names_a_level_only_if_every_member_speaks_it(nodes: list[dict[str, Any]], says: str) -> None:
    assert may_be_raised(nodes).startswith(says) and bool(may_be_raised(nodes)) == bool(says)
