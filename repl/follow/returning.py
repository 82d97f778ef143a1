"""The role of a node that starts with a used disk. The node asks the other members which promises they have received
from it.

The node neither votes, nor stands, nor accepts a feed until enough members have answered: at least one, and every other
member that can be reached. One slow member may be the only one that remembers a promise which the disk has lost. A
machine whose process has ended refuses at once; a silent machine delays the start by ``connect_timeout_s``. While the
node waits, a group that has its majority without this node continues.

If the disk has lost a promise, the node becomes another incarnation (store). The node keeps its log, but has no vote
until a GROUP entry admits it again (``old_images``, ``group_changes``). A node that was empty at its start does not
ask, nor does the only electable member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from repl.elect.electing import Electing
from repl.group import founding
from repl.group.founding import Answer
from repl.group.member import OpenMember
from repl.group.old_images import Told, forgotten, most, show
from repl.group.peers import ask, heard_in
from repl.group.role import Role
from repl.repair.providing import Providing
from vlsn.errors import NotListed, VlsnLogError
from vlsn.ids import NodeName

AGAIN_S = 0.2


class Returning(Role):
    """Asks the members for this node's promises. ``run`` returns once the members have answered and the node has the
    right incarnation."""

    def __init__(self, opened: OpenMember, electing: Electing, providing: Providing) -> None:
        self.member = opened.member
        self.log = opened.log
        self._electing = electing
        self._providing = providing
        self._is_unlisted = False

    async def run(self) -> None:
        member = self.member
        heard: list[Told] = []
        while not heard:
            heard = await self._ask()
            if not heard:
                await asyncio.sleep(AGAIN_S)
        log = self.log
        span = log.view.range
        shown = show(log.node_file.record, first=span.first, last=span.last_sync, term_of=log.view.history.term_of)
        why = forgotten(shown, most(heard))
        if why:
            before = member.incarnation
            await self._electing.become_another()
            self._providing.begin_again()
            member.counts.old_images += 1
            member.event("old_image", why=why, before=f"{before:016x}", incarnation=f"{member.incarnation:016x}")
        member.recognise(True)

    async def _ask(self) -> list[Told]:
        """Returns the promises that the members have received from this incarnation. The result is empty if the role
        must ask again."""
        member = self.member
        asked = {
            asyncio.create_task(ask(member, name, url, founding.DISCOVERY)): name
            for name, url in member.members.urls.items()
            if name != member.name
        }
        try:
            waiting = set(asked)
            done: set[asyncio.Task[Answer]] = set()
            while waiting:
                self._waits(asked[task] for task in waiting)
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done |= ended
                refused = _refused(done, asked)
                if any(isinstance(error, NotListed) for error in refused.values()) and not self._is_unlisted:
                    # the refusal is reported at once, because other members may stay silent for long
                    self._say(refused)
        finally:
            for task in asked:
                task.cancel()
        answers = {asked[task]: task.result() for task in done if task.exception() is None}
        refused = _refused(done, asked)
        silent = set(member.members.listed) - {member.name} - set(answers)
        if all(answer.empty for answer in answers.values()) and (silent or not answers):
            self._say(refused)  # an empty node has received no promise, but a silent member may have received one
            return []
        return [heard_in(answer) for answer in answers.values()]

    def _say(self, refused: Mapping[NodeName, BaseException]) -> None:
        said = "; ".join(f"{name}: {error}" for name, error in sorted(refused.items()))
        self._is_unlisted = any(isinstance(error, NotListed) for error in refused.values())
        reason = (
            f"{NotListed.slug}: {said}"
            if self._is_unlisted
            else f"waits for a member that has received its promises: {said}"
        )
        self.member.set_state("UNKNOWN", reason)

    def _waits(self, names: Iterable[NodeName]) -> None:
        if not self._is_unlisted:
            said = ", ".join(sorted(names))
            self.member.set_state("UNKNOWN", f"waits for {said} to report the promises of this node")


def _refused(
    done: set[asyncio.Task[Answer]], asked: Mapping[asyncio.Task[Answer], NodeName]
) -> dict[NodeName, BaseException]:
    """Returns why members did not answer. Raises any other error."""
    refused: dict[NodeName, BaseException] = {}
    for task in done:
        error = task.exception()
        if isinstance(error, VlsnLogError | OSError):
            refused[asked[task]] = error
        elif error is not None:
            raise error
    return refused
