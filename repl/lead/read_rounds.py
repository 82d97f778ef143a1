"""The read rounds of one term. In a read round a majority confirms that this node still leads, for linearizable reads.

    the term's first block is durable ─► DTVLSN noted ─► a read round ─► a majority has answered

A read is requested, then the durable end (DTVLSN) is stored, then the round begins. A master that was deposed before
the round began gets no majority (``feeder.rounds``). So a deposed master never answers, even if it has not noticed its
deposition. Read rounds use no clock. Many reads share a round.
"""

from __future__ import annotations

import asyncio

from feeder.feeder import Feeder
from feeder.rounds import Rounds
from repl.lead.tenure import Tenure
from repl.read.read_index import ROUND_TIMEOUT_S
from repl.shared import Shared
from vlsn.errors import NotMaster
from vlsn.format.feed_messages import round_message
from vlsn.ids import Incarnation, Vlsn


class LeadersRounds:
    """The read rounds of one term."""

    def __init__(self, lead: Tenure) -> None:
        self._lead = lead
        self._rounds = Rounds(lead.own)
        self.changed = asyncio.Event()
        """Set by each event that may complete a running round."""
        self._shared: Shared[Vlsn] = Shared(self._index)

    async def index(self) -> Vlsn:
        """Returns a VLSN at or past every append that was acknowledged as durable before the call. Raises
        ``NotMaster`` if no majority has confirmed this master within ``ROUND_TIMEOUT_S``, or if the term ends."""
        return await self._shared.get()

    def answered(self, feeder: Feeder, number: int) -> None:
        self._rounds.answered(Incarnation(feeder.incarnation), number)
        self.changed.set()

    def fed(self, feeder: Feeder) -> None:
        """Sends the running round to a replica that has just completed its syncup (the comparison of logs)."""
        if self._rounds.number:
            feeder.begin_round(round_message(self._lead.term, self._rounds.number))

    def close(self) -> None:
        self._shared.close(NotMaster("this node is no longer the master; ask again"))

    async def _index(self) -> Vlsn:
        lead = self._lead
        try:
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                while not lead.book.durable:
                    await self._change()
                index = lead.log.view.dtvlsn
                message = round_message(lead.term, self._rounds.begin())
                for feeder in lead.feeders.values():
                    if feeder.streaming:
                        feeder.begin_round(message)
                while not self._rounds.confirmed(lead.book.electable):
                    await self._change()
        except TimeoutError:
            raise NotMaster(
                f"no majority has confirmed within {ROUND_TIMEOUT_S:g} s that {lead.member.name} still leads; ask again"
            ) from None
        if lead.log.node_file.record.term != lead.term:
            raise NotMaster("this node is no longer the master")
        return index

    async def _change(self) -> None:
        self.changed.clear()
        await self.changed.wait()
