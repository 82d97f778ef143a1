"""The two parts of a node: the member, and the open log's parts, which exist only while a log is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from repl.auth.exposure import is_exposed
from repl.cdc.children import Children
from repl.cdc.consumers import CdcConsumers
from repl.cdc.host import CdcNode
from repl.config import NodeConfig
from repl.destinations.handed import Handed
from repl.follow.following import Following
from repl.group.confirming import Confirming
from repl.group.founding import Alarm
from repl.group.member import Member
from repl.lead.leading import Leading, leading_of
from repl.node.alarms import alarms_of
from repl.node.open_node import OpenNode
from repl.repair.restoring import Restoration
from repl.web.limits import Budget
from repl.web.types import Listener, Network
from vlsn.ids import NodeName
from vlsn.levels import SIGNED
from vlsn.seams import Seams
from vlsn.write.local_log import LocalLog


class NodeParts:
    """The parts of a node that its gateway calls and its status shows."""

    def __init__(
        self,
        config: NodeConfig,
        seams: Seams,
        network: Network,
        children: Children,
        *,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        if config.group_key is None or is_exposed(config):
            seams = replace(seams, levels=seams.levels.below(SIGNED))
        self.member = Member(config, seams, network, on_fatal=on_fatal)
        self.confirming = Confirming(self.member)
        self.restoration = Restoration(self.member)
        self.cdc = CdcConsumers(
            config.cdc,
            CdcNode(
                name=config.name,
                group=config.group,
                directory=str(config.dir),
                children=children,
                clock=seams.clock,
                disk=seams.disk,
                random=seams.random,
            ),
            self.member.event,
        )
        self.member.alarms = self._alarms
        self.open: OpenNode | None = None
        """``None`` between two logs. Callers that need an open log call ``opened``."""
        self.readers: Budget | None = None
        """The budget of waiting readers, once the node listens."""
        self.handed: Handed | None = None
        """The messages of destinations that are handed out and that no socket has taken yet."""
        self.listener: Listener | None = None

    def _alarms(self) -> list[Alarm]:
        lead = self.lead
        return alarms_of(self.cdc, lead.full if lead is not None else None, self.member.config.url)

    def opened(self) -> OpenNode:
        """Returns the parts of the open log. Raises ``NotMaster`` while the log is not open or is being closed, and
        ``Damaged`` if the log cannot be opened."""
        self.member.opened()
        assert self.open is not None
        return self.open

    @property
    def name(self) -> NodeName:
        return self.member.config.name

    @property
    def state(self) -> str:
        return self.member.state

    @property
    def log(self) -> LocalLog | None:
        return self.member.log

    def dtvlsn(self) -> int:
        """Returns the VLSN up to which readers may see; 0 while no log is open."""
        return self.open.reads.durable if self.open is not None else 0

    @property
    def leading(self) -> Leading | None:
        """The leading role, from the moment that the node tries to lead."""
        return leading_of(self.member)

    @property
    def lead(self) -> Leading | None:
        """The lead, while this node is the master."""
        return self.leading if self.member.is_master() else None

    @property
    def following(self) -> Following | None:
        role = self.member.role
        return role if isinstance(role, Following) else None
