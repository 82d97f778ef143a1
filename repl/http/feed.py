"""``WS /v1/feed`` up to its upgrade: who asks, and whether this node feeds them.

Everything that speaks against a feed is an HTTP status before the upgrade: levels that we do not speak, headers
missing or not understood, then what the node itself has against it (group, names, incarnations, term, a
feed that lives already).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from repl.api import FeedHello
from repl.http import query
from repl.http.limits import FEEDS_MAX, Budget
from repl.http.services import Feeds, Speaker
from repl.http.types import Request, Upgrade
from vlsn.errors import BadArgument
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.ids import Incarnation, NodeName, Term, is_name
from vlsn.levels import read_levels
from vlsn.limits import KIB, MIB
from vlsn.seams import Channel

MESSAGE_FROM_REPLICA_BYTES_MAX = MIB
"""SYNCUP with its term runs is the largest."""
_NONE: frozenset[str] = frozenset()
_HEX = re.compile(r"[0-9a-f]{16}\Z")
_WHOLE = re.compile(r"[0-9]{1,19}\Z")
assert MESSAGE_FROM_REPLICA_BYTES_MAX >= 64 * KIB


class FeedRoutes:
    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._under_way = Budget("feeds", FEEDS_MAX)

    async def feed(self, request: Request) -> Upgrade:
        query.only(request.query, _NONE)
        hello = decode_hello(request.headers, self._feeds)
        require_upgrade(request)
        self._under_way.check(1)
        await self._feeds.check_feed(hello)

        async def run(channel: Channel) -> None:
            with self._under_way.hold():
                await self._feeds.serve_feed(hello, channel)

        return Upgrade(run, MESSAGE_FROM_REPLICA_BYTES_MAX)


def require_upgrade(request: Request) -> None:
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise BadArgument(f"{request.path} is a WebSocket: the request must ask for that upgrade")


def encode_hello(hello: FeedHello) -> dict[str, str]:
    """Returns the headers that a replica connects with."""
    headers = {
        "Vlsnlog-Version": str(hello.levels),
        "Vlsnlog-Group": hello.group,
        "Vlsnlog-Node": hello.node,
        "Vlsnlog-Incarnation": f"{hello.incarnation:016x}",
        "Vlsnlog-To": hello.to,
        "Vlsnlog-Term": str(hello.term),
        "Vlsnlog-Process": f"{hello.process:016x}",
    }
    if hello.to_incarnation is not None:
        headers["Vlsnlog-To-Incarnation"] = f"{hello.to_incarnation:016x}"
    return headers


def decode_hello(headers: Mapping[str, str], to: Speaker) -> FeedHello:
    """Decodes what is asked of ``to``. Raises ``WrongVersion`` before it looks at any other header, which may be of a
    later day; ``BadArgument`` naming the header."""
    theirs = read_levels(headers.get("Vlsnlog-Version", ""))
    to.levels.check_peer(theirs, own=to.name, peer="the replica")
    to_incarnation = _hex(headers, "Vlsnlog-To-Incarnation") if "Vlsnlog-To-Incarnation" in headers else None
    term = headers.get("Vlsnlog-Term", "")
    if not _WHOLE.match(term) or int(term) > STORED_TERM_MAX:
        raise BadArgument(f"header Vlsnlog-Term {term[:40]!r} is not a whole number in 0–{STORED_TERM_MAX}")
    return FeedHello(
        group=_name(headers, "Vlsnlog-Group"),
        node=NodeName(_name(headers, "Vlsnlog-Node")),
        incarnation=Incarnation(_hex(headers, "Vlsnlog-Incarnation")),
        to=NodeName(_name(headers, "Vlsnlog-To")),
        to_incarnation=None if to_incarnation is None else Incarnation(to_incarnation),
        term=Term(int(term)),
        process=_hex(headers, "Vlsnlog-Process"),
        levels=theirs,
    )


def _name(headers: Mapping[str, str], header: str) -> str:
    text = headers.get(header, "")
    if not is_name(text):
        raise BadArgument(f"header {header} {text[:40]!r} is not a name (1–32 of A-Z a-z 0-9 . _ -)")
    return text


def _hex(headers: Mapping[str, str], header: str) -> int:
    text = headers.get(header, "")
    if not _HEX.match(text):
        raise BadArgument(f"header {header} {text[:40]!r} is not 16 lower-case hex digits")
    return int(text, 16)
