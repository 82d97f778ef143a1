"""A node's answers to its gateway: one small class for each kind of call. These objects live as long as the node."""

from __future__ import annotations

from functools import partial

from repl.destinations.node_destinations import NodeDestinations
from repl.lead.leading import lead_of
from repl.lead.service import NodeAppends, NodeFeeds, NodeTransactions
from repl.names.begun import NodeBegun
from repl.names.positions import NodePositions
from repl.names.sinks import NodeSinks
from repl.names.tokens import NodeTokens
from repl.node.access import Access
from repl.node.admin_http import NodeAdministration
from repl.node.gateway import Services
from repl.node.parts import NodeParts
from repl.node.peers import NodePeers, NodeRepairs
from repl.node.status_http import NodeMonitoring
from repl.read.segments_http import NodeFiles
from repl.read.service import NodeReads


def services_of(parts: NodeParts) -> Services:
    member = parts.member
    leads = partial(lead_of, member)
    return Services(
        access=Access(member),
        appends=NodeAppends(member),
        transactions=NodeTransactions(member),
        reads=NodeReads(member),
        consumers=NodePositions(member, leads),
        sinks=NodeSinks(member, leads),
        destinations=NodeDestinations(member, leads),
        tokens=NodeTokens(member, leads),
        cdc=parts.cdc,
        files=NodeFiles(member),
        feeds=NodeFeeds(member),
        peers=NodePeers(member, parts.confirming, NodeBegun(member, leads)),
        repairs=NodeRepairs(member),
        administration=NodeAdministration(member, parts.restoration),
        monitoring=NodeMonitoring(parts),
    )
