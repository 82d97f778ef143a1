"""What a node answers its gateway (``repl.http.services``): one small class for each kind of call, as long as the node
lives.  Each hands the call to the part that does the work; what needs the log raises while it is not open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl.http.services import Services
from repl.node.services.administration import NodeAdministration
from repl.node.services.appends import NodeAppends
from repl.node.services.feeds import NodeFeeds
from repl.node.services.files import NodeFiles
from repl.node.services.monitoring import NodeMonitoring
from repl.node.services.peers import NodePeers
from repl.node.services.reads import NodeReads
from repl.node.services.repairs import NodeRepairs

if TYPE_CHECKING:
    from repl.node.node import Node


def services_of(node: Node) -> Services:
    return Services(
        appends=NodeAppends(node),
        reads=NodeReads(node),
        files=NodeFiles(node),
        feeds=NodeFeeds(node),
        peers=NodePeers(node),
        repairs=NodeRepairs(node),
        administration=NodeAdministration(node),
        monitoring=NodeMonitoring(node),
    )
