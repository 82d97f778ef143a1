"""A member: the part of a node that exists before, between and after its open logs.

    Member       settings, seams, network, events, state, the other members, the node file's record, counters
    OpenMember   while a log is open: the log, the current role, the holds of the other members on that log

Each component of the node receives a ``Member`` or an ``OpenMember`` and the other components that it uses, but never
the whole node. All of this module runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from repl.auth.addresses import is_here
from repl.auth.keyring import Keyring
from repl.auth.peer_calls import PeerCalls
from repl.auth.trust import Trust
from repl.config import NodeConfig
from repl.events import Events, level_of
from repl.group.founding import Alarm
from repl.group.member_holds import MemberHolds
from repl.group.members import Members
from repl.group.membership import is_listed
from repl.group.old_images import Told, both
from repl.group.role import Role, Stage
from repl.offload import Offload, Workers, settle, settle_error
from repl.shared import undisturbed
from repl.web.types import Network
from vlsn.errors import Damaged, NotListed, NotMaster, Unreachable
from vlsn.format.records import GroupEntry
from vlsn.histogram import Seconds
from vlsn.ids import Incarnation, NodeName, Term, Vlsn
from vlsn.levels import SIGNED, Levels
from vlsn.pages.source import PageSource
from vlsn.seams import Seams
from vlsn.state.node_file import NodeFile, NodeRecord
from vlsn.write.local_log import LocalLog

logger = logging.getLogger("vlsnlog")
P = TypeVar("P")


class StoodStill(NamedTuple):
    """How long no append was acknowledged at a change of master, as the new master measured it: ``seconds`` from the
    last message of the ``former`` master to the first durable entry of ``term``."""

    term: int
    seconds: float
    former: str


@dataclass(slots=True)
class Counts:
    """Counters from a node's start to its stop, for its metrics."""

    appends: Seconds = field(default_factory=Seconds)
    """The seconds from an append's submission to its acknowledgement."""
    duplicate_appends: int = 0
    """The number of producers' submissions that were in the log already when they were sent again."""
    commits: int = 0
    """The number of transactions that were submitted to be logged."""
    aborted: int = 0
    expired: int = 0
    """The number of transactions that were dropped because no call for them came in time."""
    gone: int = 0
    """The number of commits for which no entry was staged or logged."""
    old_images: int = 0
    readmitted: int = 0
    """The number of members that this node, as master, has admitted again after they came back as another
    incarnation."""
    master_changes: int = 0
    stood_still: StoodStill | None = None
    """The pause of appends at the last change of master, if this node became the master."""
    refused: Counter[str] = field(default_factory=Counter)
    """The number of calls that were answered with an error, by the error's type."""


