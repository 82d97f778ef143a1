"""Calls on a gateway, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from repl.node.gateway import Gateway
from repl.node.node import Node
from repl.web.types import BytesBody, Headers, Request, Response
from tests.reference import declared

OCTETS = {"Content-Type": "application/octet-stream"}
NDJSON = {"Content-Type": "application/x-ndjson"}
BATCH = {"Content-Type": "application/x-vlsnlog-batch"}


class ChunkedBody:
    """A body of unknown length; counts what was asked of it."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.length: int | None = None
        self.read_count = 0

    async def read(self) -> bytes:
        self.read_count += 1
        return next(self._pieces, b"")


class UnreadableBody:
    """A body that only says how long it is."""

    def __init__(self, length: int) -> None:
        self.length: int | None = length

    async def read(self) -> bytes:
        pytest.fail("the body was read")


class StalledBody:
    """A body of which one byte comes, and then no more for ever."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self._pieces = [b"{"]

    async def read(self) -> bytes:
        if not self._pieces:
            await asyncio.get_running_loop().create_future()
        return self._pieces.pop()


JSON = {"Content-Type": "application/json"}
AnyBody = bytes | ChunkedBody | UnreadableBody | StalledBody


def request(
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: AnyBody = b"",
) -> Request:
    carried = BytesBody(body) if isinstance(body, bytes) else body
    return Request(method, target, Headers(headers or {}), carried)


async def call(
    node: Node | Gateway,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: AnyBody = b"",
) -> Response:
    gateway = node if isinstance(node, Gateway) else Gateway(node.services)
    response = await gateway.handle(request(method, target, headers, body))
    assert isinstance(response, Response)
    declared.check(
        method, request(method, target).path, response.status, Headers(response.headers), bytes(response.body)
    )
    return response


async def whole_body(response: Response) -> bytes:
    if response.stream is None:
        return bytes(response.body)
    try:
        return b"".join([piece async for piece in response.stream])
    finally:
        await response.stream.aclose()


def json(response: Response) -> Any:
    return msgspec.json.decode(response.body)


def refused(response: Response, status: int, slug: str) -> dict[str, Any]:
    """Returns the problem document of a response that must be that refusal."""
    assert (response.status, response.headers["Content-Type"]) == (status, "application/problem+json")
    document: dict[str, Any] = json(response)
    assert (document["type"], document["status"]) == (slug, status)
    assert document["title"]
    assert document["detail"]
    if status in (429, 503):
        assert int(response.headers["Retry-After"]) >= 1
    return document


@asynccontextmanager
async def turning() -> AsyncIterator[list[int]]:
    """Counts in the list's one number the turns of the loop that others have meanwhile."""
    turns = [0]

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    try:
        yield turns
    finally:
        task.cancel()
