"""``vlsnlog index``: prints the VLSN index of a node's directory. It never writes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from repl.cli.options import Command, directory_argument, json_option, require_log
from repl.cli.report import print_json, print_table, several, size

if TYPE_CHECKING:
    from vlsn.index.report import BucketRow, IndexReport

ROWS_SHOWN: Final = 40
"""The most rows in the printed table. The JSON output has every bucket."""
COLUMNS: Final = ("first", "last", "segment", "mappings", "VLSNs a mapping", "farthest", "bytes")


@click.command(cls=Command)
@directory_argument
@json_option
@click.option("--all", "every", is_flag=True, help=f"Every bucket, not just the first and the last {ROWS_SHOWN // 2}.")
def index(directory: Path, as_json: bool, every: bool) -> int:
    """Print the VLSN index of the node's directory DIR: range, buckets, sparseness, memory.

    For a running node it prints a copy from the last checkpoint. The index of a stopped node may be deleted; the node
    builds it again. Exit status 1 if a part of it cannot be read.
    """
    disk, stores = require_log(directory)
    from vlsn.errors import BadArgument
    from vlsn.index.report import read_report
    from vlsn.real.lmdb_store import DATA_FILE
    from vlsn.recover.recovery import INDEX_NAME
    from vlsn.segments.directory import LOCK_NAME

    path = directory / INDEX_NAME
    running = disk.is_locked(str(directory / LOCK_NAME))
    try:
        report = read_report(stores, str(path), live=running)
        store_bytes = (path / DATA_FILE).stat().st_size
    except FileNotFoundError:
        raise BadArgument(f"{directory}: has no index; the node makes one when it starts") from None
    if as_json:
        print_json(_fields(report, running, store_bytes))
    else:
        _print(directory, report, running, store_bytes, ROWS_SHOWN if not every else len(report.buckets))
    return 1 if report.findings else 0


def _fields(report: IndexReport, running: bool, store_bytes: int) -> dict[str, Any]:
    held = report.range
    names = ("first", "last", "last_sync", "last_txn_end")
    return {
        "ok": not report.findings,
        "running": running,
        "checkpoint": report.checkpoint,
        "unfinished": report.unfinished,
        "owner": f"{report.owner:016x}",
        "range": {name: getattr(held, name) for name in names},
        "mappings": report.mappings,
        "vlsns_per_mapping": report.vlsns_per_mapping,
        "distance_max": report.distance_max,
        "bytes": report.bytes,
        "store_bytes": store_bytes,
        "findings": report.findings,
        "buckets": [asdict(bucket) for bucket in report.buckets],
    }


def _print(directory: Path, report: IndexReport, running: bool, store_bytes: int, shown: int) -> None:
    rows = report.buckets
    if rows:
        half = shown // 2
        head, tail = (rows, []) if len(rows) <= shown else (rows[:half], rows[-half:])
        gap = [("…", "", "", "", "", "", "")] if tail else []
        print_table("", COLUMNS, [*map(_cells, head), *gap, *map(_cells, tail)])
        click.echo()
    for finding in report.findings:
        click.echo(f"finding: {finding}")
    held = report.range
    of = "unfinished" if report.unfinished else f"checkpoint {report.checkpoint or 0}"
    of += " of a running node" if running else ""
    click.echo(
        f"{directory}: {of}: VLSN {held.first} to {held.last}; "
        f"{several(report.mappings, 'mapping')} in {several(len(rows), 'bucket')}, "
        f"one for {report.vlsns_per_mapping} VLSNs, "
        f"at most {size(report.distance_max)} apart; {size(report.bytes)} of mappings, {size(store_bytes)} on disk"
    )


def _cells(bucket: BucketRow) -> tuple[object, ...]:
    vlsns = bucket.last - bucket.first + 1
    return (
        bucket.first,
        bucket.last,
        bucket.file,
        bucket.mappings,
        f"{vlsns / bucket.mappings:.1f}",
        bucket.distance_max,
        bucket.bytes,
    )
