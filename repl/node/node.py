"""A node: one log, one role in its group, one gateway.

    serve HTTP ─► open the log (keeper's thread) ─► role: found, follow, or lead what an election won ─► stop

1. HTTP answers from the start; until the log is open the node is UNKNOWN, reason ``opening``, and serves
   neither reads nor appends.
2. Everything but the workers' jobs runs on the event loop's thread, in tasks that one group owns.
3. A log that fails ends the process (``on_fatal``): after a failed sync the page cache is not to be trusted.
4. A role's faults end the role, never the node: the reason stands in its status, and the next role is tried,
   except DAMAGED and HALTED, which need a person (or, later, a mending peer).
5. Which role it is says ``electing``; ``roles`` plays them, and leaves nothing of one when the next one begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from errno import errorcode
from functools import partial
from typing import Any

from feeder.restore import Restores
from repl.config import NodeConfig
from repl.elect.electing import Electing
from repl.events import Events, level_of
from repl.follow.following import Following
from repl.group.confirming import Confirming
from repl.group.member_holds import MemberHolds
from repl.group.members import Members
from repl.http.routes import Gateway
from repl.http.types import Listener, Network
from repl.lead.leading import TICK_S, Leading
from repl.node.roles import Roles, cancelled
from repl.node.services import services_of
from repl.offload import Offload, settle, settle_error
from repl.read.read_index import ReadIndex
from repl.read.reads import Reads
from repl.read.segment_files import SegmentFiles
from repl.repair.cleaning import Cleaning
from repl.repair.lost_producers import LostProducers
from repl.repair.mending import Mending
from repl.repair.opening import append_limits, open_log
from repl.repair.providing import make_restores
from repl.repair.restoring import Restoration, RestoreWanted
from repl.repair.scrub import Scrub
from repl.repair.unopened import Unopened
from repl.role import Role
from vlsn.duration_histogram import Seconds
from vlsn.errors import BadArgument, Damaged, LogFailed, NotMaster, VlsnLogError, WrongVersion, said_of
from vlsn.ids import Incarnation, NodeName, Vlsn
from vlsn.seams import Seams, Worker
from vlsn.segments.background import Fault
from vlsn.state.node_file import NodeRecord
from vlsn.together import together
from vlsn.write.local_log import LocalLog
from vlsn.write.queue import Pending

logger = logging.getLogger("vlsnlog")


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
        self._closed_record: NodeRecord | None = None
        self.state = "UNKNOWN"
        self.reason = "opening"
        self.log: LocalLog | None = None
        self.reads: Reads | None = None
        self.read_index = ReadIndex(self)
        self.files: SegmentFiles | None = None
        self.cleaning: Cleaning | None = None
        self.holds: MemberHolds | None = None
        self.restores: Restores | None = None
        """Of peers, from this log."""
        self.restoration = Restoration(self)
        self.unopened = Unopened(self)
        self.mending: Mending | None = None
        self.scrub: Scrub | None = None
        self.electing: Electing | None = None
        self.roles = Roles(self)
        self.may_found = config.first_member == config.name
        """No member is known to hold a log of this group."""
        self._rolling_back: asyncio.Future[None] | None = None
        self.services = services_of(self)
        self.listener: Listener | None = None
        self.append_seconds = Seconds()
        self.duplicate_appends = 0
        """Submissions of producers that were here before."""
        self.members = Members(self)
        self.confirming = Confirming(self)
        self.recognised = False
        """Nobody remembers more of this node than its disk does, as far as somebody was there to be asked."""
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
            gateway = Gateway(self.services, append_limits(self.config))
            self.listener = await self.network.serve(
                self.config.host, self.config.port, gateway.handle, quick=gateway.quick
            )
        except OSError as error:
            raise BadArgument(
                f"cannot listen on {self.config.listen}: {said_of(error)}; choose another address, or stop "
                "what listens there"
            ) from error
        self._tasks.append(asyncio.create_task(self._live(), name="live"))

    async def stop(self) -> None:
        """A clean stop: a master hands over, the role ends, the log gets its clean checkpoint, everything is closed."""
        self.stopping = True
        leading = self.leading
        if leading is not None and leading.present:
            try:
                await leading.handing_over.run(None)
            except VlsnLogError as error:
                self.event("hand_over.failed", why=str(error))
        await cancelled(*self._tasks)
        self.read_index.close(NotMaster("the node is stopping"))
        await self.confirming.close()
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
            await self.unopened.run(error)
            return
        why = ""
        try:
            await self._work()
        except* RestoreWanted as wanted:
            why = str(wanted.exceptions[0])
        log = self.opened()
        end, durable = (log.history.last_term, log.range.last), (log.history.term_of(log.dtvlsn), log.dtvlsn)
        self.restoration.members = self.members.urls
        await self._close_log(why)
        await self.restoration.run(why, end=end, durable=durable, whole=True)

    async def _work(self) -> None:
        """All that a node does while its log is open.  Raises a group with ``RestoreWanted`` in it, or with what ends
        the node."""
        assert self.electing is not None and self.cleaning is not None
        assert self.mending is not None and self.scrub is not None
        await together(
            tick=self._tick(),
            elections=self.electing.run(),
            role=self.roles.play(),
            tell=self.members.tell(),
            cleaning=self.cleaning.run(),
            mending=self.mending.run(),
            scrub=self.scrub.run(),
            producers=LostProducers(self).run(),
            restore=self.restoration.wanted(),
        )

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
        self.close_node_file(log)
        self.log = self.reads = self.files = self.cleaning = self.holds = self.restores = self.mending = self.scrub = (
            None
        )
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
        log.background.told = self._background_told
        self.mending, self.unopened = Mending(self), Unopened(self)
        self.reads = Reads(log, self.offload("reads"))
        self.files = SegmentFiles(log, self.offload("reads"))
        self.restores = make_restores(self)
        self.scrub = Scrub(self)
        self.holds = MemberHolds(log, self.name, self._hold_dropped)
        self.cleaning = Cleaning(self)
        self.recognised = recovered.empty_store or self.members.are_none()
        self.electing = Electing(self)
        self.reason = "starting"
        span = log.range
        self.event("opened", incarnation=f"{self.incarnation:016x}", first=span.first, last=span.last)

    async def _tick(self) -> None:
        assert self.log is not None
        holes, said, full = self.log.placement.holes, "", False
        while True:
            await asyncio.sleep(TICK_S)
            self.log.tick()
            if holes.fault != said:
                said = holes.fault
                self.event("unpunched", why=said)
            if full != bool(self.log.no_space):
                full = not full
                if full:
                    self.event("no_space", why=self.log.no_space)
                else:
                    self.event("has_space", free_bytes=self.log.space.free_bytes)
            if self.roles.current is not None:
                self.roles.current.tick()

    def _background_told(self, fault: Fault) -> None:
        about = {"work": fault.work, "why": fault.why, "errno": errorcode.get(fault.errno, "")}
        self.event("background.failed" if fault.failures else "background.works", **about)

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
        count = self.events.note(name, self.seams.clock.wall_us(), fields)
        if count & (count - 1):
            return
        if count > 1:
            fields["count"] = count
        text = " ".join(f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
        said = {"node": self.config.name, "event": name, **fields}
        logger.log(level_of(name, fields), "%s %s %s", self.config.name, name, text, extra={"said": said})

    # What the roles use.

    def opened(self) -> LocalLog:
        """Raises ``NotMaster`` while the log is not open, or is being closed; ``Damaged`` when it does not open."""
        if self.log is None:
            if self.state == "DAMAGED":
                raise Damaged(self.reason)
            if self.state == "RESTORING":
                raise NotMaster("the node is being restored from a peer")
            raise NotMaster("the node is still opening its log; try again soon")
        if self.log.closing:
            raise NotMaster("the node is closing its log")
        return self.log

    def worker(self, name: str) -> Worker:
        """``keeper``, ``writer``, ``reads``, ``feeds`` or ``scrub``."""
        return self._workers[name]

    def offload(self, name: str) -> Offload:
        """To that worker; damage that its jobs meet is mended, bytes of a later version end the node."""
        return Offload(self.worker(name), self._fault_met)

    def _fault_met(self, error: Damaged | WrongVersion) -> None:
        if isinstance(error, WrongVersion):
            self.fatal(error)
        elif self.mending is not None:
            self.mending.met(error)

    def on_keeper(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        return Offload(self._workers["keeper"])(job)

    def _hold_dropped(self, member: str, first: Vlsn) -> None:
        self.event("hold.dropped", owner="feeder", replica=member, first=first)
        if self.leading is not None:
            self.leading.hold_dropped(member, first)

    def durable_rose(self) -> None:
        if self.reads is not None:
            self.reads.rose()

    # The log's listener.

    def sealed(self, pendings: list[Pending]) -> None:
        assert self.roles.current is not None
        self.roles.current.sealed(pendings)

    def handed_over(self, last_vlsn: Vlsn) -> None:
        if self.roles.current is not None:
            self.roles.current.handed_over()

    def written(self, last_vlsn: Vlsn) -> None:
        pass  # what a node says of its log is synced

    def synced(self, last_vlsn: Vlsn) -> None:
        if self.roles.current is not None:
            self.roles.current.synced(last_vlsn)
        self.durable_rose()

    def failed(self, error: LogFailed) -> None:
        self.fatal(error)

    # Who leads.

    @property
    def name(self) -> NodeName:
        return self.config.name

    def is_master(self) -> bool:
        return self.state == "MASTER"

    @property
    def role(self) -> Role | None:
        return self.roles.current

    @property
    def leading(self) -> Leading | None:
        """That role, from the moment it is tried."""
        role = self.roles.current
        return role if isinstance(role, Leading) else None

    @property
    def following(self) -> Following | None:
        role = self.roles.current
        return role if isinstance(role, Following) else None

    @property
    def lead(self) -> Leading | None:
        """While this node is the master."""
        return self.leading if self.is_master() else None

    def master_url(self) -> str | None:
        if self.is_master():
            return self.config.url
        return self.following.master_url if self.following is not None else None

    def master_name(self) -> NodeName | None:
        """Whom this node hears as the master, itself included."""
        if self.is_master():
            return self.config.name
        following = self.following
        return following.master if following is not None and following.master_url is not None else None

    # The log.

    @property
    def incarnation(self) -> int:
        return self.record.incarnation if self.record is not None else 0

    @property
    def record(self) -> NodeRecord | None:
        """The node file's, as of when the log was open last, also while it is restored; None before the first time."""
        log = self.log or self.restoration.log
        return log.node_file.record if log is not None else self._closed_record

    def close_node_file(self, log: LocalLog) -> None:
        """The last step of a log's close."""
        self._closed_record = log.node_file.record
        log.node_file.close()

    def dtvlsn(self) -> int:
        return self.reads.durable if self.reads is not None else 0

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
            if self._rolling_back is rolling_back:
                self._rolling_back = None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opened().drain(partial(settle(done), None))
        await done
