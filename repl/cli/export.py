"""``vlsnlog export``: writes the log's entries as Parquet or JSON files with Spark, or to a Delta table; each once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from repl.cli.audit import check_spark, keep_py4j_quiet, progress_on_terminal
from repl.cli.options import Command, FiniteRange, client_options, json_option
from repl.cli.places import Place, PlaceType
from repl.cli.report import count, print_json, several, size
from repl.cli.signals import end_at_once, unwound_by_signals

if TYPE_CHECKING:
    from repl.export.manifest import Manifest
    from repl.export.request import Bound, Request


DELTA = "delta"


@click.command(cls=Command)
@click.argument("source", metavar="SOURCE")
@click.option("--to", required=True, metavar="URL", help="A directory, or an fsspec URL such as s3://bucket/lake.")
@click.option("--format", type=click.Choice(["parquet", "json", "delta"]), required=True,
              help="json: an object a line; delta: a Delta table, without Spark.")  # fmt: skip
@click.option("--continuous", is_flag=True, help="Continue with new entries, until it is stopped.")
@click.option("--interval", type=FiniteRange(0.1, 86_400), default=10.0, show_default=True,
              help="Seconds for which entries are gathered into a batch, with --continuous.")  # fmt: skip
@click.option("--partition-by", default="", metavar="date|key-prefix:N", help="Folders by UTC date, or by N key bytes.")
@click.option("--key-prefix", default="", help="Only entries whose key begins with this.")
@click.option("--from", "begin", type=PlaceType(words=True), metavar="N|start|end|TIME",
              help="First VLSN of a new target; default: start.")  # fmt: skip
@click.option("--to-vlsn", "upto", type=PlaceType(words=False), metavar="N|TIME",
              help="Last VLSN; default: the durable end.")  # fmt: skip
@click.option("--batch-entries", type=click.IntRange(1, 100_000_000), default=1_000_000, show_default=True,
              help="Entries after which a batch is committed.")  # fmt: skip
@click.option("--file-size", type=click.IntRange(1, 1 << 20), default=128, show_default=True, metavar="MIB",
              help="MiB at which a file ends and the next one begins.")  # fmt: skip
@click.option(
    "--skip-trimmed", is_flag=True, help="Continue after the entries that retention has removed, and record the gap."
)
@click.option("--one-exporter", is_flag=True, help="Accept a store that cannot tell two exporters apart.")
@click.option("--spark-master", default="local[2]", show_default=True, help="Spark master.")
@client_options
@json_option
def export(
    source: str, to: str, format: str, continuous: bool, interval: float, partition_by: str, key_prefix: str,
    begin: Place | None, upto: Place | None, batch_entries: int, file_size: int, skip_trimmed: bool,
    one_exporter: bool, spark_master: str, as_json: bool,
) -> None:  # fmt: skip
    """Write the durable entries of SOURCE as files, each exactly once; if started again, continue after the last batch.

    SOURCE: a node's URL, several URLs of one group with commas, or the directory of a stopped node. A batch is
    committed by its manifest, in `_manifests` of the target, and in a Delta table by a version of the table.
    """
    if format != DELTA:
        check_spark("an export")
    from repl.export.request import Request

    request = Request(
        source=source,
        to=to,
        format=format,
        partition_by=partition_by,
        key_prefix=os.fsencode(key_prefix),
        begin=None if begin is None or begin.text == "start" else _bound(begin),
        upto=None if upto is None else _bound(upto),
        continuous=continuous,
        interval_s=interval,
        batch_entries=batch_entries,
        file_bytes=file_size << 20,
        skip_trimmed=skip_trimmed,
        one_exporter=one_exporter,
        spark_master=spark_master,
    )
    unwound_by_signals()
    if format == DELTA:
        _to_delta(request, as_json)
        return
    keep_py4j_quiet()
    from repl.export.job import run_export

    def show(manifest: Manifest) -> None:
        if as_json:
            print_json(_facts(manifest))
        else:
            click.echo(_sentence(manifest))
        sys.stdout.flush()

    with progress_on_terminal() as progress:
        last = run_export(
            request,
            on_batch=show,
            on_trouble=lambda text: click.echo(f"vlsnlog: {text}", err=True),
            on_spark=end_at_once,  # an export that is killed can be continued; the JVM ends with its standard input
            progress=progress,
        )
    if not as_json:
        held = f"VLSN {last.last}, {several(last.rows_total, 'row')} in all" if last is not None else "nothing yet"
        click.echo(f"{to} is exported up to {held}" if last is not None else f"{source}: nothing to export yet")


def _to_delta(request: Request, as_json: bool) -> None:
    from repl.export.delta import DeltaBatch, run_delta_export

    def show(batch: DeltaBatch) -> None:
        gap = batch.gap
        if as_json:
            found = {name: getattr(batch, name) for name in ("version", "first", "last", "rows", "files")}
            print_json({**found, "gap": None if gap is None else {"first": gap.first, "last": gap.last}})
        else:
            words = f"VLSN {batch.first} to {batch.last}: {several(batch.rows, 'row')} in version {batch.version}"
            missing = "" if gap is None else f"; VLSN {count(gap.first)} to {count(gap.last)} were trimmed before"
            click.echo(words + missing)
        sys.stdout.flush()

    last = run_delta_export(request, on_batch=show, on_trouble=lambda text: click.echo(f"vlsnlog: {text}", err=True))
    if not as_json:
        done = f"{request.to} is exported up to VLSN {last}"
        click.echo(done if last else f"{request.source}: nothing to export yet")


def _bound(place: Place) -> Bound:
    from repl.export.request import Bound

    return Bound(place.text, place.vlsn, place.time_us)


def _facts(manifest: Manifest) -> dict[str, object]:
    gap = manifest.gap
    return {
        "manifest": manifest.number,
        "first": manifest.first,
        "last": manifest.last,
        "rows": manifest.rows,
        "files": len(manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "gap": None if gap is None else {"first": gap.first, "last": gap.last},
    }


def _sentence(manifest: Manifest) -> str:
    files = f"{several(len(manifest.files), 'file')}, {size(sum(file.bytes for file in manifest.files))}"
    words = f"VLSN {manifest.first} to {manifest.last}: {several(manifest.rows, 'row')} in {files}"
    gap = manifest.gap
    return words if gap is None else f"{words}; VLSN {count(gap.first)} to {count(gap.last)} were trimmed before"
