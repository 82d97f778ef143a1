"""The roles of a node in its group, one after another.

A role runs until it ends by itself, fails, or is ended because of an election.

A role runs until it ends by itself, fails, or is ended because an election says so.
"""

from __future__ import annotations

import asyncio

from repl.elect.electing import Electing
from repl.follow.following import Following
from repl.follow.founder import Founder
from repl.follow.returning import Returning
from repl.group.confirming import Confirming
from repl.group.member import OpenMember
from repl.group.role import Role
from repl.lead.leading import Leading
from repl.read.reads import Reads
from repl.repair.providing import Providing
from repl.repair.restoring import Restoration
from vlsn.errors import Halted, VlsnLogError

ROLE_RETRY_S = 1.0


class Roles:
    """The roles of one node, while its log is open."""

    def __init__(
        self,
        opened: OpenMember,
        electing: Electing,
        reads: Reads,
        providing: Providing,
        confirming: Confirming,
        restoration: Restoration,
    ) -> None:
        self._opened = opened
        self._electing = electing
        self._reads = reads
        self._providing = providing
        self._confirming = confirming
        self._restoration = restoration

    async def play(self) -> None:
        """Plays one role after another, for as long as the node lives, and returns when the node is stopping. An error
        of a role that is not a ``VlsnLogError`` is raised."""
        member, stage = self._opened.member, self._opened.stage
        while not member.stopping:
            role = self._next()
            error = await stage.play(role)
            if isinstance(role, Leading):
                await role.over("the lead has ended" if error is None else str(error))
            if isinstance(error, Halted):
                member.set_state("HALTED", str(error))
                await asyncio.Event().wait()  # waits until a person stops the node
            if error is not None and not isinstance(error, VlsnLogError):
                raise error
            if error is not None:
                member.set_state("UNKNOWN", str(error))
                await asyncio.sleep(ROLE_RETRY_S)

    def _next(self) -> Role:
        opened, electing = self._opened, self._electing
        opened.check()
        is_empty = not opened.log.view.allocated
        if electing.leads is not None:
            return Leading(
                opened,
                electing.leads,
                electing,
                self._reads,
                self._confirming,
                self._restoration,
                found=electing.founds if is_empty else None,
            )
        if not opened.member.recognised:
            return Returning(opened, electing, self._providing)
        if opened.member.may_found and is_empty:
            return Founder(opened, electing)
        return Following(opened, electing, self._reads, self._restoration)
