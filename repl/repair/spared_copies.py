"""Decides whether this node's copy of the log can be given up when a person requests a restore.

    a person asks ─► no other node may count on this copy any more ─► every other voter is asked whether its own is
    whole
        a majority of them says so          the log is given up
        fewer, or they do not answer        refused, ``not-ready``: nothing was changed

A majority of the voters has the acknowledged entries. The restore is allowed if only a minority of the other voters is
not known to be whole. Under this condition at least one whole copy is left among the others, and the members without
the acknowledged entries are too few to elect a master. If several nodes are asked at once, each node's copy stops
counting before that node asks the others. So the last node finds too few whole copies, and is refused.

A copy is *whole* if it has everything that its node ever acknowledged. Its incarnation must be the one that the group
lists. A whole copy ends at or above its vote floor (the log's former end), has no known damage, and is not about to be
restored itself. A halted node's copy counts as whole, because the node has halted in order to keep it.
"""

from __future__ import annotations

import asyncio

from feeder.majority import majority
from repl.group.hello import log_end
from repl.group.member import Member, OpenMember
from repl.group.membership import listed_as
from repl.repair.mending import Mending
from repl.repair.restoring import Peer, Restoration
from vlsn.errors import CopyNeeded, NotAllowed, NotMaster, VlsnLogError
from vlsn.ids import NodeName
from vlsn.recover.vote_floor import is_below_floor
from vlsn.repair.restore_messages import GIVE_UP

WHY = "a person asked for it"
_Faults = (VlsnLogError, OSError, TimeoutError)


async def restore_as_asked(member: Member, restoration: Restoration) -> None:
    """Gives the node's log up and restores it. Raises ``NotAllowed`` while the node is master or restoring, and
    ``CopyNeeded``.
    ``CopyNeeded``."""
    _check_restorable(member)
    with restoration.giving_up():
        try:
            await _check_spared(member, restoration)
        except CopyNeeded as error:
            member.event("restore.refused", why=str(error))
            raise
        _check_restorable(member)  # the node may have become master meanwhile
        if not restoration.want(WHY):
            raise NotMaster("the node is opening its log; try again soon")


def check_whole(opened: OpenMember, restoration: Restoration, mending: Mending) -> None:
    """Checks that other nodes may rely on this node's copy of the log. Raises ``CopyNeeded``."""
    member, log = opened.member, opened.log
    group = log.view.history.group
    said = ""
    if restoration.gives_up:
        said = "is to be restored itself"
    elif not member.recognised or group is None or listed_as(group, member.name, member.incarnation) is None:
        said = "is not known to be the incarnation that its group lists"
    elif mending.damages:
        said = "has damage"
    elif is_below_floor(log.node_file.record, log_end(member)):
        said = "is missing entries that it has acknowledged"
    if said:
        raise CopyNeeded(f"{member.name} {said}")


def _check_restorable(member: Member) -> None:
    if member.state in ("MASTER", "RESTORING"):
        raise NotAllowed(f"this node is {member.state}: it is not restored")


async def _check_spared(member: Member, restoration: Restoration) -> None:
    others = _others(member, restoration)
    needed = majority(len(others))
    whole: set[NodeName] = set()
    lacking: dict[NodeName, str] = {}

    async def one(name: NodeName, url: str) -> None:
        try:
            await Peer(member, name, url).ask(GIVE_UP)
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


def _others(member: Member, restoration: Restoration) -> dict[NodeName, str]:
    """Returns the other voters and their URLs. If the log does not open, these are the members in its last known list,
    or in the settings."""
    urls = restoration.members if member.log is None else member.members.urls
    names = urls if member.log is None else member.members.electable
    return {name: urls[name] for name in names if name != member.name}
