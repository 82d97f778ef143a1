"""The read index: the VLSN that a node must show, so that no earlier acknowledged entry is missing in a read.

    at the master     a read round of its term (``read_rounds``)
    at a replica      POST /v1/peer/read_index to its master ─► the master's VLSN ─► waits until it is durable here

Many reads share a read round, and many reads of a replica share a question to the master. Only one of each runs at a
time.

A node's **lag** is the time since it last asked for a read index and reached the VLSN of the answer. Every entry that
was acknowledged before the question is then on this node. The node measures the lag by its own monotonic clock. A read
that allows a lag sends a question only if the node's lag is larger. The durable end in the master's messages is no
measure: a deposed master continues to send an old durable end.
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
"""The most seconds for a read round, or for a replica's question. A master without a majority does not answer."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/peer/read_index``."""

    group: Name
    sender: Name
    to: Name


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a read-index question: ``vlsn`` was durable when the question arrived, and ``term`` is the term of
    the answering master."""

    sender: Name
    term: Number
    vlsn: Number


class ReadIndex:
    """Determines read indexes for an open log, in any role of the node, and lets linearizable reads wait for them."""

    def __init__(self, opened: OpenMember, reads: Reads) -> None:
        self._opened = opened
        self._member = opened.member
        self._reads = reads
        self._asked: Shared[Vlsn] = Shared(self._ask_master)
        self._as_of_s = -inf
        """A time by the monotonic clock. Every entry that was acknowledged before this time is durable on this node."""

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        """Waits until the node is as new as ``asked``, and returns a VLSN that is readable on this node. For a
        linearizable read, this VLSN is at or past every entry that was acknowledged as durable before the call.

        Raises ``NotListed`` if this node is no longer a member. Raises ``NotMaster`` if no master is known or no
        majority confirms it. Raises ``Lagging`` if this node has not reached the VLSN in time. If ``asked`` requires a
        VLSN or a lag, each of these errors is replaced by ``TooFarBehind``.
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
                raise TooFarBehind(f"it is not known how far this node is behind: {why}") from None
        if not await self._reached(vlsn, deadline):
            kind = Lagging if asked == LINEARIZABLE else TooFarBehind
            raise kind(
                f"this node has VLSN {self._reads.durable} of {vlsn} after {timeout_s:g} s; ask again, or another node"
            )
        if asks:
            self._as_of_s = max(self._as_of_s, asked_s)
        return vlsn

    async def _reached(self, vlsn: Vlsn, deadline: float) -> bool:
        """Returns whether readers on this node could see ``vlsn`` before ``deadline`` (the event loop's time)."""
        self._opened.check()
        return await self._reads.reached(vlsn, deadline)

    async def index(self) -> Vlsn:
        """Returns the read index, if this node is the master. Raises ``NotMaster``."""
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
            raise NotMaster("this node knows no master now; ask again soon")
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
