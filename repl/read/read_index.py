"""How new a node is: up to which VLSN the node must show the log, so that nothing acknowledged before is missing.

    at the master     a read round of its lead (``read_rounds``)
    at a replica      POST /v1/peer/read_index to the master it hears ─► that VLSN ─► waits until it is durable here

Many reads share a read round, and a replica's reads share a question to the master: only one of each is under way at a
time.

A node's **lag** is the time since it last asked so, and reached the VLSN of the answer: every entry acknowledged before
that question is here. Its own monotonic clock counts it, and nobody else's. A read that allows a lag asks only where
this one is past it. A master's own word is no measure: an unseated one goes on sending its replicas an old durable end.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import msgspec

from repl.api import LINEARIZABLE, Freshness
from repl.group.member import OpenMember
from repl.group.peers import Unreachable, post_to
from repl.group.role import Role
from repl.read.reads import Reads
from repl.shared import Shared
from vlsn.errors import Lagging, NotMaster, TooFarBehind, VlsnLogError, WrongGroup, WrongName
from vlsn.format.feed_messages import Name, Number
from vlsn.format.json_messages import read_json, read_object
from vlsn.ids import NodeName, Vlsn

ROUND_TIMEOUT_S = 5.0
"""The seconds that a round, or a replica's question, may take. A master without a majority does not answer."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/peer/read_index``."""

    group: Name
    sender: Name
    to: Name


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: ``vlsn`` was durable when the question arrived, and ``term`` is the term of the master that
    answers."""

    sender: Name
    term: Number
    vlsn: Number


class ReadIndex:
    """Lets the linearizable reads of an open log wait, whatever role the node has."""

    def __init__(self, opened: OpenMember, reads: Reads) -> None:
        self._opened = opened
        self._member = opened.member
        self._reads = reads
        self._asked: Shared[Vlsn] = Shared(self._ask_master)
        self._as_of_s = -inf
        """Everything that was acknowledged before this time, by the monotonic clock, is durable on this node."""

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        """Returns a VLSN up to which the log is readable on this node, once the node is as new as ``asked``. For a
        linearizable read this VLSN is at or past everything that was acknowledged as durable before the call.

        Raises ``NotListed`` if this node is no longer a member, ``NotMaster`` while no master is known or a majority
        does not confirm it, and ``Lagging`` if this node has not reached the VLSN in time. If a VLSN or a lag was asked
        for, raises ``TooFarBehind`` instead of each of these.
        """
        self._member.check_listed()
        clock, deadline = self._member.seams.clock, asyncio.get_running_loop().time() + timeout_s
        asked_s, vlsn, allowed = clock.monotonic_s(), Vlsn(asked.at_least), asked.lag_max_s
        asks = asked.linearizable or (allowed is not None and asked_s - self._as_of_s > allowed)
        if asks:
            try:
                async with asyncio.timeout_at(deadline):
                    vlsn = max(vlsn, await (self.index() if self._member.is_master() else self._asked.get()))
            except (NotMaster, TimeoutError) as error:
                why = str(error) or f"no master has confirmed the durable end within {timeout_s:g} s; ask again"
                if asked.linearizable:
                    raise NotMaster(why) from None
                raise TooFarBehind(f"nobody says how far this node is behind: {why}") from None
        if not await self._reached(vlsn, deadline):
            kind = Lagging if asked == LINEARIZABLE else TooFarBehind
            raise kind(
                f"this node has VLSN {self._reads.durable} of {vlsn} after {timeout_s:g} s; ask again, or another node"
            )
        if asks:
            self._as_of_s = max(self._as_of_s, asked_s)
        return vlsn

    async def _reached(self, vlsn: Vlsn, deadline: float) -> bool:
        """Says whether readers on this node could see ``vlsn`` before ``deadline`` (in the loop's time)."""
        self._opened.check()
        return await self._reads.reached(vlsn, deadline)

    async def index(self) -> Vlsn:
        """Returns the read index of the master, if this node is the master. Raises ``NotMaster``."""
        return await self._lead().read_index()

    def _lead(self) -> Role:
        lead = self._opened.lead
        if lead is None:
            raise NotMaster("this node is not the master")
        return lead

    async def answer(self, body: object) -> dict[str, Any]:
        """Answers ``POST /v1/peer/read_index``."""
        member = self._member
        question = read_object(body, Question, "read_index")
        if question.group != member.config.group:
            raise WrongGroup(f"this node is of group {member.config.group}, not {question.group}")
        if question.to != member.config.name or NodeName(question.sender) not in member.members.urls:
            raise WrongName(f"{question.sender} asks {question.to}; this is {member.config.name}")
        lead = self._lead()
        vlsn = await lead.read_index()
        return {"sender": member.config.name, "term": lead.term, "vlsn": vlsn}

    def close(self, error: VlsnLogError) -> None:
        self._asked.close(error)

    async def _ask_master(self) -> Vlsn:
        member = self._member
        master = member.master_name()
        if master is None:
            raise NotMaster("this node hears no master; ask again soon")
        question = Question(group=member.config.group, sender=member.config.name, to=master)
        try:
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                body = await post_to(member, master, "/v1/peer/read_index", question)
        except (Unreachable, OSError, TimeoutError) as error:
            raise NotMaster(f"{master} does not answer: {error or 'in time'}; ask again soon") from None
        answer = read_json(body, Answer, "no answer to a read_index")
        if answer.sender != master:
            raise WrongName(f"{answer.sender} has answered in the place of {master}")
        return Vlsn(answer.vlsn)
