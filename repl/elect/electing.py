"""A node's part in elections. This module connects the pure rules (``election``) to the node's log, node file, network
and clock.

    tick, votes requested and answered, feeds accepted  ─►  the door  ─►  core  ─►  Store, Ask, Lead, StepDown carried
    out

**The door** is a lock for role changes: only one event at a time passes it, and the event's last action ends before the
next event begins. Three steps require a quiet log: comparing logs for a vote, standing, and storing a higher term.
Before each of them, feeds and sealing of lower terms have stopped and the write path is drained. Without a quiet log, a
block could be acknowledged in the old term after the comparison for the vote, and be lost with the new master.

Messages on a feed of the stored term do not pass the door, so that a stalled disk does not make a master seem silent.
Time is counted in ticks of bounded length. So after a stall of this whole process a member counts as silent only once
its unread messages were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from feeder.majority import majority
from repl.elect.election import Election, Role, Standing
from repl.events import expected_if
from repl.group import peers
from repl.group.claims import Claim, claim_of
from repl.group.confirming import Confirming
from repl.group.electors import Elector, electors, voters
from repl.group.founding import Found
from repl.group.lost_group import REASON, is_lost
from repl.group.member import OpenMember
from repl.group.membership import counting, leaving
from repl.group.vote_messages import Action, Ask, Lead, StepDown, Store, VoteReply, VoteRequest
from repl.shared import undisturbed
from vlsn.errors import StaleTerm, VlsnLogError
from vlsn.format.records import GroupEntry
from vlsn.ids import NodeName, Term, Vlsn
from vlsn.together import failure_of

UNCONFIRMED = "unconfirmed"
"""The reason for refusing a vote to a candidate that the group does not list, or that does not confirm its request at
its own address (``claims``)."""
TICK_S = 0.05
TICK_MIN_S = 0.001
TICK_MAX_S = 0.2
"""One tick counts for at most this many seconds, however long it took."""
UNSYNCED_MAX_S = 10.0
"""A master steps down if its oldest unsynced block is older than this many seconds: its disk has stopped."""
_T = TypeVar("_T")


class Soundness(Protocol):
    @property
    def may_stand(self) -> bool:
        """True unless some of the log is known to be damaged."""
        ...

    @property
    def unfit(self) -> str:
        """Why a master with this log can make no more entries durable; "" if it can."""
        ...


class Electing:
    """A node's part in elections while one log is open. ``leads`` is the term in which this node is the master, or None
    while the node follows. ``soundness`` is the condition of this node's log."""

    def __init__(self, opened: OpenMember, confirming: Confirming, soundness: Soundness) -> None:
        self.leads: Term | None = None
        self.founds: Found | None = None
        """The decision that led to a founding term."""
        self._opened = opened
        self._member = member = opened.member
        self._log = opened.log
        self._confirming = confirming
        self._soundness = soundness
        self._now = 0.0
        self._ticked_s = member.seams.clock.monotonic_s()
        self._door = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._looks_at: asyncio.Task[bool] | None = None
        """The pending question to a master whose feed is being accepted: is it still the master?"""
        self._listed: tuple[tuple[Vlsn, GroupEntry] | None, bool, list[Elector]] = (None, False, [])
        """The newest group of the log, whether it is known to be durable, and its electors."""
        self.core = self._new_core()

    def _new_core(self) -> Election:
        member, least = self._member, self._member.config.election_timeout_s
        return Election(
            self._log.node_file.record,
            now=self._now,
            timeout_s=(least, 2 * least),
            uniform=member.seams.random.uniform,
        )

    @property
    def silent_s(self) -> float:
        """The seconds since this node heard a master; 0.0 while it leads."""
        return 0.0 if self.leads is not None else self.core.silent_s(self._now)

    # Time.

    async def run(self) -> None:
        """Ticks for as long as the node runs."""
        try:
            while True:
                await asyncio.sleep(self._pause_s())
                self._count()
                if not self._door.locked() and not self._rests():
                    async with (
                        self._door
                    ):  # the lock is acquired at once; if this task ends, all tasks that wait for the door end as well
                        await self._tick()
        finally:
            for task in self._tasks:
                task.cancel()

    def _pause_s(self) -> float:
        """Returns the pause until the next tick. Shortly before this node may stand, the pause is a few milliseconds,
        because milliseconds decide which node stands first."""
        left = self.core.due_in(self._now)
        return max(left, TICK_MIN_S) if 0.0 < left < TICK_S else TICK_S

    def _count(self) -> None:
        now = self._member.seams.clock.monotonic_s()
        self._now += min(TICK_MAX_S, max(0.0, now - self._ticked_s))
        self._ticked_s = now

    def _rests(self) -> bool:
        return not self._unfit() and self.core.rests(self._now, self._electors())

    async def _tick(self) -> None:
        core = self.core
        standing = self._standing()
        if core.is_due(self._now, standing):
            if self._takes_feed_of_the_living(standing):
                return
            await self._opened.stage.end()
            await self._opened.drained()
            standing = self._standing()
        why = self._unfit()
        if why:
            await self._carry_out(core.resign(why, self._now, standing))
        await self._carry_out(core.tick(self._now, standing))

    def _takes_feed_of_the_living(self, standing: Standing) -> bool:
        """Asks a master whose feed is being accepted whether it is still the master. Accepting a feed may take long,
        for example for a rollback. The election is postponed until the answer arrives, and also if the master confirms.
        If the master has fallen silent, this costs one second more."""
        role = self._opened.role
        if role is None or not role.taking_feed or role.master is None:
            self._looks_at = None
            return False
        if self._looks_at is None:
            self._looks_at = self._spawn(self._leads_still(role.master))
            return True
        if not self._looks_at.done():
            return True
        leads, self._looks_at = failure_of(self._looks_at) is None and self._looks_at.result(), None
        if leads:
            self.core.postpone(self._now, standing)
        return leads

    async def _leads_still(self, master: NodeName) -> bool:
        answer = await self._confirming.answer(master)
        return answer is not None and answer.state == "MASTER" and answer.term >= self.core.term

    def _unfit(self) -> str:
        """Returns why this node can no longer be the master, if it is the master; otherwise ""."""
        if self.leads is None:
            return ""
        if self._log.cycle.writing_s > UNSYNCED_MAX_S:
            return f"the disk has not synced for {self._log.cycle.writing_s:.0f} s"
        return self._soundness.unfit

    # Other nodes.

    def heard(self, master: NodeName, term: Term) -> None:
        """Notes a message on the feed of ``master``. ``term`` is the term of that feed."""
        core = self.core
        if term == core.term and core.role is not Role.MASTER:
            actions = core.heard(master, term, self._now, self._electors())
            assert not actions

    def has_founded(self) -> None:
        """Notes that the founding block is on this node's disk."""
        self.core.has_founded(self._now)

    def heard_from(self, replica: str) -> None:
        """Notes that a replica has answered on its feed."""
        self.core.heard_from(NodeName(replica), self._now)

    def gone(self, master: NodeName) -> None:
        """Notes that ``master``'s address refuses connections."""
        self._count()
        self.core.gone(master, self._now, self._electors())

    async def take_feed(self, master: NodeName, term: Term) -> None:
        """Accepts a feed of ``master``. On return ``term`` is stored and synced, and the master counts as heard from.
        Raises ``StaleTerm``."""
        await self._through(partial(self._take_feed, master, term))

    async def _take_feed(self, master: NodeName, term: Term) -> None:
        core = self.core
        if term < core.term or self.leads is not None:
            raise StaleTerm(f"the feed is of term {term}, and this node has stored term {core.term}")
        for action in core.heard(master, term, self._now, self._electors()):
            assert isinstance(action, Store), action
            await self._store(action)

    async def asked(self, request: VoteRequest) -> VoteReply:
        """Answers ``POST /v1/peer/vote``. The promises in the reply are synced before the reply is sent."""
        claim = claim_of(request)
        believed = await self._believed(claim)
        if believed is None or believed < claim.term:
            await self._rise_to(believed or 0)
            if not request.pre:
                self._member.event("vote", term=request.term, sender=request.sender, granted=False, why=UNCONFIRMED)
            record = self._log.node_file.record  # the term in ``core`` may not be on the disk yet
            reply = self.core.reply(request, UNCONFIRMED, self._standing())
            return msgspec.structs.replace(reply, term=record.term, sequence=record.sequence)
        if request.transfer:
            master = self.core.master
            if not await self._is_handed_over(request):
                request = msgspec.structs.replace(request, transfer=False)
            elif master is not None:
                self._has_left(master)
        return await self._through(partial(self._vote, request))

    async def _vote(self, request: VoteRequest) -> VoteReply:
        core, member = self.core, self._member
        if core.considers(request, self._now, self._standing()):
            if request.term > core.term:
                await self._opened.stage.end()
            await self._opened.drained()
        actions, reply = core.asked(request, self._now, self._standing())
        await self._carry_out(actions)
        if not request.pre:
            member.event("vote", term=request.term, sender=request.sender, granted=reply.granted, why=reply.reason)
        return msgspec.structs.replace(reply, sequence=self._log.node_file.record.sequence)

    async def stand(self, master: NodeName, term: Term) -> None:
        """Stands for election, because the master of ``term`` asks this node to take over. Raises ``StaleTerm`` if
        ``master`` is not this node's master, or does not confirm the transfer."""
        self._check_heard(master, term)
        if not await self._confirming.hands_over(master, term, to=self._member.name):
            raise StaleTerm(f"{master} does not confirm that it hands term {term} over to this node")
        await self._through(partial(self._stand_for, master, term))

    async def _stand_for(self, master: NodeName, term: Term) -> None:
        self._check_heard(master, term)
        self._has_left(master)
        await self._opened.stage.end()
        await self._opened.drained()
        await self._carry_out(self.core.transfer(self._now, self._standing()))

    def _has_left(self, master: NodeName) -> None:
        self._member.members.has_left(master, self._member.seams.clock.monotonic_s())

    def _check_heard(self, master: NodeName, term: Term) -> None:
        """Raises ``StaleTerm`` unless ``master`` is this node's current master, in ``term``."""
        if term != self.core.term or self.core.master != master:
            raise StaleTerm(f"{master} is not this node's master in term {term}; its stored term is {self.core.term}")

    async def found(self, found: Found) -> bool:
        """Begins the founding term as its master. Returns False if a higher term was stored meanwhile."""
        return await self._through(partial(self._found, found))

    async def _found(self, found: Found) -> bool:
        if found.term <= self.core.term or self._log.view.allocated:
            return False
        self.founds = found
        for action in self.core.founded(found.term, self._now, self._founding(found)):
            if isinstance(action, Store):
                await self._store(action)
            else:
                self.leads = found.term  # the role that called this method stops by itself
        return True

    async def become_another(self) -> None:
        """Draws another incarnation (random number) for the node's store; it is synced on return."""
        await self._through(self._become_another)

    async def _become_another(self) -> None:
        file = self._log.node_file
        record = replace(file.record, incarnation=self._member.seams.random.u64() or 1, voted_for="", vote_term=0)
        await self._written(partial(file.replace, record))
        self.core = self._new_core()

    def saw(self, claim: Claim) -> None:
        """Notes that a replica has stored a higher term. If the claim is believed, a master of a lower term steps
        down."""
        if claim.term > self.core.term:
            self._spawn(self._see(claim))

    async def _see(self, claim: Claim) -> None:
        await self._rise_to(await self._believed(claim) or 0)

    async def _rise_to(self, term: int) -> None:
        if term > self.core.term:
            await self._through(partial(self._see_term, Term(term)))

    async def _see_term(self, term: Term) -> None:
        await self._carry_out(self.core.saw(term))

    async def _believed(self, claim: Claim) -> int | None:
        return await self._confirming.believed(claim, self._electors(), stored=self.core.term)

    async def _is_handed_over(self, request: VoteRequest) -> bool:
        """Returns whether the master of the preceding term has asked the candidate to stand. The preceding master is
        this node, or the node that this one follows."""
        core = self.core
        term, master = core.term, core.master
        if master is None or request.term != term + 1:
            return False
        if master == self._member.name:
            return self._opened.announced == (term, request.sender)
        return await self._confirming.hands_over(master, term, to=request.sender)

    async def resign(self, term: Term, why: str) -> None:
        """Ends this node's leadership of ``term``. ``why`` is the reason."""
        await self._through(partial(self._resign, term, why))

    async def _resign(self, term: Term, why: str) -> None:
        if self.leads == term:
            await self._carry_out(self.core.resign(why, self._now, self._standing()))

    @property
    def reason(self) -> str:
        """The reason why this node does not stand; only a vote floor (former end of the log) or a lost group is
        reported."""
        if is_lost(self._log):
            return REASON
        why = self.core.waits_for(self._standing())
        return f"below-floor: {why}" if why else ""

    # Actions.

    async def _carry_out(self, actions: list[Action]) -> None:
        member = self._member
        for action in actions:
            match action:
                case Store():
                    if action.term > self._log.node_file.record.term:
                        await self._opened.stage.end()
                    await self._store(action)
                case Ask():
                    if action.requests and not action.requests[0].pre:
                        member.event("stands", term=action.requests[0].term)
                    for request in action.requests:
                        self._spawn(self._ask(request, self.core.rounds))
                case Lead():
                    member.event("elected", term=action.term)
                    self.leads = action.term
                    await self._opened.stage.end()
                case StepDown():
                    handed_over = self.leads is not None and self._opened.announced[0] == self.leads
                    member.event("steps_down", term=self.leads or 0, why=action.reason, **expected_if(handed_over))
                    self.leads = None
                    await self._opened.stage.end()

    async def _store(self, action: Store) -> None:
        """Stores a term and a vote; they are synced on return. If the node file cannot be written, the process ends,
        because the file's contents are then unknown."""
        await self._written(partial(self._write, action))

    def _write(self, action: Store) -> None:
        file = self._log.node_file
        record = file.record
        # a vote of an earlier term does not count in this term
        voted = record.voted_for if record.vote_term == record.term else ""
        if action.term > record.term or (action.term == record.term and action.voted_for not in ("", voted)):
            vote_term = action.term if action.voted_for else 0
            file.replace(replace(record, term=action.term, voted_for=action.voted_for, vote_term=vote_term))

    async def _written(self, write: Callable[[], object]) -> None:
        try:
            await self._member.workers.on_keeper(write)
        except VlsnLogError as error:
            self._member.fatal(error)
            raise

    async def _ask(self, request: VoteRequest, asked: int) -> None:
        """Sends a request for a vote, and handles the reply. ``asked`` is the number of the election round."""
        request = msgspec.structs.replace(request, sequence=self._log.node_file.record.sequence)
        try:
            reply = await peers.ask_vote(self._member, request)
        except (VlsnLogError, OSError):
            return
        await self._through(partial(self._answered, reply, asked))

    async def _answered(self, reply: VoteReply, asked: int) -> None:
        core = self.core
        late = core.rounds != asked and reply.term <= core.term
        if not late and (core.role in (Role.ASKING, Role.STANDING) or reply.term > core.term):
            await self._opened.drained()
            await self._carry_out(core.answered(reply, self._now, self._standing()))

    # The node's state.

    def _standing(self) -> Standing:
        log, member = self._log, self._member
        record = log.node_file.record
        self.core.floor = (record.floor_term, record.floor_vlsn)
        last = log.view.range.last_sync
        sound = member.state not in ("HALTED", "DAMAGED", "RESTORING")
        sound = sound and not self._is_removed() and not is_lost(log)
        return Standing(
            end=(log.view.history.term_of(last), last),
            electors=self._electors(),
            may_stand=sound and member.recognised and self._soundness.may_stand,
            may_vote=member.state != "HALTED" and member.recognised,
            reluctant=log.refusal is not None,
            leaving=leaving(log.view.history.groups, log.view.dtvlsn, member.name, member.incarnation),
        )

    def _is_removed(self) -> bool:
        """Returns whether a majority of the other electable members no longer lists this node. This node's own log may
        not contain its removal, because the node was away. A majority that no longer lists this node can elect a master
        without it. A single member that does not list it may itself be behind and need this node's log."""
        role = self._opened.role
        if role is None or not role.unlisted_by:
            return False
        electable = voters(self._electors())
        return len(electable.intersection(role.unlisted_by)) >= majority(len(electable))

    def _electors(self) -> list[Elector]:
        groups, durable = self._log.view.history.groups, self._log.view.dtvlsn
        newest = groups[-1] if groups else None
        settled = newest is None or durable >= newest[0]
        if self._listed[0] is not newest or self._listed[1] is not settled:
            self._listed = newest, settled, electors(counting(groups, durable))
        return self._listed[2]

    def _founding(self, found: Found) -> Standing:
        return Standing(end=(0, 0), electors=electors(found.group))

    # The door.

    async def _through(self, event: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Executes ``event`` alone and completely, even if the caller is cancelled."""
        return await undisturbed(self._spawn(self._alone(event)))

    async def _alone(self, event: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._door:
            return await event()

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work, name="election")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = failure_of(task)
        if error is not None and not isinstance(error, VlsnLogError):
            self._member.fatal(error)
