"""``vlsnlog demo``: the demonstration, with bars on a terminal or in plain lines."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from repl.cli.audit import check_spark
from repl.cli.options import Command
from repl.cli.report import count, size
from repl.cli.signals import unwound_by_signals
from repl.credentials import bearer

if TYPE_CHECKING:
    from repl.audit.report import AuditReport
    from repl.cli.demo_run import Outcome, PlainTeller


@click.command(cls=Command)
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    help="Append the lines of this file instead of the built-in records.",
)
@click.option("--entries", type=click.IntRange(min=1), help="The most records to append.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False), help="Keep the data here.")
def demo(source: Path | None, entries: int | None, directory: Path | None) -> int:
    """Start three nodes, append real records, kill a node meanwhile, read everything back, and audit."""
    from repl.cli.demo_run import records_of

    check_spark()
    unwound_by_signals()
    bearer.forget()
    records = records_of(source, entries)
    if directory is not None:
        return _run(directory, records)
    with _removed_unless_it_fails() as place:
        status = _run(place, records)
        if status:
            raise click.exceptions.Exit(status)
    return 0


@contextmanager
def _removed_unless_it_fails() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="vlsnlog-demo-"))
    try:
        yield place
    except KeyboardInterrupt:
        shutil.rmtree(place)
        raise
    except BaseException:
        click.echo(f"the nodes' data and logs are left in {place}", err=True)
        raise
    shutil.rmtree(place)


def _run(directory: Path, records: list[bytes]) -> int:
    from repl.cli.demo_run import Demo, PlainTeller, TerminalTeller
    from repl.cluster import ending_with, free_base_port, prepare
    from repl.net.network import AiohttpNetwork

    teller = TerminalTeller() if sys.stdout.isatty() else PlainTeller()
    network = AiohttpNetwork()
    with asyncio.Runner() as runner:
        try:
            with ending_with(prepare(directory, network, base_port=free_base_port())) as cluster:
                demonstration = Demo(cluster, records, teller)
                runner.run(demonstration.run())
                demonstration.outcome.audit = _audit(cluster.urls, teller)
                runner.run(cluster.stop())
        finally:
            runner.run(network.close())
    return _report(demonstration.outcome, teller)


def _audit(urls: Sequence[str], teller: PlainTeller) -> AuditReport:
    """Runs the audit outside the event loop, so that Ctrl-C ends Spark at once."""
    from repl.audit.job import run_audit
    from repl.cli.audit import keep_py4j_quiet, progress_on_terminal

    teller.say("the three logs are audited with Spark")
    keep_py4j_quiet()
    with progress_on_terminal() as progress:
        return run_audit(urls, progress=progress)


def _report(outcome: Outcome, teller: PlainTeller) -> int:
    teller.say("")
    rate = outcome.records / outcome.append_s
    appended = f"VLSN {outcome.first} to {outcome.last} in {outcome.append_s:.1f} s ({rate:,.0f}/s)"
    teller.facts(
        [
            ("records", f"{count(outcome.records)}, {size(outcome.bytes)}: {appended}"),
            (
                "killed",
                f"{outcome.killed}, the master; appends paused for {outcome.waited_s:.1f} s; started again, it had "
                f"caught up in {outcome.catch_up_s:.1f} s",
            ),
        ]
    )
    for kept, text in outcome.checks():
        teller.check(kept, text)
    teller.verdict(outcome.holds, "all of it holds" if outcome.holds else "NOT ALL OF IT HOLDS")
    return 0 if outcome.holds else 1
