"""Leading: the role of the master.

Until elections exist the first member by name is the master:

    1  an empty log is founded (``founding``); a log that does not list this incarnation leads nobody
    2  below its vote floor it seals nothing until every member has told its end, and does not lead if one
       is further: what this node once acknowledged may be there and no longer here
    3  it takes a new term, stored and synced, and seals its TERM entry
    4  it takes appends, feeds replicas and counts what they have synced, until something ends its lead

The lead ends for good (until a person restarts it) when a replica turns out to have blocks that this log
does not: a fixed master orders no rollback.  When it ends, what was queued fails as ``NotMaster``, what was
sealed as ``OutcomeUnknown``, and every feed with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feeder.acks import majority
from feeder.feeder import Diverged, Feeder, Messages
from repl import founding
from repl.api import Acks, Done, FeedHello
from repl.appends import Append, AppendBook
from repl.cleaning import FeederHolds, overtaken
from repl.founding import Found, Wait
from repl.offload import settle
from repl.once import Once, ProducerAppend
from repl.peers import ask_all
from vlsn.block import EntryKind
from vlsn.errors import (
    ChannelClosed,
    DuplicateFeed,
    Halted,
    InsufficientReplicas,
    NotListed,
    NotMaster,
    OutcomeUnknown,
    QueueFull,
    StaleTerm,
    TooLarge,
    VlsnLogError,
    WrongIncarnation,
    WrongName,
)
from vlsn.ids import Incarnation, NodeName, Term, Vlsn
from vlsn.queued import Pending
from vlsn.records import TermEntry
from vlsn.seal import Submission
from vlsn.seams import Channel
from vlsn.stream import Ack

if TYPE_CHECKING:
    from repl.node import Node

ASK_AGAIN_S = 0.3
DTVLSN_DELAY_S = 0.02
"""How soon after the DTVLSN moved it is told on quiet feeds; on busy ones the next blocks tell it."""
TICK_S = 0.1
"""How often the node calls ``tick``."""


class Leading:
    """One lead of this node.  ``run`` returns never; it raises what ended the lead."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.log = node.opened()
        self.own = Incarnation(node.incarnation)
        self.feeders: dict[str, Feeder] = {}
        self.book: AppendBook | None = None
        self.once = Once(self.log, self._repeat)
        self.messages = Messages()
        self.holds = FeederHolds(self.log, node.name, self._hold_dropped)
        self._tasks: dict[Feeder, asyncio.Task[None]] = {}
        self._present = 0
        self._telling: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        log = self.log
        found = await self._found() if not log.allocated else None
        if found is None:
            await self._wait_until_listed()
            await self._wait_above_floor()
        term = found.term if found is not None else Term(max(log.node_file.record.term, log.history.last_term) + 1)
        await self.node.store_term(term)
        try:
            await self._lead(term, found)
        finally:
            self._end()

    # Before.

    async def _found(self) -> Found | None:
        """The decision to found, or None once this log is not empty any more."""
        node = self.node
        members = node.config.members
        while True:
            answers = await ask_all(node, founding.FOUNDING, members)
            record = self.log.node_file.record
            match founding.decide(node.config.group, members, answers, stored_term=Term(record.term)):
                case Found() as found:
                    node.event("founding", term=found.term, members=",".join(members))
                    return found
                case Wait(reason):
                    node.set_state("UNKNOWN", reason)
            await asyncio.sleep(ASK_AGAIN_S)

    async def _wait_until_listed(self) -> None:
        while founding.listed_incarnation(self.log.history.group, self.node.name) != self.own:
            self.node.set_state("UNKNOWN", "not-listed: the group in this log does not list this incarnation")
            await asyncio.sleep(1.0)

    async def _wait_above_floor(self) -> None:
        node, log = self.node, self.log
        while True:
            record = log.node_file.record
            own = (log.history.last_term, log.range.last)
            if (record.floor_term, record.floor_vlsn) <= own or log.range.last >= record.floor_vlsn:
                return
            others = [name for name in node.config.members if name != node.name]
            answers = await ask_all(node, founding.DISCOVERY, others)
            further = founding.further(own, answers)
            if further is not None:
                node.set_state("UNKNOWN", f"below-floor: {further} has more of the log than this node")
            elif len(answers) < len(others):
                silent = ", ".join(name for name in others if name not in answers)
                node.set_state("UNKNOWN", f"below-floor: waits for {silent} to tell the end of its log")
            else:
                return
            await asyncio.sleep(ASK_AGAIN_S)

    # The lead.

    async def _lead(self, term: Term, found: Found | None) -> None:
        node, log = self.node, self.log
        self.book = AppendBook(
            self.own,
            term,
            on_durable=self._durable_rose,
            clock=node.seams.clock.monotonic_s,
            seconds=node.append_seconds,
        )
        entry = TermEntry(term=term, master=node.name, incarnation=f"{self.own:016x}").encode()
        sealed: asyncio.Future[Vlsn] = asyncio.get_running_loop().create_future()
        start = Vlsn(log.allocated + 1)
        log.start_sealing(term)
        kinds, values = [EntryKind.TERM], [entry]
        if found is not None:
            kinds, values = [EntryKind.TERM, EntryKind.GROUP], [entry, found.group.encode()]
        log.append_entries(kinds, values, settle(sealed))
        self.book.set_group(founding.electable_incarnations(log.history.group), start)
        await sealed
        # The group that this very block founded is in the log now, and counts.
        self.book.set_group(founding.electable_incarnations(log.history.group), start)
        self.book.note(self.own, log.range.last_sync)
        assert log.history.group is not None
        self.holds.hold_all(log.history.group)
        node.set_state("MASTER")
        node.event("leads", term=term, first=start)
        asking = asyncio.create_task(self._ask_those_without_feed(), name="ask")
        try:
            await self._ended
        finally:
            asking.cancel()

    async def _ask_those_without_feed(self) -> None:
        """An empty member takes its first feed only from the process that asked it last: a founder that died
        between its first block and that feed has to ask once more."""
        asked: set[NodeName] = set()
        while True:
            missing = [name for name in self.node.config.members if name not in self.feeders and name not in asked]
            answers = await ask_all(self.node, founding.FOUNDING, (name for name in missing if name != self.node.name))
            asked.update(answers)
            await asyncio.sleep(1.0)

    def _end(self) -> None:
        if self.node.state == "MASTER":
            self.node.set_state("UNKNOWN", "stopped leading")
        self.holds.release()
        if self._telling is not None:
            self._telling.cancel()
        for task in self._tasks.values():
            task.cancel()
        if self.log.failure is None and not self.log.closed:
            self.log.stop_sealing(NotMaster("this node has stopped leading; nothing of this append was logged"))
        if self.book is not None:
            self.book.fail(lambda: OutcomeUnknown("this node stopped leading before the append was acknowledged"))

    # Appends.

    def submit(self, submission: Submission, acks: Acks, done: Done, born: int | None = None) -> Append:
        log = self.log
        if log.overloaded:
            raise QueueFull(f"{log.queue_length} entries already wait to be logged")
        if acks is not Acks.NONE:
            self._check_replicas(acks)
        now = self.node.seams.clock.monotonic_s()
        named = submission.producer != 0
        append = (
            ProducerAppend(self.once, submission, acks, done, now) if named else Append(submission, acks, done, now)
        )
        if append.cost > log.entry_bytes_max:
            raise TooLarge(f"{append.cost} bytes of entries do not fit a segment of {log.options.segment_bytes}")
        if isinstance(append, ProducerAppend):
            self.once.submit(append, born)
        else:
            log.append(append)
        return append

    def _repeat(self, append: Append) -> None:
        """It is in the log already; answered never from within its submission."""
        assert self.book is not None
        self.book.repeat(append, durable=self.log.dtvlsn)
        asyncio.get_running_loop().call_soon(self.book.release_repeats)

    def _check_replicas(self, acks: Acks) -> None:
        assert self.book is not None
        total = len(self.book.electable)
        needed = (majority(total) if acks is Acks.MAJORITY else total) - 1
        if self._present < needed:
            raise InsufficientReplicas(f"{self._present} replicas are connected, acks={acks} needs {needed}")

    def sealed(self, pendings: list[Pending]) -> None:
        assert self.book is not None
        self.book.sealed(pendings)
        self.once.sealed(pendings)

    def synced(self, last_vlsn: Vlsn) -> None:
        for feeder in self.feeders.values():
            feeder.synced()
        if self.book is not None:
            self.book.note(self.own, last_vlsn)

    def _durable_rose(self, durable: Vlsn) -> None:
        self.log.raise_dtvlsn(durable)
        self.node.durable_rose()
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(DTVLSN_DELAY_S, self._tell_dtvlsn)

    def _tell_dtvlsn(self) -> None:
        self._telling = None
        for feeder in self.feeders.values():
            feeder.tell_dtvlsn()

    def tick(self) -> None:
        for feeder in self.feeders.values():
            feeder.silent_ticks += 1
        self._count_present()
        if self._ended.done() is False and self.book is not None and self.log.failure is not None:
            self._ended.set_exception(self.log.failure)

    def _count_present(self) -> None:
        book = self.book
        if book is None:
            return
        silent_max = self.node.config.election_timeout_s / TICK_S
        self._present = sum(
            feeder.streaming and feeder.incarnation in book.electable and feeder.silent_ticks <= silent_max
            for feeder in self.feeders.values()
        )

    # Feeds.

    def check_feed(self, hello: FeedHello) -> None:
        log = self.log
        if self.node.state != "MASTER":
            raise NotMaster("this node is not leading yet")
        if hello.node not in self.node.config.members or hello.node == self.node.name:
            raise WrongName(f"{hello.node} is no member that this node feeds")
        if hello.to_incarnation is not None and hello.to_incarnation != self.own:
            raise WrongIncarnation(f"this node is incarnation {self.own:016x}, not {hello.to_incarnation:016x}")
        live = self.feeders.get(hello.node)
        listed = founding.listed_incarnation(log.history.group, hello.node)
        if live is not None and live.incarnation != hello.incarnation:
            raise DuplicateFeed(f"{hello.node} is fed already, as incarnation {live.incarnation:016x}")
        if listed is None:
            raise NotListed(f"the group does not list {hello.node}")
        if listed != hello.incarnation:
            raise NotListed(f"the group lists {hello.node} as incarnation {listed:016x}, not {hello.incarnation:016x}")
        if hello.term > log.node_file.record.term:
            raise StaleTerm(f"{hello.node} has stored term {hello.term}, this master leads {log.node_file.record.term}")

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
        except* Diverged as errors:
            why = str(errors.exceptions[0])
            self._diverged(why)
        except* (VlsnLogError, OSError) as errors:
            why = f"{type(errors.exceptions[0]).__name__}: {errors.exceptions[0]}"
        finally:
            del self._tasks[feeder]
            if self.feeders.get(hello.node) is feeder:
                del self.feeders[hello.node]
            self._count_present()
            self.node.event("feed.end", replica=hello.node, why=why)

    def _diverged(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(Halted(f"diverged: {why}. Compare the copies with 'vlsnlog audit'"))

    def acknowledged(self, feeder: Feeder, ack: Ack) -> None:
        assert self.book is not None
        self.book.note(Incarnation(feeder.incarnation), Vlsn(ack.synced))
        self.holds.acknowledged(feeder.replica, Vlsn(ack.synced))

    def matched(self, feeder: Feeder, at: Vlsn) -> None:
        self.holds.matched(feeder.replica, at)

    def _hold_dropped(self, replica: str, first: Vlsn) -> None:
        """It lies too far behind for the others to wait for it."""
        why = overtaken(replica, first)
        self.node.event("hold.dropped", owner="feeder", replica=replica, first=first)
        feeder = self.feeders.get(replica)
        if feeder is not None:
            feeder.end(why)
            self._tasks[feeder].cancel()

    def past_syncup(self, feeder: Feeder) -> None:
        self._count_present()
        self.node.event("feed.start", replica=feeder.replica, after=feeder.sent)
