"""``vlsnlog cdc``: the CDC consumers of each node given, and orders to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from repl.cli.admin import TIMEOUT_S, complain, json_object
from repl.cli.options import Command, Commands, NameType, json_option, url_option
from repl.cli.places import VLSN, place_of
from repl.cli.report import count, print_json, print_table
from repl.cli.signals import run
from vlsn.errors import BadBody, NotFound, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

FINDINGS = ("parked", "not-configured")
"""States that need a person."""
QUIET = ("waiting", "paused")
"""States whose reasons are nobody's concern in a list."""
Answer = dict[str, Any] | VlsnLogError
_COLUMNS = ("node", "consumer", "state", "mode", "next VLSN", "behind", "for", "entries", "switches", "failures")


@click.group(cls=Commands)
def cdc() -> None:
    """Show what CDC consumers do, or pause, move and resume them."""


@cdc.command(cls=Command, name="list")
@url_option
@json_option
def list_all(url: list[str], as_json: bool) -> int:
    """Every consumer of the nodes given: its state, its mode, how far behind it is."""
    answers = run(_all(url, "GET", "", None))
    found = {each: answer for each, answer in answers.items() if not isinstance(answer, VlsnLogError)}
    consumers = [{"node": told["node"], **one} for told in found.values() for one in told.get("consumers", []) or []]
    if as_json:
        print_json({"consumers": consumers})
    elif consumers:
        _print(consumers)
        for one in consumers:
            if one["reason"] and one["state"] not in QUIET:
                click.echo(f"{one['node']} {one['name']}: {one['reason']}")
    elif found:
        click.echo("these nodes have no CDC consumers in their settings")
    complain("cdc list", answers)
    if len(found) < len(answers):
        return 2
    return 1 if any(one["state"] in FINDINGS for one in consumers) else 0


@cdc.command(cls=Command)
@click.argument("name", type=NameType())
@url_option
@json_option
def status(name: str, url: list[str], as_json: bool) -> int:
    """Show one consumer on the nodes given."""
    answers = run(_all(url, "GET", f"/{name}", None))
    return _shown("status", answers, as_json)


def _order_command(order: str, text: str) -> None:
    @cdc.command(cls=Command, name=order, help=text)
    @click.argument("name", type=NameType())
    @url_option
    @json_option
    def command(name: str, url: list[str], as_json: bool) -> int:
        return _shown(order, run(_all(url, "POST", f"/{name}/{order}", {})), as_json)


_order_command("pause", "Stop a consumer where it is; the log is held for it.")
_order_command("resume", "Let a consumer go on, paused or parked.")


@cdc.command(cls=Command)
@click.argument("name", type=NameType())
@click.option("--to", "place", required=True, metavar="VLSN|start|end", help="The event that it is given next.")
@url_option
@json_option
def reset(name: str, place: str, url: list[str], as_json: bool) -> int:
    """Move a consumer to another place."""
    to = place_of(place, "--to")
    return _shown("reset", run(_all(url, "POST", f"/{name}/reset", {"to": to})), as_json)


@cdc.command(cls=Command)
@click.argument("name", type=NameType())
@click.option("--to", type=VLSN, required=True, metavar="VLSN", help="The event that it is given next.")
@url_option
@json_option
def skip(name: str, to: int, url: list[str], as_json: bool) -> int:
    """Move a consumer forward, past what failed or is gone; what is skipped is named."""
    return _shown("skip", run(_all(url, "POST", f"/{name}/skip", {"to": to})), as_json)


@cdc.command(cls=Command)
@click.argument("name", type=NameType())
@click.option("--from", "first", type=VLSN, required=True, metavar="VLSN", help="The first one.")
@click.option("--to", "last", type=VLSN, required=True, metavar="VLSN", help="The last one.")
@url_option
@json_option
def resend(name: str, first: int, last: int, url: list[str], as_json: bool) -> int:
    """Give a consumer a range of VLSNs again; then it goes on where it was."""
    return _shown("resend", run(_all(url, "POST", f"/{name}/resend", {"from": first, "to": last})), as_json)


async def _all(urls: Sequence[str], method: str, path: str, body: dict[str, Any] | None) -> dict[str, Answer]:
    """Asks each node; returns its answer, or why there is none."""
    from repl.client.connect import real_network

    network = real_network()
    try:
        answers = await asyncio.gather(*(_one(network, url, method, path, body) for url in urls))
        return dict(zip(urls, answers, strict=True))
    finally:
        await network.close()


async def _one(network: Network, url: str, method: str, path: str, body: dict[str, Any] | None) -> Answer:
    import msgspec

    from repl.web import problem

    headers = {"Content-Type": "application/json"} if body is not None else {}
    data = msgspec.json.encode(body) if body is not None else b""
    try:
        response = await network.request(method, f"{url}/v1/cdc{path}", headers=headers, body=data, timeout_s=TIMEOUT_S)
        if response.status != 200:
            return problem.error_of(bytes(response.body))
        return json_object(bytes(response.body), "node")
    except (VlsnLogError, BadBody) as error:
        return error


def _shown(what: str, answers: dict[str, Answer], as_json: bool) -> int:
    """Prints what nodes answered. A node that does not run the consumer is passed over where another one does."""
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
