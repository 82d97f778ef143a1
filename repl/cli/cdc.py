"""``vlsnlog cdc``: shows the CDC consumers of the given nodes, and sends orders to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from repl.cli.asking import Answer, ask_nodes, complain
from repl.cli.options import Commands, NameType
from repl.cli.places import VLSN, place_option
from repl.cli.report import count, print_json, print_table
from vlsn.errors import NotFound, VlsnLogError

FINDINGS = ("parked", "not-configured")
"""The states of a consumer that need a person."""
QUIET = ("waiting", "paused")
"""The states whose reasons are left out of a list of consumers."""
_COLUMNS = ("node", "consumer", "state", "mode", "next VLSN", "behind", "for", "entries", "switches", "failures")
NAME = click.argument("name", type=NameType())


@click.group(cls=Commands, also={"status": "show", "reset": "move"})
def cdc() -> None:
    """Show the state of CDC consumers, or pause, move and resume them."""


@cdc.asking(name="list")
def list_all(url: list[str], as_json: bool) -> int:
    """List every consumer of the nodes given: its state, its mode, and its lag."""
    answers = _asked(url)
    found = [answer for answer in answers.values() if not isinstance(answer, VlsnLogError)]
    consumers = [{"node": told["node"], **one} for told in found for one in told.get("consumers", []) or []]
    if as_json:
        print_json({"consumers": consumers})
    elif consumers:
        _print(consumers)
        for one in consumers:
            if one["reason"] and one["state"] not in QUIET:
                click.echo(f"{one['node']} {one['name']}: {one['reason']}")
    elif found:
        click.echo("these nodes have no CDC consumers in their settings")
    findings = any(one["state"] in FINDINGS for one in consumers)
    return complain("cdc list", answers) or int(findings)


@cdc.asking(NAME)
def show(name: str, url: list[str], as_json: bool) -> int:
    """Show one consumer on the nodes given."""
    return _shown("show", _asked(url, f"/{name}"), as_json)


def _order(order: str, name: str, urls: Sequence[str], as_json: bool, **body: object) -> int:
    return _shown(order, _asked(urls, f"/{name}/{order}", body), as_json)


@cdc.asking(NAME)
def pause(name: str, url: list[str], as_json: bool) -> int:
    """Stop a consumer at its position; cleaning still keeps the log from there on."""
    return _order("pause", name, url, as_json)


@cdc.asking(NAME)
def resume(name: str, url: list[str], as_json: bool) -> int:
    """Resume a paused or parked consumer."""
    return _order("resume", name, url, as_json)


@cdc.asking(NAME, place_option("--to", help="The VLSN of the next event."))
def move(name: str, to: int | str, url: list[str], as_json: bool) -> int:
    """Move a consumer to another position."""
    return _order("reset", name, url, as_json, to=to)


def _vlsn(flag: str, name: str, help: str) -> Any:
    return click.option(flag, name, type=VLSN, required=True, metavar="VLSN", help=help)


@cdc.asking(NAME, _vlsn("--to", "to", "The VLSN of the next event."))
def skip(name: str, to: int, url: list[str], as_json: bool) -> int:
    """Move a consumer forward, past failed or missing events, and print the skipped VLSNs."""
    return _order("skip", name, url, as_json, to=to)


@cdc.asking(NAME, _vlsn("--from", "first", "The first one."), _vlsn("--to", "last", "The last one."))
def resend(name: str, first: int, last: int, url: list[str], as_json: bool) -> int:
    """Deliver a range of VLSNs again; then the consumer continues at its position."""
    return _order("resend", name, url, as_json, **{"from": first, "to": last})


def _asked(urls: Sequence[str], path: str = "", order: Mapping[str, object] | None = None) -> dict[str, Answer]:
    return ask_nodes(urls, "GET" if order is None else "POST", f"/v1/cdc{path}", "node", body=order)


def _shown(what: str, answers: dict[str, Answer], as_json: bool) -> int:
    """Prints the nodes' answers. If one node runs the consumer, nodes that do not run it are left out."""
    found = [answer for answer in answers.values() if not isinstance(answer, VlsnLogError)]
    if found:
        answers = {
            url: answer
            for url, answer in answers.items()
            if not (isinstance(answer, VlsnLogError) and answer.slug in ("no-master", NotFound.slug))
        }
    if as_json:
        print_json({"consumers": found})
    elif found:
        _print(found)
        for one in found:
            for word in ("skipped", "resending"):
                if one.get(word):
                    click.echo(f"{one['node']} {one['name']}: {word} VLSNs {one[word]['first']} to {one[word]['last']}")
            if one["reason"]:
                click.echo(f"{one['node']} {one['name']}: {one['reason']}")
    return complain(f"cdc {what}", answers)


def _print(consumers: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            one["node"],
            one["name"],
            one["state"],
            one["mode"],
            one["next"],
            None if one["lag_vlsns"] is None else count(one["lag_vlsns"]),
            None if one["lag_s"] is None else f"{one['lag_s']:.1f} s",
            count(one["entries"]),
            one["switches"]["to_buffer"] + one["switches"]["to_archive"],
            one["failures"],
        )
        for one in consumers
    ]
    print_table("", _COLUMNS, rows, spare=("switches", "failures", "entries"))
