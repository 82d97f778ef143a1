"""``vlsnlog key``: the group's key file, and its exchange while the group runs.

    vlsnlog key add FILE          a new key that is accepted and does not sign yet: bring the file to every node
    vlsnlog key use ID FILE       it signs; refused until every member accepts it
    vlsnlog key remove OLD FILE     the old key is no longer accepted; refused while a member signs with it

The commands change FILE only. Nodes read their files again every few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from repl.auth import group_key
from repl.auth.group_key import GroupKeys
from repl.cli.options import Command, Commands, json_option
from repl.cli.report import print_json
from vlsn.errors import BadArgument
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk

FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
ID = click.argument("id")
_id_option = click.option("--id", "id", default="", help="1 to 16 of a-z 0-9; default: a random one.")
_offline = click.option("--offline", is_flag=True, help="Ask no node: all nodes of the group are stopped.")


@click.group(cls=Commands, also={"new": "create", "drop": "remove"})
def key() -> None:
    """Make the key by which a group's members know each other, or exchange it."""


@key.command(cls=Command)
@FILE
@_id_option
@json_option
def create(file: Path, id: str, as_json: bool) -> int:
    """Make a key file, for its owner alone."""
    path, disk = str(file.absolute()), PosixDisk()
    if disk.exists(path):
        raise BadArgument(f"key: {path} exists; add a key to it: `vlsnlog key add FILE`")
    return _show(group_key.make(disk, path, SystemRandom(), id=id), path, as_json)


@key.command(cls=Command, name="list")
@FILE
@json_option
def list_all(file: Path, as_json: bool) -> int:
    """Print the IDs of a file's keys, first that of the key that signs."""
    path = str(file.absolute())
    return _show(group_key.read(PosixDisk(), path), path, as_json)


@key.command(cls=Command)
@FILE
@_id_option
@json_option
def add(file: Path, id: str, as_json: bool) -> int:
    """Add a key that is accepted and does not sign yet."""
    path = str(file.absolute())
    keys = group_key.read(PosixDisk(), path).with_key(group_key.new_key(SystemRandom(), id))
    return _write(path, keys, as_json)


@key.asking(ID, FILE, _offline)
def use(id: str, file: Path, offline: bool, url: list[str], as_json: bool) -> int:
    """Let a key sign, once every member accepts it."""
    path = str(file.absolute())
    keys = group_key.read(PosixDisk(), path).signing_with(group_key.check_id(id))
    if not offline:
        check_use(id, _asked(url))
    return _write(path, keys, as_json)


@key.asking(ID, FILE, _offline)
def remove(id: str, file: Path, offline: bool, url: list[str], as_json: bool) -> int:
    """Remove a key, once no member signs with it."""
    path = str(file.absolute())
    keys = group_key.read(PosixDisk(), path).without(group_key.check_id(id))
    if not offline:
        check_drop(id, _asked(url))
    return _write(path, keys, as_json)


def check_use(id: str, nodes: Sequence[dict[str, Any]]) -> None:
    """Checks, by the status of each member, that every member accepts the key ``id``. Raises ``BadArgument``."""
    missing = [_name(node) for node in nodes if id not in (node.get("key") or {}).get("accepts", ())]
    if missing:
        raise BadArgument(
            f"key: {', '.join(missing)} did not say that it accepts {id}; bring the file there, wait some seconds, "
            "and try again"
        )


def check_drop(id: str, nodes: Sequence[dict[str, Any]]) -> None:
    """Checks, by the status of each member, that every member signs with another key. Raises ``BadArgument``."""
    signing = [_name(node) for node in nodes if (node.get("key") or {}).get("signs", id) == id]
    if signing:
        raise BadArgument(
            f"key: {', '.join(signing)} did not say that it signs with another key than {id}; bring the file there, "
            "wait some seconds, and try again"
        )


def _asked(urls: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the status of each member. Raises ``BadArgument`` if no node names the members."""
    from repl.cli.signals import run
    from repl.cli.status import UNREACHABLE, ask

    nodes = run(ask(urls))
    if all(node["state"] == UNREACHABLE for node in nodes):
        raise BadArgument(f"key: no node answers at {', '.join(urls)}; name one by --url, or say --offline")
    return nodes


def _name(node: dict[str, Any]) -> str:
    return str(node["node"] or node["url"])


def _write(path: str, keys: GroupKeys, as_json: bool) -> int:
    group_key.replace(PosixDisk(), path, keys, SystemRandom())
    return _show(keys, path, as_json)


def _show(keys: GroupKeys, path: str, as_json: bool) -> int:
    if as_json:
        print_json({"file": path, "signs": keys.signing.id, "accepts": list(keys.ids)})
        return 0
    for each in keys.keys:
        click.echo(f"{each.id}  {'signs' if each is keys.signing else 'accepted'}")
    return 0
