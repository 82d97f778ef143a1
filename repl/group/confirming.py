"""Confirms messages in a member's name: sends a hello to the member's listed URL.

Callers that ask while a hello is waiting for its answer share the next hello. So a node asks a member only as often as
the member answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from repl.group.claims import TERMS_AHEAD_MAX, Claim, Weight, announces, bears_out, weigh
from repl.group.electors import Elector
from repl.group.founding import DISCOVERY, Answer
from repl.group.member import Member
from repl.group.old_images import Told
from repl.group.peers import ask
from repl.shared import Shared
from vlsn.errors import NotMaster, VlsnLogError
from vlsn.ids import NodeName, Term

CONFIRM_S = 1.0
"""A message in a member's name waits this many seconds for the member's own answer to a hello."""


class Confirming:
    """The confirmations of one node, from its start to its stop."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._asked: dict[NodeName, Shared[Answer]] = {}
        self._looks: dict[NodeName, asyncio.Task[Answer | None]] = {}

    async def answer(self, name: NodeName) -> Answer | None:
        """Asks the member ``name`` itself. Returns None if it does not answer within ``CONFIRM_S``."""
        if name not in self._asked:
            self._asked[name] = Shared(partial(self._ask, name))
        try:
            async with asyncio.timeout(CONFIRM_S):
                return await self._asked[name].get()
        except (VlsnLogError, OSError, TimeoutError):
            return None

    async def believed(self, claim: Claim, electors: Sequence[Elector], *, stored: int) -> int | None:
        """Returns the term that this node believes of ``claim``, after asking the sender if the rule requires that. If
        no other member lists the sender, the returned term is limited, so that terms rise towards the sender's term in
        small steps. Returns None for a claim that is not believed."""
        weight = weigh(claim, electors, stored=stored, known=self._member.members.urls)
        if weight is Weight.TAKEN:
            return claim.term
        answer = await self.answer(claim.sender) if weight is Weight.ASK else None
        if answer is None or not bears_out(claim, answer):
            return None
        if self._member.members.vouches_for_itself(claim.sender):
            return min(claim.term, stored + TERMS_AHEAD_MAX)
        return claim.term

    async def hands_over(self, master: NodeName, term: Term, *, to: str) -> bool:
        """Returns whether ``master`` itself confirms that it hands over its ``term`` to the node ``to``."""
        answer = await self.answer(master)
        return answer is not None and announces(answer, term=term, to=to)

    def told(self, name: NodeName, incarnation: int, told: Told) -> None:
        """Handles a report that was received in the name of ``name``. Only the member's own answer is remembered, so
        the member is asked if the report has a newer term or vote."""
        members = self._member.members
        heard = self._member.heard_of(incarnation)
        newer = told.sequence > heard.sequence or told.term > heard.term
        if newer and name in members.urls and name != self._member.name and name not in self._looks:
            look = self._looks[name] = asyncio.create_task(self.answer(name), name=f"look at {name}")
            look.add_done_callback(lambda _: self._looks.pop(name, None))

    async def close(self) -> None:
        """Cancels every request that is not answered yet."""
        for asked in self._asked.values():
            asked.close(NotMaster("the node is stopping"))
        if self._looks:
            await asyncio.wait(self._looks.values())

    async def _ask(self, name: NodeName) -> Answer:
        url = self._member.members.urls.get(name)
        if url is None:
            raise NotMaster(f"{name} is no longer a member")
        return await ask(self._member, name, url, DISCOVERY)
