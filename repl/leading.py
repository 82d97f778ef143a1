"""Leading: the role of the master.

    1  its term was won (``electing``) or founded, is stored and synced; it seals its TERM entry, and with it the
       GROUP that it founds
    2  it takes appends, feeds replicas and counts what they have synced, until something ends its lead

A replica's blocks that this log does not have are rolled back there: they were never durable.  When the lead ends, what
was queued fails as ``NotMaster``, what was sealed as ``OutcomeUnknown``, and every feed with it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from feeder.acks import majority
from feeder.feeder import Feeder, Messages
from feeder.source import Mode
from repl import founding
from repl.api import Acks, Done, FeedHello
from repl.appends import Append, AppendBook
from repl.catching_up import CatchingUp
from repl.changing import Changes
from repl.cleaning import FeederHolds, overtaken
from repl.founding import Found
from repl.gate import Gate
from repl.images import NOTHING, Told
from repl.offload import settle
from repl.once import Once, ProducerAppend
from repl.peers import ask_all, ask_to_stand
from repl.read_index import LeadersRounds
from vlsn.block import EntryKind
from vlsn.errors import (
    BadArgument,
    ChannelClosed,
    DuplicateFeed,
    InsufficientReplicas,
    NotListed,
    NotMaster,
    OutcomeUnknown,
    QueueFull,
    StaleTerm,
    TooLarge,
    Unreachable,
    VlsnLogError,
    WrongIncarnation,
    WrongName,
)
from vlsn.ids import NULL_VLSN, Incarnation, NodeName, Term, Vlsn
from vlsn.queued import Pending
from vlsn.records import TermEntry
from vlsn.seal import Submission
from vlsn.seams import Channel
from vlsn.stream import Ack

if TYPE_CHECKING:
    from repl.node import Node

HAND_OVER_S = 2.0
SETTLE_S = 1.0
"""How long a new lead holds appends back for replicas that have yet to come, before it refuses them."""
MAKE_WAY_S = 0.5
"""How often a master looks whether it is without space."""
DTVLSN_DELAY_S = 0.02
"""How soon after the DTVLSN moved it is told on quiet feeds; on busy ones the next blocks tell it."""
TICK_S = 0.1
"""How often the node calls ``tick``."""


class Leading:
    """One lead of this node, of ``term``.  ``run`` never returns; it raises what ended the lead, or is cancelled."""

    def __init__(self, node: Node, term: Term, found: Found | None = None) -> None:
        self.node = node
        self.term = term
        self._founds = found
        self.log = node.opened()
        self.own = Incarnation(node.incarnation)
        self.feeders: dict[str, Feeder] = {}
        self.catching_up: defaultdict[str, CatchingUp] = defaultdict(CatchingUp)
        """By replica."""
        self.book: AppendBook | None = None
        self.start: Vlsn = NULL_VLSN
        """The first VLSN of this term."""
        self.changes = Changes(self)
        self.once = Once(self.log, self._repeat, self._lacks)
        self.messages = Messages()
        self.rounds = LeadersRounds(self)
        self.holds = FeederHolds(self.log, node.name, self._hold_dropped)
        self._tasks: dict[Feeder, asyncio.Task[None]] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self.present = 0
        """Replicas that count for ``insufficient-replicas``."""
        self.handing_over: NodeName | None = None
        self._holds_back = False
        self._gate = Gate(self._put)
        self._settling = True
        self._acked = asyncio.Event()
        self._over = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            await self._lead()
        finally:
            self._end()

    async def over(self, why: str) -> None:
        """``run`` has ended: this term is never sealed in again."""
        assert self.node.electing is not None
        await self.node.electing.resign(self.term, why)

    # The lead.

    async def _lead(self) -> None:
        node, log, term = self.node, self.log, self.term
        if node.electing is None or node.electing.leads != term:
            raise NotMaster(f"term {term} was over before this node led it")
        self.book = AppendBook(
            self.own,
            term,
            on_durable=self._durable_rose,
            clock=node.seams.clock.monotonic_s,
            seconds=node.append_seconds,
        )
        entry = TermEntry(term=term, master=node.name, incarnation=f"{self.own:016x}").encode()
        sealed: asyncio.Future[Vlsn] = asyncio.get_running_loop().create_future()
        self.start = start = Vlsn(log.allocated + 1)
        log.start_sealing(term)
        kinds, values = [EntryKind.TERM], [entry]
        if self._founds is not None:
            kinds, values = [EntryKind.TERM, EntryKind.GROUP], [entry, self._founds.group.encode()]
        log.append_entries(kinds, values, settle(sealed))
        if self._founds is not None:
            await sealed  # the group that this very block founds is in the log then, and counts
        self.changes.follow()
        self.book.note(self.own, log.range.last_sync)
        node.set_state("MASTER")
        node.event("leads", term=term, first=start)
        node.master_is(node.config.name, term)
        asyncio.get_running_loop().call_later(SETTLE_S, self._settled)
        asking = asyncio.create_task(self._ask_those_without_feed(), name="ask")
        making_way = asyncio.create_task(self._make_way(), name="make way")
        changing = asyncio.create_task(self.changes.run(), name="changes")
        try:
            await self._ended
        finally:
            for task in (asking, making_way, changing):
                task.cancel()

    async def _ask_those_without_feed(self) -> None:
        """An empty member takes its first feed only from the process that asked it last: a founder that died
        between its first block and that feed has to ask once more."""
        asked: set[NodeName] = set()
        while True:
            missing = [name for name in self.node.members if name not in self.feeders and name not in asked]
            answers = await ask_all(self.node, founding.FOUNDING, (name for name in missing if name != self.node.name))
            asked.update(answers)
            await asyncio.sleep(1.0)

    def _end(self) -> None:
        self._over.set()
        self.rounds.close()
        if self.node.state == "MASTER":
            self.node.set_state("UNKNOWN", "stopped leading")
        self._gate.refuse(lambda: NotMaster("this node has stopped leading; nothing of this append was logged"))
        self.holds.release()
        if self._telling is not None:
            self._telling.cancel()
        for task in self._tasks.values():
            task.cancel()
        if self.log.failure is None and not self.log.closed:
            self.log.stop_sealing(NotMaster("this node has stopped leading; nothing of this append was logged"))
        self.changes.end()
        for incarnation in self.book.synced if self.book is not None else ():
            self.node.heard.note(incarnation, self.heard_of(incarnation))
        if self.book is not None:
            self.book.fail(lambda: OutcomeUnknown("this node stopped leading before the append was acknowledged"))

    # Handing over.

    async def hand_over(self, to: NodeName | None) -> NodeName:
        """Moves mastership to ``to``, or to the replica that is furthest: holds appends back until it has all of the
        log and has been elected, and goes on by itself if that takes longer than ``HAND_OVER_S``.  Its name.
        Raises ``BadArgument`` for a name that may not lead, ``Unreachable`` when it did not take over."""
        if self.handing_over is not None:
            raise NotMaster(f"this node is handing over to {self.handing_over} already")
        self.handing_over = to or NodeName("whoever is furthest")
        try:
            async with asyncio.timeout(HAND_OVER_S):
                return await self._hand_over(to)
        except TimeoutError:
            raise Unreachable(f"{self.handing_over} has not taken over within {HAND_OVER_S} s") from None
        finally:
            self.handing_over = None
            self._holds_back = False
            self._open_gate()

    async def _hand_over(self, to: NodeName | None) -> NodeName:
        while (feeder := self._heir(to)) is None or self.log.queue_length or feeder.acked < self.log.allocated:
            self._holds_back = feeder is not None  # nobody waits for one that is not there yet
            self._open_gate()
            self._acked.clear()
            await self._acked.wait()
        self._holds_back = True
        name = self.handing_over = NodeName(feeder.replica)
        self.node.event("hands_over", to=name, term=self.term)
        await ask_to_stand(self.node, name, self.term)
        await self._over.wait()
        return name

    async def _make_way(self) -> None:
        """A master without space hands over to a replica that has some; where none has, it goes on serving."""
        while True:
            await asyncio.sleep(MAKE_WAY_S)
            if not self.log.no_space or self.handing_over is not None:
                continue
            answers = await ask_all(self.node, founding.DISCOVERY, [NodeName(name) for name in self.feeders])
            able = [name for name, answer in answers.items() if not answer.no_space and name in self.feeders]
            if not able:
                continue
            try:
                await self.hand_over(max(able, key=lambda name: self.feeders[name].acked))
            except VlsnLogError as error:
                self.node.event("hand_over.failed", why=str(error))

    def _heir(self, to: NodeName | None) -> Feeder | None:
        """Who would lead next; None while it is not fed.  Raises ``BadArgument`` for a name that may not lead."""
        group = self.log.history.group
        assert self.book is not None and group is not None
        able = {member.name for member in group.members if member.electable and member.name != self.node.name}
        if to is not None and to not in able:
            raise BadArgument(f"{to} is no member that may lead; one of {', '.join(sorted(able)) or 'nobody'} may")
        fed = [each for each in self.feeders.values() if each.streaming and each.incarnation in self.book.electable]
        fed = [feeder for feeder in fed if to in (None, feeder.replica)]
        return max(fed, key=lambda feeder: feeder.acked, default=None)

    # Appends.

    def submit(self, submission: Submission, acks: Acks, done: Done, born: int | None = None) -> Append:
        log = self.log
        why = self._must_wait(acks)
        if log.overloaded:
            raise QueueFull(f"{log.queue_length} entries already wait to be logged")
        now = self.node.seams.clock.monotonic_s()
        named = submission.producer != 0
        append = (
            ProducerAppend(self.once, submission, acks, done, now) if named else Append(submission, acks, done, now)
        )
        if append.cost > log.entry_bytes_max:
            raise TooLarge(f"{append.cost} bytes of entries do not fit a segment of {log.options.segment_bytes}")
        if why:
            self._gate.hold(append, born, why)
        else:
            self._put(append, born)
        return append

    def _put(self, append: Append, born: int | None) -> None:
        if isinstance(append, ProducerAppend):
            self.once.submit(append, born)
        else:
            self.log.append(append)

    def _lacks(self, append: Append, error: VlsnLogError) -> None:
        """What it follows on is not in this log."""
        refusal = asyncio.create_task(self._refuse(append, error), name="refusal")
        self._refusals.add(refusal)
        refusal.add_done_callback(self._refusals.discard)

    async def _refuse(self, append: Append, error: VlsnLogError) -> None:
        """For good, so only once a majority has confirmed that this node leads: one that was unseated and does not know
        it yet lacks what its successor has."""
        try:
            await self.rounds.index()
        except VlsnLogError as unseated:
            append.settle(unseated)
        else:
            append.settle(error)

    def _must_wait(self, acks: Acks) -> str:
        """Why an append is held back for now, if it is.  Raises ``InsufficientReplicas``."""
        if self._holds_back:
            return f"this node is handing over to {self.handing_over}; try again"
        lacking = self._lacking(acks)
        if lacking and not self._settling:
            raise InsufficientReplicas(lacking)
        return lacking or ("appends before this one wait for replicas; try again" if self._gate else "")

    def _open_gate(self) -> None:
        """What held appends back may be over."""
        if self._gate and not self._holds_back and self.book is not None and not self._over.is_set():
            self._gate.release(lambda append: not self._lacking(append.acks))
            if not self._settling:
                self._gate.refuse(lambda: InsufficientReplicas("the replicas that its acks need have not come"))

    def _settled(self) -> None:
        self._settling = False
        self._open_gate()

    def _repeat(self, append: Append) -> None:
        """It is in the log already; answered never from within its submission."""
        assert self.book is not None
        self.node.duplicate_appends += 1
        self.book.repeat(append, durable=self.log.dtvlsn)
        asyncio.get_running_loop().call_soon(self.book.release_repeats)

    def _lacking(self, acks: Acks) -> str:
        """What is missing for ``acks``, "" for nothing."""
        assert self.book is not None
        if acks is Acks.NONE:
            return ""
        total = len(self.book.electable)
        needed = (majority(total) if acks is Acks.MAJORITY else total) - (self.own in self.book.electable)
        return f"{self.present} replicas are connected, acks={acks} needs {needed}" if self.present < needed else ""

    def sealed(self, pendings: list[Pending]) -> None:
        assert self.book is not None
        self.book.sealed(pendings)
        self.once.sealed(pendings)

    def handed_over(self) -> None:
        if self.book is not None and self.log.history.group is not None:
            self.changes.follow()
        for feeder in self.feeders.values():
            feeder.handed_over()

    def synced(self, last_vlsn: Vlsn) -> None:
        for feeder in self.feeders.values():
            feeder.synced()
        if self.book is not None:
            self.book.note(self.own, last_vlsn)

    def _durable_rose(self, durable: Vlsn) -> None:
        self.log.raise_dtvlsn(durable)
        self.changes.durable_rose(durable)
        self.node.durable_rose()
        self.rounds.durable_rose()
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(DTVLSN_DELAY_S, self._tell_dtvlsn)

    def _tell_dtvlsn(self) -> None:
        self._telling = None
        for feeder in self.feeders.values():
            feeder.tell_dtvlsn()

    def tick(self) -> None:
        now, last = self.node.seams.clock.monotonic_s(), self.log.range.last
        for feeder in self.feeders.values():
            feeder.silent_ticks += 1
            self.catching_up[feeder.replica].note(now, feeder.acked, last)
        self._count_present()
        if self._ended.done() is False and self.book is not None and self.log.failure is not None:
            self._ended.set_exception(self.log.failure)

    def _count_present(self) -> None:
        book = self.book
        if book is None:
            return
        self.present = sum(
            feeder.incarnation in book.electable and self.hears(feeder) for feeder in self.feeders.values()
        )
        self._open_gate()

    def hears(self, feeder: Feeder) -> bool:
        """Its replica is past syncup, and has answered within an election timeout."""
        return feeder.streaming and feeder.silent_ticks <= self.node.config.election_timeout_s / TICK_S

    # Feeds.

    def check_feed(self, hello: FeedHello) -> None:
        log = self.log
        if self.node.state != "MASTER":
            raise NotMaster("this node is not leading yet")
        if hello.node == self.node.name:
            raise WrongName(f"{hello.node} is this node's own name")
        if hello.to_incarnation is not None and hello.to_incarnation != self.own:
            raise WrongIncarnation(f"this node is incarnation {self.own:016x}, not {hello.to_incarnation:016x}")
        live = self.feeders.get(hello.node)
        if founding.listed_incarnation(log.history.group, hello.node) is None:
            raise NotListed(f"the group does not list {hello.node}")
        if live is not None and live.incarnation != hello.incarnation:
            if not self.hears(live) and live.streaming:
                self._tasks[live].cancel()  # half open: another store has come in its place
            raise DuplicateFeed(f"{hello.node} is fed already, as incarnation {live.incarnation:016x}")
        if hello.term > self.term:
            assert self.node.electing is not None
            self.node.electing.saw(hello.term)
            raise StaleTerm(f"{hello.node} has stored term {hello.term}, this master leads {self.term}")

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        before = self.feeders.get(hello.node)
        if before is not None:
            self._tasks[before].cancel()  # the same incarnation again: the old one is half open
        assert self.book is not None
        feeder = Feeder(
            replica=hello.node,
            incarnation=hello.incarnation,
            term=self.book.term,
            log=self.log,
            channel=channel,
            owner=self,
            offload=self.node.feed_offload,
            heartbeat_s=self.node.config.heartbeat_s,
            listed=founding.listed_incarnation(self.log.history.group, hello.node) == hello.incarnation,
        )
        task = asyncio.current_task()
        assert task is not None
        self.feeders[hello.node] = feeder
        self._tasks[feeder] = task
        why = "closed"
        try:
            await feeder.run()
        except* (ChannelClosed, TimeoutError) as errors:
            why = str(errors.exceptions[0])
        except* (VlsnLogError, OSError) as errors:
            why = f"{type(errors.exceptions[0]).__name__}: {errors.exceptions[0]}"
        finally:
            del self._tasks[feeder]
            if self.feeders.get(hello.node) is feeder:
                del self.feeders[hello.node]
            self._count_present()
            self.node.event("feed.end", replica=hello.node, why=why)

    def acknowledged(self, feeder: Feeder, ack: Ack) -> None:
        assert self.book is not None and self.node.electing is not None
        if feeder.incarnation in self.book.electable:
            self.node.electing.heard_from(feeder.replica)
        self._acked.set()
        self.book.note(Incarnation(feeder.incarnation), Vlsn(ack.synced))
        self.holds.acknowledged(feeder.replica, Vlsn(ack.synced))

    def answered(self, feeder: Feeder, number: int) -> None:
        assert self.node.electing is not None and self.book is not None
        if feeder.incarnation in self.book.electable:
            self.node.electing.heard_from(feeder.replica)
        self.rounds.answered(feeder, number)

    def heard_of(self, incarnation: int) -> Told:
        """What it has acknowledged in this term."""
        synced = self.book.synced.get(Incarnation(incarnation)) if self.book is not None else None
        return Told(0, self.term, synced) if synced is not None else NOTHING

    def end_feeds_of(self, names: list[str], why: VlsnLogError) -> None:
        for name in names:
            feeder = self.feeders[name]
            feeder.end(why)
            self._tasks[feeder].cancel()

    def matched(self, feeder: Feeder, at: Vlsn) -> None:
        self.holds.matched(feeder.replica, at)

    def switched(self, feeder: Feeder, mode: Mode) -> None:
        self.node.event("feed.mode", replica=feeder.replica, mode=mode, at=feeder.sent)

    def _hold_dropped(self, replica: str, first: Vlsn) -> None:
        """It lies too far behind for the others to wait for it."""
        why = overtaken(replica, first)
        self.node.event("hold.dropped", owner="feeder", replica=replica, first=first)
        if replica in self.feeders:
            self.end_feeds_of([replica], why)

    def past_syncup(self, feeder: Feeder) -> None:
        self._acked.set()
        self._count_present()
        self.rounds.fed(feeder)
        self.node.event("feed.start", replica=feeder.replica, after=feeder.sent)
