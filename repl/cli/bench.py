"""``vlsnlog bench``: measures one kind of work, and the speed of the machine itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from repl.cli.options import Command, Commands, acks_option, client_options, durability_option, json_option
from repl.cli.report import print_json
from repl.cli.signals import unwound_by_signals

if TYPE_CHECKING:
    from repl.bench.report import BenchReport
    from repl.bench.wal_report import WalReport

WORKS: Final = {
    "append": "Writers that each await their append before the next.",
    "bulk": "Batches, pipelined on one connection.",
    "http": "Connections that POST one entry at a time.",
    "catchup": "A replica that missed everything comes back.",
    "recover": "A replica killed with a log that no checkpoint covers.",
    "tail": "Writers, and a reader that follows them.",
    "scan": "A whole log, read from its first VLSN.",
}
"""The kinds of work on a cluster, each with its help text."""


@click.group(cls=Commands)
def bench() -> None:
    """Measure one kind of work and print its rates, which count acknowledged work only."""


def _given(asked: dict[str, Any]) -> dict[str, Any]:
    """Drops options that were not passed, so that the defaults of the kind of work apply."""
    return {name: value for name, value in asked.items() if value is not None}


def _told(report: BenchReport | WalReport, *, as_json: bool) -> int:
    if as_json:
        print_json(report.json())
    else:
        click.echo("\n".join(report.lines()))
    return 0 if report.ok else 1


_OPTIONS: Final = (
    click.option("--url", help="URLs of nodes; default: an own cluster in a temporary directory."),
    click.option("--seconds", type=float, default=10.0, show_default=True, help="How long to measure."),
    click.option("--writers", type=int, help="Writers, each awaiting its append before its next."),
    click.option("--size", type=int, default=100, show_default=True, help="Bytes of an entry."),
    click.option("--batch", type=int, help="Entries of an append."),
    acks_option,
    durability_option,
    click.option("--bytes-max", type=int, help="Cap on what is written, all nodes together."),
    click.option("--tls", is_flag=True, help="The own cluster speaks TLS, with certificates made for the run."),
    click.option(
        "--touch-memory/--no-touch-memory",
        default=True,
        show_default=True,
        help="Use memory once before an own cluster starts: on a virtual machine its first use is slow.",
    ),
    json_option,
)


def _add(work: str, said: str) -> None:
    def run(*, as_json: bool, **asked: Any) -> int:
        from repl.bench.run import BenchOptions, run_bench

        options = BenchOptions(work=work, **_given(asked))
        unwound_by_signals()
        return _told(run_bench(options), as_json=as_json)

    for option in (*reversed(_OPTIONS), client_options):
        option(run)
    bench.command(work, cls=Command, help=said)(run)


for _work, _said in WORKS.items():
    _add(_work, _said)


@bench.command(cls=Command)
@click.option("--threads", type=int, default=1, show_default=True, help="Each waits for its append before its next.")
@click.option("--entries", type=int, default=10_000, show_default=True, help="Appends of each thread.")
@click.option("--size", type=int, default=512, show_default=True, help="Bytes of an entry.")
@click.option("--sync-interval", type=int, default=1, show_default=True, help="Wait at every so many appends only.")
@click.option("--roll", type=int, default=0, help="Begin a new segment every so many entries.")
@click.option("--verify", is_flag=True, help="Read everything back, and check it.")
@click.option("--bytes-max", type=int, help="Cap on what is written.")
@json_option
def wal(*, as_json: bool, **asked: Any) -> int:
    """Measure the local log alone, without a cluster, and this disk's own syncs of the same size.

    Exit status 1 if an append failed or --verify finds a fault.
    """
    from repl.bench.wal import run_wal
    from repl.bench.wal_report import WalOptions

    options = WalOptions(**_given(asked))
    unwound_by_signals()
    return _told(run_wal(options), as_json=as_json)
