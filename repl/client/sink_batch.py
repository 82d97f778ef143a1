"""Writes the numbered batches of a sink. Each row is logged once, also if the call is repeated or if the master or the
writer changes.

    look at the sink's state ─► plan ─► compare what is logged with the rows ─► the parts that are left, one by one
             ▲                                                                          │
             └──────────── another master, another writer, or no certain answer ◄───────┘

1. A batch is logged in parts; each part is one transaction. A plan decides how a batch proceeds, from the part of the
   sink that was logged last:

    logged last                 comes now                 then
    nothing                     any batch                 it begins
    batch 41, 2 of 3 parts      batch 41, same query      continues after part 2
    batch 41, 3 of 3 parts      batch 41, same query      nothing is left to log
    batch 41                    the same, other rows      refused: the batch has changed
    batch 41, 3 of 3 parts      batch 42, same query      it begins
    batch 41, 2 of 3 parts      batch 42, same query      refused: the rest of batch 41 would be lost
    batch 41                    batch 40, same query      refused: the checkpoint is older than the sink
    batch 41                    any, another query        refused: its checkpoint is not the one that was written from

   Batches belong to the same query if the same checkpoint counts them. A new checkpoint counts from 0 again. Without
   the query's name its batches would look like repeats, and their rows would be dropped. A writer can force a refused
   batch with ``reset``. ``reset`` names the state to forget by the state's VLSN, so it works only once, however long
   the setting stays. ``reset=True`` forgets the state of any other query, except a query that was itself replaced
   before.
2. A part's transaction also sets the sink's state after the part, and names the state before the part. So each part is
   logged once, whichever process sends it.
3. A repeat of a batch may have the same rows in another order. The sink's state has a digest of the rows in the logged
   parts. If the first rows of the repeat have another digest, the logged parts are read back, and their rows are
   removed from the repeat by content. A repeat of a complete batch is compared in the same way: it succeeds if all its
   rows are in the log, and is refused otherwise.
4. So the rows are logged in the batch's order, except after a repeat in another order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tenacity import RetryCallState

from repl.api import SinkAt, SinkChange
from repl.client.backoff import retrying
from repl.client.batch_rows import (
    PART_BYTES_MAX,
    PART_ENTRIES_MAX,
    BatchRows,
    RowsDigest,
    chunk_of,
    row_digest,
    without,
)
from repl.client.client import Client
from vlsn.errors import OutcomeUnknown, SinkRefused, StaleTerm, TransactionGone, Trimmed, Unreachable, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry
from vlsn.ids import Vlsn
from vlsn.state.sinks import FORMER_MAX, SinkState, key_of, state_of
from vlsn.state.small_state import Kept

GIVE_UP_S: Final = 120.0
"""``write_batch`` fails if it has logged no part of the batch for this many seconds."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of ``total`` rows, with the names that its writer gave it."""

    sink: str
    query: str
    number: int
    total: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a batch continues. ``part`` parts of the batch are logged, with ``rows`` rows whose digest is
    ``digest``; the batch's first rows must have the same digest. ``first`` is the VLSN of the first row. ``at`` is
    the VLSN of the sink's state that the next part replaces."""

    at: int = 0
    part: int = 0
    rows: int = 0
    first: int = 0
    digest: str = ""
    former: tuple[str, ...] = ()

    def change(self, batch: Batch, *, parts: int, rows: int, digest: str) -> SinkChange:
        """Makes the change of the sink's state that the next part's commit sets. ``parts`` is the number of
        remaining parts, including the next one. ``rows`` is the number of rows logged once the next part is
        committed."""
        part = self.part + 1
        state = SinkState(
            query=batch.query,
            batch=batch.number,
            part=part,
            parts=self.part + parts,
            rows=rows,
            total=batch.total,
            digest=digest,
            first=self.first,
            former=self.former,
        )
        return SinkChange(state, self.at)

    def after(self, change: SinkChange, first: int, last: int) -> Plan:
        """Returns the plan after a part whose rows begin at VLSN ``first`` and whose COMMIT is at ``last``."""
        state = change.state
        return Plan(last, state.part, state.rows, self.first or first, state.digest, self.former)


