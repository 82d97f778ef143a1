"""``vlsnlog checkpoint``, ``rotate`` and ``restore``: one order to each node given; restores one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from repl.cli.asking import ask_nodes, json_object, network, print_answers, sent
from repl.cli.options import Command, is_flagged, json_option, url_option
from repl.cli.signals import run
from vlsn.errors import CopyNeeded, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

SILENT_S = 60.0
"""Seconds that a restoring node may be silent, as while it is started again."""
LOOK_S = 0.2


@click.command(cls=Command)
@url_option
@json_option
def checkpoint(url: list[str], as_json: bool) -> int:
    """Make every node given write a checkpoint now."""
    return _order("checkpoint", url, as_json)


@click.command(cls=Command)
@url_option
@json_option
def rotate(url: list[str], as_json: bool) -> int:
    """Make every node given begin a new segment now."""
    return _order("rotate", url, as_json)


@click.command(cls=Command)
@url_option
@json_option
def restore(url: list[str], as_json: bool) -> int:
    """Make the node given give up its log and fetch another member's; a master refuses.

    It refuses, too, while fewer than a majority of the other members are known to be whole. With several URLs the next
    one begins when the one before has its log again.
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
    """Returns the restores that the node at ``url`` has had."""
    async with network() as opened:
        return list((await _status(opened, url))["restore"]["history"])


async def _restored(url: str, before: list[object]) -> None:
    """Waits until the node at ``url``, ordered to restore, follows with its new log. Raises when it is silent for
    ``SILENT_S``."""
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
    """Sends the order, and repeats it for so long to nodes that are not ready. A node that has its log again may have
    to catch up yet."""
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
