"""The table of a real PostgreSQL beside a real group, short: nodes, children and the server killed, each entry once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.cdc_postgres import digest_of, run_cdc_postgres
from harness.postgres import NoPostgres, binary

pytestmark = pytest.mark.real


def test_the_rows_are_the_log_whoever_is_killed(tmp_path: Path) -> None:
    try:
        binary("postgres")
    except NoPostgres as error:
        pytest.skip(str(error))
    said: list[str] = []
    verdict = asyncio.run(run_cdc_postgres(tmp_path, nodes=3, time_s=12.0, seed=5, say=said.append))
    assert verdict.valid, "\n".join([*said, *verdict.differences])
    assert verdict.rows == verdict.entries > 0
    assert verdict.faults.total() > 0


def test_a_digest_tells_a_row_that_is_missing_there_twice_or_another() -> None:
    rows = [(5, 1, 10, None, b"k", b"v"), (6, 1, 11, 6, None, b""), (7, 1, 11, 6, b"k", b"v")]
    others = [rows[:2], [*rows, rows[2]], [rows[1], rows[0], rows[2]], [*rows[:2], (7, 1, 11, 6, b"k", b"w")]]
    assert len({digest_of(each) for each in [rows, *others]}) == 5
    assert digest_of(list(rows)) == digest_of(rows)
