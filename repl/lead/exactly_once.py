"""Exactly once: the admission of producers' submissions to one master's log.

    submit ─┬─ the next of its producer  ─► queue ─► sealed ─► the book of appends
            ├─ queued already            ─► waits beside the original, and is answered with it
            ├─ in the log already        ─► the book: answered when the original meets the acks asked now
            └─ anything else             ─► refused, nothing logged

A producer numbers its submissions with a sequence: 0, 1, 2 … A submission is named by its producer and its sequence.

1. The expected sequence is checked when a submission enters the queue, against the whole log and the queue. So if two
   connections send the same submission, one entry is logged.
2. A duplicate gets the original's VLSNs and term. A duplicate is answered only when the original is as safe as the
   duplicate requests. A duplicate must have the same contents as the original. A queued original is compared here, a
   logged original by ``repeat`` (``vlsn/format/same_submission.py``).
3. If the queue returns a submission unlogged, its sequence is expected again.
4. A transaction without a producer is named by its handle: the handle's id, and ``HANDLE_SEQUENCE`` as its only
   sequence. The names of such transactions have their own table (``History.commits``).
5. A commit whose entries are no longer staged here (``CommitAgain``) is looked up by its name, and never logged.
6. A table may be incomplete below some VLSN (``History.lacks_to``). An incomplete table answers only from its own
   records. Any other answer ("unknown", "forgotten" or "new") would be a guess, so the client is asked to try again.

Each term has its own ``Once``. The log's own table (``vlsn/state/producers.py``) outlives the term. This module runs
on the event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from repl.api import Acks, Done
from repl.lead.append_book import Append, refusal_of
from repl.read.reads import missing
from vlsn.errors import (
    DuplicateForgotten,
    OutcomeUnknown,
    OutOfSequence,
    TransactionGone,
    UnknownProducer,
    VlsnLogError,
)
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.same_submission import same
from vlsn.format.submission import Submission, Transaction
from vlsn.ids import NUMBER_MAX, Term, Vlsn
from vlsn.write.queue import Pending

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


class ProducerAppend(Append):
    """One submission of a producer. ``repeats`` are copies of this submission that arrived while it was queued."""

    __slots__ = ("is_handles", "key", "once", "producer", "repeats", "sequence")

    def __init__(self, once: Once, submission: Submission, acks: Acks, done: Done, since: float) -> None:
        super().__init__(submission, acks, done, since)
        self.once = once
        self.producer = producer = submission.producer
        self.sequence = submission.sequence
        self.is_handles = self.sequence == HANDLE_SEQUENCE
        """True if a transaction's handle names the submission."""
        self.key = -producer if self.is_handles else producer
        """The key of the submission in ``Once.queued``: the producer, or minus the handle's id."""
        self.repeats: list[ProducerAppend] = []

    def lies_at(self, first: Vlsn, last: Vlsn, term: Term) -> None:
        """Copies the VLSNs and the term of the original, which is in the log already. Raises ``OutOfSequence`` if
        the two submissions differ in length."""
        if last - first + 1 != self.count:
            raise OutOfSequence(
                f"sequence {self.sequence} of producer {self.producer:016x} was a submission of {last - first + 1} "
                f"entries, not of {self.count}"
            )
        self.first, self.last, self.term = first, last, term

    @property
    def another(self) -> OutOfSequence:
        """Returns the error for a submission whose sequence was used for other entries."""
        return OutOfSequence(f"sequence {self.sequence} of producer {self.producer:016x} was another submission")

    def refused(self, error: VlsnLogError) -> None:
        if self.puts is not None:
            self.puts.unlogged()
        self.once.left(self)
        for append in (self, *self.repeats):
            append.settle(refusal_of(error))


class CommitAgain(ProducerAppend):
    """The repeated commit of a transaction whose entries are no longer staged. Only the commit's name is known."""

    __slots__ = ()

    def __init__(self, once: Once, name: tuple[int, int], acks: Acks, done: Done, since: float) -> None:
        super().__init__(once, Transaction((), b"", name), acks, done, since)
        self.submission = None

    def lies_at(self, first: Vlsn, last: Vlsn, term: Term) -> None:
        self.first, self.last, self.term = first, last, term


