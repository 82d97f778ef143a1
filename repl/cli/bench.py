"""``vlsnlog bench``: one work measured, the machine's own ceilings beside it."""

from __future__ import annotations

from typing import Final

import click

from repl.cli.options import Command, Commands, acks_option, durability_option, json_option
from repl.cli.report import print_json
from repl.cli.signals import unwound_by_signals

WORKS: Final = {
    "append": "Writers that each await their append before the next.",
    "bulk": "Batches, pipelined on one connection.",
    "http": "Connections that POST an entry at a time.",
    "catchup": "A replica that missed everything comes back.",
    "recover": "A replica killed with a log that no checkpoint covers.",
    "tail": "Writers, and a reader who follows them.",
    "scan": "A whole log, read from its first VLSN.",
}
"""Works on a cluster."""


@click.group(cls=Commands)
def bench() -> None:
    """Measure a work and print rates, which count only what was acknowledged."""


def _on_a_cluster(
    url: str | None, seconds: float, writers: int | None, size: int, batch: int | None, acks: str,
    durability: str | None, bytes_max: int | None, touch_memory: bool, as_json: bool,
) -> int:  # fmt: skip
    from repl.bench.run import BYTES_MAX, BenchOptions, run_bench

    work = click.get_current_context().info_name
    assert work is not None
    options = BenchOptions(
        work=work,
        url=url,
        seconds=seconds,
        writers=writers,
        size=size,
        batch=batch,
        acks=acks,
        durability=durability,
        bytes_max=BYTES_MAX if bytes_max is None else bytes_max,
        touch_memory=touch_memory,
    )
    unwound_by_signals()
    report = run_bench(options)
    if as_json:
        print_json(report.json())
    else:
        click.echo("\n".join(report.lines()))
    return 1 if report.outcome.errors else 0


def _cluster_options() -> list[click.Parameter]:
    def taken() -> None:
        pass

    for option in (
        json_option,
        click.option(
            "--touch-memory/--no-touch-memory",
            default=True,
            show_default=True,
            help="Use memory once before an own cluster starts: on a virtual machine its first use is slow.",
        ),
        click.option("--bytes-max", type=int, help="Cap on what is written, all nodes together."),
        durability_option,
        acks_option,
        click.option("--batch", type=int, help="Entries of an append."),
        click.option("--size", type=int, default=100, show_default=True, help="Bytes of an entry."),
        click.option("--writers", type=int, help="Writers, each awaiting its append before its next."),
        click.option("--seconds", type=float, default=10.0, show_default=True, help="How long to measure."),
        click.option("--url", help="URLs of nodes; default: an own cluster in a temporary directory."),
    ):
        option(taken)
    parameters: list[click.Parameter] = taken.__click_params__  # type: ignore[attr-defined]
    return parameters[::-1]


for _name, _help in WORKS.items():
    bench.add_command(Command(_name, callback=_on_a_cluster, params=_cluster_options(), help=_help))


@bench.command(cls=Command)
@click.option("--threads", type=int, default=1, show_default=True, help="Each waits for its append before its next.")
@click.option("--entries", type=int, default=10_000, show_default=True, help="Appends of each thread.")
@click.option("--size", type=int, default=512, show_default=True, help="Bytes of an entry.")
@click.option("--sync-interval", type=int, default=1, show_default=True, help="Wait at every so many appends only.")
@click.option("--roll", type=int, default=0, help="Begin a new segment every so many entries.")
@click.option("--verify", is_flag=True, help="Read everything back, and check it.")
@click.option("--bytes-max", type=int, help="Cap on what is written.")
@json_option
def wal(
    threads: int, entries: int, size: int, sync_interval: int, roll: int, verify: bool, bytes_max: int | None,
    as_json: bool,
) -> int:  # fmt: skip
    """The local log alone, without a cluster, and this disk's own syncs of the same size.

    Exit status 1 when an append failed or --verify finds a fault.
    """
    from repl.bench.wal import run_wal
    from repl.bench.wal_report import BYTES_MAX, WalOptions

    options = WalOptions(
        threads=threads,
        entries=entries,
        size=size,
        sync_interval=sync_interval,
        roll=roll,
        verify=verify,
        bytes_max=BYTES_MAX if bytes_max is None else bytes_max,
    )
    unwound_by_signals()
    report = run_wal(options)
    if as_json:
        print_json(report.json())
    else:
        click.echo("\n".join(report.lines()))
    return 0 if report.ok else 1
