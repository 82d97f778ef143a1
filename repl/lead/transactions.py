"""Transactions before they are logged: staged in the master's memory, logged whole by their commits.

    begin ─► stage, stage … ─┬─ commit ─► one submission, as any append (``admission``) ─► acknowledged: the stage is
    dropped
                             └─ abort, or no call for ``STAGED_S`` ─► the stage is dropped, and nothing was logged

1. Nothing is in the log before the commit. Then all entries are in it, in one block.
2. A commit has a name in the log: a producer's submission, or the handle's id with ``HANDLE_SEQUENCE``. A repeated
   commit gets the same answer from this master or the next one (``exactly_once``). While its entries are staged here
   they are submitted again, so a refused commit can be logged now. Without the entries only the name is looked up.
3. Once a commit was requested, nothing more is staged and nothing aborted, until it is certain that nothing of it was
   logged.
4. A client may abandon a call without knowing whether it has staged anything. The client counts such calls
   (``rewinds``). The first call with a higher count takes back the entries after the number that it relies on. A call
   with a lower count comes too late, and is refused.
5. When the master's term ends, its stages are dropped.

On the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeAlias

from repl.api import Acks, Appended, Done, Handle, Puts
from repl.lead.admission import Admission
from repl.lead.append_book import Append
from repl.lead.tenure import Tenure
from repl.web.limits import (
    COMMITTED_NAMES_MAX,
    STAGED_BYTES_MAX,
    STAGED_ENTRY_BYTES,
    STAGED_PART_BYTES,
    STAGED_S,
    TRANSACTIONS_MAX,
    Budget,
)
from repl.web.usage import STAGES_A_TOKEN
from vlsn.durability import GroupDurability
from vlsn.errors import BadArgument, NotMaster, QueueFull, TransactionClosed, TransactionGone, VlsnLogError
from vlsn.format.batch import Batch
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.submission import TRANSACTION_OVERHEAD_BYTES, Transaction, Values
from vlsn.ids import NUMBER_MAX

Name: TypeAlias = tuple[int, int]
"""A producer, or a handle's id, and its sequence."""


class _Stage:
    """The entries of one open transaction."""

    __slots__ = (
        *("bytes", "deadline_s", "entries", "handle", "held", "name", "owner", "parts", "rewinds", "under_way"),
        "unsure",
    )

    def __init__(self, handle: Handle, owner: str) -> None:
        self.handle = handle
        self.owner = owner
        self.parts: list[Values | Batch] = []
        self.entries = 0
        self.bytes = Transaction((), b"", (handle.id, HANDLE_SEQUENCE)).bytes
        """The most bytes that the transaction takes of a block, its COMMIT included."""
        self.held = 0
        """The bytes taken from the budget."""
        self.deadline_s = 0.0
        self.rewinds = 0
        """The highest ``rewinds`` that a call has sent."""
        self.under_way = 0
        """The number of commits that wait for their answers."""
        self.unsure = False
        """True if a commit had no certain answer: it may be in the log, or still be logged."""
        self.name: Name | None = None
        """The name of a commit that is under way, or may be logged."""

    @property
    def closed(self) -> bool:
        return self.unsure or self.under_way > 0

    def add(self, part: Values | Batch) -> None:
        self.parts.append(part)
        self._count(part, 1)

    def rewind(self, entries: int) -> bool:
        """Takes back all entries after the first ``entries``. Returns whether a call ended there."""
        left, at = self.entries, len(self.parts)
        while left > entries:
            at -= 1
            left -= self.parts[at].count
        if left != entries:
            return False
        for part in self.parts[at:]:
            self._count(part, -1)
        del self.parts[at:]
        return True

    def _count(self, part: Values | Batch, sign: int) -> None:
        self.entries += sign * part.count
        self.bytes += sign * _bytes_in_block(part)
        self.held += sign * _memory_of(part)


