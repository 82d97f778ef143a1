"""``vlsnlog checkpoint``, ``rotate`` and ``restore``: send an order to the given nodes. Restores run one after
another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from repl.cli.asking import ask_nodes, json_object, network, print_answers, sent
from repl.cli.options import Command, is_flagged, json_option, key_option, url_option
from repl.cli.signals import run
from vlsn.errors import CopyNeeded, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

SILENT_S = 60.0
"""A restoring node may be silent for this many seconds, for example while it is restarted."""
LOOK_S = 0.2


@click.command(cls=Command)
@url_option
@key_option
@json_option
def checkpoint(url: list[str], as_json: bool) -> int:
    """Make every node in the list write a checkpoint at once."""
    return _order("checkpoint", url, as_json)


@click.command(cls=Command)
@url_option
@key_option
@json_option
def rotate(url: list[str], as_json: bool) -> int:
    """Make every node in the list begin a new segment at once."""
    return _order("rotate", url, as_json)


@click.command(cls=Command)
@url_option
@key_option
@json_option
def restore(url: list[str], as_json: bool) -> int:
    """Make the node given give up its log and fetch another member's; a master refuses.

    The node also refuses while fewer than a majority of the other members are known to have whole logs. With several
    URLs, each node begins when the node before has its log again.
    """
    if len(url) == 1:
        return _order("restore", url, as_json)
    if not is_flagged("url"):
        raise click.UsageError("a restore gives up a whole copy of the log: name each node with --url")
    for each in url:
        before = run(_restores(each))
        if status := _order("restore", [each], as_json, again_s=0.0 if each == url[0] else SILENT_S):
            return status
        if each != url[-1]:
            run(_restored(each, before))
    return 0


async def _restores(url: str) -> list[object]:
    """Returns the restores that the node at ``url`` has finished."""
    async with network() as opened:
        return list((await _status(opened, url))["restore"]["history"])


async def _restored(url: str, before: list[object]) -> None:
    """Waits until the node at ``url``, which has begun a restore, follows with its new log. Raises an error if the node
    is silent for ``SILENT_S``."""
    loop = asyncio.get_running_loop()
    heard, begun = loop.time(), False
    async with network() as opened:
        while True:
            try:
                told = await _status(opened, url)
                heard = loop.time()
                begun = begun or told["state"] != "REPLICA" or told["restore"]["history"] != before
                if begun and told["state"] == "REPLICA":
                    return
            except VlsnLogError:
                if loop.time() - heard > SILENT_S:
                    raise
            await asyncio.sleep(LOOK_S)


async def _status(opened: Network, url: str) -> dict[str, Any]:
    return json_object(await sent(opened, "GET", f"{url}/v1/status"), "state", "restore")


def _order(what: str, urls: Sequence[str], as_json: bool, *, again_s: float = 0.0) -> int:
    """Sends an order to nodes. A node that is not ready gets the order again for up to ``again_s`` seconds, because a
    restored node may still have to catch up."""
    until = time.monotonic() + again_s
    while True:
        answers = ask_nodes(urls, "POST", f"/v1/admin/{what}")
        waits = any(isinstance(answer, VlsnLogError) and answer.slug == CopyNeeded.slug for answer in answers.values())
        if not waits or time.monotonic() >= until:
            break
        time.sleep(LOOK_S)
    return print_answers(
        what,
        answers,
        as_json,
        lambda url, answer: click.echo(f"{url} " + " ".join(f"{name}={value}" for name, value in answer.items())),
    )
