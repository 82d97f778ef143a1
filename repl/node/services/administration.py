"""A person's orders to a node: checkpoints, rolls, cleaning, restores, another master, other members."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from repl.group.membership import read_change
from repl.lead.group_changes import document
from repl.lead.level_raising import raise_level
from repl.lead.logged_settings import change_settings, read_settings
from repl.node.services.mastership import NodeMastership
from repl.offload import settle, settle_error
from repl.repair.cleaning import told
from repl.repair.spared_copies import restore_as_asked
from vlsn.errors import NoSpace
from vlsn.format.segment import segment_name
from vlsn.ids import NodeName
from vlsn.state.state_store import Checkpoint


class NodeAdministration(NodeMastership):
    """``repl.http.services.Administration``."""

    async def checkpoint(self) -> dict[str, Any]:
        log = self._parts.opened().log
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.care.space.look(partial(settle(looked), None))
        await looked
        if log.care.space.cramped:
            raise NoSpace("the disk has no room for a checkpoint")
        done: asyncio.Future[Checkpoint] = asyncio.get_running_loop().create_future()
        log.care.checkpointer.run(done=settle(done), failed=settle_error(done))
        checkpoint = await done
        return {
            "node": self.name,
            "id": checkpoint.id,
            "last": checkpoint.last_vlsn,
            "dtvlsn": checkpoint.dtvlsn,
        }

    async def rotate(self) -> dict[str, Any]:
        log = self._parts.opened().log
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        log.cycle.rotate("request", settle(done))
        number = await done
        return {"node": self.name, "number": number, "file": segment_name(number)}

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        cleaning = self._parts.opened().cleaning
        return told(await (cleaning.dry_run() if dry_run else cleaning.clean()), self.name)

    async def restore(self) -> dict[str, Any]:
        await restore_as_asked(self._parts.member, self._parts.restoration)
        return {"node": self.name, "state": "RESTORING"}

    async def transfer(self, to: str | None) -> dict[str, Any]:
        lead, name = self._lead(), self.name
        if to is not None and to == name:
            return {"from": name, "to": to}
        heir = await lead.handing_over.run(NodeName(to) if to is not None else None)
        return {"from": name, "to": heir}

    def group_document(self) -> dict[str, Any]:
        return document(self._parts.opened().opened)

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._lead().changes.change(read_change(body))

    async def change_settings(self, body: dict[str, Any]) -> dict[str, Any]:
        lead, settings = self._lead(), read_settings(body)
        if settings.level is not None:
            vlsn = await raise_level(lead, settings.level)
        else:
            vlsn = await change_settings(lead, settings)
        return {**document(lead.opened), "vlsn": vlsn, "durable": True}
