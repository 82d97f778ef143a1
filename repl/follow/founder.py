"""The role of the member whose name comes first, while its log is empty. The founder founds the group if all other
members report empty logs.

The role ends when this node is master in the founding term, or when another member has a log of this group. If another
member has a log, this node follows.
"""

from __future__ import annotations

import asyncio

from repl.elect.electing import Electing
from repl.group import founding
from repl.group.founding import Found, Wait
from repl.group.member import Member, OpenMember
from repl.group.peers import ask_all
from repl.group.role import Role
from vlsn.errors import WrongVersion
from vlsn.ids import Term

ASK_AGAIN_S = 0.1


class Founder(Role):
    """Asks all members until all report empty logs. ``run`` returns when no group needs to be founded any more."""

    def __init__(self, opened: OpenMember, electing: Electing) -> None:
        self.member = opened.member
        self.log = opened.log
        self._electing = electing

    async def run(self) -> None:
        member = self.member
        members = member.config.members
        while not self.log.view.allocated:
            answers = await ask_all(member, founding.FOUNDING, members)
            if any(not answer.empty for answer in answers.values()):
                member.may_found = False
                return
            stored = Term(self.log.node_file.record.term)
            match founding.decide(member.config.group, members, answers, stored_term=stored):
                case Found() as found:
                    member.event("founding", term=found.term, members=",".join(members))
                    if await self._electing.found(found):
                        return
                case Wait(reason):
                    member.set_state("UNKNOWN", _stranger(member) or reason)
            await asyncio.sleep(ASK_AGAIN_S)


def _stranger(member: Member) -> str:
    try:
        member.members.check_strangers()
    except WrongVersion as error:
        return f"{error.slug}: {error}"
    return ""
