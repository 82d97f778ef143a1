"""``WS /v1/feed`` up to its upgrade: checks whether this node feeds the replica that asks.

Every refusal of a feed is an HTTP status before the upgrade. The checks in order: unsupported levels, missing or
invalid headers, then the node's own conditions (group, names, incarnations, term, an existing feed).
"""

from __future__ import annotations

from repl.group.feed_hello import decode_hello
from repl.lead.service import NodeFeeds
from repl.web import query
from repl.web.limits import FEEDS_MAX, Budget
from repl.web.types import Request, Upgrade, require_upgrade
from vlsn.limits import KIB, MIB
from vlsn.seams import Channel

MESSAGE_FROM_REPLICA_BYTES_MAX = MIB
"""The largest message of a replica: SYNCUP with its term runs."""
_NONE: frozenset[str] = frozenset()
assert MESSAGE_FROM_REPLICA_BYTES_MAX >= 64 * KIB


class FeedRoutes:
    def __init__(self, feeds: NodeFeeds) -> None:
        self._feeds = feeds
        self._under_way = Budget("feeds", FEEDS_MAX)

    async def feed(self, request: Request) -> Upgrade:
        query.only(request.query, _NONE)
        hello = decode_hello(request.headers, to=self._feeds.member.name, levels=self._feeds.member.seams.levels)
        require_upgrade(request)
        self._under_way.check(1)
        await self._feeds.check_feed(hello)

        async def run(channel: Channel) -> None:
            with self._under_way.hold():
                await self._feeds.serve_feed(hello, channel)

        return Upgrade(run, MESSAGE_FROM_REPLICA_BYTES_MAX)
