"""``vlsnlog audit``: compares copies of the log in Spark tasks."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from repl.cli.options import Command, client_options, json_option
from repl.cli.progress import Show, bars
from repl.cli.report import count, print_json, print_table, several, size, styled
from repl.cli.signals import unwound_by_signals

if TYPE_CHECKING:
    from repl.audit.findings import Finding
    from repl.audit.report import AuditReport, HistoryReport, NotAudited

FINDINGS_SHOWN = 20
_COMPARED_BY = {"sha256": "SHA-256", "crc": "CRC: no proof against a forger"}
COLUMNS = ("node", "first", "last", "durable", "behind", "entries", "bytes", "findings", "state", "source")


@click.command(cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE SOURCE …")
@click.option("--spark-master", default="local[2]", show_default=True, help="Spark master.")
@click.option("--out", multiple=True, type=click.Path(), help="Write the report to FILE.json, .html or .parquet.")
@click.option(
    "--history", type=click.Path(), help="A client's acknowledged entries, each of which must be in every copy."
)
@click.option("--since-last", type=click.Path(), help="Continue from this JSON report of an earlier audit.")
@click.option("--deep", is_flag=True, help="With --since-last: also read again what that audit compared.")
@click.option(
    "--checksums",
    type=click.Choice(["sha256", "crc"]),
    default="sha256",
    show_default=True,
    help="How blocks are compared; crc is faster, but no proof against a forger.",
)
@client_options
@json_option
def audit(
    sources: tuple[str, ...],
    spark_master: str,
    out: tuple[str, ...],
    history: str | None,
    since_last: str | None,
    deep: bool,
    checksums: str,
    as_json: bool,
) -> int:
    """Compare copies of one log: each SOURCE is a node's directory or its URL."""
    check_spark()
    from repl.audit.job import run_audit

    keep_py4j_quiet()
    unwound_by_signals()
    with progress_on_terminal() as progress:
        report = run_audit(
            sources,
            spark_master=spark_master,
            out=out,
            history=history,
            since_last=since_last,
            deep=deep,
            checksums=checksums,
            progress=progress,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report)
    return report.exit_code


def check_spark(what: str = "the audit") -> None:
    """Raises an error if the extra ``vlsnlog[spark]`` is not installed, before any work begins. A node and a client do
    not need it."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"{what} runs on Spark, and {' and '.join(missing)} cannot be imported: pip install 'vlsnlog[spark]'"
        )


def keep_py4j_quiet() -> None:
    """Prevents py4j from reporting a Ctrl-C with a traceback on stderr, through the root logger."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())


def print_report(report: AuditReport) -> None:
    """Prints the verdict, the copies and the findings. On a terminal the verdict is in colour."""
    click.echo(verdict(report))
    found = Counter(finding.source for finding in report.findings)
    furthest = max((each.last for each in report.sources), default=0)
    rows = [
        (
            each.node,
            each.first,
            each.last,
            each.dtvlsn,
            furthest - each.last,
            count(each.entries),
            size(each.bytes),
            found[each.source],
            ("live" if each.live else "stopped") + (", a torn tail" if each.torn_tail else ""),
            each.source,
        )
        for each in report.sources
    ]
    print_table("", COLUMNS, rows, spare=("state", "bytes", "behind", "entries"))
    if report.since is not None:
        kept = several(report.since.segments_kept, "segment")
        click.echo(f"goes on from {report.since.file}: up to VLSN {report.since.compared_to}; {kept} not read again")
    if report.history is not None:
        _print_history(report.history)
    for left in report.not_audited[:FINDINGS_SHOWN]:
        click.echo(f"{styled('not audited:', fg='yellow')} {_left(left)}")
    if len(report.not_audited) > FINDINGS_SHOWN:
        click.echo(f"and {len(report.not_audited) - FINDINGS_SHOWN} more that was not audited (--json has all)")
    for finding in report.findings[:FINDINGS_SHOWN]:
        click.echo(f"{styled('finding:', fg='red')} " + _sentence(finding))
    if len(report.findings) > FINDINGS_SHOWN:
        click.echo(f"and {len(report.findings) - FINDINGS_SHOWN} more findings (--json has all)")
    speed = f", {report.mb_per_s:,.0f} MB/s" if report.mb_per_s >= 1 else ""
    compared = f", blocks compared by {_COMPARED_BY[report.checksums]}" if report.compared_to else ""
    click.echo(f"{report.tasks} Spark tasks, {size(report.bytes)} in {report.seconds:.1f} s{speed}{compared}")


def verdict(report: AuditReport) -> str:
    """Returns the line with the verdict: green if the copies are equal, red if there are findings, yellow if nothing
    was compared."""
    found = f"; {several(len(report.findings), 'finding')}" if report.findings else ""
    if not report.compared_to:
        words = "nothing was compared: the sources have no durable VLSN in common"
        return styled(words, fg="red" if report.findings else "yellow", bold=True)
    compared = f"from VLSN {report.compared_from} to {report.compared_to}{found}"
    if report.partial:
        equal = "NOT EQUAL" if report.ranges_differing else "equal as far as it was read,"
        words = f"PARTIAL, not everything was audited: {equal} {compared}"
        return styled(words, fg="red" if report.findings else "yellow", bold=True)
    words = f"{'equal' if report.equal else 'NOT EQUAL'} {compared}"
    return styled(words, fg="green" if not report.exit_code else "red", bold=True)


def _left(left: NotAudited) -> str:
    """Describes a part that was not audited: its kind, copy, place and reason."""
    place = f"{left.file} and {left.segments - 1} after it" if left.segments > 1 else left.file
    vlsns = f"VLSN {left.first} to {left.last}" if left.last else ""
    return f"{' '.join(filter(None, (left.what, left.source, place, vlsns)))}: {left.why}"


def _print_history(history: HistoryReport) -> None:
    words = f"history: {count(history.everywhere)} of {count(history.appends)} acknowledged entries are in every copy"
    if history.cleaned:
        words += f", {count(history.cleaned)} are before the first VLSN of some copy"
    if history.once:
        words += f", {count(history.once)} lines without a known VLSN were looked for"
    click.echo(words + (f", {several(history.findings, 'finding')}" if history.findings else ""))


def _sentence(finding: Finding) -> str:
    """Formats a finding: one line, two more lines for two differing copies, one more line for the repair."""
    from repl.audit.findings import told

    facts = {name: value for name, value in finding.more.items() if name not in ("other", "in_place")}
    other = dict(finding.more.get("other") or {})
    place = f"{finding.source} {finding.file} offset {finding.offset}"
    words = ", ".join(f"{name.removesuffix('_us')} {value}" for name, value in told(facts))
    if other:
        there = f"{other.pop('source')} {other.pop('file')} offset {other.pop('offset')}"
        others = ", ".join(f"{name} {value}" for name, value in told(other))
        lines = [f"{finding.rule}: {finding.detail}", f"{place}: {words}", f"{there}: {others}"]
    else:
        vlsn = f" VLSN {finding.vlsn}" if finding.vlsn else ""
        more = ", ".join(filter(None, (finding.detail, words)))
        lines = [f"{finding.rule}: {place}{vlsn}" + (f": {more}" if more else "")]
    if finding.mend:
        lines.append(f"mend: {finding.mend}")
    return "\n  ".join(lines)


def progress_on_terminal() -> AbstractContextManager[Show | None]:
    """Shows a bar on stderr for each stage of work, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    click.echo("Spark starts …", err=True)
    return bars()
