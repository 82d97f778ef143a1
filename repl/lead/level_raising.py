"""The raising of the group's level: an entry that says what all its members read and write.

    every listed member has told that it speaks the level ─► node file ─► COMMIT {level} sealed ─► durable

Not taken back once durable: an older binary refuses each node file and log that has it.  Until then a rollback may take
it out of the log; node files keep what they promised.
"""

from __future__ import annotations

from repl.lead.logged_settings import log_settings
from repl.lead.tenure import Tenure
from replica.level import store_level
from vlsn.errors import BadArgument
from vlsn.format.records import Settings
from vlsn.ids import NodeName, Vlsn
from vlsn.levels import SIGNED


async def raise_level(lead: Tenure, level: int) -> Vlsn:
    """Raises the level, durable on return; returns the VLSN of the entry. Raises ``BadArgument``, ``NoSpace``,
    ``NotMaster`` with nothing logged; ``OutcomeUnknown``."""
    member = lead.member
    _check(lead, level)
    await store_level(lead.log, level)
    vlsn = await log_settings(lead, Settings(level=level), f"the raise to level {level}")
    member.event("group.level", level=level)
    return vlsn


def _check(lead: Tenure, level: int) -> None:
    member, log = lead.member, lead.log
    if level != log.view.history.level + 1:
        raise BadArgument(
            f"the group is at level {log.view.history.level}; the next one is {log.view.history.level + 1}"
        )
    spoken = {**member.members.levels, NodeName(member.name): member.seams.levels}
    behind = [name for name in member.members.listed if name not in spoken or not spoken[name].hold(level)]
    if behind:
        told = ", ".join(f"{name} ({spoken.get(name, 'not told yet')})" for name in behind)
        needed = "run a later vlsnlog there first" + (", and with the group's key" if level == SIGNED else "")
        raise BadArgument(f"level {level} is not spoken by {told}: {needed}")
    if level == SIGNED and (unsigned := sorted(member.members.unsigned)):
        raise BadArgument(f"level {level} needs the signatures of {', '.join(unsigned)}, whose last call had none")
