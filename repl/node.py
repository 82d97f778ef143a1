"""A node: one log, one role in its group, one gateway.

    serve HTTP ─► open the log (keeper's thread) ─► role: found, follow, or lead what an election won ─► stop

1. HTTP answers from the start; until the log is open the node is UNKNOWN, reason ``opening``, and serves
   neither reads nor appends.
2. Everything but the workers' jobs runs on the event loop's thread, in tasks that one group owns.
3. A log that fails ends the process (``on_fatal``): after a failed sync the page cache is not to be trusted.
4. A role's faults end the role, never the node: the reason stands in its status, and the next role is tried,
   except DAMAGED and HALTED, which need a person (or, later, a mending peer).
5. Which role it is says ``electing``; ``end_role`` returns when nothing of the one before is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Protocol

from feeder.restore import Restores
from repl import peers
from repl.api import Acks, BlockPage, Done, EntryPage, FeedHello
from repl.appends import Append
from repl.changing import document
from repl.cleaning import Cleaning, told
from repl.config import NodeConfig
from repl.electing import Electing
from repl.events import Events
from repl.following import Following
from repl.founder import Founder
from repl.http.routes import Gateway
from repl.http.types import Listener, Network
from repl.images import Heard, Told, both
from repl.leading import TICK_S, Leading
from repl.membership import read_change
from repl.mending import RETRY_S, ClosedMending, Mending
from repl.metrics import metrics_text
from repl.nodestatus import readiness, status
from repl.offload import Offload, settle, settle_error
from repl.opening import append_limits, open_log
from repl.providing import answer_ask, block_of, make_restores, read_range
from repl.read_index import ReadIndex
from repl.reads import Reads
from repl.restoring import Restoration, RestoreWanted
from repl.returning import Returning
from repl.scrub import Scrub
from repl.segments import SegmentFiles
from vlsn.block import Entry
from vlsn.errors import (
    BadArgument,
    Damaged,
    Halted,
    LogFailed,
    NoSpace,
    NotAllowed,
    NotMaster,
    VlsnLogError,
    WrongGroup,
    WrongName,
)
from vlsn.ids import NULL_VLSN, Incarnation, NodeName, Term, Vlsn
from vlsn.local import LocalLog
from vlsn.queued import Pending
from vlsn.seal import Submission
from vlsn.seams import Channel, Seams, Worker
from vlsn.seconds import Seconds
from vlsn.segment import segment_name
from vlsn.state import Checkpoint

MENDS_BEFORE_RESTORE = 3
"""Tries to mend a log that does not open, each ``RETRY_S`` apart, before it is restored."""
ROLE_RETRY_S = 1.0
CANCEL_AGAIN_S = 0.2
TELL_S = 5.0
"""How often the members tell one another how far they are (``images``)."""
logger = logging.getLogger("vlsnlog")


class Role(Protocol):
    """What a node is at the moment: founding, leading or following."""

    async def run(self) -> None: ...

    def sealed(self, pendings: list[Pending]) -> None: ...

    def handed_over(self) -> None: ...

    def synced(self, last_vlsn: Vlsn) -> None: ...

    def tick(self) -> None: ...


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancels ``task``, more than once: a cancel that meets a task group just as it fails is lost in its error."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_AGAIN_S)


class Node:
    """One node of one group.  ``start`` it, ``stop`` it; ``on_fatal`` hears of an end that it chose itself."""

    def __init__(
        self, config: NodeConfig, seams: Seams, network: Network, *, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self.config = config
        self.seams = seams
        self.network = network
        self.process = seams.random.u64()
        self.events = Events()
        self.master_changes = 0
        self._known_master: tuple[NodeName, int] | None = None
        self.state = "UNKNOWN"
        self.reason = "opening"
        self.log: LocalLog | None = None
        self.reads: Reads | None = None
        self.read_index = ReadIndex(self)
        self.files: SegmentFiles | None = None
        self.cleaning: Cleaning | None = None
        self.restores: Restores | None = None
        """Of peers, from this log."""
        self.restoration = Restoration(self)
        self.closed_mending = ClosedMending(self)
        self.mending: Mending | None = None
        self.scrub: Scrub | None = None
        self.electing: Electing | None = None
        self.role: Role | None = None
        self.may_found = config.first_member == config.name
        """No member is known to hold a log of this group."""
        self._role_task: asyncio.Task[None] | None = None
        self._rolling_back: asyncio.Future[None] | None = None
        self.listener: Listener | None = None
        self.append_seconds = Seconds()
        self.duplicate_appends = 0
        """Submissions of producers that were here before."""
        self._learned: dict[NodeName, str] = {}
        """A master that neither this node's log nor its settings name."""
        self.recognised = False
        """Nobody remembers more of this node than its disk does, as far as somebody was there to be asked."""
        self.heard = Heard()
        """What other nodes have told of themselves in this process's life."""
        self.old_images = 0
        self.readmitted = 0
        """Members that came back as another incarnation and were admitted under their names, by this node."""
        self.founder: tuple[Incarnation, int] | None = None
        """Incarnation and process of whom this node last told that it is empty."""
        self._on_fatal = on_fatal
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: dict[str, Worker] = {}
        self.stopping = False

    # Life.

    async def start(self) -> None:
        """Listens, then opens the log and takes its role in the background.  Raises ``BadArgument`` when the
        address cannot be had."""
        try:
            gateway = Gateway(self, append_limits(self.config))
            self.listener = await self.network.serve(
                self.config.host, self.config.port, gateway.handle, quick=gateway.quick
            )
        except OSError as error:
            raise BadArgument(
                f"cannot listen on {self.config.listen}: {error.strerror or error}; choose another address, or stop "
                "what listens there"
            ) from error
        self._tasks.append(asyncio.create_task(self._live(), name="live"))

    async def stop(self) -> None:
        """A clean stop: a master hands over, the role ends, the log gets its clean checkpoint, everything is closed."""
        self.stopping = True
        role = self.role
        if isinstance(role, Leading) and role.present:
            try:
                await role.hand_over(None)
            except VlsnLogError as error:
                self.event("hand_over.failed", why=str(error))
        under_way = set(self._tasks)
        while under_way:
            # More than once: a cancel that meets a task group just as it fails is lost in the group's error.
            for task in under_way:
                task.cancel()
            _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)
        self.read_index.close(NotMaster("the node is stopping"))
        if self.listener is not None:
            await self.listener.close()
        await self._close_log("the node is stopping")
        await self.restoration.close_log()
        for worker in self._workers.values():
            worker.close()
        await self.network.close()

    async def _live(self) -> None:
        """From the log's opening to the node's end; a log that is to be restored is closed, restored and opened."""
        try:
            for name in ("keeper", "writer", "reads", "feeds", "scrub"):
                self._workers[name] = self.seams.threads.worker(f"vlsnlog-{name}")
            while True:
                await self._live_with_log()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the node's boundary: whatever else ends it ends the process
            self.fatal(error)

    async def _live_with_log(self) -> None:
        """One log's life; returns when another one is to be opened in its place."""
        if await self.restoration.begun():
            await self.restoration.run("a restore that was begun before goes on")
        try:
            await self._open()
        except Damaged as error:
            await self._mend_or_restore(error)
            return
        why = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                assert self.electing is not None
                tasks.create_task(self._tick(), name="tick")
                tasks.create_task(self.electing.run(), name="elections")
                tasks.create_task(self._play(), name="role")
                tasks.create_task(self._tell(), name="tell")
                assert self.cleaning is not None
                tasks.create_task(self.cleaning.run(), name="cleaning")
                assert self.mending is not None and self.scrub is not None
                tasks.create_task(self.mending.run(), name="mending")
                tasks.create_task(self.scrub.run(), name="scrub")
                tasks.create_task(self.restoration.wanted(), name="restore")
        except* RestoreWanted as wanted:
            why = str(wanted.exceptions[0])
        log = self.opened()
        end, durable = (log.history.last_term, log.range.last), log.dtvlsn
        self.restoration.members = self.urls
        await self._close_log(why)
        await self.restoration.run(why, end=end, durable=durable)

    async def _mend_or_restore(self, error: Damaged) -> None:
        """A log that does not open: it is mended from peers; restored where all that it ever held is durable
        elsewhere, or a person asks."""
        self.set_state("DAMAGED", str(error))
        restoration = self.restoration
        asked = asyncio.create_task(restoration.asked(), name="restore")
        durable: Vlsn | None = None
        try:
            for tries in count(1):
                if await self.closed_mending.try_for(error):
                    return
                if tries >= MENDS_BEFORE_RESTORE and (durable := await restoration.lossless()) is not None:
                    restoration.want(f"damaged, and all of it up to VLSN {durable} is durable elsewhere: {error}")
                await asyncio.wait([asked], timeout=RETRY_S)
                if asked.done():
                    break
            why = asked.result()
        finally:
            asked.cancel()
        await restoration.run(why, durable=durable or NULL_VLSN)

    async def _close_log(self, why: str) -> None:
        """A clean stop of the log, if it is open."""
        log = self.log
        if log is None:
            return
        if self.reads is not None:
            self.reads.fail(NotMaster(why))
        if self.restores is not None:
            self.restores.close_all(why)
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.close(partial(settle(closed), None))
        if log.failure is None:
            await closed
        log.node_file.close()
        self.log = self.reads = self.files = self.cleaning = self.restores = self.mending = self.scrub = None
        self.electing = None

    def fatal(self, error: BaseException) -> None:
        """The process must end."""
        self._on_fatal(error)

    async def _open(self) -> None:
        log, recovered = await open_log(
            self.config, self.seams, writer=self.worker("writer"), keeper=self.worker("keeper"), listener=self
        )
        for note in recovered.notes:
            self.event("open", note=note)
        self.log = log
        self.mending, self.closed_mending = Mending(self), ClosedMending(self)
        self.reads = Reads(log, self.offload("reads"))
        self.files = SegmentFiles(log, self.offload("reads"))
        self.restores = make_restores(self)
        self.scrub = Scrub(self)
        self.cleaning = Cleaning(self)
        self.recognised = recovered.empty_store or self._is_alone()
        self.electing = Electing(self)
        self.reason = "starting"
        span = log.range
        self.event("opened", incarnation=f"{self.incarnation:016x}", first=span.first, last=span.last)

    async def _tick(self) -> None:
        assert self.log is not None
        while True:
            await asyncio.sleep(TICK_S)
            self.log.tick()
            if self.role is not None:
                self.role.tick()

    async def _play(self) -> None:
        """One role after another, for as long as the node lives."""
        while not self.stopping:
            role = self.role = self._next_role()
            task = self._role_task = asyncio.create_task(role.run(), name=type(role).__name__)
            try:
                await asyncio.wait([task])
            finally:
                await _ended(task)
                self.role = None
            error = None if task.cancelled() else task.exception()
            if isinstance(role, Leading):
                await role.over("the lead has ended" if error is None else str(error))
            if isinstance(error, Halted):
                self.set_state("HALTED", str(error))
                await asyncio.Event().wait()  # until a person stops it
            if error is not None and not isinstance(error, VlsnLogError):
                raise error
            if error is not None:
                self.set_state("UNKNOWN", str(error))
                await asyncio.sleep(ROLE_RETRY_S)

    def _next_role(self) -> Role:
        electing, log = self.electing, self.log
        assert electing is not None and log is not None
        if electing.leads is not None:
            return Leading(self, electing.leads, electing.founds if not log.allocated else None)
        if not self.recognised:
            return Returning(self)
        return Founder(self) if self.may_found and not log.allocated else Following(self)

    async def end_role(self) -> None:
        """Nothing of the role that played is left on return: its feeds and its sealing have ended."""
        task = self._role_task
        if task is not None:
            await _ended(task)

    def master_is(self, name: NodeName, term: int) -> None:
        """This node leads, or is fed by ``name`` now."""
        known = (name, term)
        if known != self._known_master:
            self.master_changes += self._known_master is not None
            self._known_master = known
            self.event("master", master=name, term=term)

    def set_state(self, state: str, reason: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            self.state, self.reason = state, reason
            self.event("state", state=state, reason=reason)

    def event(self, name: str, **fields: object) -> None:
        """One line of the node's log, and one event to be asked for; the name is one of ``repl.events``."""
        self.events.note(name, self.seams.clock.wall_us(), fields)
        text = " ".join(f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
        logger.info("%s %s %s", self.config.name, name, text)

    # What the roles use.

    def opened(self) -> LocalLog:
        """Raises ``NotMaster`` while the log is not open, ``Damaged`` when it could not be."""
        if self.log is None:
            if self.state == "DAMAGED":
                raise Damaged(self.reason)
            if self.state == "RESTORING":
                raise NotMaster("the node is being restored from a peer")
            raise NotMaster("the node is still opening its log; try again soon")
        return self.log

    def worker(self, name: str) -> Worker:
        """``keeper``, ``writer``, ``reads``, ``feeds`` or ``scrub``."""
        return self._workers[name]

    def offload(self, name: str) -> Offload:
        """To that worker; damage that its jobs meet is mended."""
        return Offload(self.worker(name), self._damage_met)

    def _damage_met(self, error: Damaged) -> None:
        if self.mending is not None:
            self.mending.met(error)

    @property
    def feed_offload(self) -> Offload:
        return self.offload("feeds")

    def on_keeper(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        return Offload(self._workers["keeper"])(job)

    @property
    def urls(self) -> dict[NodeName, str]:
        """Whom this node asks, and where: every member, and who is one by its settings alone.  As configured here,
        else as the group lists it."""
        return {**self._learned, **self.members, **self.config.members}

    def learn(self, master: NodeName, url: str) -> None:
        """A member says who leads, and where; of use where this node knows nothing of that one."""
        if url and master not in {**self.members, **self.config.members}:
            self._learned = {master: url}

    @property
    def members(self) -> dict[NodeName, str]:
        """Who may ask this node: those that its group lists; while it knows none, those that its settings name."""
        group = self.log.history.group if self.log is not None else None
        if group is None:
            return dict(self.config.members)
        return {NodeName(each.name): self.config.members.get(NodeName(each.name), each.url) for each in group.members}

    def _is_alone(self) -> bool:
        """No other member has a vote."""
        group = self.opened().history.group
        others = self.config.members if group is None else [each.name for each in group.members if each.electable]
        return not set(others) - {self.config.name}

    def told(self) -> Told:
        """What this node tells of itself: it never takes it back."""
        log, role = self.opened(), self.role
        record = log.node_file.record
        leads = isinstance(role, Leading) and self.state == "MASTER" and role.term == record.term
        fed = isinstance(role, Following) and role.streams_in(Term(record.term))
        return Told(record.sequence, record.term, log.range.last_sync if leads or fed else 0)

    def heard_of(self, incarnation: int) -> Told:
        heard, role = self.heard.of(incarnation), self.role
        return both(heard, role.heard_of(incarnation)) if isinstance(role, Leading) else heard

    async def _tell(self) -> None:
        """What was told long ago would find no old image out."""
        while True:
            await asyncio.sleep(TELL_S)
            if self.recognised:
                await peers.tell_all(self)

    @property
    def taking_feed(self) -> bool:
        """A feed is in its syncup, or streams."""
        return isinstance(self.role, Following) and self.role.taking_feed

    def called(self) -> None:
        """A member that leads, or founds, has asked for this node."""
        if isinstance(self.role, Following):
            self.role.called()

    def durable_rose(self) -> None:
        if self.reads is not None:
            self.reads.rose()

    # The log's listener.

    def sealed(self, pendings: list[Pending]) -> None:
        assert self.role is not None
        self.role.sealed(pendings)

    def handed_over(self, last_vlsn: Vlsn) -> None:
        if self.role is not None:
            self.role.handed_over()

    def written(self, last_vlsn: Vlsn) -> None:
        pass  # what a node says of its log is synced

    def synced(self, last_vlsn: Vlsn) -> None:
        if self.role is not None:
            self.role.synced(last_vlsn)
        self.durable_rose()

    def failed(self, error: LogFailed) -> None:
        self.fatal(error)

    # NodeApi.

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def group(self) -> str:
        return self.config.group

    @property
    def incarnation(self) -> int:
        log = self.log or self.restoration.log
        return log.node_file.record.incarnation if log is not None else 0

    def status(self) -> dict[str, Any]:
        return status(self)

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        return {"node": self.config.name, **self.events.since(number, limit)}

    def readiness(self) -> list[str]:
        return readiness(self)

    def metrics_text(self) -> bytes:
        return metrics_text(self)

    def is_master(self) -> bool:
        return self.state == "MASTER"

    def master_url(self) -> str | None:
        if self.is_master():
            return self.config.url
        role = self.role
        return role.master_url if isinstance(role, Following) else None

    def master_name(self) -> NodeName | None:
        """Whom this node hears as the master, itself included."""
        if self.is_master():
            return self.config.name
        role = self.role
        return role.master if isinstance(role, Following) and role.master_url is not None else None

    @property
    def lead(self) -> Leading | None:
        """While this node is the master."""
        return self.role if isinstance(self.role, Leading) and self.state == "MASTER" else None

    def dtvlsn(self) -> int:
        return self.reads.durable if self.reads is not None else 0

    def submit(self, submission: Submission, acks: Acks, done: Done, born: int | None = None) -> Append:
        role = self.role
        if not isinstance(role, Leading) or self.state != "MASTER":
            raise NotMaster("this node is not the master")
        return role.submit(submission, acks, done, born)

    async def read(
        self, from_vlsn: int | None, *, limit: int, bytes_max: int, wait_s: float, all_kinds: bool
    ) -> EntryPage:
        return await self._reads().page(from_vlsn, limit=limit, bytes_max=bytes_max, wait_s=wait_s, all_kinds=all_kinds)

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int, wait_s: float) -> BlockPage:
        return await self._reads().blocks(from_vlsn, bytes_max=bytes_max, wait_s=wait_s)

    async def read_one(self, vlsn: int) -> Entry:
        return await self._reads().one(vlsn)

    def check_place(self, vlsn: int, term: int) -> None:
        self._reads().check_place(vlsn, term)

    async def confirm(self, timeout_s: float) -> int:
        self.opened()
        return await self.read_index.confirm(timeout_s)

    async def durable_to(self, vlsn: Vlsn, deadline: float) -> bool:
        """Whether readers here could see ``vlsn`` before ``deadline`` (loop time)."""
        return await self._reads().reached(vlsn, deadline)

    async def peer_read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        self.opened()
        return await self.read_index.answer(body)

    def check_feed(self, hello: FeedHello) -> None:
        role = self.role
        if hello.group != self.config.group:
            raise WrongGroup(f"this node is of group {self.config.group}, not {hello.group}")
        if hello.to != self.config.name:
            raise WrongName(f"this node is {self.config.name}, not {hello.to}")
        if not isinstance(role, Leading):
            raise NotMaster("this node is not the master: it feeds nobody")
        role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        role = self.role
        if isinstance(role, Leading):
            await role.serve_feed(hello, channel)

    async def segments(self) -> list[dict[str, Any]]:
        return self._files().listing()

    def segment_end(self, number: int) -> int:
        return self._files().end(number)

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        return await self._files().read(number, start, end)

    async def checkpoint(self) -> dict[str, Any]:
        log = self.opened()
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.space.look(partial(settle(looked), None))
        await looked
        if log.space.cramped:
            raise NoSpace("the disk has no room for a checkpoint")
        done: asyncio.Future[Checkpoint] = asyncio.get_running_loop().create_future()
        log.checkpointer.run(done=settle(done), failed=settle_error(done))
        checkpoint = await done
        return {
            "node": self.config.name,
            "id": checkpoint.id,
            "last": checkpoint.last_vlsn,
            "dtvlsn": checkpoint.dtvlsn,
        }

    async def rotate(self) -> dict[str, Any]:
        log = self.opened()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        log.rotate("request", settle(done))
        number = await done
        return {"node": self.config.name, "number": number, "file": segment_name(number)}

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        self.opened()
        assert self.cleaning is not None
        return told(await (self.cleaning.dry_run() if dry_run else self.cleaning.clean()), self.config.name)

    async def restore(self) -> dict[str, Any]:
        if self.state in ("MASTER", "RESTORING"):
            raise NotAllowed(f"this node is {self.state}: it is not restored")
        self.restoration.want("a person asked for it")
        return {"node": self.config.name, "state": "RESTORING"}

    def restore_ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return answer_ask(self, body)

    async def peer_block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        return await block_of(self, asked, term, first)

    async def restore_range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        return await read_range(self, session, number, start, end, have)

    async def peer_hello(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_hello(self, body)

    async def transfer(self, to: str | None) -> dict[str, Any]:
        role = self.role
        if not isinstance(role, Leading) or self.state != "MASTER":
            raise NotMaster("this node is not the master")
        if to is not None and to == self.config.name:
            return {"from": self.config.name, "to": to}
        name = await role.hand_over(NodeName(to) if to is not None else None)
        return {"from": self.config.name, "to": name}

    def group_document(self) -> dict[str, Any]:
        return document(self)

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        role = self.role
        if not isinstance(role, Leading) or self.state != "MASTER":
            raise NotMaster("this node is not the master")
        return await role.changes.change(read_change(body))

    async def peer_stand(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_stand(self, body)

    async def peer_vote(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_vote(self, body)

    async def roll_back(self, matchpoint: Vlsn) -> None:
        """Overmarks what follows ``matchpoint``; done, or not begun, on return.  Raises ``RollbackProhibited``, and
        what ``Log.rollback`` refuses with.  Goes on when its caller is cancelled: ``drained`` waits for it."""
        log = self.opened()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        last = log.range.last
        log.rollback(matchpoint, partial(settle(done), None), settle_error(done))
        self._rolling_back = done
        await asyncio.shield(done)
        self.event("rolled_back", to=matchpoint, **{"from": last})

    async def drained(self) -> None:
        """Everything handed to the log before is synced, and a rollback under way has ended."""
        rolling_back = self._rolling_back
        if rolling_back is not None:
            await asyncio.wait([rolling_back])
            self._rolling_back = None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened().drain(partial(settle(done), None))
        await done

    def _files(self) -> SegmentFiles:
        self.opened()
        assert self.files is not None
        return self.files

    def _reads(self) -> Reads:
        self.opened()
        assert self.reads is not None
        return self.reads
