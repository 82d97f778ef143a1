"""``vlsnlog page print``: prints the pages of destinations in a node's directory, record by record. It never writes."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from repl.cli.options import Command, directory_argument, json_option, require_log

if TYPE_CHECKING:
    from vlsn.verify.pages import PageLine

LINES_AT_ONCE: Final = 1024
HEADING: Final = f"{'page':<14} {'offset':>10} {'VLSN':>12} {'to':>12} {'count':>7} {'bytes':>10} {'txns':>6}  what"


@click.group()
def page() -> None:
    """Show the pages of destinations."""


@page.command("print", cls=Command)
@directory_argument
@json_option
def print_pages(directory: Path, as_json: bool) -> int:
    """Print the pages in the node's directory DIR, and below each page its records.

    ACK: acknowledged, as of the node's last checkpoint. COMPLETE: every message of the page is acknowledged, and its
    file will be removed. TX_NOT_FOUND: written, but never committed; the log still has it. Exit status 1 if a page is
    damaged.
    """
    disk, stores = require_log(directory)
    import msgspec

    from vlsn.segments.directory import LOCK_NAME
    from vlsn.verify.pages import DAMAGED, page_lines
    from vlsn.verify.segment_chain import read_stated

    stated = read_stated(stores, str(directory), live=disk.is_locked(f"{directory}/{LOCK_NAME}"))
    encode = msgspec.json.Encoder().encode_lines
    lines = page_lines(disk, str(directory), stated)
    damaged, destination, shown = False, "", False
    while some := list(islice(lines, LINES_AT_ONCE)):
        damaged, shown = damaged or any(DAMAGED in line.marks for line in some), True
        if as_json:
            sys.stdout.buffer.write(encode(some))
            continue
        for line in some:
            if line.uuid != destination:
                destination = line.uuid
                click.secho(f"{line.destination or 'no destination'}  {line.uuid}", bold=True)
                click.echo(HEADING)
            click.echo(_text(line))
    if not shown and not as_json:
        click.echo("there are no pages")
    sys.stdout.buffer.flush()
    return 1 if damaged else 0


def _text(line: PageLine) -> str:
    where = f"{'' if line.record else line.file:<14} {line.offset if line.record else '':>10}"
    figures = f"{line.first or '-':>12} {line.last or '-':>12} {line.count:>7} {line.bytes:>10} {line.transactions:>6}"
    said = [*(["whole blocks"] if line.whole else []), *line.marks, *([line.detail] if line.detail else [])]
    return f"{where} {figures}  {'  '.join(said)}".rstrip()