class Once:
    """Exactly-once admission: ``submit`` queues a submission.

    ``repeat`` receives duplicates to answer. A duplicate's ``submission`` is set if it must still be compared with
    the original. ``lacks`` receives submissions whose predecessors are not in the log, with the error for the
    client. ``lacks`` first confirms that this node is the master. ``puts`` queues an append that sets names."""

    def __init__(
        self,
        log: LocalLog,
        repeat: Callable[[ProducerAppend], None],
        lacks: Callable[[Append, VlsnLogError], None],
        puts: Callable[[Append], None] | None = None,
    ) -> None:
        self._log = log
        self._repeat = repeat
        self._lacks = lacks
        self._puts = puts or log.append
        self.queued: dict[int, dict[int, ProducerAppend]] = {}
        """Queued submissions by producer and sequence, ascending. For a transaction with a handle, the key is minus
        the handle's id."""

    def submit(self, append: ProducerAppend, born: int | None) -> None:
        """Submits an append. ``born`` is a VLSN that was durable before the producer's first submission; 0 is always
        valid. With 0, a producer counts as new only if the log has forgotten no producer.

        Raises before the append is logged: ``OutOfSequence`` for other entries under a used sequence,
        ``DuplicateForgotten``, ``ProducersMissing``, and the log's errors. Raises ``OutcomeUnknown`` if a
        transaction's handle may have been forgotten."""
        if append.is_handles and born == NUMBER_MAX and self._is_fresh(append):
            self._push(append)
            return
        try:
            due = self._due(append, born or 0)
        except UnknownProducer as error:
            self._lacks(append, error)
            return
        if append.sequence == due:
            if isinstance(append, CommitAgain):
                gone = "this transaction is neither staged here nor logged: run it again in another one"
                self._lacks(append, TransactionGone(gone))
            else:
                self._push(append)
        elif append.sequence > due:
            lacking = OutOfSequence(
                f"sequence {append.sequence} of producer {append.producer:016x}, where {due} is due: its "
                "predecessor is not in the log"
            )
            self._lacks(append, lacking)
        else:
            self._meet_again(append)

    def sealed(self, pendings: Iterable[Pending]) -> None:
        """Notes that these submissions were sealed. The log's table of producers has them now."""
        for pending in pendings:
            if isinstance(pending, ProducerAppend):
                self.left(pending)
                for append in pending.repeats:
                    append.lies_at(Vlsn(pending.first), Vlsn(pending.last), Term(pending.term))
                    self._repeat(append)

    def left(self, append: ProducerAppend) -> None:
        """Notes that ``append`` is no longer queued."""
        queued = self.queued.get(append.key)
        if queued is not None and queued.get(append.sequence) is append:
            del queued[append.sequence]
            if not queued:
                del self.queued[append.key]

    def knows(self, append: ProducerAppend) -> bool:
        """Returns whether this submission is in the log or its queue."""
        if append.sequence in self.queued.get(append.key, {}):
            return True
        if append.is_handles:
            return self.has_commit(append.producer)
        life = self._log.view.history.producers.find(append.producer, at=self._log.view.allocated + 1)
        return life is not None and append.sequence < life.next

    def has_commit(self, handle: int) -> bool:
        """Returns whether the transaction with this handle's id is in the log or its queue."""
        return (
            -handle in self.queued
            or self._log.view.history.commits.find(handle, at=self._log.view.allocated + 1) is not None
        )

    def check_handle(self, handle: int, born: int) -> None:
        """Checks that the transaction of an unknown handle was never logged. Raises ``OutcomeUnknown``,
        ``ProducersMissing``."""
        commits = self._log.view.history.commits
        forgotten_to = commits.forgotten_to(at=self._log.view.allocated + 1)
        if born < forgotten_to:
            if commits.lacks_to:
                raise missing(f"transaction {handle:016x}", commits.lacks_to)
            raise OutcomeUnknown(
                f"transaction {handle:016x}, born at VLSN {born}, may have been logged and be forgotten: commits up to "
                f"VLSN {forgotten_to} may be"
            )

    def _due(self, append: ProducerAppend, born: int) -> int:
        """Returns the sequence that the producer's next submission must have."""
        queued = self.queued.get(append.key)
        if queued:
            return next(reversed(queued)) + 1
        log = self._log
        at = log.view.allocated + 1
        if append.is_handles:
            if log.view.history.commits.find(append.producer, at=at) is not None:
                return HANDLE_SEQUENCE + 1
            self.check_handle(append.producer, born)
            return HANDLE_SEQUENCE
        table = self._log.view.history.producers
        life = table.find(append.producer, at=at)
        if life is not None:
            return life.next
        is_new = append.sequence == 0 and born >= table.forgotten_to(at=at)
        if table.lacks_to and not is_new:
            raise missing(f"producer {append.producer:016x}", table.lacks_to)
        if append.sequence:
            raise UnknownProducer(
                f"producer {append.producer:016x} is not known here, or no longer: a producer begins with sequence 0"
            )
        if not is_new:
            raise UnknownProducer(
                f"producer {append.producer:016x}, born at VLSN {born}, may have been used and be forgotten: "
                f"submissions up to VLSN {table.forgotten_to(at=at)} may be; a new producer sends `born`"
            )
        return 0

    def _is_fresh(self, append: ProducerAppend) -> bool:
        """Returns whether a transaction, sent for the first time, is neither queued nor logged. A new transaction is
        the usual case."""
        known = append.key in self.queued or append.producer in self._log.view.history.commits
        return not known and append.submission is not None

    def _push(self, append: ProducerAppend) -> None:
        self.queued.setdefault(append.key, {})[append.sequence] = append
        try:
            if append.puts is None:
                self._log.append(append)
            else:
                self._puts(append)
        except BaseException:
            self.left(append)
            raise

    def _meet_again(self, append: ProducerAppend) -> None:
        original = self.queued.get(append.key, {}).get(append.sequence)
        if original is not None:
            assert original.submission is not None
            if append.submission is not None and not same(original.submission, append.submission):
                raise append.another
            append.submission = None
            original.repeats.append(append)
            return
        if append.is_handles:
            committed = self._log.view.history.commits.find(append.producer, at=self._log.view.allocated + 1)
            assert committed is not None, "it is due, or known"
            append.lies_at(*committed)
            self._repeat(append)
            return
        table = self._log.view.history.producers
        life = table.find(append.producer, at=self._log.view.allocated + 1)
        place = life.place(append.sequence, table.limits) if life is not None else None
        if place is None and table.lacks_to and (life is None or len(life) < table.limits.remembered):
            raise missing(f"producer {append.producer:016x}", table.lacks_to)
        if place is None:
            raise DuplicateForgotten(
                f"sequence {append.sequence} of producer {append.producer:016x} is in the log, but its VLSNs are not "
                f"remembered: the last {table.limits.remembered} are for each of the {table.limits.recent} most recent "
                f"producers, {table.limits.least} for any other"
            )
        append.lies_at(*place)
        self._repeat(append)
