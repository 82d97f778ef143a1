"""Writes the report as one Parquet table, for DuckDB, Spark and pandas. Each copy, range, segment and finding is a row.

    record = 'copy'      first, last, dtvlsn, bytes, blocks, entries, live, torn_tail, incarnation
             'range'     range, first, last, blocks, entries, digest, chain, agrees
             'segment'   file, number, first, last, first_term, last_term, begun, ended, bytes, blocks, entries,
                         damaged, overmarked
             'finding'   rule, file, offset, vlsn, detail, facts, mend
             'unread'    file, first, last, bytes, detail (the reason), facts: a part that was not audited

A row has null in the columns that its kind does not use. Every row has the audit's ``group`` and ``made``, and the
copy's ``source`` and ``node``, so that the tables of many audits can be read as one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from repl.audit.digest import RANGE_BITS
from repl.audit.report import REPORT_VERSION, AuditReport, SourceReport

_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("record", pa.string(), nullable=False),
        ("group", pa.string()),
        ("made", _TIME),
        ("source", pa.string()),
        ("node", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("bytes", pa.int64()),
        ("blocks", pa.int64()),
        ("entries", pa.int64()),
        ("dtvlsn", pa.int64()),
        ("live", pa.bool_()),
        ("torn_tail", pa.bool_()),
        ("incarnation", pa.string()),
        ("range", pa.int64()),
        ("digest", pa.string()),
        ("chain", pa.string()),
        ("agrees", pa.bool_()),
        ("file", pa.string()),
        ("number", pa.int64()),
        ("first_term", pa.int64()),
        ("last_term", pa.int64()),
        ("begun", _TIME),
        ("ended", _TIME),
        ("damaged", pa.bool_()),
        ("overmarked", pa.int64()),
        ("rule", pa.string()),
        ("offset", pa.int64()),
        ("vlsn", pa.int64()),
        ("detail", pa.string()),
        ("facts", pa.string()),
        ("mend", pa.string()),
    ],
    metadata={"vlsnlog.report": str(REPORT_VERSION)},
)


def parquet_of(report: AuditReport) -> bytes:
    """Returns the report's table as the bytes of a Parquet file."""
    rows = [{"group": report.group, "made": report.made_us or None} | row for row in _rows(report)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    data = BytesIO()
    pq.write_table(table, data, compression="zstd")
    return data.getvalue()


def _rows(report: AuditReport) -> Iterator[dict[str, Any]]:
    votes: dict[int, Counter[str]] = {}
    for source in report.sources:
        for row in source.ranges:
            votes.setdefault(row.range, Counter())[row.digest] += 1
    for source in report.sources:
        named = {"source": source.source, "node": source.node}
        yield {"record": "copy"} | named | source.summary() | {"incarnation": source.incarnation}
        yield from ({"record": "range"} | named | each for each in _ranges(source, report, votes))
        yield from ({"record": "segment"} | named | each for each in _segments(source))
    nodes = {source.source: source.node for source in report.sources}
    for left in report.not_audited:
        yield {
            "record": "unread",
            "source": left.source or None,
            "node": nodes.get(left.source),
            "file": left.file or None,
            "first": left.first or None,
            "last": left.last or None,
            "bytes": left.bytes,
            "detail": left.why,
            "facts": msgspec.json.encode({"what": left.what, "segments": left.segments}).decode(),
        }
    for finding in report.findings:
        yield {
            "record": "finding",
            "source": finding.source,
            "node": nodes.get(finding.source),
            "rule": str(finding.rule),
            "file": finding.file,
            "offset": finding.offset,
            "vlsn": finding.vlsn,
            "detail": finding.detail,
            "facts": msgspec.json.encode(finding.more).decode(),
            "mend": finding.mend or None,
        }


def _ranges(source: SourceReport, report: AuditReport, votes: dict[int, Counter[str]]) -> Iterator[dict[str, Any]]:
    for row in source.ranges:
        first = max(row.range << RANGE_BITS, report.compared_from)
        last = min(((row.range + 1) << RANGE_BITS) - 1, report.compared_to)
        agrees = 2 * votes[row.range][row.digest] > len(report.sources)
        yield msgspec.structs.asdict(row) | {"first": first, "last": last, "agrees": agrees}


def _segments(source: SourceReport) -> Iterator[dict[str, Any]]:
    for row in source.segments:
        fields = msgspec.structs.asdict(row)
        yield fields | {"begun": row.begun_us or None, "ended": row.ended_us or None}
