"""Names groups, so that commands need no ``--url``.

    vlsnlog context add prod --url https://a:7701,https://b:7701 --token-file ~/prod.token
    vlsnlog context use prod             every later command reaches this group
    vlsnlog --context test status        one command reaches another one

A context learns the group's other members, and commands find them after the named ones are gone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from repl.cli.contexts import FILES, Context, Contexts, learned
from repl.cli.options import Command, Commands, json_option
from repl.cli.report import print_json, print_list, print_table
from repl.cli.signals import run
from repl.config import ENVIRONMENT_PREFIX
from repl.credentials.urls import split_urls
from vlsn.errors import BadArgument, VlsnLogError

NAME = click.argument("name")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Commands)
def context() -> None:
    """Name groups, so that commands need no --url."""


@context.command(cls=Command)
@NAME
@click.option("--url", required=True, envvar="VLSNLOG_URL", help="URLs of nodes, separated by commas.")
@click.option("--token-file", type=_FILE, help="File of mode 0600 with the client's token.")
@click.option("--tls-ca", type=_FILE, help="Authorities to trust for https://, in PEM.")
@click.option("--tls-cert", type=_FILE, help="Certificate of this client, in PEM.")
@click.option("--tls-key", type=_FILE, help="Key of that certificate.")
@click.option("--group-key", type=_FILE, help="Key file of the group, which signs orders to nodes.")
@json_option
def add(name: str, url: str, as_json: bool, **files: Path | None) -> int:
    """Add a context, or replace it. The first one is used at once.

    It stores the group's other members, too. If none answers, the context is stored, and this says so.
    """
    absolute = {each: str(path.absolute()) for each in FILES if (path := files.get(each)) is not None}
    if missing := [path for path in absolute.values() if not Path(path).is_file()]:
        raise BadArgument(f"{missing[0]}: there is no such file")
    contexts, made = Contexts.read(), Context(",".join(split_urls(url)), (), **absolute)
    contexts.put(name, made)
    contexts.current = contexts.current or name
    contexts.write()
    why = _learn(name, made)
    urls = Contexts.read().of(name).urls
    if as_json:
        print_json({"name": name, "urls": urls, "reached": not why})
    else:
        click.echo(f"{name}: {', '.join(urls)}" + (f"; no node answers now: {why}" if why else ""))
    return 0


@context.command(cls=Command)
@NAME
def use(name: str) -> int:
    """Let later commands reach this context's group."""
    contexts = Contexts.read()
    contexts.of(name)
    contexts.current = name
    contexts.write()
    return 0


@context.command(cls=Command, name="list")
@json_option
def list_(as_json: bool) -> int:
    """Show the contexts; the star marks the one that is used."""
    contexts = Contexts.read()
    rows = [
        {"name": name, "current": name == contexts.current, "urls": each.urls}
        | {file: getattr(each, file) for file in FILES if getattr(each, file)}
        for name, each in contexts.found.items()
    ]

    def text(found: Any) -> None:
        print_table(
            "",
            ("", "context", "token", "URLs"),
            [
                ("*" if each["current"] else "", each["name"], each.get("token_file", ""), ", ".join(each["urls"]))
                for each in found
            ],
        )

    return print_list("contexts", rows, as_json, text, "no contexts: `vlsnlog context add NAME --url URLS` adds one")


@context.command(cls=Command)
@NAME
def remove(name: str) -> int:
    """Remove a context; the group is not changed."""
    contexts = Contexts.read()
    contexts.of(name)
    del contexts.found[name]
    contexts.current = "" if contexts.current == name else contexts.current
    contexts.write()
    return 0


def _learn(name: str, context: Context) -> str:
    """Stores the group's other members. Returns why no node answers; "" if one does."""
    from repl.cli.status import UNREACHABLE, ask

    for each, path in context.defaults().items():
        if each in FILES:
            os.environ[ENVIRONMENT_PREFIX + each.upper()] = path
    try:
        nodes = run(ask(split_urls(context.url)))
    except VlsnLogError as error:
        return str(error)
    learned(name, nodes)
    return "" if any(node["state"] != UNREACHABLE for node in nodes) else str(nodes[0]["reason"])
