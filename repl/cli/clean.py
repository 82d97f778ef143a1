"""``vlsnlog clean``: removes the segments that retention wants removed, or shows them and the holds on the others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from repl.cli.asking import ask_nodes, print_answers
from repl.cli.options import (
    Command,
    FiniteRange,
    is_flagged,
    json_option,
    key_option,
    maybe_directory_argument,
    require_log,
    url_option,
)
from repl.cli.report import count, print_found, print_table, size
from repl.config import whole_size

SEGMENTS_SHOWN = 20


def _size(ctx: click.Context, option: click.Parameter, value: str | int | None) -> int | None:
    return None if value is None else whole_size(value, "--retention-bytes")


@click.command(cls=Command)
@maybe_directory_argument
@url_option
@key_option
@click.option(
    "--dry-run", is_flag=True, help="Remove nothing: only print what would be removed, and which holds keep the rest."
)
@click.option("--retention-bytes", metavar="BYTES", callback=_size, help="With DIR: as in the node's settings.")
@click.option("--retention-age-s", type=FiniteRange(0), help="With DIR: as in the node's settings.")
@json_option
def clean(
    directory: Path | None,
    url: list[str],
    dry_run: bool,
    retention_bytes: int | None,
    retention_age_s: float | None,
    as_json: bool,
) -> int:
    """Make every node given remove the segments that retention wants removed and no hold keeps.

    With DIR, the directory of a stopped node, and --dry-run: print the segments that would be removed there.
    """
    if directory is None:
        for name in ("retention_bytes", "retention_age_s"):
            if is_flagged(name):
                raise click.UsageError(f"--{name.replace('_', '-')} needs DIR; a running node has its own setting")
        path = "/v1/admin/clean?dry_run=true" if dry_run else "/v1/admin/clean"
        answers = ask_nodes(url, "POST", path, "node", *_REPORT)
        return print_answers("clean", answers, as_json, lambda url, node: _print(f"{node['node']} ({url})", node))
    if not dry_run:
        raise click.UsageError("a stopped node's directory is not cleaned: start the node, or add --dry-run")
    report = _forecast(directory, retention_bytes or 0, retention_age_s or 0.0)
    return print_found({"directory": str(directory), **report}, as_json, lambda report: _print(str(directory), report))


_REPORT = ("bytes", "dry_run", "retention_bytes", "retention_age_s", "total_bytes", "first", "segments", "blocked")


def _forecast(directory: Path, retention_bytes: int, retention_age_s: float) -> dict[str, Any]:
    import msgspec

    from vlsn.offline.cleaning_forecast import forecast
    from vlsn.state.retention import Retention

    disk, stores = require_log(directory)
    retention = Retention(retention_bytes, retention_age_s)
    report = forecast(disk, stores, str(directory), retention, now_us=time.time_ns() // 1000)
    document: dict[str, Any] = msgspec.to_builtins(report)
    return {"bytes": report.bytes, **document}


def _print(name: str, report: dict[str, Any]) -> None:
    if not report["retention_bytes"] and not report["retention_age_s"]:
        click.echo(f"{name}: nothing to remove, no bound on bytes or age is set; first VLSN {report['first']}")
        return
    would = "would go" if report["dry_run"] else "gone"
    rows = [(each, would, "") for each in report["segments"]]
    rows += [(each, "kept", ", ".join(each["blocked_by"]) or "the segments before it") for each in report["blocked"]]
    kept = f"{size(report['retention_bytes'])}" if report["retention_bytes"] else "no bound on bytes"
    aged = f"{report['retention_age_s']:g} s" if report["retention_age_s"] else "no bound on age"
    click.echo(
        f"{name}: {size(report['total_bytes'])} in segment files; to keep: {kept}, {aged}; "
        f"{len(report['segments'])} segments {would} ({size(report['bytes'])}), {len(report['blocked'])} kept back; "
        f"first VLSN {report['first']}"
    )
    if rows:
        shown = [
            (each["file"], each["last"], size(each["bytes"]), each["reason"], fate, by)
            for each, fate, by in rows[:SEGMENTS_SHOWN]
        ]
        print_table("", ("segment", "last VLSN", "size", "wanted for", "fate", "kept by"), shown)
    if len(rows) > SEGMENTS_SHOWN:
        click.echo(f"and {count(len(rows) - SEGMENTS_SHOWN)} more segments (--json has all)")
    for dropped in report["dropped"]:
        click.echo(f"dropped, too far behind: {dropped}" if not report["dry_run"] else f"would be dropped: {dropped}")
    if report["paused"]:
        click.echo(f"paused: {report['paused']}")
