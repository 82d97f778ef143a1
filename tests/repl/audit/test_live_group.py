"""A group of real processes, audited while it writes, loses masters, elects and rolls back: no false alarm.

Twenty of them, audited while nodes are killed: ``make audit-live``.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from repl.audit.source import Unreadable
from tests.e2e.group import NAMES, Group
from tests.repl.audit.jobs import audited
from tests.repl.audit.live import Told, Writers, audited_live

pytestmark = pytest.mark.real

ROUNDS = 3
PAUSE_S = 0.3


def test_a_group_that_writes_and_changes_masters_has_no_finding(group: Group) -> None:
    with Writers(group) as writers:
        for _ in range(ROUNDS):
            time.sleep(PAUSE_S)
            paths, urls = [group.path(name) for name in NAMES], list(group.urls.values())
            for sources in (paths, urls, [paths[0], *urls[1:]]):
                report = audited(*sources)
                assert report.findings == []
                assert all(source.live for source in report.sources)
            killed = group.leader
            group.kill(killed)
            report = audited(*paths)  # one of them stopped, one of the others elected meanwhile
            assert report.findings == []
            assert {source.node for source in report.sources if not source.live} == {killed}
            with pytest.raises(Unreadable, match="is the node up"):
                audited(group.urls[killed], *(urls for name, urls in group.urls.items() if name != killed))
            group.launch(killed)
            group.until(lambda killed=killed: bool(group.status(killed)), f"{killed} answers")  # type: ignore[misc]
    assert writers.written > ROUNDS
    group.settle()
    group.stop(*NAMES)
    report = audited(*(group.path(name) for name in NAMES))
    assert (report.equal, report.findings) == (True, [])


def test_no_group_has_a_finding_whose_nodes_are_killed_in_the_middle_of_its_audits(tmp_path: Path) -> None:
    told = Told()
    audited_live(tmp_path / "group", 1, told, kills=2)
    assert told.findings == []
    assert told.kills == 2
    assert told.equal > 0
    assert told.entries > 0
