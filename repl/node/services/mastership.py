"""The mastership: whether this node has it, and where the master is."""

from __future__ import annotations

from repl.lead.leading import Leading
from repl.node.services.service import NodeService
from vlsn.errors import NotMaster


class NodeMastership(NodeService):
    """The beginning of calls that only a master answers."""

    def is_master(self) -> bool:
        return self._parts.member.is_master()

    def master_url(self) -> str | None:
        return self._parts.member.master_url()

    def _lead(self) -> Leading:
        """Raises ``NotMaster``."""
        lead = self._parts.lead
        if lead is None:
            raise NotMaster("this node is not the master")
        return lead
