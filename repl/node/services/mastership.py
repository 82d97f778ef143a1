"""Whether this node is the master, and where the master is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlsn.errors import NotMaster

if TYPE_CHECKING:
    from repl.lead.leading import Leading
    from repl.node.node import Node


class NodeMastership:
    """What calls begin with that only a master answers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def is_master(self) -> bool:
        return self._node.is_master()

    def master_url(self) -> str | None:
        return self._node.master_url()

    def _lead(self) -> Leading:
        """Raises ``NotMaster``."""
        lead = self._node.lead
        if lead is None:
            raise NotMaster("this node is not the master")
        return lead
