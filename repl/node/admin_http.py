"""The operators' calls: checkpoint, roll, cleaning, a restore, another master, other members."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from repl.group.member import Member
from repl.group.membership import Change, read_change
from repl.lead.group_changes import document
from repl.lead.leading import lead_of
from repl.lead.level_raising import raise_level
from repl.lead.logged_settings import change_settings, read_settings
from repl.offload import settle, settle_error
from repl.repair.cleaning import Cleaning, told
from repl.repair.restoring import Restoration
from repl.repair.spared_copies import restore_as_asked
from repl.web import query
from repl.web.calls import (
    EMPTY,
    FLAG,
    JSON,
    JSON_BODY,
    LIST,
    LOGGED,
    NUMBER,
    OBJECT,
    OPEN,
    ORDERED,
    TEXT,
    TEXTS,
    WHOLE,
    Call,
    choice,
    known,
    maybe,
    ok,
    record,
    words,
)
from repl.web.json_objects import answered, asked_object, nothing_asked
from repl.web.mastership import redirect
from repl.web.types import Request, Response
from vlsn.errors import CopyNeeded, GroupBusy, NoSegment, NoSpace, NotAllowed, Unreachable
from vlsn.format.records import Settings
from vlsn.format.segment import segment_name
from vlsn.ids import NodeName
from vlsn.state.state_store import Checkpoint

_NONE: frozenset[str] = frozenset()
_DRY_RUN = choice("dry_run", "`true` says what a pass would remove, and removes nothing.", ("true", "false"), "false")
_TO = words("to", "The next master; without it the member that is furthest.")
_CLEAN = known(_DRY_RUN)
_TRANSFER = known(_TO)
_GROUP: dict[str, Mapping[str, Any]] = {
    **dict.fromkeys(("group", "node", "state"), TEXT),
    "master": maybe(TEXT),
    **dict.fromkeys(("term", "vlsn", "previous", "level"), WHOLE),
    "durable": FLAG,
    "settings": OBJECT,
    "upgrade": maybe(OBJECT),
    "members": LIST,
}
_CLEANED: dict[str, Mapping[str, Any]] = {
    "node": TEXT,
    "paused": TEXT,
    "dry_run": FLAG,
    **dict.fromkeys(("bytes", "retention_bytes", "total_bytes", "first"), WHOLE),
    "retention_age_s": NUMBER,
    "segments": LIST,
    "blocked": LIST,
    "dropped": TEXTS,
}
_ORDERED = OPEN | ORDERED
_GROUP_CALLS = (
    Call(
        "group and operators",
        "GET",
        "/v1/group",
        "Read the members and settings of the group",
        (),
        (ok(record(_GROUP), "The group, as this node's log lists it; `durable` says that a majority has the list."),),
        OPEN,
        example="$URL/v1/group",
    ),
    Call(
        "group and operators",
        "POST",
        "/v1/admin/group",
        "Change the members of the group",
        (),
        (ok(record(_GROUP), "The change is durable."),),
        LOGGED | {GroupBusy},
        {JSON: Change},
        text=JSON_BODY,
    ),
    Call(
        "group and operators",
        "POST",
        "/v1/admin/group/settings",
        "Change the settings of the group",
        (),
        (ok(record(_GROUP), "The change is durable."),),
        LOGGED | {GroupBusy},
        {JSON: Settings},
        text=f"One or more settings; the level is raised alone. {JSON_BODY}",
    ),
    Call(
        "group and operators",
        "POST",
        "/v1/admin/transfer",
        "Move mastership to another member",
        (_TO,),
        (ok(record({"from": TEXT, "to": TEXT}), "`to` leads."),),
        _ORDERED | {GroupBusy, Unreachable},
        EMPTY,
        False,
    ),
)
_NODE_CALLS = (
    Call(
        "group and operators",
        "POST",
        "/v1/admin/checkpoint",
        "Take a checkpoint of this node",
        (),
        (ok(record({"node": TEXT, "id": WHOLE, "last": WHOLE, "dtvlsn": WHOLE}), "The checkpoint is on the disk."),),
        _ORDERED | {NoSpace},
        EMPTY,
        False,
        example="-X POST $URL/v1/admin/checkpoint -H 'Content-Type: application/json'",
    ),
    Call(
        "group and operators",
        "POST",
        "/v1/admin/rotate",
        "Begin a new segment on this node",
        (),
        (ok(record({"node": TEXT, "number": WHOLE, "file": TEXT}), "The segment that is written from now on."),),
        _ORDERED | {NoSpace, NoSegment},
        EMPTY,
        False,
    ),
    Call(
        "group and operators",
        "POST",
        "/v1/admin/clean",
        "Remove old segments of this node",
        (_DRY_RUN,),
        (ok(record(_CLEANED), "The report of the pass."),),
        _ORDERED,
        EMPTY,
        False,
    ),
    Call(
        "group and operators",
        "POST",
        "/v1/admin/restore",
        "Replace this node's log by another member's",
        (),
        (ok(record({"node": TEXT, "state": TEXT}), "The restore has begun."),),
        _ORDERED | {NotAllowed, CopyNeeded},
        EMPTY,
        False,
    ),
)
CALLS = (*_GROUP_CALLS, *_NODE_CALLS)


class AdminRoutes:
    def __init__(self, administration: NodeAdministration) -> None:
        self._administration = administration

    async def checkpoint(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        await nothing_asked(request)
        return answered(await self._administration.checkpoint())

    async def rotate(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        await nothing_asked(request)
        return answered(await self._administration.rotate())

    async def clean(self, request: Request) -> Response:
        query.only(request.query, _CLEAN)
        dry_run = query.choice(request.query, "dry_run", False, {"true": True, "false": False})
        await nothing_asked(request)
        return answered(await self._administration.clean(dry_run=dry_run))

    async def restore(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        await nothing_asked(request)
        return answered(await self._administration.restore())

    async def group(self, request: Request) -> Response:
        """Answers ``GET /v1/group``."""
        query.only(request.query, _NONE)
        return answered(self._administration.group_document())

    async def change_group(self, request: Request) -> Response:
        if not self._administration.member.is_master():
            return redirect(self._administration.member, request)
        return answered(await self._administration.change_group(await asked_object(request)))

    async def change_settings(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        if not self._administration.member.is_master():
            return redirect(self._administration.member, request)
        return answered(await self._administration.change_settings(await asked_object(request)))

    async def transfer(self, request: Request) -> Response:
        query.only(request.query, _TRANSFER)
        if not self._administration.member.is_master():
            return redirect(self._administration.member, request)
        await nothing_asked(request)
        return answered(await self._administration.transfer(request.query.get("to")))


class NodeAdministration:
    """The orders of a person."""

    def __init__(self, member: Member, restoration: Restoration) -> None:
        self.member = member
        self._restoration = restoration

    async def checkpoint(self) -> dict[str, Any]:
        log = self.member.opened().log
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.care.space.look(partial(settle(looked), None))
        await looked
        if log.care.space.cramped:
            raise NoSpace("the disk has no room for a checkpoint")
        done: asyncio.Future[Checkpoint] = asyncio.get_running_loop().create_future()
        log.care.checkpointer.run(done=settle(done), failed=settle_error(done))
        checkpoint = await done
        return {
            "node": self.member.name,
            "id": checkpoint.id,
            "last": checkpoint.last_vlsn,
            "dtvlsn": checkpoint.dtvlsn,
        }

    async def rotate(self) -> dict[str, Any]:
        log = self.member.opened().log
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        log.cycle.rotate("request", settle(done))
        number = await done
        return {"node": self.member.name, "number": number, "file": segment_name(number)}

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        """Runs a pass of cleaning, or says what one would do."""
        cleaning = self.member.opened().part(Cleaning)
        return told(await (cleaning.dry_run() if dry_run else cleaning.clean()), self.member.name)

    async def restore(self) -> dict[str, Any]:
        """Gives the log up and restores it from a peer.  Raises ``NotAllowed`` while this node leads or restores,
        ``CopyNeeded`` while too few of the other members are known to be whole."""
        await restore_as_asked(self.member, self._restoration)
        return {"node": self.member.name, "state": "RESTORING"}

    async def transfer(self, to: str | None) -> dict[str, Any]:
        """Moves mastership to the member ``to``, or to the one that is furthest.  Raises ``NotMaster``,
        ``BadArgument``, ``Unreachable``."""
        lead, name = lead_of(self.member), self.member.name
        if to is not None and to == name:
            return {"from": name, "to": to}
        heir = await lead.handing_over.run(NodeName(to) if to is not None else None)
        return {"from": name, "to": heir}

    def group_document(self) -> dict[str, Any]:
        """Answers ``GET /v1/group``: the members as this node's log lists them. Raises ``NotMaster`` while it is not
        open."""
        return document(self.member.opened())

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/admin/group`` (``repl.group.membership.Change``); durable on return. Raises as
        ``Changes.change``."""
        return await lead_of(self.member).changes.change(read_change(body))

    async def change_settings(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/admin/group/settings``; durable on return. Raises as ``change_settings`` and
        ``raise_level`` do."""
        lead, settings = lead_of(self.member), read_settings(body)
        if settings.level is not None:
            vlsn = await raise_level(lead, settings.level)
        else:
            vlsn = await change_settings(lead, settings)
        return {**document(lead.opened), "vlsn": vlsn, "durable": True}
