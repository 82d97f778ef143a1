"""``vlsnlog bench``: one work measured, the machine's own ceilings beside it."""

from __future__ import annotations

import click

from repl.cli.options import Command, acks_option, json_option
from repl.cli.report import print_json

WORKS = ("append", "bulk", "http", "catchup", "recover", "tail", "scan")


@click.command(cls=Command)
@click.argument("work", type=click.Choice(WORKS))
@click.option("--url", help="URLs of nodes; default: an own cluster in a temporary directory.")
@click.option("--seconds", type=float, default=10.0, show_default=True, help="How long to measure.")
@click.option("--writers", type=int, help="Writers, each awaiting its append before its next.")
@click.option("--size", type=int, default=100, show_default=True, help="Bytes of an entry.")
@click.option("--batch", type=int, help="Entries of an append.")
@acks_option
@click.option("--bytes-max", type=int, help="Cap on what is written, all nodes together.")
@click.option(
    "--touch-memory/--no-touch-memory",
    default=True,
    show_default=True,
    help="Use memory once before an own cluster starts: on a virtual machine its first use is slow.",
)
@json_option
def bench(
    work: str, url: str | None, seconds: float, writers: int | None, size: int, batch: int | None, acks: str,
    bytes_max: int | None, touch_memory: bool, as_json: bool,
) -> int:  # fmt: skip
    """Measure WORK and print rates, which count only what was acknowledged."""
    from repl.bench.run import BYTES_MAX, BenchOptions, run_bench

    options = BenchOptions(
        work=work,
        url=url,
        seconds=seconds,
        writers=writers,
        size=size,
        batch=batch,
        acks=acks,
        bytes_max=bytes_max or BYTES_MAX,
        touch_memory=touch_memory,
    )
    report = run_bench(options)
    if as_json:
        print_json(report.json())
    else:
        click.echo("\n".join(report.lines()))
    return 1 if report.outcome.errors else 0
