"""COMMITs without entries, for calls that change the small state and nothing else."""

from __future__ import annotations

import asyncio

from repl.api import Acks, Appended, Puts
from repl.lead.leading import Leading
from vlsn.errors import VlsnLogError
from vlsn.format.submission import Transaction


async def commit_alone(lead: Leading, puts: Puts, deadline: float) -> Appended:
    """Logs a COMMIT alone, durable on return; ``deadline`` is the loop's time. Raises as ``Admission.submit``,
    ``OutcomeUnknown``."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Appended | VlsnLogError] = loop.create_future()

    def done(result: Appended | VlsnLogError) -> None:
        if not told.done():
            told.set_result(result)

    pending = lead.admission.submit(Transaction((), puts.entry()), Acks.MAJORITY, done, puts=puts)
    timer = loop.call_at(deadline, pending.expire)
    try:
        result = await told
    finally:
        timer.cancel()
        pending.expire()
    if isinstance(result, Appended):
        return result
    raise result
