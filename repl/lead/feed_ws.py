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
from repl.web.calls import HEX16, MEMBERS, TEXT, WHOLE, Call, header, required
from repl.web.limits import FEEDS_MAX, Budget
from repl.web.types import Request, Upgrade, require_upgrade
from vlsn.errors import DuplicateFeed, NotMaster, WrongGroup, WrongName
from vlsn.limits import KIB, MIB
from vlsn.seams import Channel

MESSAGE_FROM_REPLICA_BYTES_MAX = MIB
"""The most bytes of a replica's message. The largest is SYNCUP, which lists the terms of the replica's log."""
_NONE: frozenset[str] = frozenset()
_GRAMMAR = """\
; binary messages (vlsn/format/feed_messages.py); each has a 40-byte header with its own checksum
replica     = syncup start *(ack / round)
master      = matchpoint *(blocks / heartbeat / ask-round) / refuse
syncup      = range term-runs stored-term           ; replica to master, first
matchpoint  = vlsn feed-term block-name crc32c crc32; master to replica
start       = from-vlsn                             ; replica to master, once its log ends at the matchpoint
blocks      = position 1*block                      ; master to replica, whole blocks as the log has them
heartbeat   = position                              ; master to replica
ack         = term received synced [written]        ; replica to master
ask-round   = term number                           ; master to replica, for a linearizable read
round       = term number                           ; replica to master, at once
refuse      = problem-type [vlsn]                   ; from either side; ends the feed
"""
CALLS = (
    Call(
        "members",
        "GET",
        "/v1/feed",
        "Receive the log as a replica",
        (
            required(header("Vlsnlog-Version", "The levels that the replica speaks, `1` or `1-5`.")),
            required(header("Vlsnlog-Group", "The group.")),
            required(header("Vlsnlog-Node", "The replica.")),
            required(header("Vlsnlog-Incarnation", "The replica's incarnation.", HEX16)),
            required(header("Vlsnlog-To", "The node that sends the feed.")),
            header("Vlsnlog-To-Incarnation", "That node's incarnation.", TEXT),
            required(header("Vlsnlog-Term", "The highest term that the replica has stored.", WHOLE)),
            required(header("Vlsnlog-Process", "The run of the replica's process.", TEXT)),
        ),
        errors=MEMBERS | {DuplicateFeed},
        text=f"A node has at most {FEEDS_MAX} feeds.",
        messages=_GRAMMAR,
    ),
)
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
