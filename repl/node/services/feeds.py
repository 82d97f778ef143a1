"""Feeds: who asks the right node of the right group is for the lead to judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl.api import FeedHello
from vlsn.errors import NotMaster, WrongGroup, WrongName
from vlsn.levels import Levels
from vlsn.seams import Channel

if TYPE_CHECKING:
    from repl.node.node import Node


class NodeFeeds:
    """``repl.http.services.Feeds``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def name(self) -> str:
        return self._node.config.name

    @property
    def levels(self) -> Levels:
        return self._node.seams.levels

    async def check_feed(self, hello: FeedHello) -> None:
        role = self._node.leading
        if hello.group != self._node.config.group:
            raise WrongGroup(f"this node is of group {self._node.config.group}, not {hello.group}")
        if hello.to != self.name:
            raise WrongName(f"this node is {self.name}, not {hello.to}")
        if role is None:
            raise NotMaster("this node is not the master: it feeds nobody")
        await role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        role = self._node.leading
        if role is not None:
            await role.serve_feed(hello, channel)
