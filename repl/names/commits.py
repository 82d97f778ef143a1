"""Logs a COMMIT that sets names and has no entries."""

from __future__ import annotations

import asyncio
from typing import Protocol

from repl.api import Appended, Done, Pending, Puts
from repl.read.reads import Reads
from vlsn.errors import VlsnLogError
from vlsn.ids import Vlsn
from vlsn.write.local_log import LocalLog


class CommitLead(Protocol):
    """The master's term, as far as calls that set names use it."""

    @property
    def log(self) -> LocalLog: ...

    @property
    def reads(self) -> Reads: ...

    async def read_index(self) -> Vlsn:
        """Returns a VLSN that every linearizable read must reach, once a majority has confirmed the master. Raises
        ``NotMaster``."""
        ...

    def commit(self, puts: Puts, done: Done) -> Pending:
        """Queues a COMMIT that sets ``puts``. Raises errors, and calls ``done``, as ``Admission.submit`` does."""
        ...


async def commit_alone(lead: CommitLead, puts: Puts, deadline: float) -> Appended:
    """Logs a COMMIT without entries; durable on return. ``deadline`` is the event loop's time. Raises as
    ``Admission.submit``, and ``OutcomeUnknown``."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Appended | VlsnLogError] = loop.create_future()

    def done(result: Appended | VlsnLogError) -> None:
        if not told.done():
            told.set_result(result)

    pending = lead.commit(puts, done)
    timer = loop.call_at(deadline, pending.expire)
    try:
        result = await told
    finally:
        timer.cancel()
        pending.expire()
    if isinstance(result, Appended):
        return result
    raise result
