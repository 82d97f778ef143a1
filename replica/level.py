"""The group's level (the version of its formats) on a replica. The node file promises the level before the entry that
sets the level is written."""

from __future__ import annotations

import asyncio

from vlsn.write.local_log import LocalLog


async def store_level(log: LocalLog, level: int) -> None:
    """Stores ``level`` in the node file, synced on return. Returns at once if that level is promised already. Raises
    ``WrongVersion`` or ``LogFailed``."""
    if level <= log.node_file.record.level:
        return
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if stored.done():
            return  # the call that waited was cancelled
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    log.promises.store_level(level, done)
    await stored
