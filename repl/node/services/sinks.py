"""Sinks' states: told by any node as far as they are durable there, set by commits, deleted by the master."""

from __future__ import annotations

import asyncio

from repl.api import LINEARIZABLE, Freshness, Puts, SinkAt
from repl.node.services.commits import commit_alone
from repl.node.services.mastership import NodeMastership
from vlsn.errors import NotFound, ProducersMissing
from vlsn.state.sinks import key_of, states_in


class NodeSinks(NodeMastership):
    """``repl.http.services.Sinks``."""

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        return await self._parts.opened().read_index.confirm(timeout_s, asked)

    def sinks(self) -> list[SinkAt]:
        opened = self._parts.opened()
        small = opened.log.view.history.small
        if small.lacks_to:
            raise ProducersMissing(
                f"this node has lost what was set up to VLSN {small.lacks_to}, and asks the other members"
            )
        states = states_in(small.as_of(opened.reads.durable))
        return [SinkAt(name, placed.at, placed.state) for name, placed in states.items()]

    def sink(self, name: str) -> SinkAt:
        key_of(name)
        found = next((each for each in self.sinks() if each.name == name), None)
        if found is None:
            raise NotFound(f"sink {name} has no state here")
        return found

    async def delete_sink(self, name: str, at: int | None, timeout_s: float) -> None:
        lead, key = self._lead(), key_of(name)
        if key not in lead.log.view.history.small:
            raise NotFound(f"sink {name} has no state here")
        puts = Puts({key: None}, {} if at is None else {key: at})
        await commit_alone(lead, puts, asyncio.get_running_loop().time() + timeout_s)
