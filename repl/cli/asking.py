"""Requests to nodes and to a group, and how a refusal ends a command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repl.cli.report import print_json
from repl.cli.signals import run
from vlsn.errors import BadBody, VlsnLogError

if TYPE_CHECKING:
    from repl.client.connect import Client
    from repl.web.types import Network, Response

TIMEOUT_S = 60.0
Answer = dict[str, Any] | VlsnLogError
"""A node's answer, or the error that replaces it."""
T = TypeVar("T")


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """Opens the network for the duration of the requests, whose orders it signs (``repl.cli.signing``)."""
    from repl.cli.signing import SigningNetwork
    from repl.client.connect import real_network

    opened = SigningNetwork(real_network())
    try:
        yield opened
    finally:
        await opened.close()


def ask_group(urls: Sequence[str], question: Callable[[Client[Any]], Coroutine[Any, Any, T]]) -> T:
    """Asks with a client of the group. Raises the errors of ``question``."""

    async def asked() -> T:
        from repl.client.connect import connect

        async with connect(",".join(urls)) as log:
            return await question(log)

    return run(asked())


def ask_nodes(urls: Sequence[str], method: str, path: str, *needed: str, body: object = None) -> dict[str, Answer]:
    """Asks each node at once. Each answer has all of ``needed``."""

    async def asked() -> list[Answer]:
        async with network() as opened:
            return await answers_of(opened, method, [url + path for url in urls], *needed, body=body)

    return dict(zip(urls, run(asked()), strict=True))


async def answers_of(
    opened: Network, method: str, urls: Sequence[str], *needed: str, body: object = None, timeout_s: float = TIMEOUT_S
) -> list[Answer]:
    async def answer(url: str) -> Answer:
        try:
            return json_object(await sent(opened, method, url, body=body, timeout_s=timeout_s), *needed)
        except VlsnLogError as error:
            return error

    return await asyncio.gather(*map(answer, urls))


async def sent(
    opened: Network, method: str, url: str, *, body: object = None, timeout_s: float = TIMEOUT_S
) -> Response:
    """Sends ``body`` as JSON, or no body. Raises ``Unreachable``."""
    import msgspec

    headers = {} if method == "GET" else {"Content-Type": "application/json"}
    data = b"" if body is None else msgspec.json.encode(body)
    return await opened.request(method, url, headers=headers, body=data, timeout_s=timeout_s)


def json_object(response: Response, *needed: str) -> dict[str, Any]:
    """Returns the object in a node's answer, which has all of ``needed``. Raises the node's refusal, ``BadBody``."""
    from repl.client.answers import decoded
    from repl.web import problem

    if response.status != 200:
        raise problem.error_of(bytes(response.body))
    found = decoded(response, dict[str, Any], "JSON object")
    lacking = [name for name in needed if name not in found]
    if lacking:
        raise BadBody(f"the answer lacks {', '.join(lacking)}; is it a vlsnlog node?")
    return found


def print_answers(
    what: str, answers: Mapping[str, Answer], as_json: bool, text: Callable[[str, dict[str, Any]], None]
) -> int:
    """Prints each node's answer by ``text``, or all answers as JSON, with a refusal as ``error``. Returns the exit
    status."""
    if as_json:
        nodes = [
            {"error": {"type": each.slug, "detail": str(each)}} if isinstance(each, VlsnLogError) else each
            for each in answers.values()
        ]
        print_json({"nodes": [{"url": url, **node} for url, node in zip(answers, nodes, strict=True)]})
    else:
        for url, answer in answers.items():
            if not isinstance(answer, VlsnLogError):
                text(url, answer)
    return complain(what, answers)


def complain(what: str, answers: Mapping[str, Answer]) -> int:
    """Prints the nodes' refusals in one line, equal ones together. Returns the exit status."""
    said: dict[str, list[str]] = {}
    for url, answer in answers.items():
        if isinstance(answer, VlsnLogError):
            said.setdefault(" ".join(str(answer).split()), []).append(url)
    if said:
        refusals = "; ".join(f"{', '.join(urls)}: {text}" for text, urls in said.items())
        click.echo(f"vlsnlog {what}: {refusals}", err=True)
    return 2 if said else 0
