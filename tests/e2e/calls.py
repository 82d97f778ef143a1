"""HTTP and bare sockets, as any client would use them.

``call`` is one request on one connection of its own; redirects are shown, not followed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

OCTETS = {"Content-Type": "application/octet-stream"}
NDJSON = {"Content-Type": "application/x-ndjson"}
BATCH = {"Content-Type": "application/x-vlsnlog-batch"}
JSON = {"Content-Type": "application/json"}
BLOCKS = {"Accept": "application/x-vlsnlog-blocks"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
PROBLEM = "application/problem+json"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response; ``headers`` in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[dict[str, Any]]:
        """Returns the objects of a page of NDJSON."""
        return [json.loads(line) for line in self.body.splitlines()]

    def ok(self) -> dict[str, Any]:
        """Returns the object of a 200."""
        assert self.status == 200, self.body
        document: dict[str, Any] = self.json()
        return document

    def refused(self, status: int, slug: str) -> dict[str, Any]:
        """Returns the problem document of exactly that refusal."""
        document: dict[str, Any] = self.json()
        told = (self.status, document.get("type"), self.headers.get("content-type"), document.get("status"))
        assert told == (status, slug, PROBLEM, status), document
        assert document["title"]
        assert document["detail"]
        assert ("retry-after" in self.headers) == (status in (429, 503))
        return document


def connection(url: str, timeout_s: float = TIMEOUT_S) -> HTTPConnection:
    """Makes a connection, not yet connected, to the URL's host and port."""
    parts = urlsplit(url)
    assert parts.hostname
    return HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)


def call(
    method: str,
    url: str,
    *,
    body: bytes | Iterable[bytes] = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """One exchange; a body that is no bytes goes in chunks."""
    link = connection(url, timeout_s)
    try:
        send(link, method, url, body=body, headers=headers)
        return whole(link.getresponse())
    finally:
        link.close()


def send(
    link: HTTPConnection,
    method: str,
    url: str,
    *,
    body: bytes | Iterable[bytes] = b"",
    headers: Mapping[str, str] | None = None,
) -> None:
    """The request alone.  A server that answers early and hangs up stops the body, not the test."""
    parts = urlsplit(url)
    target = parts.path + ("?" + parts.query if parts.query else "")
    fields = dict(headers or {})
    chunked = not isinstance(body, bytes)
    if chunked:
        fields["Transfer-Encoding"] = "chunked"
    try:
        link.request(method, target, body or None, fields, encode_chunked=chunked)
    except (BrokenPipeError, ConnectionResetError):
        pass


def whole(response: HTTPResponse) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def raw_socket(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)


def raw(url: str, *pieces: bytes, shut: bool = True) -> bytes:
    """Sends these bytes and returns what comes until the server closes; ``shut`` says first that no more will come."""
    with raw_socket(url) as link:
        try:
            for piece in pieces:
                link.sendall(piece)
            if shut:
                link.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server has had enough
        return drained(link)


def drained(link: socket.socket) -> bytes:
    got = bytearray()
    try:
        while piece := link.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return bytes(got)
