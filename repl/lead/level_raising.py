"""The raising of the group's level: an entry that says what all its members read and write.

    every listed member has told that it speaks the level ─► node file ─► COMMIT {level} sealed ─► durable

Not taken back once durable: an older binary refuses each node file and log that has it.  Until then a rollback may take
it out of the log; node files keep what they promised.
"""

from __future__ import annotations

import asyncio

from repl.lead.tenure import Tenure
from repl.offload import settle
from replica.level import store_level
from vlsn.errors import BadArgument, NotMaster, OutcomeUnknown
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry, Settings
from vlsn.ids import NodeName, Vlsn

RAISE_TIMEOUT_S = 10.0


async def raise_level(lead: Tenure, level: int) -> Vlsn:
    """Raises the level, durable on return; returns the VLSN of the entry. Raises ``BadArgument``, ``NoSpace``,
    ``NotMaster`` with nothing logged; ``OutcomeUnknown``."""
    member, log = lead.member, lead.log
    _check(lead, level)
    await store_level(log, level)
    if (refusal := log.refusal) is not None:
        raise refusal
    if lead.has_ended or lead.heir is not None:
        raise NotMaster("this node leads no more, or is handing over; try again")
    loop = asyncio.get_running_loop()
    sealed: asyncio.Future[Vlsn] = loop.create_future()
    entry = CommitEntry(set=Settings(level=level))
    log.append_entries([EntryKind.COMMIT], [entry.encode()], settle(sealed))
    member.event("group.level", level=level)
    try:
        async with asyncio.timeout(RAISE_TIMEOUT_S):
            vlsn = await sealed
    except TimeoutError:
        raise OutcomeUnknown(f"the raise to level {level} is logged, and not synced here yet") from None
    if not await lead.reads.reached(vlsn, loop.time() + RAISE_TIMEOUT_S):
        raise OutcomeUnknown(f"the raise to level {level} is logged at VLSN {vlsn}, and not durable yet")
    if log.level < level:
        raise NotMaster(f"the raise to level {level} was rolled back: another node leads")
    return vlsn


def _check(lead: Tenure, level: int) -> None:
    member, log = lead.member, lead.log
    if level != log.history.level + 1:
        raise BadArgument(f"the group is at level {log.history.level}; the next one is {log.history.level + 1}")
    spoken = {**member.members.levels, NodeName(member.name): member.seams.levels}
    behind = [name for name in member.members.listed if name not in spoken or not spoken[name].hold(level)]
    if behind:
        told = ", ".join(f"{name} ({spoken.get(name, 'not told yet')})" for name in behind)
        raise BadArgument(f"level {level} is not spoken by {told}: run a later vlsnlog there first")
