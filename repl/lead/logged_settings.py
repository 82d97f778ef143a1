"""Settings of the group. An entry in the log sets them; they apply from the entry's VLSN on.

    requested of the master ─► COMMIT {set} sealed ─► durable: answered

Until the entry is durable, a rollback may remove the entry and its settings.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from repl.lead.tenure import Tenure
from repl.offload import settle
from vlsn.errors import BadBody, NotMaster, OutcomeUnknown, WrongVersion
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry, Settings
from vlsn.ids import Vlsn
from vlsn.write.local_log import LocalLog

SETTINGS_TIMEOUT_S = 10.0
SETTINGS_LEVEL = 2
"""The lowest level of the group at which an entry may set anything besides the level."""


def read_settings(body: object) -> Settings:
    """Decodes the body of ``POST /v1/admin/group/settings``. Raises ``BadBody``."""
    names = {field.name for field in msgspec.structs.fields(Settings)}
    if not isinstance(body, dict) or not body or not body.keys() <= names:
        raise BadBody(f"settings of the group: one or more of {', '.join(sorted(names))}")
    if None in body.values() or ("level" in body and len(body) > 1):
        raise BadBody("settings of the group: each is a value, and the level is raised alone")
    if isinstance(given := body.get("durability"), dict) and given.keys() - {"local", "replica"}:
        raise BadBody("durability: local and replica")
    try:
        return msgspec.convert(body, Settings)
    except msgspec.ValidationError as error:
        raise BadBody(f"settings of the group: {error}") from None


def settings_of(log: LocalLog) -> dict[str, Any]:
    """Returns the group's settings, as the newest entries in the log set them, in the form of the JSON document."""
    history = log.view.history
    return {"producers": history.producers.limit, "durability": msgspec.to_builtins(history.durability)}


async def change_settings(lead: Tenure, settings: Settings) -> Vlsn:
    """Changes settings other than the level; durable on return. Raises as ``log_settings``, and ``WrongVersion``
    while the group's durable level is below ``SETTINGS_LEVEL``."""
    if lead.log.view.level < SETTINGS_LEVEL:
        raise WrongVersion(
            f"the group is at level {lead.log.view.level}, which has no such settings; raise it: "
            "`vlsnlog group upgrade`"
        )
    vlsn = await log_settings(lead, settings, "the change of settings")
    lead.member.event("group.settings", vlsn=vlsn, **msgspec.to_builtins(settings))
    return vlsn


def check_loggable(lead: Tenure) -> None:
    """Checks that the log accepts an entry of this term. Raises ``NoSpace``, ``NotMaster``."""
    if (refusal := lead.log.refusal) is not None:
        raise refusal
    if lead.has_ended or lead.heir is not None:
        raise NotMaster("this node is no longer the master, or is handing over; try again")


async def log_settings(lead: Tenure, settings: Settings, what: str) -> Vlsn:
    """Logs an entry with settings; durable on return. Returns the entry's VLSN. Raises ``NoSpace`` or ``NotMaster``
    before the entry is logged. Also raises ``OutcomeUnknown``, and ``NotMaster`` if the entry was rolled back."""
    log, loop = lead.log, asyncio.get_running_loop()
    check_loggable(lead)
    sealed: asyncio.Future[Vlsn] = loop.create_future()
    told = settle(sealed)

    def done(vlsn: Vlsn) -> None:
        lead.follow_settings()
        told(vlsn)

    log.append_entries([EntryKind.COMMIT], [CommitEntry(set=settings).encode()], done)
    try:
        async with asyncio.timeout(SETTINGS_TIMEOUT_S):
            vlsn = await sealed
    except TimeoutError:
        raise OutcomeUnknown(f"{what} is logged, and not synced here yet") from None
    if not await lead.reads.reached(vlsn, loop.time() + SETTINGS_TIMEOUT_S):
        raise OutcomeUnknown(f"{what} is logged at VLSN {vlsn}, and not durable yet")
    if log.view.dtvlsn < vlsn or log.view.history.term_of(vlsn) != lead.term:
        raise NotMaster(f"{what} was rolled back: another node leads")
    return vlsn
