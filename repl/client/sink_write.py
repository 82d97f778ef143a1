"""Writes a numbered batch to a sink, each row once, through changes of the master and of the writer.

    look at the sink's state ─► plan ─► compare what is logged with the rows ─► the parts that are left, one by one
             ▲                                                                          │
             └──────────── another master, another writer, or no certain answer ◄───────┘

1. A part is one transaction with the state that it makes, which names the state before it: no part is logged twice,
   whoever sends it, and none is left out.
2. A repeat may bring the same rows in another order.  The state has a digest of the rows in the parts that are logged;
   where the repeat's first rows have another one, the parts are read back from the log and taken out by their content.
   So is the repeat of a batch that is whole: it is a success where all its rows are logged, and refused otherwise.
3. So rows keep the order in which the batch has them, but for a repeat whose order is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from repl.api import SinkAt
from repl.client.backoff import Backoff
from repl.client.batch_rows import (
    PART_BYTES_MAX,
    PART_ENTRIES_MAX,
    BatchRows,
    RowsDigest,
    chunk_of,
    row_digest,
    without,
)
from repl.client.connect import Client
from repl.client.sink_plan import Batch, Plan, changed, plan_of
from vlsn.errors import OutcomeUnknown, SinkRefused, StaleTerm, TransactionGone, Trimmed, Unreachable, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry
from vlsn.ids import Vlsn
from vlsn.state.sinks import key_of, state_of
from vlsn.state.small_state import Kept

GIVE_UP_S: Final = 120.0
"""Seconds without a part being logged after which a batch is given up."""


@dataclass(slots=True)
class Written:
    """The outcome of a batch: how many parts this call has logged, and whether all was there before."""

    parts: int = 0
    done_before: bool = False
    read_back: int = 0
    """Rows that were found in the log by their content, for the repeat had another order."""


async def write_batch(
    log: Client[Any],
    batch: Batch,
    rows: BatchRows,
    *,
    reset: int | bool = False,
    give_up_s: float = GIVE_UP_S,
    part_bytes_max: int = PART_BYTES_MAX,
    part_entries_max: int = PART_ENTRIES_MAX,
) -> Written:
    """Logs ``rows`` as ``batch``, all of them durable on a majority on return. Made again with the same rows, in any
    order, by any process, it logs what is missing.

    Raises ``SinkRefused`` for a batch that does not follow on what the sink has; what the log refuses a part with; and
    what stood in the way where no part was logged for ``give_up_s``. Then it may be in the log to any part."""
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(give_up_s)
    urls = ", ".join(log.endpoints.urls)
    stood: BaseException = Unreachable(f"no node answers at {urls}: silence for {give_up_s:g} s")

    def failed(state: RetryCallState) -> None:
        nonlocal stood
        stood = (state.outcome and state.outcome.exception()) or stood

    def logged() -> None:
        limit.reschedule(loop.time() + give_up_s)

    writing = _Writing(log, batch, rows, reset, (part_bytes_max, part_entries_max), logged)
    retrying = AsyncRetrying(
        wait=Backoff(), retry=retry_if_exception(_may_pass), sleep=asyncio.sleep, reraise=True, before_sleep=failed
    )
    try:
        async with limit:
            await retrying(writing.run)
    except TimeoutError:
        if not limit.expired():
            raise
        raise stood from None
    return writing.written


async def write_rows(log: Client[Any], rows: BatchRows, *, give_up_s: float = GIVE_UP_S) -> Written:
    """Logs rows that nobody will know again, in as many transactions as they take. A part is logged once; what is made
    again after an error, is there again. Raises what the log refuses a part with, ``OutcomeUnknown``, and what stood in
    the way of one part for ``give_up_s``."""
    written, loop = Written(), asyncio.get_running_loop()
    cuts = rows.cuts(PART_BYTES_MAX)
    for start, end in pairwise(cuts):
        pieces, deadline = list(rows.only(start, end).pieces()), loop.time() + give_up_s

        def is_over(_: object, deadline: float = deadline) -> bool:
            return loop.time() >= deadline

        retrying = AsyncRetrying(
            wait=Backoff(), stop=is_over, retry=retry_if_exception(_is_unlogged), sleep=asyncio.sleep, reraise=True
        )
        await retrying(log.sinks.commit, "", pieces, None)
        written.parts += 1
    return written


class _Writing:
    """One call of ``write_batch``; ``run`` begins again where the log is."""

    def __init__(
        self,
        log: Client[Any],
        batch: Batch,
        rows: BatchRows,
        reset: int | bool,
        limits: tuple[int, int],
        logged: Callable[[], None],
    ) -> None:
        """``limits``: bytes and entries of a part; ``logged`` is called behind each."""
        self._log = log
        self._batch = batch
        self._rows = rows
        self._reset = reset
        self._limits = limits
        self._logged = logged
        self.written = Written()

    async def run(self) -> None:
        placed = await self._log.sinks.get(self._batch.sink)
        plan = plan_of(self._batch, placed, self._reset)
        digest, left = await self._left(plan, placed)
        cuts = left.cuts(*self._limits)
        for number, (start, end) in enumerate(pairwise(cuts)):
            part = left.only(start, end)
            digest.add(part)
            change = plan.change(
                self._batch, parts=len(cuts) - 1 - number, rows=plan.rows + part.count, digest=digest.hex()
            )
            appended = await self._log.sinks.commit(self._batch.sink, list(part.pieces()), change)
            self.written.parts += 1
            self._logged()
            plan = plan.after(change, appended.first, appended.last)
        self.written.done_before = plan.part > 0 and not self.written.parts

    async def _left(self, plan: Plan, placed: SinkAt | None) -> tuple[RowsDigest, BatchRows]:
        """Finds the rows that are not logged, and the digest of those that are. Raises ``SinkRefused`` where those are
        not among the batch's rows, or where that cannot be known any more."""
        digest = RowsDigest()
        if not plan.rows:
            return digest, self._rows
        assert placed is not None
        digest.add(self._rows.only(0, plan.rows))
        if digest.hex() == plan.digest:
            return digest, self._rows.only(plan.rows, self._rows.count)
        try:
            digest, logged = await self._read_back(plan)
        except Trimmed:
            lost = f"VLSN {plan.first} to {plan.at}, which would tell, were cleaned away"
            raise changed(
                self._batch, placed, f"its logged rows are others, or came in another order, and {lost}"
            ) from None
        if len(logged) != plan.rows or digest.hex() != plan.digest:
            raise SinkRefused(
                f"sink {self._batch.sink!r}: {len(logged)} rows of {self._batch} are in the log from VLSN {plan.first} "
                f"to {plan.at}, and its state says {plan.rows}"
            )
        left = without(self._rows, logged)
        if left is None:
            raise changed(self._batch, placed, f"rows of its {plan.part} logged parts are not in it any more")
        self.written.read_back = len(logged)
        return digest, left

    async def _read_back(self, plan: Plan) -> tuple[RowsDigest, list[bytes]]:
        """Reads the rows of the parts that are logged: all of them, and one digest each."""
        digest, logged = RowsDigest(), []
        values: dict[int, list[bytes]] = {}
        keys: dict[int, list[bytes | None]] = {}
        async for entry in self._log.read(plan.first, plan.at, all_kinds=True):
            if not entry.txn:
                continue
            if entry.kind == EntryKind.DATA:
                values.setdefault(entry.txn, []).append(entry.value)
                keys.setdefault(entry.txn, []).append(entry.key)
            elif entry.kind == EntryKind.COMMIT:
                part = values.pop(entry.txn, []), keys.pop(entry.txn, [])
                if self._is_part(entry.value, entry.vlsn):
                    digest.add(BatchRows([chunk_of(*part)]))
                    logged += [row_digest(key or b"", value) for value, key in zip(*part, strict=True)]
        return digest, logged

    def _is_part(self, commit: bytes, vlsn: Vlsn) -> bool:
        """Says whether this COMMIT is one of the batch's."""
        value = CommitEntry.decode(commit).puts.get(key_of(self._batch.sink))
        placed = state_of(Kept(vlsn, value)) if value else None
        return (
            placed is not None and placed.state.query == self._batch.query and placed.state.batch == self._batch.number
        )


def _is_unlogged(error: BaseException) -> bool:
    return isinstance(error, TransactionGone) or (
        isinstance(error, VlsnLogError) and error.transient and error.retry_safe
    )


def _may_pass(error: BaseException) -> bool:
    """Says whether to look again: what was refused for the moment, what may be logged, and another writer's part."""
    return isinstance(error, VlsnLogError) and (
        error.transient or isinstance(error, OutcomeUnknown | TransactionGone | StaleTerm)
    )