class Transactions:
    """The transactions of one term. ``close`` is called when the term has ended."""

    def __init__(self, lead: Tenure, admission: Admission) -> None:
        self._lead = lead
        self._admission = admission
        self._log = lead.log
        self._counts = lead.member.counts
        self._open: dict[int, _Stage] = {}
        """The stages by id, in the order of their last calls, the oldest first."""
        self._owned: Counter[str] = Counter()
        """The number of open transactions of each token."""
        self._places = Budget("open transactions", TRANSACTIONS_MAX)
        self._staged = Budget("bytes of staged transactions", STAGED_BYTES_MAX)
        self._committed: dict[int, Name] = {}
        """Producers' names of the last committed transactions, by id."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def staged_bytes(self) -> int:
        return self._staged.used

    @property
    def bytes_max(self) -> int:
        """The most bytes of a segment that one transaction may take."""
        return self._log.placement.payload_bytes_max

    def begin(self, id: int | None = None, owner: str = "") -> Handle:
        """Begins a transaction, with the name ``id`` or any name for None. If it is begun again before anything is
        staged, the same one is returned. ``owner`` is the token that begins it, "" for a client without one.

        Raises ``WrongVersion``, ``QueueFull``, ``BadArgument`` if the name belongs to another transaction, and
        ``NotMaster`` while this node hands over, because the successor has no stages.
        """
        self._admission.check_transactions()
        if self._lead.holds_back or self._lead.has_ended:
            raise NotMaster("this node is handing over, or is no longer the master; try again")
        if id is not None and (id in self._open or self._admission.has_commit(id)):
            stage = self._open.get(id)
            if stage is None or stage.entries or stage.closed:
                raise BadArgument(f"id={id:016x} is the name of another transaction")
            self._touch(stage)
            return stage.handle
        if owner and self._owned[owner] >= STAGES_A_TOKEN:
            raise QueueFull(f"token {owner} has {STAGES_A_TOKEN} open transactions, which is its limit")
        self._places.take(1)
        while not id or id in self._open:
            id = self._lead.member.seams.random.u64() & NUMBER_MAX
        handle = Handle(id, self._log.view.dtvlsn, self._lead.term)
        if owner:
            self._owned[owner] += 1
        self._touch(_Stage(handle, owner))
        return handle

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None = None, rewinds: int = 0) -> int:
        """Stages more entries and returns the new number of entries. ``after`` is the number before, which identifies a
        call whose answer was lost. ``rewinds`` is the number of abandoned calls. Raises ``TooLarge``, ``QueueFull``,
        ``BadArgument`` for entries that do not follow, ``TransactionClosed``, and for an unknown transaction the errors
        of ``settle_gone`` or ``TransactionGone``."""
        stage = self._find(handle)
        if stage is None:
            await self._settle_gone(handle)
            self._counts.gone += 1
            raise _gone(handle)
        if stage.closed:
            raise _closed(handle)
        self._touch(stage)
        self._rewind(stage, after, rewinds)
        if after is not None and after != stage.entries:
            if after + part.count == stage.entries:
                return stage.entries  # the last call was sent again
            raise BadArgument(f"after={after}: {stage.entries} entries are staged")
        self._admission.check_size(stage.entries + part.count + 1, stage.bytes + _bytes_in_block(part))
        self._staged.take(_memory_of(part))
        stage.add(part)
        return stage.entries

    def commit(
        self,
        handle: Handle,
        acks: Acks,
        done: Done,
        *,
        name: Name | None = None,
        born: int | None = None,
        puts: Puts | None = None,
        durability: GroupDurability | None = None,
        after: int | None = None,
        rewinds: int = 0,
    ) -> Append:
        """Logs all staged entries as one submission, under ``name`` or else under the handle's name. ``puts`` are the
        names that its COMMIT sets. ``born`` belongs to ``name``, as in any submission; ``after`` and ``rewinds`` are as
        in ``stage``.

        Calls ``done`` and raises as ``Admission.submit``; ``done`` receives ``TransactionGone`` if nothing is staged or
        logged. Raises ``TransactionClosed`` if the commit is known under another name.
        """
        stage = self._find(handle)
        if stage is None:
            return self._ask_again(handle, acks, done, name, born)
        own = name or (handle.id, HANDLE_SEQUENCE)
        if stage.closed and stage.name != own:
            raise _closed(handle)
        self._touch(stage)
        self._rewind(stage, after, rewinds)
        if name is None:
            born = handle.born if stage.closed else NUMBER_MAX  # the commit was never submitted before
        submission = Transaction(tuple(stage.parts), puts.entry() if puts is not None else b"", own)

        def answered(result: Appended | VlsnLogError) -> None:
            self._answered(stage, result)
            done(result)

        stage.name = own
        stage.under_way += 1
        try:
            return self._admission.submit(submission, acks, answered, born, puts, durability)
        except VlsnLogError as error:
            self._answered(stage, error)
            raise

    async def abort(self, handle: Handle) -> None:
        """Forgets the staged entries, if there are any. Raises ``TransactionClosed``, and the errors for an unknown
        transaction."""
        stage = self._find(handle)
        if stage is None:
            await self._settle_gone(handle)
        elif stage.closed:
            raise _closed(handle)
        else:
            self._drop(stage)
            self._counts.aborted += 1

    def forget(self, handle: Handle) -> None:
        """Forgets the staged entries, unless a commit is under way or may be logged."""
        stage = self._find(handle)
        if stage is not None and not stage.closed:
            self._drop(stage)
            self._counts.aborted += 1

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for stage in list(self._open.values()):
            self._drop(stage)

    # Stages.

    def _find(self, handle: Handle) -> _Stage | None:
        stage = self._open.get(handle.id)
        return stage if stage is not None and stage.handle == handle else None

    def _touch(self, stage: _Stage) -> None:
        self._open.pop(stage.handle.id, None)
        self._open[stage.handle.id] = stage
        stage.deadline_s = self._loop.time() + STAGED_S
        if self._timer is None:
            self._timer = self._loop.call_at(stage.deadline_s, self._expire)

    def _expire(self) -> None:
        """Drops transactions that have timed out, unless their commits are under way."""
        now = self._loop.time()
        while self._open and (stage := next(iter(self._open.values()))).deadline_s <= now:
            if stage.under_way:
                self._touch(stage)  # sets no timer: other transactions are due before this one
            else:
                self._drop(stage)
                self._counts.expired += 1
        first = next(iter(self._open.values()), None)
        self._timer = self._loop.call_at(first.deadline_s, self._expire) if first is not None else None

    def _rewind(self, stage: _Stage, after: int | None, rewinds: int) -> None:
        """Takes back the entries of abandoned calls. Raises ``BadArgument`` for an abandoned call, and for a call that
        relies on missing entries."""
        if rewinds == stage.rewinds:
            return
        if rewinds < stage.rewinds:
            raise BadArgument(f"rewinds={rewinds}: this call was abandoned, as {stage.rewinds} calls are by now")
        if stage.closed:
            raise _closed(stage.handle)
        held = stage.held
        if after is None or not stage.rewind(after):
            raise BadArgument(f"after={after}: no call ended there, {stage.entries} entries are staged")
        stage.rewinds = rewinds
        self._staged.give(held - stage.held)

    def _drop(self, stage: _Stage) -> None:
        if self._open.get(stage.handle.id) is stage:
            del self._open[stage.handle.id]
            self._staged.give(stage.held)
            self._places.give(1)
            if stage.owner:
                self._owned[stage.owner] -= 1
                if not self._owned[stage.owner]:
                    del self._owned[stage.owner]

    async def _settle_gone(self, handle: Handle) -> None:
        """Makes sure that nothing of the transaction is logged. Only the master that accepted a producer's commit can
        answer for it: its client sends the commit again."""
        if handle.id in self._committed:
            raise _closed(handle)
        await self._admission.settle_gone(handle)

    # Commits.

    def _ask_again(self, handle: Handle, acks: Acks, done: Done, name: Name | None, born: int | None) -> Append:
        """Looks up a commit by its name alone, because its entries are not staged here."""
        known = self._committed.get(handle.id)
        if name is not None and (known not in (None, name) or self._admission.has_commit(handle.id)):
            raise _closed(handle)
        name = name or known

        def answered(result: Appended | VlsnLogError) -> None:
            self._counts.gone += isinstance(result, TransactionGone)
            done(result)

        if name is None:
            return self._admission.ask_again((handle.id, HANDLE_SEQUENCE), acks, answered, handle.born)
        return self._admission.ask_again(name, acks, answered, born)

    def _answered(self, stage: _Stage, result: Appended | VlsnLogError) -> None:
        stage.under_way -= 1
        if isinstance(result, Appended):
            self._drop(stage)
            if stage.name is not None and stage.name[1] != HANDLE_SEQUENCE:
                self._committed[stage.handle.id] = stage.name
                if len(self._committed) > COMMITTED_NAMES_MAX:
                    del self._committed[next(iter(self._committed))]
        elif not result.retry_safe:
            stage.unsure = True


def _bytes_in_block(part: Values | Batch) -> int:
    return part.bytes + TRANSACTION_OVERHEAD_BYTES * part.count


def _memory_of(part: Values | Batch) -> int:
    entries = STAGED_ENTRY_BYTES * part.count if isinstance(part, Values) else 0
    return part.bytes + STAGED_PART_BYTES + entries


def _gone(handle: Handle) -> TransactionGone:
    return TransactionGone(f"{handle} is neither staged here nor logged: begin another transaction")


def _closed(handle: Handle) -> TransactionClosed:
    return TransactionClosed(f"the commit of {handle} is under way, or in the log; send the same commit again")
