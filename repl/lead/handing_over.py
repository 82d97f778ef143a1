"""Hands mastership over to a replica.

1. Once the successor is fed, appends are held back (``admission``) until the successor has the whole log of this
   master.
2. The successor stands for election, which ends this term. The voters and the successor first ask this master to
   confirm the hand-over (``claims``).
3. If the hand-over takes longer than ``HAND_OVER_S``, this node stays the master, and logs the held appends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from feeder.feeder import Feeder
from repl.group import founding
from repl.group.peers import ask, ask_all, ask_to_stand
from repl.lead.admission import Admission
from repl.lead.tenure import Tenure
from vlsn.errors import BadArgument, NotMaster, Unreachable, VlsnLogError
from vlsn.ids import NodeName, Term

HAND_OVER_S = 2.0
LOOK_S = 0.1
"""A master that hands over asks its successor once in this many seconds whether it is still there."""
MAKE_WAY_S = 0.5
"""A master checks once in this many seconds whether it has space for its log."""


class NobodyLeft(VlsnLogError):
    """All replicas that could take over are stopping, too, so the whole group is being stopped."""

    slug = Unreachable.slug
    retry_safe = True
    transient = True


class HandingOver:
    """The hand-over of one term's mastership. It sets two attributes of the term: ``heir`` (the successor) and
    ``holds_back``."""

    def __init__(self, lead: Tenure, admission: Admission) -> None:
        self._lead = lead
        self._admission = admission
        self._acked = asyncio.Event()
        self._over = asyncio.Event()
        self._leaving: set[str] = set()
        """Replicas that stop, or have stopped, by their answers to the request to stand."""

    async def run(self, to: NodeName | None) -> NodeName:
        """Hands mastership over to ``to``, or for None to the replica with the longest log. Returns the successor's
        name. Appends are held back until the successor has the whole log and is elected. If that takes longer than
        ``HAND_OVER_S``, this node stays the master. For None, a replica that is stopping is passed over, and
        ``NobodyLeft`` is raised if no other is fed. Raises ``BadArgument`` for a name that may not lead, and
        ``Unreachable`` if the successor did not take over."""
        if self._lead.heir is not None:
            raise NotMaster(f"this node is handing over to {self._lead.heir} already")
        self._lead.heir = to or NodeName("whoever is furthest")
        try:
            async with asyncio.timeout(HAND_OVER_S):
                while True:
                    try:
                        return await self._run(to)
                    except VlsnLogError as error:
                        if to is not None or not _is_leaving(error):
                            raise
                        self._leaving.add(str(self._lead.heir))
                        self._takes_back()
        except TimeoutError:
            self._takes_back()
            raise Unreachable(f"{self._lead.heir} has not taken over within {HAND_OVER_S} s") from None
        except BaseException:  # also if the caller was cancelled
            self._takes_back()
            raise
        finally:
            self._leaving.clear()
            self._lead.heir = None
            self._lead.holds_back = False
            self._admission.open()

    async def _run(self, to: NodeName | None) -> NodeName:
        member, log, admission = self._lead.member, self._lead.log, self._admission
        while (feeder := self._heir(to)) is None or log.queue.entries or feeder.acked < log.view.allocated:
            if feeder is None and self._leaving:
                raise NobodyLeft(f"{', '.join(sorted(self._leaving))} stopped, and no other replica is connected")
            self._lead.holds_back = feeder is not None  # appends are not held back for a replica that is not connected
            admission.open()
            self._acked.clear()
            await self._acked.wait()
        self._lead.holds_back = True
        name = self._lead.heir = NodeName(feeder.replica)
        member.event("hands_over", to=name, term=self._lead.term)
        # announced before the successor is asked, because the successor's voters ask this node to confirm
        self._lead.opened.announced = self._lead.term, name
        await ask_to_stand(member, name, self._lead.term)
        while not self._over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._over.wait()
                    return name
            await ask(member, name, member.members.urls[name], founding.DISCOVERY)
        return name

    def _takes_back(self) -> None:
        """Withdraws the announcement, so that members that ask this master vote for that successor no longer."""
        self._lead.opened.announced = Term(0), ""

    def _heir(self, to: NodeName | None) -> Feeder | None:
        """Returns the feeder of the successor, or None while the successor is not fed. Raises ``BadArgument`` for a
        name that may not lead."""
        lead = self._lead
        group, book = lead.log.view.history.group, lead.book
        members = group.members if group is not None else []
        able = {each.name for each in members if each.electable and each.name != lead.member.name}
        if to is not None and to not in able:
            raise BadArgument(f"{to} is no member that may lead; one of {', '.join(sorted(able)) or 'nobody'} may")
        fed = [each for each in lead.feeders.values() if each.streaming and each.incarnation in book.electable]
        fed = [feeder for feeder in fed if to in (None, feeder.replica) and feeder.replica not in self._leaving]
        return max(fed, key=lambda feeder: feeder.acked, default=None)

    def acked(self) -> None:
        """Called when a replica has acknowledged more of the log, or has connected."""
        self._acked.set()

    def over(self) -> None:
        """Called when the term has ended."""
        self._over.set()

    async def make_way(self) -> None:
        """Hands over if this master has no disk space or no next segment, and some replica has space. If no replica has
        space, this node stays the master."""
        lead = self._lead
        while True:
            await asyncio.sleep(MAKE_WAY_S)
            if lead.log.refusal is None or self._lead.heir is not None:
                continue
            answers = await ask_all(lead.member, founding.DISCOVERY, [NodeName(name) for name in lead.feeders])
            able = [name for name, answer in answers.items() if not answer.no_space and name in lead.feeders]
            if not able:
                continue
            try:
                await self.run(max(able, key=lambda name: lead.feeders[name].acked))
            except VlsnLogError as error:
                lead.member.event("hand_over.failed", why=str(error))


def _is_leaving(error: VlsnLogError) -> bool:
    """Returns whether the answer to a request to stand means that the replica is stopping or has ended."""
    return isinstance(error, NotMaster | Unreachable)