@dataclass(slots=True)
class Written:
    """The result of writing a batch: the number of parts that this call has logged, and whether all rows were in the
    log before."""

    parts: int = 0
    done_before: bool = False
    read_back: int = 0
    """The number of rows that were found in the log by content, because the repeat had another order."""


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
    """Logs ``rows`` as ``batch``. All rows are durable on a majority on return. A repeat of the call with the same
    rows, in any order, by any process, logs only the missing rows.

    Raises ``SinkRefused`` for a batch that does not follow on the sink's state, and the log's refusal of a part. If
    no part was logged for ``give_up_s``, raises the last error; some parts of the batch may be in the log then.
    """
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(give_up_s)
    urls = ", ".join(log.endpoints.urls)
    stood: BaseException = Unreachable(f"no node answers at {urls}: silence for {give_up_s:g} s")

    def failed(state: RetryCallState) -> None:
        nonlocal stood
        stood = (state.outcome and state.outcome.exception()) or stood

    def logged() -> None:
        limit.reschedule(loop.time() + give_up_s)

    writing = _Writing(log, batch, rows, reset, (part_bytes_max, part_entries_max), logged)
    try:
        async with limit:
            await retrying(_may_pass, before_sleep=failed)(writing.run)
    except TimeoutError:
        if not limit.expired():
            raise
        raise stood from None
    return writing.written


async def write_rows(log: Client[Any], rows: BatchRows, *, give_up_s: float = GIVE_UP_S) -> Written:
    """Logs rows without a sink, in as many transactions as they need. Each part is logged once, but a call that is
    repeated after an error logs its rows again. Raises the log's refusal of a part, ``OutcomeUnknown``, and the last
    error of a part that failed for ``give_up_s``."""
    written, loop = Written(), asyncio.get_running_loop()
    cuts = rows.cuts(PART_BYTES_MAX)
    for start, end in pairwise(cuts):
        pieces, until = list(rows.only(start, end).pieces()), loop.time() + give_up_s
        await retrying(_is_unlogged, until=until)(log.sinks.commit, "", pieces, None)
        written.parts += 1
    return written


def plan_of(batch: Batch, placed: SinkAt | None, reset: int | bool = False) -> Plan:
    """Decides where the batch begins or continues. Raises ``SinkRefused``."""
    if placed is None:
        return Plan()
    state = placed.state
    if reset is not True and reset and reset == placed.at:
        return _begun_anew(batch, placed)
    if state.query != batch.query:
        if batch.query in state.former:
            raise _refused(batch, placed, "another query has replaced this one there")
        if reset is True:
            return _begun_anew(batch, placed)
        raise _refused(batch, placed, "a new checkpoint, or another query, counts its batches anew")
    if batch.number < state.batch:
        raise _refused(batch, placed, "the checkpoint is older than what it has written")
    if batch.number > state.batch:
        if not state.finished:
            raise _refused(batch, placed, f"only {state.part} of {state.parts} parts of the earlier batch are logged")
        return Plan(placed.at, former=state.former)
    if state.total != batch.total:
        raise changed(batch, placed, f"it had {state.total} rows when its first part was logged, and has {batch.total}")
    first = state.first or placed.at - state.rows  # if one part is logged, its rows are right before their COMMIT
    return Plan(placed.at, state.part, state.rows, first, state.digest, state.former)


def changed(batch: Batch, placed: SinkAt, what: str) -> SinkRefused:
    """Makes the error for a batch whose rows have changed since it was first sent."""
    return _refused(batch, placed, f"the batch has changed: {what}; is the query deterministic?")


def _begun_anew(batch: Batch, placed: SinkAt) -> Plan:
    state = placed.state
    former = state.former
    if state.query != batch.query:
        former = (*(each for each in former if each not in (state.query, batch.query)), state.query)[-FORMER_MAX:]
    return Plan(placed.at, former=former)


