"""``vlsnlog read``: entries, as their bytes or as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from repl.cli.options import Command, json_option, url_option
from repl.cli.signals import run

if TYPE_CHECKING:
    from repl.client.tail import Page
    from vlsn.block import Entry


@click.command(cls=Command)
@url_option
@click.option("--from", "from_vlsn", type=click.IntRange(min=1), help="First VLSN; default: the first there is.")
@click.option("--to", "to_vlsn", type=click.IntRange(min=1), help="Last VLSN; default: what is durable now.")
@click.option("--follow", is_flag=True, help="Go on with what comes.")
@click.option(
    "--format",
    type=click.Choice(["raw", "json"]),
    default="raw",
    show_default=True,
    help="raw: the value and a newline; json: an object a line.",
)
@json_option
@click.option(
    "--consistency",
    type=click.Choice(["durable", "linearizable"]),
    default="durable",
    show_default=True,
    help="linearizable: a majority confirms the durable end first.",
)
@click.option("--all-kinds", is_flag=True, help="Also the log's own entries: TERM, GROUP, COMMIT, ABORT.")
def read(
    url: list[str], from_vlsn: int | None, to_vlsn: int | None, follow: bool, format: str, as_json: bool,
    consistency: str, all_kinds: bool,
) -> None:  # fmt: skip
    """Print entries, from the first VLSN to what is durable at the start."""
    if from_vlsn is not None and to_vlsn is not None and to_vlsn < from_vlsn:
        raise click.UsageError(f"--to {to_vlsn} is before --from {from_vlsn}")
    if follow and consistency != "durable":
        raise click.UsageError("--consistency linearizable is for a read that ends; --follow shows all that comes")
    printer = Printer(as_json=as_json or format == "json", all_kinds=all_kinds, flush=follow)
    try:
        run(_read(url, from_vlsn, to_vlsn, follow, consistency, printer))
    except KeyboardInterrupt:
        if not follow:
            raise


async def _read(
    urls: list[str], from_vlsn: int | None, to_vlsn: int | None, follow: bool, consistency: str, printer: Printer
) -> None:
    from repl.cli.append import require_a_node
    from repl.client.connect import connect

    async with connect(",".join(urls)) as log:
        await require_a_node(log, urls)
        if not follow:
            pages = log.read_pages(from_vlsn, to_vlsn, all_kinds=printer.all_kinds, consistency=consistency)
            async for page in pages:
                printer.page(page)
            return
        async for page in log.tail_pages(from_vlsn, all_kinds=printer.all_kinds):
            entries = [entry for entry in page.entries if to_vlsn is None or entry.vlsn <= to_vlsn]
            printer.entries(entries)
            if to_vlsn is not None and page.next_vlsn > to_vlsn:
                return


class Printer:
    """Writes whole pages to stdout."""

    def __init__(self, *, as_json: bool, all_kinds: bool, flush: bool) -> None:
        self._as_json = as_json
        self.all_kinds = all_kinds
        self._flush = flush

    def page(self, page: Page) -> None:
        self.entries(page.entries)

    def entries(self, entries: list[Entry]) -> None:
        if not entries:
            return
        out = sys.stdout.buffer
        if self._as_json:
            from repl.http import ndjson

            out.write(ndjson.encode(entries, kinds=self.all_kinds))
        else:
            out.write(b"\n".join([entry.value for entry in entries]) + b"\n")
        if self._flush:
            out.flush()
