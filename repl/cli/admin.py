"""``vlsnlog checkpoint``, ``rotate`` and ``restore``: one order to each node given; restores one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from repl.cli.options import Command, json_option, url_option
from repl.cli.report import print_json
from repl.cli.signals import run
from vlsn.errors import BadBody, CopyNeeded, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

TIMEOUT_S = 60.0
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

    It refuses, too, while fewer than a majority of the other members are known to be whole. Of several the next one
    begins when the one before has its log again.
    """
    if len(url) == 1:
        return _order("restore", url, as_json)
    source = click.get_current_context().get_parameter_source("url")
    if source is not click.core.ParameterSource.COMMANDLINE:
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
    from repl.client.connect import real_network

    network = real_network()
    try:
        told = await _status(network, url)
        return list(told["restore"]["history"])
    finally:
        await network.close()


async def _restored(url: str, before: list[object]) -> None:
    """Waits until the node at ``url``, which was told to restore, follows with its new log.  Raises when it is silent
    for ``SILENT_S``."""
    from repl.client.connect import real_network

    network, loop = real_network(), asyncio.get_running_loop()
    heard, begun = loop.time(), False
    try:
        while True:
            try:
                told = await _status(network, url)
                heard = loop.time()
                begun = begun or told["state"] != "REPLICA" or told["restore"]["history"] != before
                if begun and told["state"] == "REPLICA":
                    return
            except VlsnLogError:
                if loop.time() - heard > SILENT_S:
                    raise
            await asyncio.sleep(LOOK_S)
    finally:
        await network.close()


async def _status(network: Network, url: str) -> dict[str, Any]:
    response = await network.request("GET", f"{url}/v1/status", timeout_s=TIMEOUT_S)
    return json_object(bytes(response.body), "state", "restore")


def _order(what: str, urls: Sequence[str], as_json: bool, *, again_s: float = 0.0) -> int:
    """Orders it, and asks those that are not ready again for so long. Whoever has its log again may have to catch up
    yet."""
    answers = run(_answers(what, urls, again_s))
    if as_json:
        print_json(document(answers))
    for url, answer in answers.items():
        if not isinstance(answer, VlsnLogError) and not as_json:
            click.echo(f"{url} " + " ".join(f"{name}={value}" for name, value in answer.items()))
    return complain(what, answers)


def complain(what: str, answers: Mapping[str, object]) -> int:
    """Says in one line what nodes refused, those together that said the same; returns the exit status."""
    said: dict[str, list[str]] = {}
    for url, answer in answers.items():
        if isinstance(answer, VlsnLogError):
            said.setdefault(" ".join(str(answer).split()), []).append(url)
    if said:
        refusals = "; ".join(f"{', '.join(urls)}: {text}" for text, urls in said.items())
        click.echo(f"vlsnlog {what}: {refusals}", err=True)
    return 2 if said else 0


async def _answers(what: str, urls: Sequence[str], again_s: float) -> dict[str, dict[str, Any] | VlsnLogError]:
    loop = asyncio.get_running_loop()
    until = loop.time() + again_s
    while True:
        answers = await post_all(what, urls)
        waits = any(isinstance(answer, VlsnLogError) and answer.slug == CopyNeeded.slug for answer in answers.values())
        if not waits or loop.time() >= until:
            return answers
        await asyncio.sleep(LOOK_S)


def document(answers: Mapping[str, dict[str, Any] | VlsnLogError]) -> dict[str, Any]:
    """Makes what ``--json`` prints: of each node its answer, or its ``error``."""
    return {
        "nodes": [
            {"url": url, "error": {"type": answer.slug, "detail": str(answer)}}
            if isinstance(answer, VlsnLogError)
            else {"url": url, **answer}
            for url, answer in answers.items()
        ]
    }


async def post_all(what: str, urls: Sequence[str], *needed: str) -> dict[str, dict[str, Any] | VlsnLogError]:
    """Sends ``POST /v1/admin/…`` to each node; returns its answer, with all ``needed`` in it, or why there is none."""
    from repl.client.connect import real_network

    network = real_network()
    try:
        answers = await asyncio.gather(*(_post(network, f"{url}/v1/admin/{what}", needed) for url in urls))
        return dict(zip(urls, answers, strict=True))
    finally:
        await network.close()


async def _post(network: Network, url: str, needed: Sequence[str]) -> dict[str, Any] | VlsnLogError:
    from repl.web import problem

    try:
        response = await network.request("POST", url, headers={"Content-Type": "application/json"}, timeout_s=TIMEOUT_S)
    except VlsnLogError as error:
        return error
    if response.status != 200:
        return problem.error_of(bytes(response.body))
    try:
        return json_object(bytes(response.body), *needed)
    except BadBody as error:
        return error


def json_object(body: bytes, *needed: str) -> dict[str, Any]:
    """Returns the object in ``body``, which has all of these names in it. Raises ``BadBody``."""
    import msgspec

    from vlsn.format.records import JSON_FAULTS

    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except JSON_FAULTS:
        raise BadBody("the answer is no JSON object; is it a vlsnlog node?") from None
    lacking = [name for name in needed if name not in found]
    if lacking:
        raise BadBody(f"the answer lacks {', '.join(lacking)}; is it a vlsnlog node?")
    return found
