"""``vlsnlog group``: who is in the group, and one change of it at a time.

``add`` and ``promote`` wait until the member is electable, as the master makes it once it has caught up; ``--no-wait``
returns when the change itself is durable.  Exit status 1: logged, but not known to be durable, or not caught up in
time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from repl.cli.admin import json_object
from repl.cli.options import Command, Commands, FiniteRange, NameType, json_option, url_option
from repl.cli.report import print_json, print_table
from repl.cli.signals import run
from vlsn.errors import BadArgument, NotMaster, OutcomeUnknown, Unreachable, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network, Response

TIMEOUT_S = 20.0
LOOK_S = 0.3
HOPS_MAX = 3
_DOCUMENT = ("group", "state", "master", "term", "vlsn", "durable", "members")
"""Members of every answer about the group."""
_SETTINGS = ("level", "settings")
"""… and of one that says more than who is in it."""
_WHOLE = re.compile(r"[0-9]{1,18}\Z")
NO_MASTER_S = 5.0
"""Seconds that an order waits for a master: one may just be elected."""


@click.group(cls=Commands)
def group() -> None:
    """Show the members, or change them: one at a time."""


@group.command(cls=Command)
@url_option
@json_option
def show(url: list[str], as_json: bool) -> int:
    """The members, as the master's log lists them; of the nodes that answer, as the one with the highest term."""
    document = run(_shown(url))
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 0


@group.command(cls=Command)
@click.argument("member", metavar="NAME=URL")
@click.option("--secondary", is_flag=True, help="It stays without a vote.")
@click.option("--priority", type=click.IntRange(0, 10), default=1, show_default=True, help="A lower one stands later.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is electable.")
@click.option(
    "--timeout", type=FiniteRange(1, 86_400), default=600.0, show_default=True, help="Seconds to wait for that."
)
@url_option
@json_option
def add(
    member: str, secondary: bool, priority: int, no_wait: bool, timeout: float, url: list[str], as_json: bool
) -> int:
    """Add a member.  Its node must be up, its settings naming all members."""
    from repl.config import check_members, parse_members

    members = parse_members([member])
    check_members(members)
    ((name, at),) = members.items()
    change = {"change": "add", "name": name, "url": at, "secondary": secondary, "priority": priority}
    wait = "" if secondary or no_wait else name
    return _change(url, change, wait=wait, timeout_s=timeout, as_json=as_json)


@group.command(cls=Command)
@click.argument("name", type=NameType())
@url_option
@json_option
def remove(name: str, url: list[str], as_json: bool) -> int:
    """Remove a member; it is refused from then on, until it is added again.  A master hands over first."""
    return _change(url, {"change": "remove", "name": name}, wait="", timeout_s=0, as_json=as_json)


@group.command(cls=Command)
@click.argument("name", type=NameType())
@click.option("--no-wait", is_flag=True, help="Do not wait until it is electable.")
@click.option(
    "--timeout", type=FiniteRange(1, 86_400), default=600.0, show_default=True, help="Seconds to wait for that."
)
@url_option
@json_option
def promote(name: str, no_wait: bool, timeout: float, url: list[str], as_json: bool) -> int:
    """Make a secondary electable, once it has caught up."""
    wait = "" if no_wait else name
    return _change(url, {"change": "promote", "name": name}, wait=wait, timeout_s=timeout, as_json=as_json)


@group.command(cls=Command)
@click.argument("name", type=NameType())
@click.argument("priority", type=click.IntRange(0, 10))
@url_option
@json_option
def priority(name: str, priority: int, url: list[str], as_json: bool) -> int:
    """Set a member's priority: a lower one stands later, 0 only when nobody else does."""
    change = {"change": "priority", "name": name, "priority": priority}
    return _change(url, change, wait="", timeout_s=0, as_json=as_json)


@group.command(cls=Command, name="set")
@click.argument("settings", metavar="NAME=VALUE …", nargs=-1, required=True)
@url_option
@json_option
def set_(settings: tuple[str, ...], url: list[str], as_json: bool) -> int:
    """Set the group's settings, which lie in its log.

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
    return _set(url, body, as_json=as_json)


@group.command(cls=Command)
@url_option
@json_option
def upgrade(url: list[str], as_json: bool) -> int:
    """Raise the group's level by one, for ever, once all members run a vlsnlog that speaks it."""
    shown = run(_shown(url))
    if "level" not in shown:
        raise BadArgument("that node does not tell the group's level: run a later vlsnlog there first")
    return _set(url, {"level": int(shown["level"]) + 1}, as_json=as_json)


@group.command(cls=Command, name="transfer-master")
@click.argument("name", type=NameType(), required=False)
@url_option
@json_option
def transfer_master(name: str | None, url: list[str], as_json: bool) -> int:
    """Move mastership to NAME, or to the replica that is furthest."""
    path = "/v1/admin/transfer" + (f"?{urlencode({'to': name})}" if name else "")
    answer = run(_ordered(url, path, b"", "from", "to"))
    if as_json:
        print_json(answer)
    else:
        before, now = answer.get("from"), answer.get("to")
        click.echo(f"{now} leads already" if before == now else f"{before} has handed over to {now}")
    return 0


