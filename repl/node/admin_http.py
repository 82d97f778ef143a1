"""The operators' calls: checkpoint, roll, cleaning, a restore, another master, other members."""

from __future__ import annotations

from typing import Any, Protocol

from repl.web import query
from repl.web.json_objects import answered, asked_object, nothing_asked
from repl.web.mastership import Mastership, redirect
from repl.web.types import Request, Response


class Administration(Mastership, Protocol):
    """The orders of a person."""

    async def checkpoint(self) -> dict[str, Any]: ...

    async def rotate(self) -> dict[str, Any]: ...

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        """Runs a pass of cleaning, or says what one would do."""
        ...

    async def restore(self) -> dict[str, Any]:
        """Gives the log up and restores it from a peer.  Raises ``NotAllowed`` while this node leads or restores,
        ``CopyNeeded`` while too few of the other members are known to be whole."""
        ...

    async def transfer(self, to: str | None) -> dict[str, Any]:
        """Moves mastership to the member ``to``, or to the one that is furthest.  Raises ``NotMaster``,
        ``BadArgument``, ``Unreachable``."""
        ...

    def group_document(self) -> dict[str, Any]:
        """Answers ``GET /v1/group``: the members as this node's log lists them. Raises ``NotMaster`` while it is not
        open."""
        ...

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/admin/group`` (``repl.group.membership.Change``); durable on return. Raises as
        ``Changes.change``."""
        ...

    async def change_settings(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/admin/group/settings``; durable on return. Raises as ``change_settings`` and
        ``raise_level`` do."""
        ...


_NONE: frozenset[str] = frozenset()
_CLEAN = frozenset({"dry_run"})
_TRANSFER = frozenset({"to"})


class AdminRoutes:
    def __init__(self, administration: Administration) -> None:
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
        if not self._administration.is_master():
            return redirect(self._administration, request)
        return answered(await self._administration.change_group(await asked_object(request)))

    async def change_settings(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        if not self._administration.is_master():
            return redirect(self._administration, request)
        return answered(await self._administration.change_settings(await asked_object(request)))

    async def transfer(self, request: Request) -> Response:
        query.only(request.query, _TRANSFER)
        if not self._administration.is_master():
            return redirect(self._administration, request)
        await nothing_asked(request)
        return answered(await self._administration.transfer(request.query.get("to")))
