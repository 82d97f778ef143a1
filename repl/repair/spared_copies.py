"""The question whether this node's copy can be spared when a person asks for a restore.

    asked ─► this copy counts for nobody else any more ─► every other voter is asked whether its own is whole
        a majority of them says so          the log is given up
        fewer, or they do not answer        refused, ``not-ready``: nothing was changed

Acknowledged entries lie on a majority of the voters. With one copy given up, and a minority of the others not known
whole, at least one whole copy of them is left. The members without them are too few to elect a master alone. If several
nodes are asked at once, each one's copy stops counting before it asks. So the last one finds the others, and is
refused.

*Whole* is a copy with all that its node ever acknowledged: under the incarnation that its group lists, at or above its
vote floor, without known damage, not to be restored itself.  A halted node's copy is: it is why it has halted.
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
    """Gives the node's log up and restores it. Raises ``NotAllowed`` while it leads or restores, ``CopyNeeded``."""
    _check_restorable(member)
    with restoration.giving_up():
        try:
            await _check_spared(member, restoration)
        except CopyNeeded as error:
            member.event("restore.refused", why=str(error))
            raise
        _check_restorable(member)  # it may have been elected meanwhile
        if not restoration.want(WHY):
            raise NotMaster("the node is opening its log; try again soon")


def check_whole(opened: OpenMember, restoration: Restoration, mending: Mending) -> None:
    """Checks that others may count on this node's copy. Raises ``CopyNeeded``."""
    member, log = opened.member, opened.log
    group = log.view.history.group
    said = ""
    if restoration.gives_up:
        said = "is to be restored itself"
    elif not member.recognised or group is None or listed_as(group, member.name, member.incarnation) is None:
        said = "is not known to be whom its group lists"
    elif mending.damages:
        said = "has damage"
    elif is_below_floor(log.node_file.record, log_end(member)):
        said = "lacks what it has acknowledged"
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
    """Returns the other voters and their URLs. For a log that does not open they are the members last known from it, or
    from the settings."""
    urls = restoration.members if member.log is None else member.members.urls
    names = urls if member.log is None else member.members.electable
    return {name: urls[name] for name in names if name != member.name}