class Member:
    """One member of a group. ``on_fatal`` receives the errors that must end the process."""

    def __init__(
        self, config: NodeConfig, seams: Seams, network: Network, *, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self.config = config
        self.seams = seams
        self.network = network
        self.process = seams.random.u64()
        self.events = Events()
        self.counts = Counts()
        self.state = "UNKNOWN"
        self.reason = "opening"
        self.members = Members(config, self._group, now=seams.clock.monotonic_s())
        key = str(config.group_key) if config.group_key is not None else None
        self.keyring = Keyring(seams.disk, key, self.event)
        self.trust = Trust(
            name=config.name,
            group=config.group,
            process=f"{self.process:016x}",
            keyring=self.keyring,
            is_signed_only=self._is_signed_only,
            met=self.members.met,
            is_here=self._is_here,
            offload=self._hashing,
        )
        self.calls = PeerCalls(network, self.trust)
        """Calls to the other members."""
        self.may_found = config.first_member == config.name
        """True while no member is known to have a log of this group, so that this node may found the group."""
        self.founder: tuple[Incarnation, int] | None = None
        """The incarnation and the process of the node to which this node last reported that it is empty."""
        self.recognised = False
        """True once the members were asked, and none of them remembers a promise that this node's disk has lost."""
        self.stopping = False
        self.node_file: NodeFile | None = None
        """The node file of the log that is open, is being restored, or was open last."""
        self.open: OpenMember | None = None
        """The parts of the open log, or None while no log is open. Callers that need a log call ``opened``."""
        self.fatal = on_fatal
        self.workers = Workers(seams.threads, on_fatal)
        self.alarms: Callable[[], list[Alarm]] = list
        """Returns the alarms of this node, which are sent in every answer to a hello."""
        self.heard: tuple[NodeName, float] | None = None
        """The node that fed this one last, and the time of its last message, by the monotonic clock."""
        self._known_master: tuple[NodeName, int] | None = None
        self._masterless_at = seams.clock.monotonic_s()

    @property
    def name(self) -> NodeName:
        return self.config.name

    # Events.

    def set_state(self, state: str, reason: str = "") -> None:
        if (state, reason) != (self.state, self.reason):
            if self._has_master:
                self._masterless_at = self.seams.clock.monotonic_s()
            self.state, self.reason = state, reason
            self.event("state", state=state, reason=reason)

    @property
    def _has_master(self) -> bool:
        return self.state in ("MASTER", "REPLICA")

    @property
    def masterless_s(self) -> float:
        """The seconds for which this node has neither led nor been fed; 0.0 while it leads or is fed."""
        return 0.0 if self._has_master else self.seams.clock.monotonic_s() - self._masterless_at

    def is_expected(self, name: NodeName, fault: BaseException) -> bool:
        """Returns whether the fault of a call to ``name`` needs no look: the member is not ready, has just left in
        order, or has not started yet; or this node is stopping itself."""
        if isinstance(fault, NotMaster):  # it opens its log, closes it, or is being restored
            return True
        if not isinstance(fault, Unreachable) or fault.tls:
            return False
        return self.stopping or self.members.awaits(name, self.seams.clock.monotonic_s())

    def master_is(self, name: NodeName, term: int) -> None:
        """Notes that this node has become the master, or that the node ``name`` feeds it now."""
        known = (name, term)
        if known != self._known_master:
            self.counts.master_changes += self._known_master is not None
            self._known_master = known
            self.event("master", master=name, term=term)

    def event(self, name: str, **fields: object) -> None:
        """Writes one line to the node's log, and keeps the event. ``name`` is one of ``repl.events``."""
        count = self.events.note(name, self.seams.clock.wall_us(), fields)
        if count & (count - 1):
            return
        if count > 1:
            fields["count"] = count
        text = " ".join(f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
        said = {"node": self.config.name, "event": name, **fields}
        logger.log(level_of(name, fields), "%s %s %s", self.config.name, name, text, extra={"said": said})

    def spoken(self) -> dict[NodeName, Levels]:
        """Returns the levels of this node, and of each member that has reported its levels."""
        return {**self.members.levels, self.name: self.seams.levels}

    def recognise(self, known: bool) -> None:
        self.recognised = known

    # The log.

    @property
    def log(self) -> LocalLog | None:
        return self.open.log if self.open is not None else None

    @property
    def record(self) -> NodeRecord | None:
        """The record in the node file of the last open log, available even while the log is restored. None before the
        first log is opened."""
        return self.node_file.record if self.node_file is not None else None

    @property
    def incarnation(self) -> int:
        return self.record.incarnation if self.record is not None else 0

    def _is_signed_only(self) -> bool:
        """Returns whether unsigned calls and answers are refused. While this node does not know its level, they are
        refused."""
        record = self.record
        return record is None or record.level >= SIGNED

    def _is_here(self, place: str) -> bool:
        return is_here(self.config, self.members.urls, place)

    async def _hashing(self, job: Callable[[], bytes]) -> bytes:
        return await Offload(self.workers["reads"])(job)

    def opened(self) -> OpenMember:
        """Returns the open log's parts. Raises ``NotMaster`` while the log is not open or is being closed, and
        ``Damaged`` if the log does not open."""
        if self.open is not None:
            self.open.check()
            return self.open
        if self.state == "DAMAGED":
            raise Damaged(self.reason)
        if self.state == "RESTORING":
            raise NotMaster("the node is being restored from a peer")
        raise NotMaster("the node is still opening its log; try again soon")

    def closed(self) -> None:
        """Notes that the log is closed."""
        self.open, self.workers.damaged = None, None

    def _group(self) -> GroupEntry | None:
        log = self.log
        return log.view.history.group if log is not None else None

    def heard_of(self, incarnation: int) -> Told:
        """Returns the newest report of that incarnation."""
        heard, role = self.members.heard.of(incarnation), self.role
        return both(heard, role.heard_of(incarnation)) if role is not None else heard

    # Removal.

    def removed(self) -> str:
        """Returns why this node is no longer a member: its log's list or another member says so, and no master feeds
        it. Returns "" if the node may still be a member."""
        log = self.log
        if log is None or self.master_name() is not None:
            return ""
        at, group = log.view.history.group_vlsn, log.view.history.group
        if group is not None and log.view.dtvlsn >= at and not is_listed(group, self.name):
            return f"the GROUP entry at VLSN {at} no longer lists {self.name}"
        return "; ".join(f"{name}: {said}" for name, said in sorted(self.members.unlisted_by.items()))

    def check_listed(self) -> None:
        """Raises ``NotListed`` while this node knows that it was removed from the group. Reads from a removed node
        would become older without limit."""
        if why := self.removed():
            raise NotListed(f"{self.name} is no longer a member of the group: {why}")

    # The master.

    @property
    def role(self) -> Role | None:
        return self.open.stage.role if self.open is not None else None

    def is_master(self) -> bool:
        return self.state == "MASTER"

    def master_url(self) -> str | None:
        if self.is_master():
            return self.config.url
        return self.role.master_url if self.role is not None else None

    def master_name(self) -> NodeName | None:
        """Returns the node that is the master, as far as this node knows; it may be this node."""
        if self.is_master():
            return self.config.name
        role = self.role
        return role.master if role is not None and role.master_url is not None else None


class OpenMember:
    """A member whose log is open, from the opening to the closing of the log."""

    def __init__(self, member: Member, log: LocalLog) -> None:
        self.member = member
        self.log = log
        self.stage = Stage(log.cycle)
        self.pages: PageSource | None = None
        """Reads messages of destinations that the log no longer has."""
        self.holds = MemberHolds(log, member.name, self._hold_dropped)
        self.announced: tuple[Term, str] = (Term(0), "")
        """The node that this one has asked to take over as master, and the term at that time. The attribute stays set
        after the term has ended."""
        self._parts: dict[type, object] = {}
        self._rolling_back: asyncio.Future[None] | None = None
        member.node_file = log.node_file
        member.open = self

    def add(self, *parts: object) -> None:
        """Registers parts of a node with an open log, so that callers find them by their class."""
        self._parts |= {type(part): part for part in parts}

    def part(self, kind: type[P]) -> P:
        """Returns the registered part of the class ``kind``. Raises ``NotMaster`` while the log is being closed."""
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part

    def check(self) -> None:
        """Raises ``NotMaster`` while the log is being closed."""
        if self.log.life.closing:
            raise NotMaster("the node is closing its log")

    @property
    def role(self) -> Role | None:
        return self.stage.role

    @property
    def lead(self) -> Role | None:
        """The role of this node if it is the master; otherwise None."""
        role = self.stage.role
        return role if role is not None and role.leads and self.member.is_master() else None

    # Promises.

    def told(self) -> Told:
        """Returns this node's report of its promises, which it never takes back."""
        log, role = self.log, self.stage.role
        record = log.node_file.record
        if role is None or not role.streams_in(Term(record.term)):
            return Told(record.sequence, record.term)
        last = log.view.range.last_sync
        return Told(record.sequence, record.term, last, log.view.history.term_of(last))

    # The log's end.

    async def roll_back(self, matchpoint: Vlsn) -> None:
        """Rolls back the blocks after ``matchpoint``. On return the rollback is complete, or was refused. Raises
        ``RollbackProhibited``, and the errors of ``Log.rollback``. If the caller is cancelled, the rollback continues,
        and ``drained`` waits for its end."""
        self.check()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        last = self.log.view.range.last
        self.log.rollback(matchpoint, partial(settle(done), None), settle_error(done))
        self._rolling_back = done
        await undisturbed(done)
        self.member.event("rolled_back", to=matchpoint, **{"from": last})

    async def drained(self) -> None:
        """Waits until everything that was passed to the log is synced, and a running rollback has finished."""
        rolling_back = self._rolling_back
        if rolling_back is not None:
            await asyncio.wait([rolling_back])
            if self._rolling_back is rolling_back:
                self._rolling_back = None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.check()
        self.log.cycle.drain(partial(settle(done), None))
        await done

    def _hold_dropped(self, replica: str, first: Vlsn) -> None:
        self.member.event("hold.dropped", owner="feeder", replica=replica, first=first)
        if self.stage.role is not None:
            self.stage.role.hold_dropped(replica, first)
