"""``vlsnlog group``: shows the members of the group, and makes one change at a time.

``add`` and ``promote`` wait until the member is electable, which the master makes it once it has caught up. With
``--no-wait`` they return when the change itself is durable. Exit status 1: logged, but not known to be durable, or not
caught up in time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from repl.cli import status
from repl.cli.asking import ORDER_S, Answer, answers_of, network, ordered
from repl.cli.options import Commands, FiniteRange, NameType
from repl.cli.report import print_found, print_table
from repl.cli.signals import run
from repl.cli.upgrade import plan, print_plan
from vlsn.errors import BadArgument, OutcomeUnknown, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

LOOK_S = 0.3
_DOCUMENT = ("group", "state", "master", "term", "vlsn", "durable", "members")
"""Fields of every answer about the group."""
_SETTINGS = ("level", "settings")
"""Fields of an answer that has the settings, too."""
_WHOLE = re.compile(r"[0-9]{1,18}\Z")
NAME = click.argument("name", type=NameType())
WAITING = (
    click.option("--no-wait", is_flag=True, help="Do not wait until it is electable."),
    click.option(
        "--timeout", type=FiniteRange(1, 86_400), default=600.0, show_default=True, help="Seconds to wait for that."
    ),
)


@click.group(cls=Commands)
def group() -> None:
    """Show the members, or change them: one at a time."""


@group.asking()
def show(url: list[str], as_json: bool) -> int:
    """Show the members as the master's log lists them; without a master, as the answer with the highest term does."""
    return print_found(run(_shown(url)), as_json, _print)


@group.asking(
    click.argument("member", metavar="NAME=URL"),
    click.option("--secondary", is_flag=True, help="It stays without a vote."),
    click.option(
        "--priority", type=click.IntRange(0, 10), default=1, show_default=True, help="A lower one stands later."
    ),
    *WAITING,
)
def add(
    member: str, secondary: bool, priority: int, no_wait: bool, timeout: float, url: list[str], as_json: bool
) -> int:
    """Add a member. Its node must be running, with all members in its settings."""
    from repl.config import check_members, parse_members

    members = parse_members([member])
    check_members(members)
    ((name, at),) = members.items()
    change = {"change": "add", "name": name, "url": at, "secondary": secondary, "priority": priority}
    return _change(url, change, as_json, wait=not (secondary or no_wait), timeout_s=timeout)


@group.asking(click.argument("member", metavar="NAME=URL"))
def move(member: str, url: list[str], as_json: bool) -> int:
    """Give a member another URL, at which its node answers already: https:// in place of http://, or another host."""
    from repl.config import check_members, parse_members

    members = parse_members([member])
    check_members(members)
    ((name, at),) = members.items()
    return _change(url, {"change": "move", "name": name, "url": at}, as_json)


@group.asking(NAME)
def remove(name: str, url: list[str], as_json: bool) -> int:
    """Remove a member; it is refused from then on, until it is added again. A master hands over first."""
    return _change(url, {"change": "remove", "name": name}, as_json)


@group.asking(NAME, *WAITING)
def promote(name: str, no_wait: bool, timeout: float, url: list[str], as_json: bool) -> int:
    """Make a secondary electable, once it has caught up."""
    return _change(url, {"change": "promote", "name": name}, as_json, wait=not no_wait, timeout_s=timeout)


@group.asking(NAME, click.argument("priority", type=click.IntRange(0, 10)))
def priority(name: str, priority: int, url: list[str], as_json: bool) -> int:
    """Set a member's priority: a member with a lower one stands later, with 0 only when no other does."""
    return _change(url, {"change": "priority", "name": name, "priority": priority}, as_json)


@group.asking(click.argument("settings", metavar="NAME=VALUE …", nargs=-1, required=True), name="set")
def set_(settings: tuple[str, ...], url: list[str], as_json: bool) -> int:
    """Set the group's settings, which its log contains.

    producers=N, how many exactly-once producers it knows; durability=LEVEL[,LEVEL] with sync, write_no_sync or no_sync,
    what the master (and the replicas) have done with an append that asks for nothing else when it is answered.
    """
    from vlsn.durability import group_durability

    body: dict[str, Any] = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if name == "durability" and equals:
            held = group_durability(value)
            body[name] = {"local": held.local, "replica": held.replica}
        elif equals and _WHOLE.match(value):
            body[name] = int(value)
        else:
            raise BadArgument(f"{each}: a setting is NAME=VALUE, as producers=N or durability=sync,no_sync are")
    return _set(url, body, as_json)


