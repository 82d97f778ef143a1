"""The group's level on a replica: promised in the node file before the entry that sets it is kept."""

from __future__ import annotations

import asyncio

from vlsn.write.local_log import LocalLog


async def store_level(log: LocalLog, level: int) -> None:
    """Stores the level in the node file, synced on return; returns at once where it is promised already. Raises
    ``WrongVersion``, ``LogFailed``."""
    if level <= log.node_file.record.level:
        return
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if stored.done():
            return  # nobody waits any more
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    log.promises.store_level(level, done)
    await stored
