"""The admission of appends in one term: whether and when the master accepts an append.

An append is queued in the log, held back for a moment, or refused before it is logged. Appends are held back
(``gate``) while this node hands over its mastership, and while its replicas are not connected yet. An append of a
named producer passes the exactly-once check (``once``), which answers submissions that are in the log already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from repl.api import Acks, Done, Handle, Puts
from repl.lead.append_book import Append, refusal_of
from repl.lead.exactly_once import CommitAgain, Once, ProducerAppend
from repl.lead.held_appends import Gate
from repl.lead.name_conflicts import NameConflicts
from repl.lead.read_rounds import LeadersRounds
from repl.lead.tenure import Tenure
from vlsn.durability import SYNCED, GroupDurability
from vlsn.errors import (
    InsufficientReplicas,
    LogFailed,
    NotMaster,
    OutcomeUnknown,
    StaleTerm,
    StrongerDurability,
    TransactionClosed,
    VlsnLogError,
    WrongVersion,
)
from vlsn.format.same_submission import lies_in
from vlsn.format.submission import Submission, Transaction, check_transaction, cost_of
from vlsn.ids import Vlsn
from vlsn.levels import DURABILITIES, TRANSACTIONS
from vlsn.seams import Buffer
from vlsn.write.queue import Pending

SETTLE_S = 1.0
"""A new master whose replicas are not connected yet holds appends back for this many seconds, instead of refusing
them."""


class Admission:
    """The admission of appends in one term. ``settle_in`` is called when the term begins, ``close`` when the term
    ends."""

    def __init__(self, lead: Tenure, rounds: LeadersRounds) -> None:
        self._lead = lead
        self._rounds = rounds
        self._log = lead.log
        self._puts = NameConflicts(lead.log)
        self._once = Once(lead.log, self._repeat, self._lacks, self._puts.push)
        self._gate = Gate(self._put, self.open)
        self._settling = True
        self._takes_transactions = False
        """True once the group's level allows transactions. The level never falls, so this is checked once."""
        self._tasks: set[asyncio.Task[None]] = set()

    def settle_in(self) -> None:
        asyncio.get_running_loop().call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._settling = False
        self.open()

    def close(self) -> None:
        """Refuses all appends that are held back."""
        self._gate.refuse(lambda: NotMaster("this node is no longer the master; the append was not logged"))

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        puts: Puts | None = None,
        durability: GroupDurability | None = None,
    ) -> Append:
        """Submits an append. ``puts`` are the names that a transaction's COMMIT sets. ``durability`` has passed
        ``check_durability``; None means the group's setting, or a sync if the append sets names. Raises
        ``InsufficientReplicas``, ``WrongVersion``, ``TooLarge``, and the errors of ``Once``, ``NameConflicts`` and
        ``LocalLog.append``."""
        if isinstance(submission, Transaction):
            if not self._takes_transactions:
                self.check_transactions()
            check_transaction(submission.count, submission.bytes)
            self._lead.member.counts.commits += 1
        now = self._lead.member.seams.clock.monotonic_s()
        named = submission.producer != 0
        append = (
            ProducerAppend(self._once, submission, acks, done, now) if named else Append(submission, acks, done, now)
        )
        append.puts = puts
        promised = durability or self._lead.durability
        if promised is not SYNCED and (puts is None or durability is not None):
            self._lead.unsynced.promise(append, promised)
        self._log.check_size(append.cost)
        full = self._lead.full
        if full is not None and full.active and not self._is_known(append) and not full.admit(append, born):
            return append
        try:
            return self._take(append, born)
        except VlsnLogError:
            if full is not None:
                full.left(append)
            raise

    def _is_known(self, append: Append) -> bool:
        """Returns whether the append is a repeated submission that is in the log or its queue already. A repeated
        submission takes no room in a destination."""
        return isinstance(append, ProducerAppend) and self._once.knows(append)

    def put_held(self, append: Append, born: int | None) -> None:
        """Queues an append that was held because a destination was full. Raises as ``submit``."""
        self._take(append, born)

    def _take(self, append: Append, born: int | None) -> Append:
        if why := self._must_wait(append.acks):
            self._gate.hold(append, born, why)
        else:
            self._put(append, born)
        return append

    def _put(self, append: Append, born: int | None) -> None:
        try:
            if isinstance(append, ProducerAppend):
                self._once.submit(append, born)
            elif append.puts is None:
                self._log.append(append)
            else:
                self._puts.push(append)
        except StaleTerm as stale:
            self._lacks(append, stale)
        except LogFailed as failed:
            raise refusal_of(failed) from failed

    def sealed(self, pendings: list[Pending]) -> None:
        if self._lead.full is not None and self._lead.full.active:
            self._lead.full.sealed(pendings)
        if self._puts.queued:
            self._puts.sealed(pendings)
        if self._once.queued:
            self._once.sealed(pendings)

    # Held appends.

    def _must_wait(self, acks: Acks) -> str:
        """Returns why an append must be held back now, or "" if it can be queued. Raises ``InsufficientReplicas``."""
        gate = self._gate
        if self._lead.holds_back:
            return f"this node is handing over to {self._lead.heir}; try again"
        lacking = self._lacking(acks)
        if lacking and not self._settling:
            raise InsufficientReplicas(lacking)
        return lacking or ("earlier appends are waiting; try again" if gate.held or (gate.doubt and gate) else "")

    def _lacking(self, acks: Acks) -> str:
        """Returns how many replicas ``acks`` needs and how many are connected, as text; "" if enough are connected."""
        present, needed = self._lead.present, self._lead.book.needed[acks]
        return f"{present} replicas are connected, acks={acks} needs {needed}" if present < needed else ""

    def open(self) -> None:
        """Queues held appends, if the reason for holding them has ended."""
        lead = self._lead
        if self._gate and lead.start and not lead.holds_back and not lead.has_ended:
            self._gate.release(lambda append: not self._lacking(append.acks))
            if not self._settling and not self._gate.in_doubt:
                self._gate.refuse(lambda: InsufficientReplicas("the replicas that its acks need are not connected"))

    def check_durability(self, asked: GroupDurability) -> None:
        """Checks the durability that an append requests. Raises ``StrongerDurability`` if the append requests more
        than the group's setting, and ``WrongVersion`` if the group's level has no choice of durability."""
        if asked.exceeds(held := self._lead.durability):
            raise StrongerDurability(f"durability {asked} of an append, where the group's setting is {held}")
        if asked.lower and (level := self._log.view.level) < DURABILITIES:
            raise WrongVersion(
                f"durability {asked} needs level {DURABILITIES}, the group is at level {level}: once all members run a "
                "vlsnlog that speaks it, `vlsnlog group upgrade`"
            )

    # Transactions.

    def check_transactions(self) -> None:
        """Raises ``WrongVersion`` while the group's level is too low for transactions."""
        if (level := self._log.view.level) < TRANSACTIONS:
            raise WrongVersion(
                f"transactions need level {TRANSACTIONS}, the group is at level {level}: once all members run a "
                "vlsnlog that speaks it, `vlsnlog group upgrade`"
            )
        self._takes_transactions = True

    def check_size(self, entries: int, size: int) -> None:
        """Checks that a transaction fits one block, and that the block fits a segment. ``entries`` includes the
        COMMIT, ``size`` is in bytes. Raises ``TooLarge``."""
        check_transaction(entries, size)
        self._log.check_size(cost_of(entries, size))

    def ask_again(self, name: tuple[int, int], acks: Acks, done: Done, born: int | None) -> Append:
        """Submits again the commit of a transaction whose entries are no longer staged. The answer is that of the
        first commit of the same name, or ``TransactionGone``. Raises as ``submit``."""
        self.check_transactions()
        now = self._lead.member.seams.clock.monotonic_s()
        return self._take(CommitAgain(self._once, name, acks, done, now), born)

    def has_commit(self, handle: int) -> bool:
        return self._once.has_commit(handle)

    async def settle_gone(self, handle: Handle) -> None:
        """Makes sure that a transaction without staged entries was never logged under its handle. Raises
        ``TransactionClosed`` if the transaction was logged, and ``OutcomeUnknown``, ``ProducersMissing``,
        ``NotMaster``."""
        self.check_transactions()
        if not self.has_commit(handle.id):
            self._once.check_handle(handle.id, handle.born)
            await self._rounds.index()
        if self.has_commit(handle.id):
            raise TransactionClosed(f"{handle} is committed")

    # Producers' submissions.

    def _repeat(self, append: ProducerAppend) -> None:
        """Answers a submission that is in the log already. The answer is sent after ``submit`` has returned."""
        if append.submission is not None:
            append.doubt = self._spawn(self._compare(append))
            return
        lead = self._lead
        if lead.has_ended:
            append.settle(OutcomeUnknown("this node stopped leading before the append was acknowledged"))
            return
        lead.member.counts.duplicate_appends += 1
        lead.book.repeat(append, durable=self._log.view.dtvlsn)
        asyncio.get_running_loop().call_soon(lead.book.release_repeats)

    async def _compare(self, append: ProducerAppend) -> None:
        """Compares a repeated submission with the entries at its VLSNs in the log. If the entries in the log can no
        longer be read, an equal name is sufficient."""
        reads, submission = self._lead.reads, append.submission
        assert submission is not None
        try:
            block: Buffer | None = await reads.block_with(Vlsn(append.first))
        except VlsnLogError:
            block = None
        if block is not None and not lies_in(block, Vlsn(append.first), submission):
            append.settle(append.another)
            return
        append.submission = None
        self._repeat(append)

    def refuse(self, submission: Submission, acks: Acks, done: Done, error: VlsnLogError) -> Append:
        """Refuses an append that refers to entries which are not in this log, as ``_lacks`` does."""
        append = Append(submission, acks, done, self._lead.member.seams.clock.monotonic_s())
        self._lacks(append, error)
        return append

    def _lacks(self, append: Append, error: VlsnLogError) -> None:
        """Refuses a submission whose predecessor is missing from this log."""
        append.doubt = self._spawn(self._refuse(append, error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="producer's append")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _refuse(self, append: Append, error: VlsnLogError) -> None:
        """Refuses an append once a majority has confirmed that this node is the master. Without the confirmation the
        refusal could be wrong: a deposed master does not have its successor's entries."""
        try:
            await self._rounds.index()
        except VlsnLogError as unseated:
            append.settle(unseated)
        else:
            append.settle(error)
