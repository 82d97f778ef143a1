"""COMMITs that change the small state: what a transaction's sets, and one without entries."""

from __future__ import annotations

import asyncio

from repl.api import Acks, Appended, CommitSets, Puts
from repl.lead.leading import Leading
from repl.names import positions, sinks
from vlsn.errors import VlsnLogError
from vlsn.format.submission import Transaction


def puts_of(lead: Leading, sets: CommitSets | None) -> Puts | None:
    """Makes what a transaction's COMMIT sets. Raises ``BadArgument``, ``TooLarge``."""
    if sets is None:
        return None
    return sinks.joined(
        positions.puts_of(lead.log, sets.positions) if sets.positions else None,
        sinks.puts_of(lead.log, sets.sinks) if sets.sinks else None,
    )


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
