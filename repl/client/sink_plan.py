"""A plan: what becomes of a numbered batch, by the part that was logged of its sink last.  Pure.

    logged last                 comes now                 then
    nothing                     any batch                 it begins
    batch 41, 2 of 3 parts      batch 41, same query      goes on behind part 2
    batch 41, 3 of 3 parts      batch 41, same query      nothing is left to log
    batch 41                    the same, other rows      refused: the batch has changed
    batch 41, 3 of 3 parts      batch 42, same query      it begins
    batch 41, 2 of 3 parts      batch 42, same query      refused: the rest of batch 41 would be lost
    batch 41                    batch 40, same query      refused: the checkpoint is older than the sink
    batch 41                    any, another query        refused: its checkpoint is not the one that was written from

A query is what has one checkpoint; without that difference a new checkpoint, which counts from 0 again, would be taken
for repeats, and its rows dropped.  What is refused can be wanted: ``reset`` names the state that is to be forgotten, by
its VLSN, so it does that once however long it stays; ``True`` stands for that of any other query but those that were
replaced themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from repl.api import SinkAt, SinkChange
from vlsn.errors import SinkRefused
from vlsn.state.sinks import FORMER_MAX, SinkState


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of ``total`` rows, as its writer names it."""

    sink: str
    query: str
    number: int
    total: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The place to go on at: behind ``part`` parts, whose ``rows`` rows have that ``digest``, and the batch's must too.
    The first of them is at VLSN ``first``; ``at`` is the state that it starts from."""

    at: int = 0
    part: int = 0
    rows: int = 0
    first: int = 0
    digest: str = ""
    former: tuple[str, ...] = ()

    def change(self, batch: Batch, *, parts: int, rows: int, digest: str) -> SinkChange:
        """Makes what the next part's commit sets: ``parts`` are left with it, and ``rows`` logged."""
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
        """Returns the place behind a part that lies from VLSN ``first`` to its COMMIT, ``last``."""
        state = change.state
        return Plan(last, state.part, state.rows, self.first or first, state.digest, self.former)


def plan_of(batch: Batch, placed: SinkAt | None, reset: int | bool = False) -> Plan:
    """Decides. Raises ``SinkRefused``."""
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
    first = state.first or placed.at - state.rows  # part 1 lies right before its COMMIT
    return Plan(placed.at, state.part, state.rows, first, state.digest, state.former)


def changed(batch: Batch, placed: SinkAt, what: str) -> SinkRefused:
    """Makes the error for a batch that is not what it was before."""
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
