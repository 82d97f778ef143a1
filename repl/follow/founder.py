"""The role of the first member by name while its log, as far as it knows every member's, is empty: it founds the group.

It ends when it leads the founding term, or when a member turns out to hold a log of this group: then this node has
nothing to found, and follows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from repl.group import founding
from repl.group.founding import Found, Wait
from repl.group.peers import ask_all
from repl.role import Role
from vlsn.errors import WrongVersion
from vlsn.ids import Term

if TYPE_CHECKING:
    from repl.node.node import Node

ASK_AGAIN_S = 0.3


class Founder(Role):
    """Asks every member until all are empty.  ``run`` returns when there is nothing left to found."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.log = node.opened()

    async def run(self) -> None:
        node = self.node
        assert node.electing is not None
        members = node.config.members
        while not self.log.allocated:
            answers = await ask_all(node, founding.FOUNDING, members)
            if any(not answer.empty for answer in answers.values()):
                node.may_found = False
                return
            stored = Term(self.log.node_file.record.term)
            match founding.decide(node.config.group, members, answers, stored_term=stored):
                case Found() as found:
                    node.event("founding", term=found.term, members=",".join(members))
                    if await node.electing.found(found):
                        return
                case Wait(reason):
                    node.set_state("UNKNOWN", _stranger(node) or reason)
            await asyncio.sleep(ASK_AGAIN_S)


def _stranger(node: Node) -> str:
    try:
        node.members.check_strangers()
    except WrongVersion as error:
        return f"{error.slug}: {error}"
    return ""
