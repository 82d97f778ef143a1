"""Refuses requests that a page in a browser may not make: requests to another host name, or from another origin.

A browser sends a page's requests to any address that it can reach, even this machine's loopback, and says which page
they come from. These headers are checked before any route, and before a head is remembered (``net.connection``):

    Host              loopback, the listen address, a member's URL, one of ``hosts``      else 421 ``misdirected``
    Origin            this node itself, by any of those names                              else 403 ``forbidden``
    Sec-Fetch-Site    not ``cross-site``, unless a person follows a link to the page       else 403 ``forbidden``

A name that leads here without being one of this node's is how a page reads answers as its own (DNS rebinding): an
address is no name, so any address passes where the node listens on all of them. Changes other than appends take
``application/json`` alone: a browser asks for permission before it sends that. A client that sends none of these
headers (curl, our clients, a peer) is no browser, and passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from repl.credentials.loopback import is_loopback
from repl.web.types import Request
from vlsn.errors import Forbidden, Misdirected, UnsupportedType

JSON = "application/json"
_WILDCARDS = frozenset(("0.0.0.0", "::", ""))  # values that are only compared; nothing binds to them here
_ACCEPTED_MAX = 64


class Browsers:
    """The check of requests that browsers send. ``addresses`` returns this node's listen address, its members' URLs,
    and the hosts of its settings. Each is ``HOST``, ``HOST:PORT`` or a URL."""

    def __init__(self, addresses: Callable[[], Collection[str]]) -> None:
        self._addresses = addresses
        self._accepted: set[str] = set()
        """Host headers that have passed the check."""

    def check(self, request: Request) -> None:
        """Checks a request. Raises ``Misdirected``, ``Forbidden``."""
        headers, host = request.headers, request.host
        if host is not None and host not in self._accepted:
            self._check_host(host)
        if (origin := headers.get("Origin")) is not None:
            self._check_origin(origin, host or "")
        if headers.get("Sec-Fetch-Site") == "cross-site" and not _follows_a_link(request):
            raise Forbidden("a page of another site may not call this node")

    def _check_host(self, host: str) -> None:
        name, _ = _split(host)
        if not is_loopback(name) and not self._is_own(name):
            raise Misdirected(
                f"this node is not known as {host[:80]!r}; if it is to be, add that to its setting `hosts`"
            )
        if len(self._accepted) < _ACCEPTED_MAX:
            self._accepted.add(host)

    def _check_origin(self, origin: str, host: str) -> None:
        """Checks that the page came from this node or a member. Its origin may be the name of this request, or another
        name of this node or a member."""
        scheme, _, place = origin.partition("://")
        if scheme in ("http", "https") and place:
            if place == host:
                return
            name, port = _split(place)
            places = [_split(each) for each in self._addresses()]
            ports = {own for _, own in places} | {_split(host)[1]}
            if any(name == own and own_port in (port, "") for own, own_port in places):
                return
            if is_loopback(name) and port in ports and port:
                return
        raise Forbidden(f"a page from {origin[:80]!r} may not call this node")

    def _is_own(self, name: str) -> bool:
        own = {each for each, _ in map(_split, self._addresses())}
        return name in own or (bool(own & _WILDCARDS) and _is_address(name))


def check_json(request: Request) -> None:
    """Checks the content type of a call that changes something and is not an append. Raises ``UnsupportedType``."""
    given = request.headers.get("Content-Type", "")
    if given.partition(";")[0].strip().lower() != JSON and (given or request.body_length != 0):
        raise UnsupportedType(f"content type {given[:80]!r}; this call reads {JSON}")


def _follows_a_link(request: Request) -> bool:
    """Says whether the request follows a link to the live page. This page has no data until it asks for the data
    itself."""
    return request.path == "/" and request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"


def _split(place: str) -> tuple[str, str]:
    """Splits a URL or a Host header into host and port, each "" if missing. The host is "" if ``place`` is neither a
    URL nor a Host header."""
    try:
        parts = urlsplit(place if "://" in place else f"//{place}")
        port = parts.port
        return (parts.hostname or "").removesuffix("."), "" if port is None else str(port)
    except ValueError:
        return "\0", ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
