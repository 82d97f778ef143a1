"""``vlsnlog verify``: checks every byte of a node's directory. It never writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repl.cli.options import Command, directory_argument, json_option, require_log
from repl.cli.progress import bars
from repl.cli.report import print_json, several, size

if TYPE_CHECKING:
    from vlsn.verify.report import VerifyReport

FINDINGS_SHOWN = 50


@click.command(cls=Command)
@directory_argument
@json_option
@click.option("--live", is_flag=True, help="The node may be running: check up to its synced length.")
def verify(directory: Path, as_json: bool, live: bool) -> int:
    """Check every checksum, the order, the flags and the index of the node's directory DIR.

    A torn tail, and an index behind the log, are normal after a crash: they are reported with exit status 0. One
    unreadable slot of node.id is only a note, because the other slot has the same contents.
    """
    from vlsn.real.threads import ReadAhead
    from vlsn.verify.verify import verify as run

    disk, stores = require_log(directory)
    with progress_bar() as progress:
        report = run(disk, stores, str(directory), live=live, progress=progress, reading=ReadAhead())
    if as_json:
        print_json(_fields(report))
    else:
        _print(directory, report)
    return 0 if report.ok else 1


def _fields(report: VerifyReport) -> dict[str, Any]:
    names = ("segments", "frames", "blocks", "entries", "bytes", "first", "last", "dtvlsn")
    return {
        "ok": report.ok,
        "torn_tail": report.torn_tail,
        "findings": [asdict(finding) for finding in report.findings],
        **{name: getattr(report, name) for name in names},
        "term_runs": [asdict(run) for run in report.term_runs],
        "kept_aside": [asdict(each) for each in report.kept_aside],
        "notes": report.notes,
    }


def _print(directory: Path, report: VerifyReport) -> None:
    for finding in report.findings[:FINDINGS_SHOWN]:
        where = f"{finding.file} offset {finding.offset}" + (f" VLSN {finding.vlsn}" if finding.vlsn else "")
        click.echo(f"finding: {finding.rule}: {where}: {finding.detail}")
    if len(report.findings) > FINDINGS_SHOWN:
        click.echo(f"and {len(report.findings) - FINDINGS_SHOWN} more findings (--json has all)")
    for kept in report.kept_aside:
        inside = f", with blocks up to VLSN {kept.last} of term {kept.term}" if kept.last else ""
        click.echo(f"kept aside by an earlier open: {kept.file}: {size(kept.bytes)}{inside}")
    for note in report.notes:
        click.echo(f"note: {note}")
    tail = "; a torn tail, normal after a crash" if report.torn_tail else ""
    verdict = "ok" if report.ok else f"NOT OK, {several(len(report.findings), 'finding')}"
    click.echo(
        f"{directory}: {verdict}{tail}: VLSN {report.first} to {report.last}, durable {report.dtvlsn}; "
        f"{several(report.entries, 'entry', 'entries')} in {several(report.blocks, 'block')}, "
        f"{several(report.segments, 'segment')}, "
        f"{size(report.bytes)}"
    )


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Shows a bar with the progress of verification on stderr, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with bars(figure=size) as show:
        yield partial(show, "verify")
