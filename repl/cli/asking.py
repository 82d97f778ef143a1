"""Sends requests to nodes and to a group, and decides how a refusal ends a command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repl.cli.report import print_json
from repl.cli.signals import run
from vlsn.errors import BadArgument, BadBody, NotMaster, Unreachable, VlsnLogError

if TYPE_CHECKING:
    from repl.client.connect import Client
    from repl.web.types import Network, Response

TIMEOUT_S = 60.0
ORDER_S = 20.0
LOOK_S = 0.3
HOPS_MAX = 3
NO_MASTER_S = 5.0
"""Seconds that an order waits for a master, because an election may be running."""
Answer = dict[str, Any] | VlsnLogError
"""A node's answer, or the error that replaces it."""
T = TypeVar("T")


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """Opens the network for the duration of the requests, which carry the environment's token. Orders are signed, too
    (``repl.cli.signing``). Raises ``BadArgument``."""
    from repl.cli.signing import SigningNetwork
    from repl.client.bearing import Bearing
    from repl.client.connect import real_network
    from repl.credentials.bearer import Bearer

    bearer = Bearer.of()
    signing = SigningNetwork(real_network())
    opened = signing if bearer is None else Bearing(signing, bearer)
    try:
        yield opened
    finally:
        await opened.close()


def ask_group(urls: Sequence[str], question: Callable[[Client[Any]], Coroutine[Any, Any, T]]) -> T:
    """Calls ``question`` with a client of the group. Raises the errors of ``question``."""

    async def asked() -> T:
        from repl.client.connect import connect

        async with connect(",".join(urls)) as log:
            return await question(log)

    return run(asked())


def ask_nodes(urls: Sequence[str], method: str, path: str, *needed: str, body: object = None) -> dict[str, Answer]:
    """Asks all nodes at once. Each answer must have the fields ``needed``; otherwise an error replaces it."""

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
    """Sends ``body`` as JSON, or no body if it is None. Raises ``Unreachable``."""
    import msgspec

    headers = {} if method == "GET" else {"Content-Type": "application/json"}
    data = b"" if body is None else msgspec.json.encode(body)
    return await opened.request(method, url, headers=headers, body=data, timeout_s=timeout_s)


async def ordered(urls: Sequence[str], path: str, body: object, *needed: str, method: str = "POST") -> dict[str, Any]:
    """Sends the order to the master, starting at ``urls``, and returns its answer, which has all of ``needed``. Raises
    the master's refusal, ``NotMaster``, ``Unreachable``."""
    deadline = time.monotonic() + NO_MASTER_S
    async with network() as opened:
        while True:
            try:
                return await _once(opened, urls, method, path, body, needed)
            except NotMaster:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LOOK_S)


async def _once(
    opened: Network, urls: Sequence[str], method: str, path: str, body: object, needed: Sequence[str]
) -> dict[str, Any]:
    refusal: VlsnLogError | None = None
    for url in urls:
        try:
            response = await _redirected(opened, urls, method, f"{url}{path}", body)
        except Unreachable as error:
            refusal = refusal or error
            continue
        try:
            return json_object(response, *needed)
        except NotMaster as error:
            refusal = error
    raise refusal or BadArgument("no URL to ask")


async def _redirected(opened: Network, urls: Sequence[str], method: str, url: str, body: object) -> Response:
    """Sends a request, and follows redirects to the master. Raises ``BadArgument`` as ``check_redirect``."""
    for _ in range(HOPS_MAX):
        response = await sent(opened, method, url, body=body, timeout_s=ORDER_S)
        location = response.headers.get("Location", "")
        if response.status != 307 or not location.startswith(("http://", "https://")):
            break
        await check_redirect(opened, urls, url, location)
        url = location
    return response


async def check_redirect(opened: Network, urls: Sequence[str], url: str, location: str) -> None:
    """Checks that the node at ``url`` redirects to one of ``urls`` or to a member that it lists, because the call may
    carry a token. Raises ``BadArgument``."""
    node, origin = ("/".join(each.split("/", 3)[:3]) for each in (url, location))
    if origin in urls:
        return
    (told,) = await answers_of(opened, "GET", [f"{node}/v1/group"], "members")
    members = told["members"] if isinstance(told, dict) else []
    if origin not in [str(member["url"]).rstrip("/") for member in members]:
        raise BadArgument(f"{node} redirects to {origin[:200]}, which it does not list as a member")


def json_object(response: Response, *needed: str) -> dict[str, Any]:
    """Returns the JSON object in a node's answer, which must have the fields ``needed``. Raises the node's refusal,
    ``BadBody``."""
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
    """Prints each node's answer by ``text``, or all answers as JSON; a refusal is printed as ``error``. Returns the
    exit status."""
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
    """Prints the nodes' refusals in one line, equal refusals together. Returns the exit status."""
    said: dict[str, list[str]] = {}
    for url, answer in answers.items():
        if isinstance(answer, VlsnLogError):
            said.setdefault(" ".join(str(answer).split()), []).append(url)
    if said:
        refusals = "; ".join(f"{', '.join(urls)}: {text}" for text, urls in said.items())
        click.echo(f"vlsnlog {what}: {refusals}", err=True)
    return 2 if said else 0
