"""Raises the group's level: logs an entry that names the formats and messages that all members support.

    every listed member has reported that it supports the level ─► node file ─► COMMIT {level} sealed ─► durable

A durable level never falls, because an older binary refuses each node file and log that has it. Until then a rollback
may remove the entry from the log, but node files keep their promise.
"""

from __future__ import annotations

from typing import Any

from repl.lead.logged_settings import check_loggable, log_settings
from repl.lead.tenure import Tenure
from replica.level import store_level
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.format.records import Settings
from vlsn.ids import Vlsn


async def raise_level(lead: Tenure, level: int) -> Vlsn:
    """Raises the level, durable on return. Returns the VLSN of the entry. Raises before anything is logged:
    ``BadArgument``, ``NoSpace``, ``NotMaster``. Also raises ``OutcomeUnknown``."""
    member = lead.member
    check_raise(lead, level)
    await store_level(lead.log, level)
    vlsn = await log_settings(lead, Settings(level=level), f"the raise to level {level}")
    member.event("group.level", level=level)
    return vlsn


def next_raise(lead: Tenure) -> dict[str, Any]:
    """Returns the next level, and why it cannot be raised to at this moment; an empty reason if it can."""
    level = lead.log.view.history.level + 1
    try:
        check_raise(lead, level)
    except VlsnLogError as refusal:
        return {"level": level, "why_not": str(refusal)}
    return {"level": level, "why_not": ""}


def check_raise(lead: Tenure, level: int) -> None:
    """Checks that ``level`` is the next one, all listed members speak it, and the log takes a setting. Raises
    ``BadArgument``, ``NoSpace``, ``NotMaster``."""
    member, log = lead.member, lead.log
    if level != log.view.history.level + 1:
        raise BadArgument(
            f"the group is at level {log.view.history.level}; the next one is {log.view.history.level + 1}"
        )
    spoken = member.spoken()
    behind = [name for name in member.members.listed if name not in spoken or not spoken[name].hold(level)]
    if behind:
        told = ", ".join(f"{name} ({spoken.get(name, 'not known yet')})" for name in behind)
        raise BadArgument(f"level {level} is not spoken by {told}: run a later vlsnlog there first")
    check_loggable(lead)
