"""A node's answers to its gateway: one small class for each kind of call. These objects live as long as the node."""

from __future__ import annotations

from functools import partial

from repl.auth.peer_door import PeerDoor
from repl.destinations.filling import Giving
from repl.destinations.node_destinations import NodeDestinations
from repl.lead.append_http import NodeAppends
from repl.lead.feed_ws import NodeFeeds
from repl.lead.leading import lead_of
from repl.lead.transactions_http import NodeTransactions
from repl.names.begun import NodeBegun
from repl.names.positions import NodePositions
from repl.names.sinks import NodeSinks
from repl.names.tokens import NodeTokens
from repl.node.access import Access
from repl.node.admin_http import NodeAdministration
from repl.node.gateway import Services
from repl.node.overview import Overview
from repl.node.parts import NodeParts
from repl.node.peers import NodePeers
from repl.node.status_http import NodeMonitoring
from repl.read.segments_http import NodeFiles
from repl.repair.restore_http import RepairRoutes
from repl.web.limits import PIECES_A_TURN_BYTES
from repl.web.slices import Slices


def services_of(parts: NodeParts) -> Services:
    member = parts.member
    leads = partial(lead_of, member)
    pieces = Slices(PIECES_A_TURN_BYTES)
    monitoring = NodeMonitoring(parts, pieces)

    async def give(uuid: str, since: int, first: int, last: int) -> bytes:
        return await member.opened().part(Giving).give(uuid, since, first, last)

    return Services(
        access=Access(member, parts.trail),
        appends=NodeAppends(member),
        transactions=NodeTransactions(member),
        member=member,
        consumers=NodePositions(member, leads),
        sinks=NodeSinks(member, leads),
        destinations=NodeDestinations(member, leads),
        tokens=NodeTokens(member, leads),
        cdc=parts.cdc,
        files=NodeFiles(member),
        door=PeerDoor(member.trust, member.seams.random, parts.trail.refused),
        feeds=NodeFeeds(member),
        peers=NodePeers(member, parts.confirming, NodeBegun(member, leads)),
        repairs=RepairRoutes(member, give),
        trail=parts.trail,
        administration=NodeAdministration(member, parts.restoration),
        monitoring=monitoring,
        overview=Overview(parts, monitoring.long.get),
        pieces=pieces,
    )
