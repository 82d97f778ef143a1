"""A node's answers to its gateway (``repl.read.service``): one small class for each kind of call. They last as long as
the node lives. Each hands the call to the part that does the work; what needs the log raises while it is not open."""

from __future__ import annotations

from repl.node.gateway import Services
from repl.node.parts import NodeParts
from repl.node.services.administration import NodeAdministration
from repl.node.services.appends import NodeAppends
from repl.node.services.cdc import NodeCdc
from repl.node.services.consumers import NodeConsumers
from repl.node.services.destinations import NodeDestinations
from repl.node.services.feeds import NodeFeeds
from repl.node.services.files import NodeFiles
from repl.node.services.monitoring import NodeMonitoring
from repl.node.services.peers import NodePeers
from repl.node.services.reads import NodeReads
from repl.node.services.repairs import NodeRepairs
from repl.node.services.sinks import NodeSinks
from repl.node.services.transactions import NodeTransactions


def services_of(parts: NodeParts) -> Services:
    return Services(
        appends=NodeAppends(parts),
        transactions=NodeTransactions(parts),
        reads=NodeReads(parts),
        consumers=NodeConsumers(parts),
        sinks=NodeSinks(parts),
        destinations=NodeDestinations(parts),
        cdc=NodeCdc(parts),
        files=NodeFiles(parts),
        feeds=NodeFeeds(parts),
        peers=NodePeers(parts),
        repairs=NodeRepairs(parts),
        administration=NodeAdministration(parts),
        monitoring=NodeMonitoring(parts),
    )
