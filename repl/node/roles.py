"""What a node is in its group, one role after another.

    Returning ─► Founder | Following ─► Leading, once an election is won ─► Following …

A role runs until it ends by itself, fails, or is ended because an election says so.  Nothing of one is left when the
next one begins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from repl.follow.following import Following
from repl.follow.founder import Founder
from repl.follow.returning import Returning
from repl.lead.leading import Leading
from repl.role import Role
from vlsn.errors import Halted, VlsnLogError
from vlsn.together import failure_of

if TYPE_CHECKING:
    from repl.node.node import Node

ROLE_RETRY_S = 1.0
CANCEL_AGAIN_S = 0.2


class Roles:
    """The roles of one node, while its log is open."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.current: Role | None = None
        self._task: asyncio.Task[None] | None = None

    async def play(self) -> None:
        """One role after another, for as long as the node lives; returns when it is stopping.  A role that fails with
        anything but a ``VlsnLogError`` raises it."""
        node = self._node
        while not node.stopping:
            role = self.current = self._next()
            task = self._task = asyncio.create_task(role.run(), name=type(role).__name__)
            try:
                await asyncio.wait([task])
            finally:
                await cancelled(task)
                self.current = None
            error = failure_of(task)
            if isinstance(role, Leading):
                await role.over("the lead has ended" if error is None else str(error))
            if isinstance(error, Halted):
                node.set_state("HALTED", str(error))
                await asyncio.Event().wait()  # until a person stops it
            if error is not None and not isinstance(error, VlsnLogError):
                raise error
            if error is not None:
                node.set_state("UNKNOWN", str(error))
                await asyncio.sleep(ROLE_RETRY_S)

    def _next(self) -> Role:
        node = self._node
        electing, log = node.electing, node.opened()
        assert electing is not None
        if electing.leads is not None:
            return Leading(node, electing.leads, electing.founds if not log.allocated else None)
        if not node.recognised:
            return Returning(node)
        return Founder(node) if node.may_found and not log.allocated else Following(node)

    async def end(self) -> None:
        """Nothing of the role that played is left on return: its feeds and its sealing have ended."""
        if self._task is not None:
            await cancelled(self._task)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancels ``tasks``, more than once: a cancel that meets a timeout just as it runs out, in a library's code, may be
    lost in it.  Returns when all of them have ended."""
    under_way = {task for task in tasks if not task.done()}
    while under_way:
        for task in under_way:
            task.cancel()
        _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)
