"""Fetches from another member the tables that a node has lost together with its state record.

In a log that was cleaned, some facts are in the state record only: the producers of removed submissions, removed
transactions, and the small state (named values). If the record is lost, the node answers only from its remaining
knowledge (``once``, rule 6). From its start on the node asks every member, until one answers:

    log from 61 on, state lost: lacks 1–60       n2 lacks nothing: asked for its table at a VLSN from 60 to 95
    n2 answers: at 93, in term 4                 VLSN 93 is of term 4 here, so both logs are equal up to there
    its table, then 94 and 95 from this log      both must agree on 61–93, otherwise the table is refused

1. The VLSN of the answer is durable in both logs. The tables of both nodes are exact at that VLSN: neither includes a
   later entry.
2. A table that is less incomplete than this node's is accepted, too, because no member may have a complete one.
3. If every member has answered, and no table is less incomplete, the lost content is lost for good. In that case the
   master alone treats the content as forgotten, like entries that were dropped for lack of room. The other members
   fetch the master's table.
"""

from __future__ import annotations

import asyncio
from functools import partial

from repl.group.member import OpenMember
from repl.repair.restoring import Peer
from vlsn.errors import BadBody, VlsnLogError
from vlsn.ids import NULL_TERM, NodeName, Vlsn
from vlsn.repair.restore_messages import LOOK, Offer
from vlsn.state.history import History

AGAIN_S = 0.5
_Faults = (VlsnLogError, OSError, TimeoutError)


class LostProducers:
    """Fetches the lost tables of one open log."""

    def __init__(self, opened: OpenMember) -> None:
        self._opened = opened
        self._member = opened.member
        self._log = opened.log

    @property
    def lacks_to(self) -> Vlsn:
        return self._log.view.history.lacks_to

    async def run(self) -> None:
        """Asks the members until the table is complete, or is known to be lost."""
        if self.lacks_to:
            self._member.event("producers.lost", upto=self.lacks_to)
        while self.lacks_to:
            await self._ask_all()
            if self.lacks_to:
                await asyncio.sleep(AGAIN_S)

    async def _ask_all(self) -> None:
        member = self._member
        others = [name for name in member.members.listed if name != member.name]
        asked = [asyncio.create_task(self._ask(name), name=f"producers of {name}") for name in others]
        answers = []
        try:
            # A silent member does not delay the answers of other members.
            for answered in asyncio.as_completed(asked):
                answers.append(await answered)
                if not self.lacks_to:
                    return
        finally:
            for task in asked:
                task.cancel()
        if all(offer is not None and not self._has_more(offer) for offer in answers):
            await self._give_up()

    async def _ask(self, name: NodeName) -> Offer | None:
        """Asks ``name``, and adopts its table if that table is less incomplete."""
        member = self._member
        try:
            peer = Peer(member, name, member.members.listed[name])
            offer = await peer.ask(LOOK)
            if self._has_more(offer):
                await self._take(peer)
        except _Faults as error:
            member.event("producers.waits", peer=name, why=str(error))
            return None
        return offer

    def _has_more(self, offer: Offer) -> bool:
        return bool(offer.dtvlsn) and offer.lacks_producers < self.lacks_to

    async def _take(self, peer: Peer) -> None:
        member, log = self._member, self._log
        upto = Vlsn(min(log.view.dtvlsn, log.view.range.last_sync))
        offer, record = await peer.record(log.view.history.settled, upto)
        known = await member.workers.offload("reads")(partial(History, record))
        with log.latch:
            if log.view.history.term_of(record.vlsn) != offer.dtvlsn_term or offer.dtvlsn_term == NULL_TERM:
                raise BadBody(f"VLSN {record.vlsn} is of term {offer.dtvlsn_term} there, and not here")
            if known.lacks_to >= self.lacks_to:
                return  # another member has sent a table meanwhile
            try:
                log.view.history.found_state(known, record.vlsn)
            except ValueError as error:
                raise BadBody(str(error)) from None
        count = len(log.view.history.producers)
        member.event("producers.found", peer=peer.name, vlsn=record.vlsn, producers=count, lacks_to=self.lacks_to)

    async def _give_up(self) -> None:
        """Gives the lost content up. Only a confirmed master does this, because only it knows the members for
        certain."""
        lead = self._opened.lead
        if lead is None:
            return
        try:
            await lead.read_index()
        except VlsnLogError:
            return
        if self._opened.lead is lead and (lacked := self.lacks_to):
            self._log.view.history.give_up_lost()
            self._member.event("producers.forgotten", upto=lacked)