def _set(urls: Sequence[str], settings: dict[str, Any], *, as_json: bool) -> int:
    import msgspec

    body = msgspec.json.encode(settings)
    document = run(_ordered(urls, "/v1/admin/group/settings", body, *_DOCUMENT, *_SETTINGS))
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 0


def _change(urls: Sequence[str], change: dict[str, Any], *, wait: str, timeout_s: float, as_json: bool) -> int:
    import msgspec

    document = run(_carried_out(urls, msgspec.json.encode(change), wait, timeout_s))
    if as_json:
        print_json(document)
    else:
        _print(document)
    if wait and not _electable(document, wait):
        raise OutcomeUnknown(f"{wait} is a member, but has not caught up within {timeout_s:.0f} s; the master goes on")
    return 0


async def _carried_out(urls: Sequence[str], body: bytes, wait: str, timeout_s: float) -> dict[str, Any]:
    document = await _ordered(urls, "/v1/admin/group", body, *_DOCUMENT)
    if not wait:
        return document
    known = list(dict.fromkeys((*urls, *(str(member["url"]) for member in document["members"]))))
    try:
        async with asyncio.timeout(timeout_s):
            while not _electable(document, wait):
                await asyncio.sleep(LOOK_S)
                document = await _shown(known)
    except TimeoutError:
        pass
    return document


def _electable(document: dict[str, Any], name: str) -> bool:
    """Says whether ``name`` is electable, and known to stay so."""
    listed = any(member["name"] == name and member["electable"] for member in document["members"])
    return listed and bool(document["durable"])


# Calls.


async def _ordered(urls: Sequence[str], path: str, body: bytes, *needed: str) -> dict[str, Any]:
    """Asks the master, whichever of ``urls`` leads there, and returns its answer with all ``needed`` in it. Raises what
    it refuses with, ``NotMaster``, ``Unreachable``."""
    from repl.client.connect import real_network

    network = real_network()
    try:
        deadline = asyncio.get_running_loop().time() + NO_MASTER_S
        while True:
            try:
                return await _once(network, urls, path, body, needed)
            except NotMaster:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_S)
    finally:
        await network.close()


async def _once(network: Network, urls: Sequence[str], path: str, body: bytes, needed: Sequence[str]) -> dict[str, Any]:
    from repl.web import problem

    refusal: VlsnLogError | None = None
    for url in urls:
        try:
            response = await _posted(network, f"{url}{path}", body)
        except Unreachable as error:
            refusal = refusal or error
            continue
        if response.status == 200:
            return json_object(bytes(response.body), *needed)
        error_told = problem.error_of(bytes(response.body))
        if not isinstance(error_told, NotMaster):
            raise error_told
        refusal = error_told
    raise refusal or BadArgument("no URL to ask")


async def _posted(network: Network, url: str, body: bytes) -> Response:
    """Follows the way to the master."""
    headers = {"Content-Type": "application/json"}
    for _ in range(HOPS_MAX):
        response = await network.request("POST", url, headers=headers, body=body, timeout_s=TIMEOUT_S)
        location = response.headers.get("Location", "")
        if response.status != 307 or not location.startswith("http://"):
            break
        url = location
    return response


async def _shown(urls: Sequence[str]) -> dict[str, Any]:
    """Returns the answer of whoever leads, or has the highest term, of all that answer. Raises ``Unreachable``."""
    from repl.client.connect import real_network

    network = real_network()
    try:
        answers = await _documents(network, urls)
        told = [answer for answer in answers if isinstance(answer, dict)]
        if told and not any(answer["state"] == "MASTER" for answer in told):
            masters = {
                str(member["url"])
                for answer in told
                for member in answer["members"]
                if member["name"] == answer["master"]
            }
            told += [each for each in await _documents(network, sorted(masters)) if isinstance(each, dict)]
    finally:
        await network.close()
    if not told:
        raise next(answer for answer in answers if isinstance(answer, VlsnLogError))
    return max(told, key=lambda each: (each["term"], each["state"] == "MASTER"))


async def _documents(network: Network, urls: Sequence[str]) -> list[dict[str, Any] | VlsnLogError]:
    from repl.web import problem

    async def one(url: str) -> dict[str, Any] | VlsnLogError:
        try:
            response = await network.request("GET", f"{url}/v1/group", timeout_s=TIMEOUT_S)
            if response.status != 200:
                return problem.error_of(bytes(response.body))
            return json_object(bytes(response.body), *_DOCUMENT)
        except VlsnLogError as error:
            return error

    return list(await asyncio.gather(*(one(url) for url in urls)))


def _of(value: Any) -> str:
    """Returns a setting as ``group set`` takes it."""
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
