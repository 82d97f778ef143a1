"""The Parquet report, as DuckDB, Spark and pandas read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from repl.audit.outputs import write_outputs
from repl.audit.report import AuditReport
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import CLOCK_US, STORY, Copy, blocks, three


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditReport, Path]:
    path = tmp_path_factory.mktemp("tables")
    copies = three(path)
    other = blocks([f"<b>paid {n}</b>" for n in range(5)], first_vlsn=1001)[0]
    copies[2] = Copy(path / "n3", "n3").add(*STORY[:200], other, *STORY[201:]).write()
    copies[0].flip(501, 120)
    report = audited(*copies)
    write_outputs(report, [str(path / "report.parquet")])
    return report, path / "report.parquet"


def test_duckdb_finds_what_the_report_says(made: tuple[AuditReport, Path]) -> None:
    report, path = made

    def query(text: str) -> list[tuple[Any, ...]]:
        found = duckdb.sql(text.replace("report", f"'{path}'"))
        assert found is not None
        return found.fetchall()

    assert query("select count(*) from report where record = 'copy'") == [(3,)]
    findings = query("select rule, node, file, \"offset\", vlsn from report where record = 'finding' order by vlsn")
    nodes = {each.source: each.node for each in report.sources}
    assert findings == [(f.rule, nodes[f.source], f.file, f.offset, f.vlsn) for f in report.findings]
    agree = query("select node, agrees, first, last from report where record = 'range' order by node")
    assert agree == [(node, False, 1, 1990) for node in ("n1", "n2", "n3")]
    segments = query("select sum(bytes), sum(entries) from report where record = 'segment' and node = 'n2'")
    assert segments == [(report.sources[1].bytes, report.sources[1].entries)]
    (facts,) = query("select facts from report where rule = 'divergence'")
    assert json.loads(facts[0])["value"] == "<b>paid 0</b>"
    (begun,) = query("select epoch_us(min(begun)) from report where record = 'segment'")
    assert begun[0] == CLOCK_US + 1


def test_the_table_holds_every_row_of_the_report(made: tuple[AuditReport, Path]) -> None:
    report, path = made
    rows = pq.read_table(path).to_pylist()
    for source in report.sources:
        mine = [row for row in rows if row["source"] == source.source]
        ranges = [(row["range"], row["digest"], row["chain"]) for row in mine if row["record"] == "range"]
        assert ranges == [(row.range, row.digest, row.chain) for row in source.ranges]
        assert [row["file"] for row in mine if row["record"] == "segment"] == [row.file for row in source.segments]
    assert {row["group"] for row in rows} == {"g"}
    assert len({row["made"] for row in rows}) == 1


@pytest.mark.real
def test_spark_reads_the_table(made: tuple[AuditReport, Path], spark: Any) -> None:
    report, path = made
    found = spark.read.parquet(str(path)).where("record = 'finding'").orderBy("vlsn").select("rule", "vlsn").collect()
    assert [tuple(row) for row in found] == [(finding.rule, finding.vlsn) for finding in report.findings]
