"""Exactly once: the submissions of producers on their way into one master's log.

    submit ─┬─ the next of its producer  ─► queue ─► sealed ─► the book of appends
            ├─ queued already            ─► waits beside the original, and is answered when that would be
            ├─ in the log already        ─► the book: answered when the original meets the acks asked now
            └─ anything else             ─► refused, nothing logged

1. What is due is judged where a submission takes its place in the queue, against all that is in the log, durable or
   not, and all that is queued: two connections that send the same submission make one of it, in whatever order.
2. A duplicate is answered with the original's VLSNs and term, and never before the original is as safe as the
   duplicate asks.  It must say what the original says: one that is queued is compared here, one that is in the log by
   ``repeat`` (``vlsn/format/same_submission.py``).
3. What the queue gives back unlogged is due again.
4. A table that lacks what came before some VLSN (``Producers.lacks_to``) says what it knows and nothing else: what it
   would be "unknown" or "forgotten" for, or new without saying since when, is to come again.

One for each lead; the log's own table (``vlsn/state/producers.py``) is what outlives it.  On the loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from repl.api import Acks, Done
from repl.lead.append_book import Append, refusal_of
from vlsn.errors import DuplicateForgotten, OutOfSequence, ProducersMissing, UnknownProducer, VlsnLogError
from vlsn.format.same_submission import same
from vlsn.format.submission import Submission
from vlsn.ids import Term, Vlsn
from vlsn.write.queue import Pending

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


class ProducerAppend(Append):
    """One submission of a producer; ``repeats`` are the same one, sent again while this was queued."""

    __slots__ = ("once", "producer", "repeats", "sequence")

    def __init__(self, once: Once, submission: Submission, acks: Acks, done: Done, since: float) -> None:
        super().__init__(submission, acks, done, since)
        self.once = once
        self.producer, self.sequence = submission.producer, submission.sequence
        self.repeats: list[ProducerAppend] = []

    def lies_at(self, first: Vlsn, last: Vlsn, term: Term) -> None:
        """Takes the place of a submission that is in the log already. Raises ``OutOfSequence`` for what cannot be the
        same submission."""
        if last - first + 1 != self.count:
            raise OutOfSequence(
                f"sequence {self.sequence} of producer {self.producer:016x} was a submission of {last - first + 1} "
                f"entries, not of {self.count}"
            )
        self.first, self.last, self.term = first, last, term

    @property
    def another(self) -> OutOfSequence:
        """The refusal of a submission whose sequence stands for other entries."""
        return OutOfSequence(f"sequence {self.sequence} of producer {self.producer:016x} was another submission")

    def refused(self, error: VlsnLogError) -> None:
        self.once.left(self)
        for append in (self, *self.repeats):
            append.settle(refusal_of(error))


class Once:
    """Exactly-once admission: ``submit`` queues a submission, ``repeat`` receives duplicates to be answered. Its
    ``submission`` is set while it must still be compared with the original. ``lacks`` receives those that follow on
    what is not in the log, with what to refuse them with once it is certain that this log is the group's."""

    def __init__(
        self,
        log: LocalLog,
        repeat: Callable[[ProducerAppend], None],
        lacks: Callable[[Append, VlsnLogError], None],
    ) -> None:
        self._log = log
        self._repeat = repeat
        self._lacks = lacks
        self._queued: dict[int, dict[int, ProducerAppend]] = {}
        """Queued submissions by producer and sequence, ascending."""

    def submit(self, append: ProducerAppend, born: int | None) -> None:
        """Submits; ``born`` is a VLSN that was durable before the producer's first submission. Raises ``OutOfSequence``
        for another submission under a sequence that is taken, ``DuplicateForgotten``, ``ProducersMissing``, and what
        the log raises, nothing logged."""
        try:
            due = self._due(append, born)
        except UnknownProducer as error:
            self._lacks(append, error)
            return
        if append.sequence == due:
            self._push(append)
        elif append.sequence > due:
            lacking = OutOfSequence(
                f"sequence {append.sequence} of producer {append.producer:016x}, where {due} is due: what it was to "
                "follow on is not in the log"
            )
            self._lacks(append, lacking)
        else:
            self._meet_again(append)

    def sealed(self, pendings: Iterable[Pending]) -> None:
        """Notes that these have their VLSNs, and the log's table knows them."""
        if not self._queued:
            return
        for pending in pendings:
            if isinstance(pending, ProducerAppend):
                self.left(pending)
                for append in pending.repeats:
                    append.lies_at(Vlsn(pending.first), Vlsn(pending.last), Term(pending.term))
                    self._repeat(append)

    def left(self, append: ProducerAppend) -> None:
        """Notes that it is not queued any more."""
        queued = self._queued.get(append.producer)
        if queued is not None and queued.get(append.sequence) is append:
            del queued[append.sequence]
            if not queued:
                del self._queued[append.producer]

    def _due(self, append: ProducerAppend, born: int | None) -> int:
        """Returns the sequence that this producer's next submission has."""
        queued = self._queued.get(append.producer)
        if queued:
            return next(reversed(queued)) + 1
        table, at = self._log.history.producers, self._log.allocated + 1
        life = table.find(append.producer, at=at)
        if life is not None:
            return life.next
        is_new = append.sequence == 0 and born is not None and born >= table.forgotten_to(at=at)
        if table.lacks_to and not is_new:
            raise missing(append.producer, table.lacks_to)
        if append.sequence:
            raise UnknownProducer(
                f"producer {append.producer:016x} is not known here, or no longer: a producer begins with sequence 0"
            )
        if born is not None and born < table.forgotten_to(at=at):
            raise UnknownProducer(
                f"producer {append.producer:016x}, born at VLSN {born}, may have been here before and be forgotten"
            )
        return 0

    def _push(self, append: ProducerAppend) -> None:
        self._queued.setdefault(append.producer, {})[append.sequence] = append
        try:
            self._log.append(append)
        except BaseException:
            self.left(append)
            raise

    def _meet_again(self, append: ProducerAppend) -> None:
        original = self._queued.get(append.producer, {}).get(append.sequence)
        if original is not None:
            assert original.submission is not None and append.submission is not None
            if not same(original.submission, append.submission):
                raise append.another
            append.submission = None
            original.repeats.append(append)
            return
        table = self._log.history.producers
        life = table.find(append.producer, at=self._log.allocated + 1)
        place = table.place(life, append.sequence) if life is not None else None
        if place is None and table.lacks_to and (life is None or len(life) < table.limits.remembered):
            raise missing(append.producer, table.lacks_to)
        if place is None:
            raise DuplicateForgotten(
                f"sequence {append.sequence} of producer {append.producer:016x} is in the log, but where is no longer "
                f"remembered: of each producer the last {table.limits.remembered} are"
            )
        append.lies_at(*place)
        self._repeat(append)


def missing(producer: int, lacks_to: int) -> ProducersMissing:
    return ProducersMissing(
        f"this node has lost what it knew of producer {producer:016x}, if it did, up to VLSN {lacks_to}; it asks the "
        "other members; nothing was logged, try again"
    )
