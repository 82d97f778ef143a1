"""The other members, as one node knows them: where they are, what they have told it, and what it tells them.

A member is who the group's log lists; while this node knows no such list, who its settings name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from repl import peers
from repl.images import Heard, Told, both
from vlsn.errors import Unreachable, VlsnLogError
from vlsn.ids import NodeName, Term

if TYPE_CHECKING:
    from repl.node import Node

TELL_S = 5.0
"""How often the members tell one another how far they are (``images``)."""


class Members:
    """Kept from the node's start to its stop; the list follows its log."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._learned: dict[NodeName, str] = {}
        """A master that neither this node's log nor its settings name."""
        self.heard = Heard()
        """What other nodes have told of themselves in this process's life."""
        self.silent: dict[NodeName, str] = {}
        """Who could not be reached when last asked, and why; each member is asked every ``TELL_S``."""

    # Where they are.

    @property
    def listed(self) -> dict[NodeName, str]:
        """Who may ask this node: those that its group lists; while it knows none, those that its settings name."""
        log, configured = self._node.log, self._node.config.members
        group = log.history.group if log is not None else None
        if group is None:
            return dict(configured)
        return {NodeName(each.name): configured.get(NodeName(each.name), each.url) for each in group.members}

    @property
    def urls(self) -> dict[NodeName, str]:
        """Whom this node asks, and where: every member, and who is one by its settings alone.  As configured here,
        else as the group lists it."""
        return {**self._learned, **self.listed, **self._node.config.members}

    def learn(self, master: NodeName, url: str) -> None:
        """A member says who leads, and where; of use where this node knows nothing of that one."""
        if url and master not in {**self.listed, **self._node.config.members}:
            self._learned = {master: url}

    @property
    def electable(self) -> list[NodeName]:
        """Who has a vote, by name: as the group lists them; while this node knows no list, all that its settings
        name."""
        group = self._node.opened().history.group
        if group is None:
            return sorted(self._node.config.members)
        return sorted(NodeName(each.name) for each in group.members if each.electable)

    def are_none(self) -> bool:
        """No other member has a vote."""
        return not set(self.electable) - {self._node.config.name}

    def answered(self, name: NodeName, fault: VlsnLogError | None = None) -> None:
        """``name`` was asked, or has asked; with a refusal it has answered, too."""
        if isinstance(fault, Unreachable):
            self.silent[name] = str(fault)
        else:
            self.silent.pop(name, None)

    # What is told.

    def told(self) -> Told:
        """What this node tells of itself: it never takes it back."""
        node = self._node
        log, lead, following = node.opened(), node.lead, node.following
        record = log.node_file.record
        leads = lead is not None and lead.term == record.term
        fed = following is not None and following.streams_in(Term(record.term))
        return Told(record.sequence, record.term, log.range.last_sync if leads or fed else 0)

    def heard_of(self, incarnation: int) -> Told:
        heard, leading = self.heard.of(incarnation), self._node.leading
        return both(heard, leading.heard_of(incarnation)) if leading is not None else heard

    async def tell(self) -> None:
        """For ever: what was told long ago would find no old image out."""
        while True:
            await asyncio.sleep(TELL_S)
            if self._node.recognised:
                await peers.tell_all(self._node)
