"""``vlsnlog read``: prints entries of a group or of a stopped node's directory, as bytes or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repl.cli.options import (
    Command,
    format_option,
    is_flagged,
    json_option,
    maybe_directory_argument,
    require_log,
    url_option,
)
from repl.cli.places import Place, PlaceType
from repl.cli.signals import run

if TYPE_CHECKING:
    from repl.client.connect import Client
    from repl.client.reader import Consistency
    from vlsn.format.block import Entry


@click.command(cls=Command)
@url_option
@maybe_directory_argument
@click.option(
    "--from", "begin", type=PlaceType(words=True), metavar="N|start|end|TIME", help="First VLSN; default: start."
)
@click.option(
    "--to", "upto", type=PlaceType(words=False), metavar="N|TIME", help="Last VLSN; default: the durable end."
)
@click.option("--limit", type=click.IntRange(min=1), help="The most entries to print.")
@click.option("--key", help="Only entries with this key; an empty key means those without a key.")
@click.option("--key-prefix", help="Only entries whose key begins with this.")
@click.option("--follow", is_flag=True, help="Continue with new entries.")
@format_option("raw: the value and a newline; json: an object a line.")
@json_option
@click.option(
    "--consistency",
    type=click.Choice(["durable", "linearizable"]),
    default="durable",
    show_default=True,
    help="linearizable: a majority confirms the durable end first.",
)
@click.option("--all-kinds", is_flag=True, help="Also the log's own entries: TERM, GROUP, COMMIT, ABORT.")
@click.option("--txns", is_flag=True, help="With json: also the first VLSN of an entry's transaction, as `txn`.")
@click.option(
    "--undurable", is_flag=True, help="With DIR: also entries that may be on no other node, up to the log's end."
)
def read(
    url: list[str], directory: Path | None, begin: Place | None, upto: Place | None, limit: int | None,
    key: str | None, key_prefix: str | None, follow: bool, format: str, as_json: bool, consistency: Consistency,
    all_kinds: bool, txns: bool, undurable: bool,
) -> None:  # fmt: skip
    """Print entries of a group, or of a stopped node's DIR, up to the durable end at the start.

    TIME is ISO 8601, UTC without an offset, and means the first entry that was sealed then or later. In DIR, the
    durable entries are those that the node knew to be on a majority: all of them after a clean stop, a few less after a
    kill. ``vlsnlog dump`` shows the frames in DIR, including rolled back ones.
    """
    if begin is not None and upto is not None and begin.vlsn > upto.vlsn > 0:
        raise click.UsageError(f"--to {upto.text} is before --from {begin.text}")
    if follow and consistency != "durable":
        raise click.UsageError("--consistency linearizable is for a read that ends; --follow shows all new entries")
    wanted = {"key": _encoded(key), "key_prefix": _encoded(key_prefix), "all_kinds": all_kinds}
    printer = Printer(limit, as_json=as_json or format == "json", kinds=all_kinds, txns=txns, flush=follow)
    if directory is not None:
        if is_flagged("url") or follow or consistency != "durable":
            raise click.UsageError("a DIR is read as it is: without --url, --follow and --consistency")
        _read_directory(directory, begin, upto, wanted, undurable, printer)
        return
    if undurable:
        raise click.UsageError("--undurable needs a DIR; a node shows durable entries only")
    try:
        run(_read(url, begin, upto, follow, consistency, wanted, printer))
    except KeyboardInterrupt:
        if not follow:
            raise


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _read_directory(
    directory: Path, begin: Place | None, upto: Place | None, wanted: dict[str, Any], undurable: bool, printer: Printer
) -> None:
    from vlsn.format.key_filter import KeyFilter
    from vlsn.offline.stopped_log import StoppedLog

    disk, stores = require_log(directory)
    keys = KeyFilter.of(wanted["key"], wanted["key_prefix"])
    log = StoppedLog(disk, stores, str(directory))
    first, last = begin.vlsn if begin is not None else 0, upto.vlsn if upto is not None else 0
    if begin is not None and begin.is_end:
        first = (log.last if undurable else log.durable) + 1
    elif begin is not None and begin.time_us is not None:
        first = max(log.at_time(begin.time_us), log.first)
    if upto is not None and upto.time_us is not None:
        last = log.at_time(upto.time_us + 1) - 1
    if upto is None or first <= last > 0:
        for entries in log.entries(first, last, all_kinds=wanted["all_kinds"], undurable=undurable, keys=keys):
            if printer.take(entries):
                return
    if upto is None and not undurable and log.last > log.durable:
        left = f"VLSN {log.durable + 1} to {log.last}"
        click.echo(f"{left} may be on no other node and are left out; --undurable shows them", err=True)


async def _read(
    urls: list[str], begin: Place | None, upto: Place | None, follow: bool, consistency: Consistency,
    wanted: dict[str, Any], printer: Printer,
) -> None:  # fmt: skip
    from repl.cli.append import require_a_node
    from repl.client.connect import connect

    async with connect(",".join(urls)) as log:
        await require_a_node(log, urls)
        first = await _vlsn_of(log, begin) if begin is not None else None
        if follow:
            await _follow(log, first, upto, wanted, printer)
            return
        last = upto.vlsn if upto is not None else None
        if upto is not None and upto.time_us is not None:
            last = await log.vlsn_at(upto.time_us + 1) - 1
            if not last:
                return
        pages = log.read_pages(first, last, consistency=consistency, **wanted)
        async for page in pages:
            if printer.take(page.entries):
                return


async def _vlsn_of(log: Client, place: Place) -> int | None:
    if place.is_end:
        return await log.durable_vlsn(consistency="linearizable") + 1
    if place.time_us is not None:
        return await log.vlsn_at(place.time_us)
    return place.vlsn or None


async def _follow(log: Client, first: int | None, upto: Place | None, wanted: dict[str, Any], printer: Printer) -> None:
    async for page in log.tail_pages(first, **wanted):
        entries = [entry for entry in page.entries if upto is None or _is_within(entry, upto)]
        if printer.take(entries) or len(entries) < len(page.entries):
            return
        if upto is not None and 0 < upto.vlsn < page.next_vlsn:
            return


def _is_within(entry: Entry, upto: Place) -> bool:
    return entry.vlsn <= upto.vlsn if upto.time_us is None else entry.time <= upto.time_us


class Printer:
    """Prints entries to stdout, many in one write, up to ``limit`` entries in total."""

    def __init__(self, limit: int | None, *, as_json: bool, kinds: bool, txns: bool, flush: bool) -> None:
        self._left = limit
        self._as_json = as_json
        self._kinds = kinds
        self._txns = txns
        self._flush = flush

    def take(self, entries: Sequence[Entry]) -> bool:
        """Prints entries up to the limit. Returns whether the limit is reached."""
        if self._left is not None:
            entries = entries[: self._left]
            self._left -= len(entries)
        if entries:
            self._print(entries)
        return self._left == 0

    def _print(self, entries: Sequence[Entry]) -> None:
        out = sys.stdout.buffer
        if self._as_json:
            from repl.web import ndjson

            out.write(ndjson.encode(entries, kinds=self._kinds, txns=self._txns))
        else:
            out.write(b"\n".join([entry.value for entry in entries]) + b"\n")
        if self._flush:
            out.flush()
