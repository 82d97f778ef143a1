"""``WS /v1/feed`` up to its upgrade: checks whether this node sends a feed to the replica that requests it.

Every refusal of a feed is an HTTP status before the upgrade. The checks in order: unsupported levels, missing or
invalid headers, then the node's own conditions (group, names, incarnations, term, an existing feed).
"""

from __future__ import annotations

from repl.api import FeedHello
from repl.group.feed_hello import decode_hello
from repl.group.member import Member
from repl.lead.leading import leading_of
from repl.web import query
from repl.web.limits import FEEDS_MAX, Budget
from repl.web.types import Request, Upgrade, require_upgrade
from vlsn.errors import NotMaster, WrongGroup, WrongName
from vlsn.limits import KIB, MIB
from vlsn.seams import Channel

MESSAGE_FROM_REPLICA_BYTES_MAX = MIB
"""The most bytes of a replica's message. The largest is SYNCUP, which lists the terms of the replica's log."""
_NONE: frozenset[str] = frozenset()
assert MESSAGE_FROM_REPLICA_BYTES_MAX >= 64 * KIB


class NodeFeeds:
    """The feeds that a master sends its replicas."""

    def __init__(self, member: Member) -> None:
        self.member = member

    async def check_feed(self, hello: FeedHello) -> None:
        """Checks a request for a feed before the upgrade. Raises a ``FeedRefused``, ``NotMaster`` or ``Halted`` to
        refuse it."""
        role = leading_of(self.member)
        if hello.group != self.member.config.group:
            raise WrongGroup(f"this node is of group {self.member.config.group}, not {hello.group}")
        if hello.to != self.member.name:
            raise WrongName(f"this node is {self.member.name}, not {hello.to}")
        if role is None:
            raise NotMaster("this node is not the master: it feeds nobody")
        await role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        """Runs a feed until it ends for any reason. Does not close the channel."""
        role = leading_of(self.member)
        if role is not None:
            await role.serve_feed(hello, channel)


class FeedRoutes:
    def __init__(self, feeds: NodeFeeds) -> None:
        self._feeds = feeds
        self._under_way = Budget("feeds", FEEDS_MAX)

    async def feed(self, request: Request) -> Upgrade:
        query.only(request.query, _NONE)
        hello = decode_hello(request.headers, to=self._feeds.member.name, levels=self._feeds.member.seams.levels)
        require_upgrade(request)
        request.check_member(hello.node)
        self._under_way.check(1)
        await self._feeds.check_feed(hello)

        async def run(channel: Channel) -> None:
            with self._under_way.hold():
                await self._feeds.serve_feed(hello, channel)

        return Upgrade(run, MESSAGE_FROM_REPLICA_BYTES_MAX)
