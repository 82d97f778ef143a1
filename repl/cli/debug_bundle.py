"""``vlsnlog debug-bundle``: one zip of what a person needs who is asked why a group behaves as it does.

    NAME/status.json, metrics.txt, events.json, group.json, consumers.json, destinations.json, cdc.json
    NAME/node.toml, node.log, admin.jsonl           of each --dir, the last bytes of the logs
    check.txt, versions.json, errors.json           what `vlsnlog check` finds, and what could not be had

The bundle has no entry of the log: no keys, no values. Names of nodes, consumers and destinations, and addresses, are
in it. Each file passes ``without_secrets`` first, which replaces whatever has the form of a secret.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from repl.cli.asking import network
from repl.cli.options import Command, json_option, url_option
from repl.cli.report import print_json, size
from repl.cli.signals import run
from repl.cli.status import UNREACHABLE, ask
from repl.config import toml_of
from vlsn.errors import BadArgument, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

ASK_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 16 << 20
LOG_BYTES_MAX: Final = 4 << 20
"""The most bytes of a log file, the last ones."""
QUESTIONS: Final = {
    "status.json": "/v1/status",
    "metrics.txt": "/metrics",
    "events.json": "/v1/events",
    "group.json": "/v1/group",
    "consumers.json": "/v1/consumers",
    "destinations.json": "/v1/destinations",
    "cdc.json": "/v1/cdc",
}
REMOVED: Final = b"<removed>"
_SECRETS: Final = [
    re.compile(pattern)
    for pattern in (
        rb"(?<=vlt_[a-z0-9]{8}_)[A-Za-z0-9_-]{8,}",  # a token; its ID stays
        rb"(?<=whsec_)[A-Za-z0-9+/=]{8,}",
        rb"(?<=mac=)[0-9a-f]{16,}",
        rb"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}",
        rb"(?<=://)[^/\s:@\"']+:[^/\s@\"']+(?=@)",
        rb"(?i)(?<=password=)[^\s&\"']+",
        rb"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
        rb"(?m)^[a-z0-9]{1,32} [0-9a-f]{64}\r?$",  # a line of the group's key
    )
]


@click.command(cls=Command, name="debug-bundle")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The zip to write; not replaced."
)
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a node on this machine: its config and logs, too. Once for each.",
)
@url_option
@json_option
def debug_bundle(url: list[str], out: Path, directories: Sequence[Path], as_json: bool) -> int:
    """Collect status, metrics, events and logs of a group in one zip, without entries and secrets.

    A node that is silent is noted in errors.json. Exit status 1 if no node answers; the zip is written all the same.
    """
    nodes = run(ask(url))
    files, errors = run(_answers({node["node"] or node["url"]: node for node in nodes}))
    for directory in directories:
        files |= _of_directory(directory, errors)
    files["check.txt"] = _checked(url).encode()
    files["versions.json"] = _json(_versions())
    files["errors.json"] = _json(errors)
    _write(out, files)
    reached = [node["node"] for node in nodes if node["state"] != UNREACHABLE]
    if as_json:
        print_json({"out": str(out), "files": sorted(files), "nodes": reached, "errors": errors})
    else:
        click.echo(f"{out}: {len(files)} files, {size(out.stat().st_size)}, of {', '.join(reached) or 'no node'}")
        for where, why in errors.items():
            click.echo(f"not in it: {where}: {why}")
    return 0 if reached else 1


def without_secrets(data: bytes) -> bytes:
    """Replaces whatever has the form of a secret."""
    for each in _SECRETS:
        data = each.sub(REMOVED, data)
    return data


async def _answers(nodes: dict[str, dict[str, Any]]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Asks each node. Returns files, and why others could not be had."""
    files: dict[str, bytes] = {}
    errors: dict[str, str] = {}
    async with network() as opened:
        for name, node in nodes.items():
            if node["state"] == UNREACHABLE:
                errors[name] = str(node.get("reason") or "no answer")
                continue
            for file, path in QUESTIONS.items():
                where = f"{_part(name)}/{file}"
                try:
                    files[where] = await _answer(opened, f"{node['url']}{path}")
                except VlsnLogError as error:
                    errors[where] = str(error)
    return files, errors


async def _answer(opened: Network, url: str) -> bytes:
    response = await opened.request("GET", url, timeout_s=ASK_S)
    if response.status == 307:  # a list that the master has
        raise BadArgument("the master has it")
    if response.status != 200:
        raise BadArgument(f"answered {response.status}")
    if len(response.body) > ANSWER_BYTES_MAX:
        raise BadArgument(f"has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(response.body)


def _of_directory(directory: Path, errors: dict[str, str]) -> dict[str, bytes]:
    """Returns the config and the ends of the logs of a node on this machine."""
    files: dict[str, bytes] = {}
    name = _part(directory.resolve().name)
    readers: dict[str, Callable[[Path], bytes]] = {"node.toml": _settings, "node.log": _end, "admin.jsonl": _end}
    for file, read in readers.items():
        path = directory / file
        try:
            if path.is_file():
                files[f"{name}/{file}"] = read(path)
        except OSError as error:
            errors[str(path)] = error.strerror or str(error)
    listed = sorted(f"{path.stat().st_size:>14} {path.name}" for path in directory.iterdir() if path.is_file())
    files[f"{name}/files.txt"] = ("\n".join(listed) + "\n").encode()
    return files


def _settings(path: Path) -> bytes:
    """Returns the config without the options of consumers: a user's own ones may be secret."""
    try:
        values = tomllib.loads(path.read_text())
    except (ValueError, RecursionError):
        return b"# is not valid TOML\n"
    tables = values.get("cdc")
    for each in tables if isinstance(tables, list) else ():
        if isinstance(each, dict) and isinstance(options := each.get("options"), dict):
            each["options"] = dict.fromkeys(options, REMOVED.decode())
    return "".join(f"{toml_of(name)} = {toml_of(value)}\n" for name, value in values.items()).encode()


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX)


def _checked(urls: Sequence[str]) -> str:
    from repl.cli.check import lines_of_group

    text = StringIO()
    for each in lines_of_group(urls):
        print(f"{each.outcome:4}  {each.check}  {each.where}: {each.said}", file=text)
    return text.getvalue()


def _versions() -> dict[str, Any]:
    from importlib.metadata import distributions

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {each.name: each.version for each in sorted(distributions(), key=lambda each: each.name)},
    }


def _json(value: object) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _part(name: str) -> str:
    """Returns a name as a part of a path within the zip."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).strip(".") or "node"


def _write(out: Path, files: dict[str, bytes]) -> None:
    """Writes the zip, which only its owner may read. Raises ``BadArgument``."""
    try:
        number = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadArgument(f"{out}: exists; a bundle replaces no file") from None
    except OSError as error:
        raise BadArgument(f"{out}: {error.strerror}") from None
    with os.fdopen(number, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in sorted(files.items()):
            bundle.writestr(name, without_secrets(data))
