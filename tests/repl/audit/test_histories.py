"""Random healthy histories have no finding.  A thousand: ``make audit-histories``."""

from __future__ import annotations

import pytest

from tests.repl.audit.histories import audited_histories

SEEDS = [range(1, 5), range(9, 13)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"from {seeds.start}")
def test_no_healthy_history_has_a_finding(seeds: range) -> None:
    told = audited_histories(seeds, faults_s=8.0, moments=2)
    assert told.findings == []
    assert told.audited >= 2
    assert told.compared > 0
    assert told.entries > 100
