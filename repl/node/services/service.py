"""The base of a node's answers: the parts of the node that do the work, and whose node it is."""

from __future__ import annotations

from repl.node.parts import NodeParts


class NodeService:
    """One kind of call. It lasts as long as the node, and finds what needs the open log anew in each call."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    @property
    def name(self) -> str:
        return self._parts.member.config.name

    @property
    def group(self) -> str:
        return self._parts.member.config.group
