"""A group of real processes, audited while it writes, loses masters, elects and rolls back: no false alarm.

Twenty of them, audited while nodes are killed: ``make audit-live``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repl.audit.live import Told, audited_live

pytestmark = pytest.mark.real


def test_no_group_has_a_finding_whose_nodes_are_killed_in_the_middle_of_its_audits(tmp_path: Path) -> None:
    told = Told()
    audited_live(tmp_path / "group", 1, told, kills=2)
    assert told.findings == []
    assert told.kills == 2
    assert told.equal > 0
    assert told.entries > 0
