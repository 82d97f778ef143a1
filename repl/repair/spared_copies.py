"""Whether this node's copy of the log can be spared when a person asks for a restore.

    asked ─► this copy counts for nobody else any more ─► every other voter is asked whether its own is whole
        a majority of them says so          the log is given up
        fewer, or they do not answer        refused, ``not-ready``: nothing was changed

What was acknowledged lies on a majority of the voters.  With one copy given up, and the minority of the others that is
not known whole, at least one whole copy of it is left; and those without it are too few to elect without hearing of it.
Of several nodes that are asked at once, each one's copy stops counting before it asks: whoever is last finds those
before it, and is refused.

*Whole* is a copy with all that its node ever acknowledged: under the incarnation that its group lists, at or above its
vote floor, without known damage, not to be restored itself.  A halted node's copy is: it is why it has halted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feeder.acks import majority
from repl.group.membership import listed_as
from repl.group.peers import log_end
from repl.repair.restoring import Peer
from vlsn.errors import CopyNeeded, NotAllowed, NotMaster, VlsnLogError
from vlsn.ids import NodeName
from vlsn.recover.vote_floor import is_below_floor
from vlsn.repair.restore_messages import GIVE_UP

if TYPE_CHECKING:
    from repl.node.node import Node

WHY = "a person asked for it"
_Faults = (VlsnLogError, OSError, TimeoutError)


async def restore_as_asked(node: Node) -> None:
    """The node's log is given up and restored.  Raises ``NotAllowed`` while it leads or restores, ``CopyNeeded``."""
    _check_restorable(node)
    with node.restoration.giving_up():
        try:
            await _check_spared(node)
        except CopyNeeded as error:
            node.event("restore.refused", why=str(error))
            raise
        _check_restorable(node)  # it may have been elected meanwhile
        if not node.restoration.want(WHY):
            raise NotMaster("the node is opening its log; try again soon")


def check_whole(node: Node) -> None:
    """That others may count on this node's copy.  Raises ``CopyNeeded``, or why the log is not open."""
    log = node.opened()
    group = log.history.group
    said = ""
    if node.restoration.gives_up:
        said = "is to be restored itself"
    elif not node.recognised or group is None or listed_as(group, node.name, node.incarnation) is None:
        said = "is not known to be whom its group lists"
    elif node.mending is None or node.mending.damages:
        said = "has damage"
    elif is_below_floor(log.node_file.record, log_end(node)):
        said = "lacks what it has acknowledged"
    if said:
        raise CopyNeeded(f"{node.name} {said}")


def _check_restorable(node: Node) -> None:
    if node.state in ("MASTER", "RESTORING"):
        raise NotAllowed(f"this node is {node.state}: it is not restored")


async def _check_spared(node: Node) -> None:
    others = _others(node)
    needed = majority(len(others))
    whole: set[NodeName] = set()
    lacking: dict[NodeName, str] = {}

    async def one(name: NodeName, url: str) -> None:
        try:
            await Peer(node, name, url).ask(GIVE_UP)
        except _Faults as error:
            lacking[name] = str(error) or type(error).__name__
        else:
            whole.add(name)

    asked = {asyncio.create_task(one(name, url), name=f"whole copy of {name}") for name, url in others.items()}
    try:
        waiting = asked
        while waiting and len(whole) < needed <= len(whole) + len(waiting):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in asked:
            task.cancel()
    if len(whole) < needed:
        said = "; ".join(f"{name}: {why}" for name, why in sorted(lacking.items()))
        raise CopyNeeded(
            f"{len(whole)} of {len(others)} other members are known to be whole, {needed} have to be before this copy "
            f"of the log is given up: {said or 'there are none'}"
        )


def _others(node: Node) -> dict[NodeName, str]:
    """Who has a vote beside this node, and where; of a log that does not open whom it last knew, or was told."""
    urls = node.restoration.members if node.log is None else node.members.urls
    names = urls if node.log is None else node.members.electable
    return {name: urls[name] for name in names if name != node.name}
