"""Feeds: who asks the right node of the right group is for the lead to judge."""

from __future__ import annotations

from repl.api import FeedHello
from repl.node.services.service import NodeService
from vlsn.errors import NotMaster, WrongGroup, WrongName
from vlsn.levels import Levels
from vlsn.seams import Channel


class NodeFeeds(NodeService):
    """``repl.lead.feed_ws.Feeds``."""

    @property
    def levels(self) -> Levels:
        return self._parts.member.seams.levels

    async def check_feed(self, hello: FeedHello) -> None:
        role = self._parts.leading
        if hello.group != self.group:
            raise WrongGroup(f"this node is of group {self.group}, not {hello.group}")
        if hello.to != self.name:
            raise WrongName(f"this node is {self.name}, not {hello.to}")
        if role is None:
            raise NotMaster("this node is not the master: it feeds nobody")
        await role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        role = self._parts.leading
        if role is not None:
            await role.serve_feed(hello, channel)
