"""A node's part in elections: the pure core (``election``) with its node's log, node file, network and time.

    tick, votes asked and answered, feeds taken  ─►  the door  ─►  core  ─►  Store, Ask, Lead, StepDown carried out

**One door for role changes.**  One event at a time goes through it, to the end of the last action it leads to.  Before
this node compares logs for a vote, stands, or stores a higher term, feeds and sealing of lower terms have ended and its
write path is drained.  Else a block could be acknowledged for the old term behind the comparison that the vote rests
on, and be lost with the new master.

What is heard on a feed of the stored term does not pass the door: a stall of the disk must not make a master seem
silent.  Time is counted in ticks of bounded length, so that after a stall of this whole process nobody is held to have
been silent whose messages lie unread in its sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from feeder.acks import majority
from repl import peers
from repl.election import Election, Role, Standing
from repl.electors import Elector, electors, voters
from repl.founding import Found
from repl.membership import counting
from repl.votes import Action, Ask, Lead, StepDown, Store, VoteReply, VoteRequest
from vlsn.errors import StaleTerm, VlsnLogError
from vlsn.ids import NodeName, Term
from vlsn.records import GroupEntry
from vlsn.together import failure_of

if TYPE_CHECKING:
    from repl.node import Node

TICK_S = 0.05
TICK_MAX_S = 0.2
"""The most that one tick counts for, however long it took."""
UNSYNCED_MAX_S = 10.0
"""A master whose oldest unsynced block is older steps down: its disk has stopped."""
_T = TypeVar("_T")


class Electing:
    """One for the life of an open log.  ``leads`` is the term that this node leads, None while it follows."""

    def __init__(self, node: Node) -> None:
        self.leads: Term | None = None
        self.founds: Found | None = None
        """The decision behind a founding term."""
        self._node = node
        self._log = node.opened()
        self._now = 0.0
        self._ticked_s = node.seams.clock.monotonic_s()
        self._door = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listed: tuple[GroupEntry | None, bool, list[Elector]] = (None, False, [])
        """The newest group of the log, whether it is known durable, and the electors that count by it."""
        self.core = self._new_core()

    def _new_core(self) -> Election:
        node, least = self._node, self._node.config.election_timeout_s
        return Election(
            self._log.node_file.record,
            now=self._now,
            timeout_s=(least, 2 * least),
            uniform=node.seams.random.uniform,
        )

    # Time.

    async def run(self) -> None:
        """Ticks for as long as the node lives."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._count()
                if not self._door.locked() and not self._rests():
                    async with self._door:  # at once; where this task ends, all that comes through the door does
                        await self._tick()
        finally:
            for task in self._tasks:
                task.cancel()

    def _count(self) -> None:
        now = self._node.seams.clock.monotonic_s()
        self._now += min(TICK_MAX_S, max(0.0, now - self._ticked_s))
        self._ticked_s = now

    def _rests(self) -> bool:
        return not self._unfit() and self.core.rests(self._now, self._electors())

    async def _tick(self) -> None:
        core, node = self.core, self._node
        standing = self._standing()
        if core.is_due(self._now, standing):
            if node.following is not None and node.following.taking_feed:
                core.postpone(self._now, standing)
                return
            await node.roles.end()
            await node.drained()
            standing = self._standing()
        why = self._unfit()
        if why:
            await self._carry_out(core.resign(why, self._now, standing))
        await self._carry_out(core.tick(self._now, standing))

    def _unfit(self) -> str:
        """Why this node can lead no more, if it leads."""
        if self.leads is None:
            return ""
        if self._log.writing_s > UNSYNCED_MAX_S:
            return f"the disk has not synced for {self._log.writing_s:.0f} s"
        return ""

    # What others say and ask.

    def heard(self, master: NodeName, term: Term) -> None:
        """A message came on the feed of ``master`` in ``term``, the stored one."""
        core = self.core
        if term == core.term and core.role is not Role.MASTER:
            actions = core.heard(master, term, self._now, self._electors())
            assert not actions

    def heard_from(self, replica: str) -> None:
        """A replica has answered on its feed."""
        self.core.heard_from(NodeName(replica), self._now)

    def gone(self, master: NodeName) -> None:
        """Where ``master`` was, connections are refused."""
        self.core.gone(master, self._now)

    async def take_feed(self, master: NodeName, term: Term) -> None:
        """``term`` is stored, synced, and ``master`` heard, on return.  Raises ``StaleTerm``."""

        async def take() -> None:
            core = self.core
            if term < core.term or self.leads is not None:
                raise StaleTerm(f"a feed of term {term}; this node has stored term {core.term}")
            for action in core.heard(master, term, self._now, self._electors()):
                assert isinstance(action, Store), action
                await self._store(action)

        await self._through(take)

    async def asked(self, request: VoteRequest) -> VoteReply:
        """``POST /v1/peer/vote``; what the reply says is synced."""

        async def ask() -> VoteReply:
            core, node = self.core, self._node
            if core.considers(request, self._now, self._standing()):
                if request.term > core.term:
                    await node.roles.end()
                await node.drained()
            actions, reply = core.asked(request, self._now, self._standing())
            await self._carry_out(actions)
            if not request.pre:
                node.event("vote", term=request.term, sender=request.sender, granted=reply.granted, why=reply.reason)
            return msgspec.structs.replace(reply, sequence=self._log.node_file.record.sequence)

        return await self._through(ask)

    async def stand(self, master: NodeName, term: Term) -> None:
        """The master of ``term`` asks this node to take over.  Raises ``StaleTerm`` when it is not the one heard."""

        async def stand() -> None:
            core, node = self.core, self._node
            if term != core.term or core.master != master:
                raise StaleTerm(f"{master} leads no term {term} that this node hears; it has stored {core.term}")
            await node.roles.end()
            await node.drained()
            await self._carry_out(core.transfer(self._now, self._standing()))

        await self._through(stand)

    async def found(self, found: Found) -> bool:
        """Leads the founding term; False when a higher one is stored meanwhile."""

        async def lead() -> bool:
            if found.term <= self.core.term or self._log.allocated:
                return False
            self.founds = found
            for action in self.core.founded(found.term, self._now, self._founding(found)):
                if isinstance(action, Store):
                    await self._store(action)
                else:
                    self.leads = found.term  # the role that asks for this ends by itself
            return True

        return await self._through(lead)

    async def become_another(self, term: Term) -> None:
        """The store draws another incarnation, its stored term at least ``term``; synced on return."""

        async def draw() -> None:
            log = self._log
            record = replace(
                log.node_file.record,
                incarnation=self._node.seams.random.u64() or 1,
                term=max(term, log.node_file.record.term),
                voted_for="",
                vote_term=0,
            )
            await self._written(lambda: log.node_file.replace(record))
            self.core = self._new_core()

        await self._through(draw)

    def saw(self, term: Term) -> None:
        """A listed member has stored ``term``: a master of a lower one steps down."""
        if term > self.core.term:
            self._spawn(self._through(lambda: self._carry_out(self.core.saw(term))))

    async def resign(self, term: Term, why: str) -> None:
        """The lead of ``term`` has ended by itself, or must end."""

        async def end() -> None:
            if self.leads == term:
                await self._carry_out(self.core.resign(why, self._now, self._standing()))

        await self._through(end)

    @property
    def reason(self) -> str:
        """Why this node does not stand, where that is its vote floor."""
        why = self.core.waits_for(self._standing())
        return f"below-floor: {why}" if why else ""

    # The core's actions.

    async def _carry_out(self, actions: list[Action]) -> None:
        node = self._node
        for action in actions:
            match action:
                case Store():
                    if action.term > self._log.node_file.record.term:
                        await node.roles.end()
                    await self._store(action)
                case Ask():
                    if action.requests and not action.requests[0].pre:
                        node.event("stands", term=action.requests[0].term)
                    for request in action.requests:
                        self._spawn(self._ask(request, self.core.rounds))
                case Lead():
                    node.event("elected", term=action.term)
                    self.leads = action.term
                    await node.roles.end()
                case StepDown():
                    node.event("steps_down", term=self.leads or 0, why=action.reason)
                    self.leads = None
                    await node.roles.end()

    async def _store(self, action: Store) -> None:
        """Synced on return.  A node file that cannot be written ends the process: what it says now nobody knows."""
        log = self._log

        def store() -> None:
            record = log.node_file.record
            if action.term > record.term or (
                action.term == record.term and action.voted_for not in ("", record.voted_for)
            ):
                vote_term = action.term if action.voted_for else 0
                log.node_file.replace(
                    replace(record, term=action.term, voted_for=action.voted_for, vote_term=vote_term)
                )

        await self._written(store)

    async def _written(self, write: Callable[[], object]) -> None:
        try:
            await self._node.on_keeper(write)
        except VlsnLogError as error:
            self._node.fatal(error)
            raise

    async def _ask(self, request: VoteRequest, asked: int) -> None:
        """``asked``: the round that it is a question of."""
        request = msgspec.structs.replace(request, sequence=self._log.node_file.record.sequence)
        try:
            reply = await peers.ask_vote(self._node, request)
        except (VlsnLogError, OSError):
            return

        async def answer() -> None:
            core = self.core
            late = core.rounds != asked and reply.term <= core.term
            if not late and (core.role in (Role.ASKING, Role.STANDING) or reply.term > core.term):
                await self._node.drained()
                await self._carry_out(core.answered(reply, self._now, self._standing()))

        await self._through(answer)

    # The node as the core sees it.

    def _standing(self) -> Standing:
        log, node = self._log, self._node
        record = log.node_file.record
        self.core.floor = (record.floor_term, record.floor_vlsn)
        last = log.range.last_sync
        sound = node.state not in ("HALTED", "DAMAGED", "RESTORING")
        sound = sound and not self._is_removed() and self._knows_group()
        return Standing(
            end=(log.history.term_of(last), last),
            electors=self._electors(),
            may_stand=sound and node.recognised and (node.mending is None or node.mending.may_stand),
            may_vote=node.state != "HALTED" and node.recognised,
            reluctant=bool(log.no_space),
        )

    def _is_removed(self) -> bool:
        """A majority of those whom this node would ask for votes lists it no more, though its own log does not say so:
        it was away.  They can elect a master without it; one of them alone may be behind, and need its log."""
        following = self._node.following
        if following is None or not following.unlisted_by:
            return False
        electable = voters(self._electors())
        return len(following.unlisted_by & electable) >= majority(len(electable))

    def _knows_group(self) -> bool:
        """What was the group before a change that may still be rolled back: a log that was cleaned past it has that in
        its state record alone, and where that was lost every vote would be counted by the change."""
        log = self._log
        groups = log.history.groups
        return log.range.first <= 1 or not groups or groups[0][0] <= log.dtvlsn

    def _electors(self) -> list[Elector]:
        log = self._log
        group, settled = log.history.group, log.dtvlsn >= log.history.group_vlsn
        if self._listed[0] is not group or self._listed[1] is not settled:
            self._listed = group, settled, electors(counting(log.history.groups, log.dtvlsn))
        return self._listed[2]

    def _founding(self, found: Found) -> Standing:
        return Standing(end=(0, 0), electors=electors(found.group))

    # The door.

    async def _through(self, event: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Carries out ``event`` alone and to its end, also if whoever waits for it is gone."""

        async def alone() -> _T:
            async with self._door:
                return await event()

        return await asyncio.shield(self._spawn(alone()))

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work, name="election")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = failure_of(task)
        if error is not None and not isinstance(error, VlsnLogError):
            self._node.fatal(error)
