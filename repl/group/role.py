"""A role: the work of a member while its log is open, and the calls that its node makes to it.

The roles are: returning with a used disk, founding, leading and following. A member has one role at a time, which runs
on the ``Stage``. The next role begins only when a role has ended completely. The base class answers like a node without
a master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from repl.group.old_images import NOTHING, Told
from vlsn.errors import NotMaster
from vlsn.ids import NodeName, Term, Vlsn
from vlsn.together import failure_of
from vlsn.write.write_cycle import LogListener, WriteCycle

CANCEL_AGAIN_S = 0.2


class Role(LogListener):
    """The current role of a node."""

    term = Term(0)
    """The term in which this node is the master, or is about to become the master; 0 in any other role."""
    master: NodeName | None = None
    """The node that feeds this node, or fed it last."""
    unlisted_by: Collection[NodeName] = ()
    """The nodes that have answered that the group no longer lists this node."""

    async def run(self) -> None:
        """Runs until the role has ended, or is cancelled."""
        raise NotImplementedError

    # Events of the node.

    def tick(self) -> None:
        """Does periodic work; called once in ``TICK_S`` seconds."""

    def called(self) -> None:
        """Called when a new master contacts its replicas."""

    def hold_dropped(self, replica: str, first: Vlsn) -> None:
        """Called when cleaning passes the end of ``replica``. The log will begin at VLSN ``first``."""

    # State.

    @property
    def leads(self) -> bool:
        return self.term != 0

    @property
    def master_url(self) -> str | None:
        """The URL to which appends go, if this role knows another node as the master."""
        return None

    @property
    def taking_feed(self) -> bool:
        """True from the start of a feed until its first block."""
        return False

    @property
    def replicas(self) -> int:
        """The number of feeds that this node sends."""
        return 0

    def streams_in(self, term: Term) -> bool:
        """Returns whether this log is the log of the master of ``term``, or agrees with it."""
        return False

    def heard_of(self, incarnation: int) -> Told:
        """Returns the end that ``incarnation`` has acknowledged to this role."""
        return NOTHING

    async def read_index(self) -> Vlsn:
        """Returns a VLSN at or past every append that was acknowledged as durable before the call. Raises
        ``NotMaster``."""
        raise NotMaster("this node is not the master")


class Stage:
    """Runs one role at a time, and passes the log's events to it."""

    def __init__(self, cycle: WriteCycle) -> None:
        self._cycle = cycle
        self._idle = cycle.listener
        self.role: Role | None = None
        self._task: asyncio.Task[None] | None = None

    async def play(self, role: Role) -> BaseException | None:
        """Runs ``role`` until it ends by itself, fails, or is ended. Returns the error if it failed."""
        self.role = self._cycle.listener = role
        task = self._task = asyncio.create_task(role.run(), name=type(role).__name__)
        try:
            await asyncio.wait([task])
        finally:
            await cancelled(task)
            self.role, self._cycle.listener = None, self._idle
        return failure_of(task)

    async def end(self) -> None:
        """Ends the current role. On return its feeds and its sealing have stopped."""
        if self._task is not None:
            await cancelled(self._task)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancels ``tasks`` repeatedly, and returns when all of them have ended. One cancel can be lost if a timeout in a
    library expires at the same moment."""
    under_way = {task for task in tasks if not task.done()}
    while under_way:
        for task in under_way:
            task.cancel()
        _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)
