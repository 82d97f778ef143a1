"""Reads of an open log, and how far its producers are."""

from __future__ import annotations

from repl.api import LINEARIZABLE, BlockPage, EntryPage, Freshness, ProducerAt, Spans
from repl.lead.exactly_once import missing
from repl.node.services.service import NodeService
from repl.read.reads import Reads
from repl.read.spans import spans_of
from vlsn.format.block import Entry
from vlsn.format.key_filter import KeyFilter
from vlsn.state.producers import ProducerPlace


class NodeReads(NodeService):
    """``repl.http.services.Reads``."""

    def end(self) -> int:
        return self._reads().durable + 1

    def term_before(self, vlsn: int) -> int:
        return self._reads().term_before(vlsn)

    async def until(self, vlsn: int) -> None:
        await self._reads().until(vlsn)

    async def read(
        self,
        from_vlsn: int | None,
        *,
        limit: int,
        bytes_max: int,
        all_kinds: bool,
        keys: KeyFilter | None = None,
    ) -> EntryPage:
        return await self._reads().page(from_vlsn, limit=limit, bytes_max=bytes_max, all_kinds=all_kinds, keys=keys)

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        return await self._reads().blocks(from_vlsn, bytes_max=bytes_max)

    async def find_time(self, time_us: int) -> int:
        return await self._reads().find_time(time_us)

    async def spans(
        self, from_vlsn: int | None, to_vlsn: int, *, bytes_each: int, entries_each: int, limit: int
    ) -> Spans:
        log, durable = self._parts.opened().log, self._reads().durable
        return await spans_of(
            log, durable, from_vlsn, to_vlsn, bytes_each=bytes_each, entries_each=entries_each, limit=limit
        )

    async def read_one(self, vlsn: int) -> Entry:
        return await self._reads().one(vlsn)

    def check_place(self, vlsn: int, term: int) -> None:
        self._reads().check_place(vlsn, term)

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        return await self._parts.opened().read_index.confirm(timeout_s, asked)

    async def producer(self, producer: int, timeout_s: float) -> ProducerAt:
        await self.confirm(timeout_s)
        table, durable = self._parts.opened().log.view.history.producers, self._parts.dtvlsn()
        life = table.find(producer, at=durable + 1)
        place = life.as_of(durable) if life is not None else ProducerPlace()
        if table.lacks_to and not place.last:
            raise missing(f"producer {producer:016x}", table.lacks_to)
        return ProducerAt(place, durable, table.forgotten_to(at=durable + 1))

    def _reads(self) -> Reads:
        """Raises ``NotListed`` where this node is no member any more, and as ``NodeParts.opened``."""
        opened = self._parts.opened()
        self._parts.member.check_listed()
        return opened.reads
