"""A role: a member's work while its log is open, and the calls that its node makes.

Returning, founding, leading or following: one at a time, on the ``Stage``, and nothing of one is left when the next one
begins. The base class answers as a node without a master does.
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
    """A node's part at the moment."""

    term = Term(0)
    """The term of which it is the master, or is about to be; 0 for any other role."""
    master: NodeName | None = None
    """The node that feeds this one, or did last."""
    unlisted_by: Collection[NodeName] = ()
    """The nodes that say that the group lists this node no more."""

    async def run(self) -> None:
        """Runs until the role is over, or cancelled."""
        raise NotImplementedError

    # Events, beside those of the log.

    def tick(self) -> None:
        """Does what is due every ``TICK_S``."""

    def called(self) -> None:
        """Notes that a new master asks for its replicas."""

    def hold_dropped(self, replica: str, first: Vlsn) -> None:
        """Notes that the log is cleaned past the end of ``replica``; it will begin at ``first``."""

    # Answers.

    @property
    def leads(self) -> bool:
        return self.term != 0

    @property
    def master_url(self) -> str | None:
        """The URL where appends go, while this role knows another node that leads."""
        return None

    @property
    def taking_feed(self) -> bool:
        """A feed has begun and does not stream yet."""
        return False

    @property
    def replicas(self) -> int:
        """The number of feeds that it serves."""
        return 0

    def streams_in(self, term: Term) -> bool:
        """Says whether this log is that of the master of ``term``, or matched with it."""
        return False

    def heard_of(self, incarnation: int) -> Told:
        """Returns what ``incarnation`` has acknowledged to this role."""
        return NOTHING

    async def read_index(self) -> Vlsn:
        """Returns a VLSN at or past every append that was acknowledged as durable before the call. Raises
        ``NotMaster``."""
        raise NotMaster("this node is not the master")


class Stage:
    """The stage where one role plays at a time, and listens to the log."""

    def __init__(self, cycle: WriteCycle) -> None:
        self._cycle = cycle
        self._idle = cycle.listener
        self.role: Role | None = None
        self._task: asyncio.Task[None] | None = None

    async def play(self, role: Role) -> BaseException | None:
        """Runs ``role`` until it ends by itself, fails, or is ended; why it failed, if it did."""
        self.role = self._cycle.listener = role
        task = self._task = asyncio.create_task(role.run(), name=type(role).__name__)
        try:
            await asyncio.wait([task])
        finally:
            await cancelled(task)
            self.role, self._cycle.listener = None, self._idle
        return failure_of(task)

    async def end(self) -> None:
        """Ends the role that plays: nothing of it is left on return, its feeds and its sealing have ended."""
        if self._task is not None:
            await cancelled(self._task)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancels ``tasks``, more than once, and returns when all of them have ended. A cancel that meets a timeout just as
    it runs out, in a library's code, may be lost in it."""
    under_way = {task for task in tasks if not task.done()}
    while under_way:
        for task in under_way:
            task.cancel()
        _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)
