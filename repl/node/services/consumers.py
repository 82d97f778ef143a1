"""Consumers' positions: told by any node as far as they are durable there, changed by the master."""

from __future__ import annotations

import asyncio

from repl.api import LINEARIZABLE, ConsumerAt, ConsumerChange, Freshness, Puts
from repl.cdc.positions import REPLICATED_PREFIX
from repl.lead.positions import check_kept, confirm_end, puts_of, set_by
from repl.node.services.commits import commit_alone
from repl.node.services.mastership import NodeMastership
from repl.read.consumer_lags import ConsumerLags
from vlsn.errors import NotFound, OutcomeUnknown, ProducersMissing
from vlsn.state import paused
from vlsn.state.consumers import key_of


class NodeConsumers(NodeMastership):
    """``repl.http.services.Consumers``."""

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        return await self._parts.opened().read_index.confirm(timeout_s, asked)

    async def consumers(self) -> list[ConsumerAt]:
        lags = self._lags()
        await lags.look()
        return lags.told()

    async def consumer(self, name: str) -> ConsumerAt:
        key_of(name)
        lags = self._lags()
        await lags.look_at(name)
        found = lags.told_of(name)
        if found is None:
            raise NotFound(f"consumer {name} has no position here")
        return found

    async def set_consumer(self, name: str, change: ConsumerChange, timeout_s: float) -> ConsumerAt:
        lead = self._lead()
        deadline = asyncio.get_running_loop().time() + timeout_s
        again = set_by(lead.log, name, change)
        if again is None:
            await confirm_end(lead, {name: change})
            puts = puts_of(lead.log, {name: change})
            check_kept(lead.log, name, change)
            await commit_alone(lead, puts, deadline)
        elif not await lead.reads.reached(again.at, deadline):
            raise OutcomeUnknown(f"the position of {name} is logged at VLSN {again.at}, and not durable yet")
        return await self.consumer(name)

    async def delete_consumer(self, name: str, at: int | None, timeout_s: float) -> None:
        lead, key = self._lead(), key_of(name)
        if key not in lead.log.view.history.small:
            raise NotFound(f"consumer {name} has no position here")
        values: dict[str, bytes | None] = {key: None}
        if name.startswith(REPLICATED_PREFIX):  # the CDC consumer that begins anew by that name does so at once
            values[paused.key_of(name.removeprefix(REPLICATED_PREFIX))] = None
        puts = Puts(values, {} if at is None else {key: at})
        await commit_alone(lead, puts, asyncio.get_running_loop().time() + timeout_s)

    def capture_paused_us(self, consumer: str) -> int:
        self._lags()
        return paused.since_in(self._parts.opened().log.view.history.small.get(paused.key_of(consumer)))

    async def pause_capture(self, consumer: str, since_us: int, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await commit_alone(self._lead(), Puts({paused.key_of(consumer): paused.value_of(since_us)}), deadline)

    def _lags(self) -> ConsumerLags:
        opened = self._parts.opened()
        lacks_to = opened.log.view.history.small.lacks_to
        if lacks_to:
            raise ProducersMissing(f"this node has lost what was set up to VLSN {lacks_to}, and asks the other members")
        return opened.consumers
