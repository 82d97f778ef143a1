"""The keys of one node's group, as its key file says; the file is read again every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from repl.auth import group_key
from repl.auth.group_key import GroupKeys
from vlsn.errors import BadArgument
from vlsn.seams import Disk

LOOK_S = 5.0
"""Seconds between two looks at the file."""


class Event(Protocol):
    """Writes one event of the node."""

    def __call__(self, name: str, **fields: object) -> None: ...


class Keyring:
    """The keys of the file at ``path``; none if ``path`` is None, and before ``load``."""

    def __init__(self, disk: Disk, path: str | None, event: Event) -> None:
        self.keys: GroupKeys | None = None
        self._disk = disk
        self._path = path
        self.event = event
        self._fault = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of all accepted keys, first that of the key that signs; empty without keys."""
        return self.keys.ids if self.keys is not None else ()

    def load(self) -> None:
        """Reads the file. Raises ``BadArgument``."""
        if self._path is not None:
            self.keys = group_key.read(self._disk, self._path)

    async def watch(self, offload: Callable[[Callable[[], GroupKeys]], Awaitable[GroupKeys]]) -> None:
        """Reads the file again for ever, by ``offload``. While it cannot be read, the keys stay as they were."""
        path = self._path
        while path is not None:
            await asyncio.sleep(LOOK_S)
            try:
                keys = await offload(lambda: group_key.read(self._disk, path))
            except BadArgument as error:
                if str(error) != self._fault:
                    self._fault = str(error)
                    self.event("key.unread", why=self._fault)
                continue
            self._fault = ""
            if keys != self.keys:
                self.keys = keys
                self.event("key.changed", signs=keys.signing.id, accepts=" ".join(keys.ids))
