"""Following: the role of a replica.

    find the master ─► WS /v1/feed ─► syncup ─► blocks in, acknowledgements out ─► (the feed stops) ─► again, for ever

To find the master, a replica asks all members at once. The first one that answers as master, in a term not below the
stored term, is the master. If every answering master has a lower term, one of them learns the stored term and steps
down. An empty node accepts its first feed only from the incarnation (store) and process to which it last reported that
it is empty.

Each try waits up to half a second; after a feed that has streamed, the waits start over. Some refusals do not end by
themselves (not listed, no VLSN in common). A refusal that does not end by itself is shown as the reason of the node's
state. The node still tries again, because a person or the group may remove the cause. If a block differs from the
master's, the members' copies decide (``integrity``). A rollback of durable entries halts the node.
"""

from __future__ import annotations

import asyncio
from functools import partial

from repl.api import FeedHello
from repl.elect.electing import Electing
from repl.events import expected_if
from repl.group import founding
from repl.group.claims import TERMS_AHEAD_MAX
from repl.group.feed_hello import encode_hello
from repl.group.founding import Answer
from repl.group.member import OpenMember
from repl.group.peers import ask
from repl.group.replica_lag import ReplicaLag
from repl.group.role import Role
from repl.read.reads import Reads
from repl.repair.integrity import agree_where_durable, resolve
from repl.repair.restoring import Restoration
from repl.web.types import GOING_AWAY
from replica.feed import FeedRejected, ReplicaFeed
from vlsn.errors import (
    BadBody,
    ChannelClosed,
    Damaged,
    FeedRefused,
    Halted,
    IntegrityFault,
    NotListed,
    NotMaster,
    StaleTerm,
    Trimmed,
    Unreachable,
    VlsnLogError,
    bare,
)
from vlsn.format.feed_messages import MESSAGE_BYTES_MAX, Position
from vlsn.ids import Incarnation, NodeName, Term, Vlsn
from vlsn.recover.vote_floor import is_below_floor
from vlsn.seams import Channel

MASTERLESS_S = 30.0
"""The seconds for which it needs no look that this node finds no master: a start, a hand-over or an election may last
so long."""
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 0.5
FIND_TIMEOUT_S = 2.0
DAMAGED_SYNCUPS_MAX = 10
"""After this many consecutive syncups (comparisons of logs) that ended because this node's own log cannot be read, the
log is restored. The entries to roll back may be unreadable, and no peer has them."""
_Again = (Unreachable, FeedRefused, NotMaster, ChannelClosed, BadBody, OSError, TimeoutError)