@group.asking(click.option("--dry-run", is_flag=True, help="Say what it would do, and change nothing."))
def upgrade(dry_run: bool, url: list[str], as_json: bool) -> int:
    """Raise the group's level by one, for ever, once all members run a vlsnlog that speaks it.

    --dry-run prints each member's version and levels, what the next level brings and ends, and whether it can be raised
    (exit status 0) or why not (1).
    """
    shown = run(_shown(url))
    if "level" not in shown:
        raise BadArgument("that node does not tell the group's level: run a later vlsnlog there first")
    if dry_run:
        known = dict.fromkeys((*url, *(str(member["url"]) for member in shown["members"])))
        found = plan(shown, run(status.ask(list(known))))
        print_found(found, as_json, print_plan)
        return 0 if found["possible"] else 1
    return _set(url, {"level": int(shown["level"]) + 1}, as_json)


@group.asking(click.argument("name", type=NameType(), required=False), name="transfer-master")
def transfer_master(name: str | None, url: list[str], as_json: bool) -> int:
    """Move mastership to NAME, or to the replica with the most of the log."""
    path = "/v1/admin/transfer" + (f"?{urlencode({'to': name})}" if name else "")

    def text(answer: dict[str, Any]) -> None:
        before, now = answer.get("from"), answer.get("to")
        click.echo(f"{now} leads already" if before == now else f"{before} has handed over to {now}")

    return print_found(run(ordered(url, path, None, "from", "to")), as_json, text)


def _set(urls: Sequence[str], settings: dict[str, Any], as_json: bool) -> int:
    document = run(ordered(urls, "/v1/admin/group/settings", settings, *_DOCUMENT, *_SETTINGS))
    return print_found(document, as_json, _print)


def _change(
    urls: Sequence[str], change: dict[str, Any], as_json: bool, *, wait: bool = False, timeout_s: float = 0.0
) -> int:
    document = run(_carried_out(urls, change, wait, timeout_s))
    print_found(document, as_json, _print)
    if wait and not _electable(document, name := change["name"]):
        raise OutcomeUnknown(
            f"{name} is a member, but has not caught up within {timeout_s:.0f} s; the master continues"
        )
    return 0


async def _carried_out(urls: Sequence[str], change: dict[str, Any], wait: bool, timeout_s: float) -> dict[str, Any]:
    document = await ordered(urls, "/v1/admin/group", change, *_DOCUMENT)
    if not wait:
        return document
    known = list(dict.fromkeys((*urls, *(str(member["url"]) for member in document["members"]))))
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not _electable(document, change["name"]):
                await asyncio.sleep(LOOK_S)
                document = await _shown(known)
    return document


def _electable(document: dict[str, Any], name: str) -> bool:
    """Returns whether ``name`` is electable, and that is known to be durable."""
    listed = any(member["name"] == name and member["electable"] for member in document["members"])
    return listed and bool(document["durable"])


# Calls.


async def _shown(urls: Sequence[str]) -> dict[str, Any]:
    """Returns the master's answer, or the one with the highest term. Raises ``Unreachable``."""
    async with network() as opened:
        answers = await _documents(opened, urls)
        told = [answer for answer in answers if isinstance(answer, dict)]
        if told and not any(answer["state"] == "MASTER" for answer in told):
            masters = {
                str(member["url"])
                for answer in told
                for member in answer["members"]
                if member["name"] == answer["master"]
            }
            told += [each for each in await _documents(opened, sorted(masters)) if isinstance(each, dict)]
    if not told:
        raise next(answer for answer in answers if isinstance(answer, VlsnLogError))
    return max(told, key=lambda each: (each["term"], each["state"] == "MASTER"))


async def _documents(opened: Network, urls: Sequence[str]) -> list[Answer]:
    return await answers_of(opened, "GET", [f"{url}/v1/group" for url in urls], *_DOCUMENT, timeout_s=ORDER_S)


def _of(value: Any) -> str:
    """Formats a setting as ``group set`` accepts it."""
    return ",".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def _print(document: dict[str, Any]) -> None:
    durable = "durable" if document["durable"] else "not known to be durable"
    settings = "".join(f", {name} {_of(value)}" for name, value in document.get("settings", {}).items())
    if settings:
        click.echo(f"level {document.get('level')}{settings}")
    print_table(
        f"group {document['group']}, master {document['master'] or 'none'}, term {document['term']}, as of VLSN "
        f"{document['vlsn']} ({durable})",
        ("member", "role", "priority", "fed", "lag", "incarnation", "url"),
        [_row(document, member) for member in document["members"]],
    )


def _row(document: dict[str, Any], member: dict[str, Any]) -> tuple[object, ...]:
    if member["name"] == document["master"]:
        role = "master"
    elif member["electable"]:
        role = "electable"
    else:
        role = "joining" if member["joining"] else "secondary"
    other = member.get("other_incarnation")
    incarnation = f"{member['incarnation']} (now {other})" if other else member["incarnation"]
    fed = {True: "yes", False: "no"}.get(member.get("fed"))  # type: ignore[arg-type]
    return member["name"], role, member["priority"], fed, member.get("lag_vlsns"), incarnation, member["url"]
