"""Raises the group's level, the number of the formats and messages that all members support.

    every listed member has reported that it supports the level ─► node file ─► COMMIT {level} sealed ─► durable

A durable level never falls: an older binary refuses a node file or log of that level. Before the level is durable, a
rollback may remove the entry from the log. Even then the node files keep the level.
"""

from __future__ import annotations

from typing import Any

from repl.lead.logged_settings import check_loggable, log_settings
from repl.lead.tenure import Tenure
from replica.level import store_level
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.format.records import Settings
from vlsn.ids import Vlsn
from vlsn.levels import SIGNED


async def raise_level(lead: Tenure, level: int) -> Vlsn:
    """Raises the level; durable on return. Returns the VLSN of the entry. Raises before the entry is logged:
    ``BadArgument``, ``NoSpace``, ``NotMaster``. Also raises ``OutcomeUnknown``."""
    member = lead.member
    check_raise(lead, level)
    await store_level(lead.log, level)
    vlsn = await log_settings(lead, Settings(level=level), f"the raise to level {level}")
    member.event("group.level", level=level)
    return vlsn


def next_raise(lead: Tenure) -> dict[str, Any]:
    """Returns the next level, and why the group cannot be raised to it now; "" if it can."""
    level = lead.log.view.history.level + 1
    try:
        check_raise(lead, level)
    except VlsnLogError as refusal:
        return {"level": level, "why_not": str(refusal)}
    return {"level": level, "why_not": ""}


def check_raise(lead: Tenure, level: int) -> None:
    """Checks that ``level`` is the next one, that all listed members speak it, and that the log accepts a setting.
    Raises ``BadArgument``, ``NoSpace``, ``NotMaster``."""
    member, log = lead.member, lead.log
    if level != log.view.history.level + 1:
        raise BadArgument(
            f"the group is at level {log.view.history.level}; the next one is {log.view.history.level + 1}"
        )
    spoken = member.spoken()
    behind = [name for name in member.members.listed if name not in spoken or not spoken[name].hold(level)]
    if behind:
        told = ", ".join(f"{name} ({spoken.get(name, 'not known yet')})" for name in behind)
        needed = "run a later vlsnlog there first" + (", and with the group's key" if level == SIGNED else "")
        raise BadArgument(f"level {level} is not spoken by {told}: {needed}")
    if level == SIGNED and (unsigned := sorted(member.members.unsigned)):
        raise BadArgument(f"level {level} needs the signatures of {', '.join(unsigned)}, whose last call had none")
    check_loggable(lead)
