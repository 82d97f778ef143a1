"""Tables that a node has lost with its state record are fetched from another member.

A log that was cleaned has whose submissions and which transactions went with it, and what was set, in its state record
alone.  Without the record the node answers only from its knowledge (``once``, rule 6). From its start on it asks every
member, until one answers:

    log from 61 on, state lost: lacks 1–60       n2 lacks nothing: asked for its table as of a VLSN from 60 to 95
    n2 answers: as of 93, in term 4              VLSN 93 is of term 4 here, so both logs are one up to there
    its table, and behind it 94 and 95           what both say of 61–93 is the same, or it is not taken

1. As of that VLSN it is durable, in both logs, and exact in both tables: neither has settled what lies behind it.
2. A table that misses less is taken, too: the source of another restore may have no more.
3. Where every member has answered, and none lacks less, it is lost for good.  Then the master, and nobody else, takes
   it for forgotten, as what is put out for room is; the others fetch that table.
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
    """The lost producers of one open log."""

    def __init__(self, opened: OpenMember) -> None:
        self._opened = opened
        self._member = opened.member
        self._log = opened.log

    @property
    def lacks_to(self) -> Vlsn:
        return self._log.view.history.lacks_to

    async def run(self) -> None:
        """Asks until the table is whole, or known to be lost."""
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
            # A member that is gone silently does not hold up the answers of the others.
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
        """Asks ``name``, and takes its table where that is of use."""
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
                return  # another member was faster
            try:
                log.view.history.found_state(known, record.vlsn)
            except ValueError as error:
                raise BadBody(str(error)) from None
        count = len(log.view.history.producers)
        member.event("producers.found", peer=peer.name, vlsn=record.vlsn, producers=count, lacks_to=self.lacks_to)

    async def _give_up(self) -> None:
        """Gives the table up; only a confirmed master knows the members for sure."""
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
