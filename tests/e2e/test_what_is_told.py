"""Status of every node on itself and others: version, places of members, levels of events, metrics."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import pytest

from tests.e2e.calls import call
from tests.e2e.commands import run
from tests.e2e.group import NAMES, Group
from vlsn.levels import LEVELS

pytestmark = pytest.mark.feature("status")


def test_every_node_knows_how_far_every_member_is(group: Group) -> None:
    group.append(b"a", b"b")
    last = group.settle()

    def known() -> bool:
        told = [group.status(name) for name in NAMES]
        return all(
            [(each["vlsn"], each["lag_vlsns"]) for each in status["members"]] == [(last, 0)] * 3 for status in told
        )

    group.until(known, f"every node has heard that all are at VLSN {last}")


def test_a_node_says_which_version_runs(group: Group) -> None:
    for name in NAMES:
        assert group.status(name)["version"] == version("vlsnlog")
        metrics = call("GET", f"{group.urls[name]}/metrics").body.decode()
        assert re.search(rf'^vlsnlog_build_info{{python="3[.\d]+",version="{version("vlsnlog")}"}} 1.0$', metrics, re.M)
        for one in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
            assert re.search(rf"^{one} [0-9]", metrics, re.M), one


def test_a_dry_run_says_whether_the_level_can_be_raised(group: Group) -> None:
    """The group of this release is at its highest level, so the answer is no."""
    last = group.settle()
    ended = run("group", "upgrade", "--dry-run", "--json", "--url", group.urls["n2"])
    assert ended.status == 1, ended
    found = json.loads(ended.out)
    assert (found["level"], found["next"], found["possible"]) == (LEVELS.max, LEVELS.max + 1, False)
    assert "is not spoken by n1 (1-" in found["why_not"]
    assert [(each["name"], each["url"], each["version"], each["levels"]) for each in found["members"]] == [
        (name, group.urls[name], version("vlsnlog"), [*LEVELS]) for name in NAMES
    ]
    assert group.settle() == last
    text = run("group", "upgrade", "--dry-run", "--url", group.urls["n2"])
    assert text.status == 1 and b"it cannot be raised yet: level" in text.out


def test_events_have_levels_and_the_page_shows_them(group: Group) -> None:
    events = call("GET", f"{group.master}/v1/events").json()["events"]
    assert {event["level"] for event in events} <= {"info", "warning"}
    assert next(event for event in events if event["event"] == "leads")["level"] == "info"
    page = call("GET", f"{group.master}/").body.decode()
    for word in ("No majority: appends are refused", "no space, appends are refused", "is restored from", "damage in"):
        assert word in page
