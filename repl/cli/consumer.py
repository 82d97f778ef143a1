"""``vlsnlog consumer``: shows, moves and deletes the positions of named consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from repl.cli.asking import ask_group
from repl.cli.options import Commands
from repl.cli.places import END, place_option
from repl.cli.report import count, print_found, print_list, print_table
from vlsn.errors import BadArgument, NotFound

if TYPE_CHECKING:
    from repl.api import ConsumerAt
    from repl.client.connect import Client

_COLUMNS = ("consumer", "next VLSN", "of term", "set by VLSN", "behind", "for")
NAME = click.argument("name")


@click.group(cls=Commands, also={"reset": "move"})
def consumer() -> None:
    """Show the positions of consumers, or move and delete them."""


@consumer.asking(name="list")
def list_all(url: list[str], as_json: bool) -> int:
    """List every consumer of the group with its lag."""
    found = ask_group(url, lambda log: log.positions.list())
    return print_list("consumers", found, as_json, _print, "no consumer has a position")


@consumer.asking(NAME)
def show(name: str, url: list[str], as_json: bool) -> int:
    """Show the position of one consumer."""
    return _shown(ask_group(url, lambda log: _there(log, name)), as_json)


@consumer.asking(NAME, place_option("--to", help="The VLSN that it reads next."))
def move(name: str, to: int | str, url: list[str], as_json: bool) -> int:
    """Move a consumer to another position; a pending commit of its old position is refused."""
    return _shown(ask_group(url, lambda log: _moved(log, name, to)), as_json)


@consumer.asking(NAME)
def delete(name: str, url: list[str], as_json: bool) -> int:
    """Delete a consumer's position; then cleaning no longer keeps the log for it."""
    ask_group(url, lambda log: log.positions.delete(name))
    return print_found({"name": name, "deleted": True}, as_json, lambda _: click.echo(f"consumer {name} is deleted"))


async def _there(log: Client[Any], name: str) -> ConsumerAt:
    found = await log.positions.get(name)
    if found is None:
        raise NotFound(f"consumer {name} has no position; `vlsnlog consumer list` shows those that have")
    return found


async def _moved(log: Client[Any], name: str, place: int | str) -> ConsumerAt:
    from repl.api import ConsumerChange

    before = await _there(log, name)
    if "/" in name and not isinstance(place, int):
        raise BadArgument(f"consumer {name} reads the log of another group: use a VLSN of that log")
    if isinstance(place, int):
        target = place
    else:
        target = await log.durable_vlsn() + 1 if place == END else await log.first_vlsn()
    return await log.positions.set(before.name, ConsumerChange(target))


def _shown(found: ConsumerAt, as_json: bool) -> int:
    return print_found(found, as_json, lambda found: _print([found]))


def _print(found: Sequence[ConsumerAt]) -> None:
    rows = [
        (
            each.name,
            each.next,
            each.term or None,
            each.at,
            None if each.lag_vlsns is None else count(each.lag_vlsns),
            None if each.lag_s is None else f"{each.lag_s:.1f} s",
        )
        for each in found
    ]
    print_table("", _COLUMNS, rows)
