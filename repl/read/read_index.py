"""Linearizable reads: up to which VLSN a node has to show, so that nothing acknowledged before is missing.

    at the master     its term's first block durable ─► DTVLSN noted ─► a read round ─► a majority has answered
    at a replica      POST /v1/peer/read_index to the master it hears ─► that VLSN ─► waits until it is durable here

The DTVLSN is noted after the read was asked, and the round begins after that: a master that was unseated before gets
no majority for it (``feeder.rounds``), so it never answers, however late it learns of it.  No clock is asked.  Many
reads share a round, and a replica's share a question: only one of each is under way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from feeder.feeder import Feeder
from feeder.rounds import Rounds
from repl.group.peers import Unreachable, post_to
from repl.shared import Shared
from vlsn.errors import Lagging, NotMaster, VlsnLogError, WrongGroup, WrongName
from vlsn.format.feed_messages import Name, Number
from vlsn.format.json_messages import read_json, read_object
from vlsn.ids import Incarnation, NodeName, Vlsn

if TYPE_CHECKING:
    from repl.lead.leading import Leading
    from repl.node.node import Node

ROUND_TIMEOUT_S = 5.0
"""How long a round, or a replica's question, is waited for: a master without a majority does not answer."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/peer/read_index``."""

    group: Name
    sender: Name
    to: Name


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``vlsn`` was durable when the question came; ``term`` is whose master says so."""

    sender: Name
    term: Number
    vlsn: Number


class LeadersRounds:
    """The read rounds of one lead."""

    def __init__(self, lead: Leading) -> None:
        self._lead = lead
        self._rounds = Rounds(lead.own)
        self._changed = asyncio.Event()
        self._shared: Shared[Vlsn] = Shared(self._index)

    async def index(self) -> Vlsn:
        """Every append that was acknowledged as durable before the call lies at or below it.  Raises ``NotMaster``
        when a majority has not confirmed this master within ``ROUND_TIMEOUT_S``, or the lead ends."""
        return await self._shared.get()

    def answered(self, feeder: Feeder, number: int) -> None:
        self._rounds.answered(Incarnation(feeder.incarnation), number)
        self._changed.set()

    def fed(self, feeder: Feeder) -> None:
        """A replica is past syncup: a round that is under way is for it too."""
        if self._rounds.number:
            feeder.begin_round(self._rounds.number)

    def durable_rose(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._shared.close(NotMaster("this node has stopped leading; ask again"))

    async def _index(self) -> Vlsn:
        lead = self._lead
        try:
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                while lead.book is None or not lead.book.durable:
                    await self._change()
                index = lead.log.dtvlsn
                number = self._rounds.begin()
                for feeder in lead.feeders.values():
                    if feeder.streaming:
                        feeder.begin_round(number)
                while not self._rounds.confirmed(lead.book.electable):
                    await self._change()
        except TimeoutError:
            raise NotMaster(
                f"no majority has confirmed within {ROUND_TIMEOUT_S:g} s that {lead.node.name} still leads; ask again"
            ) from None
        if lead.log.node_file.record.term != lead.term:
            raise NotMaster("this node leads no more")
        return index

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class ReadIndex:
    """What a node's linearizable reads wait for, whichever its role."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked: Shared[Vlsn] = Shared(self._ask_master)

    async def confirm(self, timeout_s: float) -> int:
        """A VLSN at or past all that was acknowledged as durable before the call; readable here on return.  Raises
        ``NotMaster`` while no master is known or a majority does not confirm it, ``Lagging`` when this node has not
        reached it in time."""
        node = self._node
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                vlsn = await self.index() if node.is_master() else await self._asked.get()
        except TimeoutError:
            raise NotMaster(f"no master has confirmed the durable end within {timeout_s:g} s; ask again") from None
        if not await self._reached(vlsn, deadline):
            raise Lagging(
                f"this node has VLSN {node.dtvlsn()} of {vlsn} after {timeout_s:g} s; ask again, or another node"
            )
        return vlsn

    async def _reached(self, vlsn: Vlsn, deadline: float) -> bool:
        """Whether readers here could see ``vlsn`` before ``deadline`` (loop time)."""
        self._node.opened()
        assert self._node.reads is not None
        return await self._node.reads.reached(vlsn, deadline)

    async def index(self) -> Vlsn:
        """The master's own.  Raises ``NotMaster``."""
        lead = self._node.lead
        if lead is None:
            raise NotMaster("this node is not the master")
        return await lead.rounds.index()

    async def answer(self, body: object) -> dict[str, Any]:
        """``POST /v1/peer/read_index``."""
        node = self._node
        question = read_object(body, Question, "read_index")
        if question.group != node.config.group:
            raise WrongGroup(f"this node is of group {node.config.group}, not {question.group}")
        if question.to != node.config.name or NodeName(question.sender) not in node.members.urls:
            raise WrongName(f"{question.sender} asks {question.to}; this is {node.config.name}")
        lead = node.lead
        vlsn = await self.index()
        assert lead is not None
        return {"sender": node.config.name, "term": lead.term, "vlsn": vlsn}

    def close(self, error: VlsnLogError) -> None:
        self._asked.close(error)

    async def _ask_master(self) -> Vlsn:
        node = self._node
        master = node.master_name()
        if master is None:
            raise NotMaster("this node hears no master; ask again soon")
        question = Question(group=node.config.group, sender=node.config.name, to=master)
        try:
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                body = await post_to(node, master, "/v1/peer/read_index", question)
        except (Unreachable, OSError, TimeoutError) as error:
            raise NotMaster(f"{master} does not answer: {error or 'in time'}; ask again soon") from None
        answer = read_json(body, Answer, "no answer to a read_index")
        if answer.sender != master:
            raise WrongName(f"{answer.sender} has answered in the place of {master}")
        return Vlsn(answer.vlsn)
