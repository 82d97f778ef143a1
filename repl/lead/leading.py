"""Leading: the role of the master during one term.

    1  the term was won (``electing``) or founded, and is stored and synced; the master seals its TERM entry, and in a
       founding term also the GROUP
    2  the master accepts appends, feeds replicas and counts what they have synced, until its term ends

A replica rolls back blocks that the master's log does not have; such blocks were never durable. When the term ends,
queued appends fail with ``NotMaster``, sealed appends fail with ``OutcomeUnknown``, and every feed stops.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from feeder.feeder import Feeder
from feeder.source import Mode
from repl.api import Acks, Done, FeedHello, Pending, Puts
from repl.destinations.deliveries import Deliveries
from repl.destinations.full import FullPolicies
from repl.elect.electing import Electing
from repl.group import founding
from repl.group.claims import Claim
from repl.group.confirming import Confirming
from repl.group.founding import Found
from repl.group.member import Member, OpenMember, StoodStill
from repl.group.member_holds import overtaken
from repl.group.peers import ask_all
from repl.group.replica_lag import ReplicaLag
from repl.lead.admission import Admission
from repl.lead.group_changes import Changes
from repl.lead.handing_over import HandingOver
from repl.lead.read_rounds import LeadersRounds
from repl.lead.tenure import Tenure
from repl.lead.transactions import Transactions
from repl.offload import settle
from repl.read.reads import Reads
from repl.repair.integrity import resolve
from repl.repair.restoring import Restoration
from repl.web.types import GOING_AWAY
from replica.level import store_level
from vlsn.durability import SYNCED
from vlsn.errors import (
    ChannelClosed,
    DuplicateFeed,
    Halted,
    IntegrityFault,
    NotListed,
    NotMaster,
    OutcomeUnknown,
    StaleTerm,
    VlsnLogError,
    WrongIncarnation,
    WrongName,
    WrongVersion,
)
from vlsn.format.block import EntryKind
from vlsn.format.feed_messages import Ack
from vlsn.format.records import CommitEntry, Settings, TermEntry
from vlsn.format.submission import Submission, Transaction
from vlsn.ids import Incarnation, NodeName, Term, Vlsn
from vlsn.levels import LEVEL_1
from vlsn.seams import Channel
from vlsn.write.queue import Pending as Queued

DTVLSN_DELAY_S = 0.02
"""Seconds until a risen durable end (DTVLSN) is sent on a feed without traffic. On other feeds the next message with
blocks has it."""


class Leading(Tenure):
    """The role of this node as the master of ``term``. ``run`` never returns: it raises the error that ended the
    term, or is cancelled."""

    def __init__(
        self,
        opened: OpenMember,
        term: Term,
        electing: Electing,
        reads: Reads,
        confirming: Confirming,
        restoration: Restoration,
        *,
        found: Found | None = None,
    ) -> None:
        super().__init__(opened, term, electing, reads, on_durable=self._durable_rose)
        self._confirming = confirming
        self._restoration = restoration
        self._founds = found
        self.catching_up: defaultdict[str, ReplicaLag] = defaultdict(ReplicaLag)
        """For each replica, by name: how far it is from the log's end."""
        self.rounds = LeadersRounds(self)
        self.admission = Admission(self, self.rounds)
        self.transactions = Transactions(self, self.admission)
        self.handing_over = HandingOver(self, self.admission)
        event = self.member.event
        self.full = FullPolicies(self.log, reads, self.admission.put_held, event, lambda: opened.pages)
        self.destinations = Deliveries(
            self, reads, self._log_note, event=event, full=self.full, pages=lambda: opened.pages
        )
        self.changes = Changes(self, self.handing_over)
        self._former = None if found is not None else self.member.heard
        """The former master and the time of its last message, until this term has a durable entry."""
        self._telling: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            await self._lead()
        finally:
            self._end()

    async def over(self, why: str) -> None:
        """Gives up mastership. ``run`` has ended, and no block is sealed in this term any more."""
        await self.electing.resign(self.term, why)

    # The term.

    async def _lead(self) -> None:
        member, log, term = self.member, self.log, self.term
        if self._founds is not None:
            await store_level(log, self._founds.level)
        if self.electing.leads != term:
            raise NotMaster(f"term {term} was over before this node led it")
        entry = TermEntry(term=term, master=member.name, incarnation=f"{self.own:016x}").encode()
        sealed: asyncio.Future[Vlsn] = asyncio.get_running_loop().create_future()
        self.start = start = Vlsn(log.view.allocated + 1)
        self.follow_settings()
        log.start_sealing(term)
        kinds, values = [EntryKind.TERM], [entry]
        if self._founds is not None:
            kinds, values = [EntryKind.TERM, EntryKind.GROUP], [entry, self._founds.group.encode()]
            if self._founds.level > LEVEL_1.min:
                kinds.append(EntryKind.COMMIT)
                values.append(CommitEntry(set=Settings(level=self._founds.level)).encode())
        log.append_entries(kinds, values, settle(sealed))
        if self._founds is not None:
            await sealed  # the founding block, once sealed, defines the group
            self.electing.has_founded()
        self.holds.lead(log.view.history.group)
        self.changes.follow()
        self.book.note(self.own, log.view.range.last_sync)
        member.set_state("MASTER")
        member.event("leads", term=term, first=start)
        member.master_is(member.config.name, term)
        self.admission.settle_in()
        asking = asyncio.create_task(self._ask_those_without_feed(), name="ask")
        making_way = asyncio.create_task(self.handing_over.make_way(), name="make way")
        changing = asyncio.create_task(self.changes.run(), name="changes")
        try:
            await self._ended
        finally:
            for task in (asking, making_way, changing):
                task.cancel()

    async def _ask_those_without_feed(self) -> None:
        """Contacts members without a feed, because an empty member accepts its first feed only from the process that
        contacted it last. A founder that died before this feed must contact the member again. Later masters do the
        same until the member is fed, because another new node may have contacted it too."""
        asked: set[NodeName] = set()
        while True:
            missing = [name for name in self.member.members.listed if name not in self.feeders and name not in asked]
            answers = await ask_all(
                self.member, founding.FOUNDING, (name for name in missing if name != self.member.name)
            )
            asked.update(name for name, answer in answers.items() if not answer.empty)
            await asyncio.sleep(1.0)

    def _end(self) -> None:
        self.has_ended = True
        if self.start:
            self.member.heard = (self.member.name, self.member.seams.clock.monotonic_s())
        self.handing_over.over()
        self.rounds.close()
        if self.member.state == "MASTER":
            self.member.set_state("UNKNOWN", "stopped leading")
        self.admission.close()
        self.transactions.close()
        self.destinations.close()
        if self._telling is not None:
            self._telling.cancel()
        for task in self.tasks.values():
            task.cancel()
        if self.log.life.failure is None and not self.log.life.closed:
            self.log.stop_sealing(NotMaster("this node is no longer the master; the append was not logged"))
        self.changes.end()
        for incarnation in self.book.synced:
            self.member.members.heard.note(incarnation, self.heard_of(incarnation))
        for book in (self.book, self.unsynced):
            book.fail(lambda: OutcomeUnknown("this node stopped leading before the append was acknowledged"))

    async def read_index(self) -> Vlsn:
        return await self.rounds.index()

    def commit(self, puts: Puts, done: Done) -> Pending:
        """Queues a COMMIT that sets ``puts``. Raises errors, and calls ``done``, as ``Admission.submit`` does."""
        return self.admission.submit(Transaction((), puts.entry()), Acks.MAJORITY, done, puts=puts)

    def _log_note(self, submission: Submission, done: Done) -> object:
        """Logs acknowledgements of destinations with a sync, whatever the group's durability. The caller of an
        acknowledgement gets an answer that says durable."""
        return self.admission.submit(submission, Acks.MAJORITY, done, durability=SYNCED)

    # Appends.

    def sealed(self, pendings: list[Queued]) -> None:
        self.book.sealed(self.unsynced.sealed(pendings) if self.unsynced.used else pendings)
        self.admission.sealed(pendings)

    def handed_over(self) -> None:
        if self.start and self.log.view.history.groups[-1][0] != self.changes.at:
            self.changes.follow()
        for feeder in self.feeders.values():
            feeder.handed_over()

    def synced(self, last_vlsn: Vlsn) -> None:
        for feeder in self.feeders.values():
            feeder.synced()
        if self.start:
            self.book.note(self.own, last_vlsn)
            if self.unsynced.used:
                self.unsynced.release()

    def written(self, last_vlsn: Vlsn) -> None:
        self.unsynced.written(last_vlsn)

    def _durable_rose(self, durable: Vlsn) -> None:
        self.log.view.raise_dtvlsn(durable)
        if self._former is not None and durable >= self.start:
            former, heard_s = self._former
            seconds = self.member.seams.clock.monotonic_s() - heard_s
            self.member.counts.stood_still = StoodStill(self.term, seconds, former)
            self._former = self.member.heard = None
        self.log.view.fold_acks()
        if not self.changes.settled:
            self.changes.durable_rose(durable)
        self.reads.rose()
        self.rounds.changed.set()
        self.destinations.rose()
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(DTVLSN_DELAY_S, self._tell_dtvlsn)

    def _tell_dtvlsn(self) -> None:
        self._telling = None
        for feeder in self.feeders.values():
            feeder.tell_dtvlsn()

    def tick(self) -> None:
        now, last = self.member.seams.clock.monotonic_s(), self.log.view.range.last
        for feeder in self.feeders.values():
            feeder.silent_ticks += 1
            if not self.hears(feeder):
                self._withdraw(feeder)
            self.catching_up[feeder.replica].note(now, feeder.acked, last)
        self._count_present()
        if self._ended.done() is False and self.start and self.log.life.failure is not None:
            self._ended.set_exception(self.log.life.failure)
        self.destinations.tick()

    def _count_present(self) -> None:
        if not self.start:
            return
        self.present = sum(
            feeder.incarnation in self.book.electable and self.hears(feeder) for feeder in self.feeders.values()
        )
        self.admission.open()

    # Feeds.

    async def check_feed(self, hello: FeedHello) -> None:
        log = self.log
        if self.member.state != "MASTER":
            raise NotMaster("this node is not leading yet")
        if hello.node == self.member.name:
            raise WrongName(f"{hello.node} is this node's own name")
        if hello.to_incarnation is not None and hello.to_incarnation != self.own:
            raise WrongIncarnation(f"this node is incarnation {self.own:016x}, not {hello.to_incarnation:016x}")
        if founding.listed_incarnation(log.view.history.group, hello.node) is None:
            raise NotListed(f"the group does not list {hello.node}")
        if not hello.levels.hold(log.view.history.level):
            said = f"the group is at level {log.view.history.level}, {hello.node} speaks level {hello.levels}"
            raise WrongVersion(f"{said}: run another vlsnlog on {hello.node}")
        if hello.term > self.term:
            self.electing.saw(Claim(hello.node, hello.incarnation, hello.term))
            raise StaleTerm(f"{hello.node} has stored term {hello.term}, this master leads {self.term}")
        if hello.node in self.feeders:
            await self._check_replaced(hello)

    async def _check_replaced(self, hello: FeedHello) -> None:
        """Checks whether the replica already has a feed. If so, the member is asked whether it has left that feed
        for the new one. If the member does not answer, a feed of the same incarnation is replaced at once. A feed of
        another incarnation is replaced once it is silent."""
        answer = await self._confirming.answer(hello.node)
        if self.has_ended:
            raise NotMaster("this node is no longer the master")
        live = self.feeders.get(hello.node)
        if live is None:
            return
        if answer is None:
            half_open = live.streaming and not self.hears(live)
            if half_open and live.incarnation != hello.incarnation:
                self.tasks[live].cancel()  # another store of the same member has replaced this one
            taken = live.incarnation == hello.incarnation
        else:
            who = founding.parse_hex(answer.incarnation), founding.parse_hex(answer.process)
            taken = who == (hello.incarnation, hello.process) and answer.master != self.member.name
        if not taken:
            raise DuplicateFeed(f"{hello.node} is fed already, as incarnation {live.incarnation:016x}")

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        before = self.feeders.get(hello.node)
        if before is not None:
            # the old connection is half open, or does not belong to this member (``check_feed``)
            self.tasks[before].cancel()
            self._withdraw(before)
        feeder = Feeder(
            replica=hello.node,
            incarnation=hello.incarnation,
            term=self.term,
            log=self.log,
            channel=channel,
            owner=self,
            offload=self.member.workers.offload("feeds"),
            heartbeat_s=self.member.config.heartbeat_s,
            listed=founding.listed_incarnation(self.log.view.history.group, hello.node) == hello.incarnation,
        )
        task = asyncio.current_task()
        assert task is not None
        self.feeders[hello.node] = feeder
        self.tasks[feeder] = task
        why, fault = "closed", None
        try:
            await feeder.run()
        except* (ChannelClosed, TimeoutError) as errors:
            why = str(errors.exceptions[0])
        except* (VlsnLogError, OSError) as errors:
            first = errors.exceptions[0]
            why = f"{type(first).__name__}: {first}"
            fault = first if isinstance(first, IntegrityFault) else None
        finally:
            del self.tasks[feeder]
            if self.feeders.get(hello.node) is feeder:
                del self.feeders[hello.node]
                self._withdraw(feeder)
            self._count_present()
            self.member.event("feed.end", replica=hello.node, why=why)
            if self.has_ended:
                await channel.close(GOING_AWAY)
        if fault is not None:
            await self._weigh(fault)

    async def _weigh(self, fault: IntegrityFault) -> None:
        """Resolves a difference between this log and a replica's block. The term ends if a majority differs from
        this log."""
        try:
            await resolve(self.member, self._restoration, fault.vlsn, str(fault))
        except Halted as error:
            if not self._ended.done():
                self._ended.set_exception(error)

    def _withdraw(self, feeder: Feeder) -> None:
        """Stops counting the syncs of a replica that is not fed or does not answer. The replica may be rolling back
        blocks that it has acknowledged. The replica counts again after its next acknowledgement."""
        incarnation = Incarnation(feeder.incarnation)
        self.member.members.heard.note(incarnation, self.heard_of(incarnation))
        self.book.withdraw(incarnation)
        self.unsynced.withdraw(incarnation)

    def acknowledged(self, feeder: Feeder, ack: Ack) -> None:
        if self.feeders.get(feeder.replica) is not feeder:
            return  # a newer feed of the replica has replaced this one
        if feeder.incarnation in self.book.electable:
            self.electing.heard_from(feeder.replica)
        self.handing_over.acked()
        self.book.note(Incarnation(feeder.incarnation), Vlsn(ack.synced))
        if self.unsynced.used:
            self.unsynced.acknowledged(Incarnation(feeder.incarnation), ack)
        self.holds.acknowledged(feeder.replica, Vlsn(ack.synced))

    def answered(self, feeder: Feeder, number: int) -> None:
        if feeder.incarnation in self.book.electable:
            self.electing.heard_from(feeder.replica)
        self.rounds.answered(feeder, number)

    def matched(self, feeder: Feeder, at: Vlsn) -> None:
        self.holds.matched(feeder.replica, feeder.incarnation, at)

    def switched(self, feeder: Feeder, mode: Mode) -> None:
        self.member.event("feed.mode", replica=feeder.replica, mode=mode, at=feeder.sent)

    def hold_dropped(self, replica: str, first: Vlsn) -> None:
        """Stops the feed of a replica that is too far behind: cleaning no longer keeps the log for it."""
        if replica in self.feeders:
            self.end_feeds_of([replica], overtaken(replica, first))

    def past_syncup(self, feeder: Feeder) -> None:
        self.handing_over.acked()
        self._count_present()
        self.rounds.fed(feeder)
        self.member.event("feed.start", replica=feeder.replica, after=feeder.sent)


def leading_of(member: Member) -> Leading | None:
    """Returns the leading role, from the start of the attempt to lead. Returns None in any other role."""
    role = member.role
    return role if isinstance(role, Leading) else None


def lead_of(member: Member) -> Leading:
    """Returns the leading role while this node is the master. Raises ``NotMaster``."""
    leading = leading_of(member)
    if leading is None or not member.is_master():
        raise NotMaster("this node is not the master")
    return leading
