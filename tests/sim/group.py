"""The nodes of a simulation: the product's own, unchanged, and their reports to the watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from repl.config import NodeConfig
from repl.lead.leading import lead_of
from repl.names.begun import NodeBegun
from repl.node.node import Node
from repl.node.open_node import OpenNode
from repl.node.peers import NodePeers
from tests.fakes.machine import Image, Machine
from tests.seam.nodes import Group
from tests.sim.books import Books
from tests.sim.cdc import Cdc, SimChildren
from tests.sim.settings import Settings
from tests.sim.verdict import Violation
from tests.sim.watch import Watch
from vlsn.errors import VlsnLogError
from vlsn.ids import Vlsn
from vlsn.write.write_cycle import LogListener

TOLD = (
    *("peer.silent", "feed.start", "feed.end", "scrub.unreadable", "restore.provides", "hold.dropped"),
    *("cdc.starts", "cdc.mode"),
)
"""Events that are left out of a transcript, since they would fill it."""


class SimPeers(NodePeers):
    """The peers of a watched node."""

    def __init__(self, node: SimNode) -> None:
        leads = partial(lead_of, node.member)
        super().__init__(node.member, node.confirming, NodeBegun(node.member, leads))
        self._watched = node

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = await super().vote(body)
        if reply["granted"] and not reply["pre"]:
            end = int(body["last_term"]), int(body["last_vlsn"])
            self._watched.group_of.watch.terms.voted(self._watched, int(body["term"]), str(body["sender"]), end)
        return reply


class SimNode(Node):
    """A watched node."""

    group_of: SimGroup

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.services = replace(self.services, peers=SimPeers(self))

        member = self.member
        instead(self.cdc, "event", lambda name, **fields: self.group_of.happened(self, name, fields))
        instead(member, "event", lambda name, **fields: self.group_of.happened(self, name, fields))
        before(member, "recognise", self._recognised)

    def _recognised(self, known: bool) -> None:
        if known:
            self.group_of.happened_first(self.name, "recognised")

    async def _open(self) -> OpenNode:
        open_node = await super()._open()
        writing, books = self.group_of.watch.writing, self.group_of.books

        def watched(listener: LogListener) -> None:
            before(listener, "handed_over", lambda: writing.handed_over(self), lambda: books.taken_in(self))
            before(listener, "synced", lambda last: writing.synced(self, last), lambda _: books.synced(self))

        watched(open_node)
        before(open_node.opened.stage, "play", watched)
        before(open_node.reads, "rose", lambda: writing.durable_rose(self))
        instead(open_node.opened, "roll_back", partial(self._roll_back, open_node.opened.roll_back))
        self.group_of.watch.opening.opened(self)
        books.synced(self)
        return open_node

    async def _roll_back(self, roll_back: Callable[[Vlsn], Awaitable[None]], matchpoint: Vlsn) -> None:
        watch = self.group_of.watch
        watch.writing.rollback_begins(self, matchpoint)
        self.group_of.happened_first(self.name, "rollback")
        try:
            await roll_back(matchpoint)
        except VlsnLogError:
            watch.writing.rollback_refused(self)
            raise
        watch.writing.rollback_ended(self)


def before(part: object, call: str, *told: Callable[..., object]) -> None:
    """Calls each of ``told`` before each ``call`` of ``part``."""
    plain = getattr(part, call)

    def watched(*args: Any) -> Any:
        for each in told:
            each(*args)
        return plain(*args)

    setattr(part, call, watched)


def instead(part: object, call: str, made: Callable[..., object]) -> None:
    """Replaces ``call`` by ``made``."""
    setattr(part, call, made)


class SimGroup(Group):
    """A group of watched nodes.  If a node ends itself, as after a second failure of its disk, its process is gone."""

    def __init__(self, seed: int, size: int, say: Callable[[str], None], **settings: Any) -> None:
        super().__init__(seed, size, **settings)
        self.told = Settings(self, seed)
        self.watch = Watch(self, say)
        self.books = Books(self)
        self.cdc: Cdc | None = None
        self.net.on_said, self.net.on_taken = self.books.said, self.books.taken
        self.net.on_internal = self.watch.met_a_bug
        self.on_end: Callable[[str, BaseException], None] = lambda name, error: None
        self.on_event: Callable[[str, str, dict[str, Any]], None] = lambda name, event, fields: None
        self._say = say

        class Watched(SimNode):
            group_of = self

        self.node_class = Watched
        self.on_stop: Callable[[str], None] = lambda name: self.kill(name)
        for name in self.names:
            self.wire(name)

    def url(self, name: str) -> str:
        return self.told.url(name)

    def config(self, name: str) -> NodeConfig:
        return self.told.config(super().config(name))

    def made_children(self, name: str) -> SimChildren:
        return SimChildren(name, self)

    def wire(self, name: str) -> None:
        """Connects the watch to a machine of that name, or to its new disk."""
        disk = self.machines[name].disk
        disk.on_synced = partial(self._synced, name)
        disk.on_stop = lambda: self.on_stop(name)
        self.watch.look_at(name)

    def put_back(self, name: str, image: Image) -> None:
        """Replaces the disk of a machine without a process by an older image."""
        self.machines[name].put_back(image)
        self.wire(name)
        self.watch.replaced(name)

    def joins(self, name: str, machine: Machine | None) -> None:
        """Adds one more machine: ``machine``, or a new one."""
        if machine is None:
            self.machine(name)
        else:
            self.machines[name] = machine
        self.names.append(name)
        self.wire(name)

    def leaves(self, name: str) -> Machine:
        """Removes and returns a machine, on which no process runs."""
        self.names.remove(name)
        self.net.forget(name)
        return self.machines.pop(name)

    def _synced(self, name: str, path: str) -> None:
        if path.endswith(("/node.id", "/node.id.new")):  # the name that it was opened by
            self.watch.terms.node_file(name)
        elif self.cdc is not None:
            self.cdc.books.synced(name, path)

    def _ended(self, name: str, error: BaseException) -> None:
        self.on_end(name, error)

    def happened(self, node: SimNode, name: str, fields: dict[str, object]) -> None:
        if name not in TOLD and not (name == "state" and fields.get("state") == "UNKNOWN"):
            text = " ".join(f"{key}={value}" for key, value in fields.items() if value != "")
            self._say(f"{node.name} {name} {text}")
        self.watch.event(node, name, fields)
        if self.cdc is not None:
            self.cdc.happened(node, name, fields)
        self.on_event(node.name, name, fields)

    def listed(self, name: str) -> bool:
        """Says whether the running node is a member by its own log."""
        node = self.nodes.get(name)
        if node is None or node.log is None or node.log.view.history.group is None:
            return False
        own = (name, f"{node.member.incarnation:016x}")
        return any((member.name, member.incarnation) == own for member in node.log.view.history.group.members)

    def happened_first(self, name: str, event: str) -> None:
        """Notes an event that the watch saw, not the node."""
        self.on_event(name, event, {})


__all__ = ["SimGroup", "SimNode", "Violation"]