class Following(Role):
    """One period of following a master. ``master`` is the node that feeds this node, or the last one that did."""

    def __init__(self, opened: OpenMember, electing: Electing, reads: Reads, restoration: Restoration) -> None:
        self._opened = opened
        self.member = opened.member
        self.log = opened.log
        self._electing = electing
        self._reads = reads
        self._restoration = restoration
        self.master: NodeName | None = None
        self.feed: ReplicaFeed | None = None
        self.reason = ""
        self._has_fault = False
        """True if a member's fault in the last search needs a look."""
        self._expected = False
        """True if the reason needs no look (``_is_expected``)."""
        self.feeds = 0
        self.unlisted_by: set[NodeName] = set()
        """The nodes that answered, in the last search, that the group no longer lists this node."""
        self.catching_up = ReplicaLag()
        self._tries = 0
        self._damaged_syncups = 0
        self._called: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def master_url(self) -> str | None:
        """The URL to which appends go while this node follows a master; otherwise None."""
        streaming = self.feed is not None and self.feed.streaming
        return self.member.members.urls.get(self.master) if streaming and self.master is not None else None

    def streams_in(self, term: Term) -> bool:
        """Returns whether this log agrees with the log of the master of ``term``."""
        return self.feed is not None and self.feed.streaming and self.feed.term == term

    @property
    def taking_feed(self) -> bool:
        return self.feed is not None and not self.feed.streaming

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except _Again as error:
                bare(error)  # drops the error's references to the stopped feed
            await asyncio.wait([self._called], timeout=self._backoff_s())

    def _backoff_s(self) -> float:
        most = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._tries, 10))
        self._tries += 1
        return self.member.seams.random.uniform(most / 2, most)

    def called(self) -> None:
        """Begins the search for a master again at once, because a new master has called this replica."""
        if not self._called.done():
            self._called.set_result(None)

    async def _follow(self) -> None:
        """Follows one feed, from the search for a master to the end of the feed. Always raises."""
        member = self.member
        try:
            answer = await self._find()
            self._check_near(answer)
            channel = await self._connect(answer)
        except (VlsnLogError, OSError, TimeoutError) as error:
            self._stopped(error)
            if isinstance(error, _Again):
                raise
            raise Unreachable(str(error)) from error  # a fault of the master says nothing about this node's own log
        self.master = master = NodeName(answer.name)
        feed = self.feed = ReplicaFeed(
            log=self.log,
            channel=channel,
            store_term=partial(self._electing.take_feed, master),
            roll_back=self._opened.roll_back,
            drained=self._opened.drained,
            offload=member.workers.offload("feeds"),
            on_position=self._on_position,
            on_progress=self._on_progress,
            unsynced_bytes_max=member.config.unsynced_bytes_max,
        )
        self.feeds += 1
        try:
            await feed.run()
        except (BaseExceptionGroup, VlsnLogError, OSError, TimeoutError) as errors:
            first = _first(errors) if isinstance(errors, BaseExceptionGroup) else errors
            if isinstance(first, ChannelClosed) and first.code == GOING_AWAY:
                member.members.has_left(master, member.seams.clock.monotonic_s())
            self._raise(await self._weighed(first))
        finally:
            member.heard = (master, feed.heard_s)
            self.feed = None
            await channel.close()

    async def _find(self) -> Answer:
        """Returns the answer of the member that is the master. A master of a term below the stored term is returned
        only if there is no other. A master of a lower term will refuse the feed, but learn the stored term and step
        down. Raises ``NotMaster``, ``NotListed``, ``WrongVersion``."""
        member = self.member
        loop = asyncio.get_running_loop()
        called = self._called = loop.create_future()
        asked = {
            asyncio.create_task(ask(member, name, url, founding.DISCOVERY)): name
            for name, url in member.members.urls.items()
            if name != member.name
        }
        deadline = loop.time() + FIND_TIMEOUT_S
        said: list[str] = []
        unlisted: set[NodeName] = set()
        behind: Answer | None = None
        self._has_fault = False
        waiting = set(asked)
        try:
            while waiting and not called.done() and (left := deadline - loop.time()) > 0:
                await asyncio.wait({*waiting, called}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                done = {task for task in waiting if task.done()}
                waiting -= done
                for task in sorted(done, key=lambda task: asked[task]):
                    error = task.exception()
                    if error is None and (answer := task.result()).state == "MASTER":
                        if answer.term >= self.log.node_file.record.term:
                            self.unlisted_by = set()
                            return answer
                        behind = answer
                        said.append(f"{asked[task]} leads term {answer.term}, which is over")
                    elif error is not None and not isinstance(error, VlsnLogError | OSError):
                        raise error
                    elif error is None and task.result().state == "HALTED":
                        said.append(f"{asked[task]} is HALTED, its status says why")
                    elif error is not None:
                        self._silent(asked[task], error)
                        self._has_fault |= not member.is_expected(asked[task], error)
                        if isinstance(error, NotListed):
                            unlisted.add(asked[task])
                            self.unlisted_by.add(asked[task])
                        said.append(f"{asked[task]}: {error}")
        finally:
            for task in asked:
                task.cancel()
        self.unlisted_by = unlisted
        if unlisted:
            raise NotListed("; ".join(sorted(said)))
        member.check_listed()
        if behind is not None and not called.done():
            return behind
        member.members.check_strangers()
        raise NotMaster(self._electing.reason or "; ".join(sorted(said)) or "no member leads")

    def _silent(self, name: NodeName, error: BaseException) -> None:
        """Notes a member that does not answer. If its address refuses connections, its process has ended."""
        if isinstance(error, Unreachable) and error.refused:
            self._electing.gone(name)

    def _check_near(self, master: Answer) -> None:
        """Refuses a master whose term is far above this node's term and that no other member names. The election of
        such a master would have needed this node's vote. Raises ``NotMaster``."""
        stored = self.log.node_file.record.term
        if master.term > stored + TERMS_AHEAD_MAX and self.member.members.vouches_for_itself(NodeName(master.name)):
            raise NotMaster(f"{master.name} leads term {master.term}, far above {stored}, and no other member names it")

    async def _connect(self, master: Answer) -> Channel:
        """Opens the channel of a feed. Raises the master's refusal."""
        member = self.member
        incarnation = Incarnation(founding.parse_hex(master.incarnation))
        process = founding.parse_hex(master.process)
        if not self.log.view.allocated and member.founder is not None and member.founder != (incarnation, process):
            raise Unreachable(
                f"{master.name} is not the process that this empty node answered; waiting for that process"
            )
        return await member.calls.connect(
            master.name,
            f"{member.members.urls[NodeName(master.name)]}/v1/feed",
            headers=encode_hello(self._hello(NodeName(master.name), incarnation)),
            message_bytes_max=MESSAGE_BYTES_MAX + 64,
            timeout_s=member.config.connect_timeout_s,
        )

    def _hello(self, to: NodeName, to_incarnation: Incarnation) -> FeedHello:
        record = self.log.node_file.record
        return FeedHello(
            group=self.member.config.group,
            node=self.member.config.name,
            incarnation=Incarnation(record.incarnation),
            to=to,
            to_incarnation=to_incarnation,
            term=Term(record.term),
            process=self.member.process,
            levels=self.member.seams.levels,
        )

    async def _weighed(self, fault: BaseException) -> BaseException:
        """Returns the error to raise in place of ``fault``. A fault that does not end by itself may lead to a restore,
        or halt the node."""
        if self.member.stopping:
            return fault
        try:
            if _is_integrity(fault):
                return Unreachable(await resolve(self.member, self._restoration, getattr(fault, "vlsn", 0), str(fault)))
            why = self._restores_for(fault)
            if why:
                silent = await agree_where_durable(self.member, why)
                self._restoration.want(why, silent=silent)
        except (Halted, Unreachable) as error:
            return error
        return fault

    def _restores_for(self, fault: BaseException) -> str:
        """Returns why ``fault`` requires a restore of this log; "" if another try may succeed."""
        feed = self.feed
        if isinstance(fault, FeedRejected) and fault.reason == Trimmed.slug and feed is not None and not feed.term:
            return f"trimmed: {fault}"
        if isinstance(fault, Damaged) and feed is not None and feed.position is None:
            self._damaged_syncups += 1
            if self._damaged_syncups >= DAMAGED_SYNCUPS_MAX:
                return f"damaged: {self._damaged_syncups} syncups in a row ended so: {fault}"
        return ""

    def _raise(self, error: BaseException) -> None:
        if self.member.stopping:
            raise asyncio.CancelledError from error
        if isinstance(error, Halted | asyncio.CancelledError):
            raise error
        self._stopped(error)
        if isinstance(error, FeedRejected):
            raise Unreachable(f"{error.reason}: {error}") from error
        if isinstance(error, VlsnLogError) and not isinstance(error, _Again):
            raise ChannelClosed(str(error)) from error
        raise error

    def _stopped(self, error: BaseException) -> None:
        if isinstance(error, NotListed):
            self._reads.fail(error)
        slug = error.reason if isinstance(error, FeedRejected) else getattr(error, "slug", "internal")
        reason = f"{slug}: {error}" if slug != "internal" else str(error) or type(error).__name__
        expected = self._is_expected(error)
        if (self.reason, self._expected) != (reason, expected):
            self.member.event("feed.stopped", master=self.master, why=reason, **expected_if(expected))
        self.reason, self._expected = reason, expected
        self.member.set_state("UNKNOWN", reason)

    def _is_expected(self, error: BaseException) -> bool:
        """Returns whether ``error`` needs no look, because it belongs to a start, a hand-over or an election. A master
        whose term ends closes its feeds with ``GOING_AWAY``, and logs the reason itself. A master that was lost, and
        any other refusal of this node, need a look."""
        feed = self.feed
        if self.member.masterless_s >= MASTERLESS_S or (feed is None and self._has_fault):
            return False
        if isinstance(error, ChannelClosed):
            return error.code == GOING_AWAY
        if isinstance(error, FeedRejected):
            return error.reason in (NotMaster.slug, StaleTerm.slug)
        if isinstance(error, NotMaster | StaleTerm):
            return feed is None or feed.position is None
        return feed is None and isinstance(error, Unreachable | OSError) and not getattr(error, "tls", False)

    def _on_position(self, position: Position) -> None:
        assert self.master is not None
        self._electing.heard(self.master, Term(position.term))
        if self.member.state != "REPLICA":
            self._tries = self._damaged_syncups = 0
            self.reason = ""
            self.member.set_state("REPLICA")
            self._taken()
        self._reads.rose()

    def _on_progress(self) -> None:
        assert self.master is not None and self.feed is not None
        self._electing.heard(self.master, self.feed.term)

    def _taken(self) -> None:
        """Notes that a feed has completed its syncup (the comparison of logs)."""
        member, feed = self.member, self.feed
        assert self.master is not None and feed is not None
        member.members.unlisted_by.clear()
        member.master_is(self.master, feed.term)
        member.event("syncup", master=self.master, term=feed.term, at=feed.matchpoint, rolled_back=feed.rolled_back)

    # The node's calls.

    def written(self, last_vlsn: Vlsn) -> None:
        if self.feed is not None:
            self.feed.written()

    def synced(self, last_vlsn: Vlsn) -> None:
        if self.feed is not None:
            self.feed.synced()
        self._reads.rose()  # blocks that come into the ring (recent blocks in memory) may have been durable before

    def tick(self) -> None:
        if self.feed is not None:
            self.feed.tick()
        if self.feed is not None and self.feed.position is not None:
            now = self.member.seams.clock.monotonic_s()
            self.catching_up.note(now, self.log.view.range.last_sync, self.feed.position.last_vlsn)
            self._meet_floor(self.feed.position)

    def _meet_floor(self, position: Position) -> None:
        """Lowers a vote floor that this feed has reached. A vote floor is the end of a log that became shorter. Entries
        above the floor were acknowledged before this feed began: the master of the stored term has them, or they were
        not durable. If the floor were not lowered, it would remain until the next term."""
        log = self.log
        record, last = log.node_file.record, log.view.range.last_sync
        below = is_below_floor(record, (log.view.history.term_of(last), last))
        if below and last >= position.last_vlsn:
            log.promises.meet_floor(Term(position.term))


def _is_integrity(error: BaseException) -> bool:
    """Returns whether the error reports that two copies differ. The difference may have been found by this node or by
    the master."""
    rejected = isinstance(error, FeedRejected) and error.reason == IntegrityFault.slug
    return rejected or isinstance(error, IntegrityFault)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first error that is not a cancellation."""
    for error in errors.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(found, asyncio.CancelledError):
            return found
    return errors.exceptions[0]
