"""The group's level on a replica: it is promised in the node file before the entry that sets it is written."""

from __future__ import annotations

import asyncio

from vlsn.write.local_log import LocalLog


async def store_level(log: LocalLog, level: int) -> None:
    """Stores the level in the node file; it is synced on return. Returns at once if the level is promised already.
    Raises ``WrongVersion``, ``LogFailed``."""
    if level <= log.node_file.record.level:
        return
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if stored.done():
            return  # the waiting call was cancelled
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    log.promises.store_level(level, done)
    await stored
