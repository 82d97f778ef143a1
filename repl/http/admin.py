"""The operators' calls: checkpoint, roll, cleaning, a restore, another master, other members."""

from __future__ import annotations

from repl.http import query
from repl.http.append import redirect
from repl.http.json_objects import answered, asked_object, nothing_asked
from repl.http.services import Administration
from repl.http.types import Request, Response

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