def _refused(batch: Batch, placed: SinkAt, why: str) -> SinkRefused:
    state = placed.state
    return SinkRefused(
        f"sink {batch.sink!r} has batch {state.batch} of query {state.query}, and {batch} is to be written: {why}. "
        "Nothing was logged. Go on from the old checkpoint, or write under another name, or, if rows may be there "
        f"twice or be missing, give .option('sinkReset', {placed.at}), which forgets that state once"
    )


@dataclass(slots=True)
class _Writing:
    """One call of ``write_batch``. After an error ``run`` starts again from the sink's state in the log. ``limits``
    are the most bytes and entries of a part. ``logged`` is called after each part."""

    log: Client[Any]
    batch: Batch
    rows: BatchRows
    reset: int | bool
    limits: tuple[int, int]
    logged: Callable[[], None]
    written: Written = field(default_factory=Written)

    async def run(self) -> None:
        placed = await self.log.sinks.get(self.batch.sink)
        plan = plan_of(self.batch, placed, self.reset)
        digest, left = await self._left(plan, placed)
        cuts = left.cuts(*self.limits)
        for number, (start, end) in enumerate(pairwise(cuts)):
            part = left.only(start, end)
            digest.add(part)
            change = plan.change(
                self.batch, parts=len(cuts) - 1 - number, rows=plan.rows + part.count, digest=digest.hex()
            )
            appended = await self.log.sinks.commit(self.batch.sink, list(part.pieces()), change)
            self.written.parts += 1
            self.logged()
            plan = plan.after(change, appended.first, appended.last)
        self.written.done_before = plan.part > 0 and not self.written.parts

    async def _left(self, plan: Plan, placed: SinkAt | None) -> tuple[RowsDigest, BatchRows]:
        """Finds the rows that are not in the log, and the digest of the logged rows. Raises ``SinkRefused`` if
        logged rows are not among the batch's rows, or if the log no longer has the parts to compare."""
        digest = RowsDigest()
        if not plan.rows:
            return digest, self.rows
        assert placed is not None
        digest.add(self.rows.only(0, plan.rows))
        if digest.hex() == plan.digest:
            return digest, self.rows.only(plan.rows, self.rows.count)
        try:
            digest, logged = await self._read_back(plan)
        except Trimmed:
            lost = f"VLSN {plan.first} to {plan.at}, which are needed to compare, were cleaned away"
            raise changed(
                self.batch, placed, f"its logged rows are others, or came in another order, and {lost}"
            ) from None
        if len(logged) != plan.rows or digest.hex() != plan.digest:
            raise SinkRefused(
                f"sink {self.batch.sink!r}: {len(logged)} rows of {self.batch} are in the log from VLSN {plan.first} "
                f"to {plan.at}, and its state says {plan.rows}"
            )
        left = without(self.rows, logged)
        if left is None:
            raise changed(self.batch, placed, f"rows of its {plan.part} logged parts are not in it any more")
        self.written.read_back = len(logged)
        return digest, left

    async def _read_back(self, plan: Plan) -> tuple[RowsDigest, list[bytes]]:
        """Reads the rows of the logged parts back from the log. Returns a digest of all rows that were read, and a
        digest of each row."""
        digest, logged = RowsDigest(), []
        values: dict[int, list[bytes]] = {}
        keys: dict[int, list[bytes | None]] = {}
        async for entry in self.log.read(plan.first, plan.at, all_kinds=True):
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
        """Returns whether a COMMIT with the body ``commit`` belongs to this batch."""
        value = CommitEntry.decode(commit).puts.get(key_of(self.batch.sink))
        placed = state_of(Kept(vlsn, value)) if value else None
        return placed is not None and placed.state.query == self.batch.query and placed.state.batch == self.batch.number


def _is_unlogged(error: BaseException) -> bool:
    return isinstance(error, TransactionGone) or (
        isinstance(error, VlsnLogError) and error.transient and error.retry_safe
    )


def _may_pass(error: BaseException) -> bool:
    """Returns whether to read the sink's state again: after a temporary refusal, an unknown outcome, or another
    writer's part."""
    return isinstance(error, VlsnLogError) and (
        error.transient or isinstance(error, OutcomeUnknown | TransactionGone | StaleTerm)
    )
