"""Pending acknowledgements: the sealed appends that wait for replicas, in VLSN order.

An append is answered when its policy is met: NONE once the master has synced it; MAJORITY once the DTVLSN has reached
it; ALL once every electable member has synced it as well. Only a replica that is being fed counts, because a replica
that has left may have lost its log. VLSNs rise in each of the three queues, so an acknowledgement settles appends at
the heads of the queues. A *repeat* is an append that was in the log before it was sent again. Repeats wait for the same
conditions, in no order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from feeder.majority import majority
from repl.api import Acks, Appended, Done, Puts
from repl.lead.acks import durable_vlsn, synced_by_all, synced_count
from vlsn.durability import SYNCED
from vlsn.errors import LogFailed, NotMaster, OutcomeUnknown, VlsnLogError
from vlsn.format.submission import Submission
from vlsn.histogram import Seconds
from vlsn.ids import NULL_VLSN, Incarnation, Term, Vlsn
from vlsn.write.queue import Pending


class Append(Pending):
    """One append of a client. ``done`` is called exactly once."""

    __slots__ = ("acks", "done", "doubt", "held", "held_as", "promised", "puts", "settled", "since")

    def __init__(self, submission: Submission, acks: Acks, done: Done, since: float) -> None:
        super().__init__(submission)
        self.acks = acks
        self.done = done
        self.since = since
        self.settled = False
        self.doubt: asyncio.Future[None] | None = None
        self.held = ""
        """The reason why the append is not in the log's queue yet (``repl.lead.held_appends``)."""
        self.held_as: type[VlsnLogError] = NotMaster
        """The error with which the append fails for that reason."""
        self.puts: Puts | None = None
        """The names that the append's COMMIT sets."""
        self.promised = SYNCED
        """The durability at which the append is answered; if it is less than ``SYNCED``, ``unsynced_appends`` answers
        it."""

    def settle(self, result: Appended | VlsnLogError) -> None:
        if not self.settled:
            self.settled = True
            # Cleared first: ``done`` refers to this append, and a cycle would keep a batch's bytes until a garbage
            # collection.
            done, self.done = self.done, _nobody
            try:
                done(result)
            except Exception as fault:  # an error of one caller must affect neither other callers nor the feed
                told = {"message": "an append's answer was not taken", "exception": fault}
                asyncio.get_running_loop().call_exception_handler(told)

    def refused(self, error: VlsnLogError) -> None:
        """Answers an append that was never sealed."""
        if self.puts is not None:
            self.puts.unlogged()
        self.settle(refusal_of(error))

    def take_back(self) -> None:
        if self.held:
            self.settle(self.held_as(self.held))

    def hold(self, why: str, error: type[VlsnLogError], doubt: asyncio.Future[None] | None) -> None:
        """Notes why the append waits before the queue, and the error for its timeout; "" when it no longer waits."""
        self.held, self.held_as, self.doubt = why, error, doubt

    def refuse(self, error: VlsnLogError) -> None:
        """Answers an append that was held and never queued."""
        self.settle(error)

    def expire(self) -> None:
        """Ends the wait for the append. If it is held back, nothing is logged. If it is queued or sealed, it may still
        become durable."""
        self.take_back()
        self.settle(OutcomeUnknown("not acknowledged in time: it may still become durable, or be rolled back"))


def refusal_of(error: VlsnLogError) -> VlsnLogError:
    """Returns the error for a client whose append was refused with ``error`` before anything of it was logged. A log
    that has failed ends this process, so ``NotMaster`` is returned: another node becomes the master and accepts the
    append."""
    if isinstance(error, LogFailed):
        return NotMaster(f"the log of this node has failed, nothing of this append was logged: {error}")
    return error


def _nobody(_: Appended | VlsnLogError) -> None:
    raise AssertionError("an append is answered once")


class AppendBook:
    """Counts acknowledgements, raises the DTVLSN and answers appends. One for each term in which this node is the
    master."""

    def __init__(
        self,
        own: Incarnation,
        term: Term,
        *,
        on_durable: Callable[[Vlsn], None],
        clock: Callable[[], float],
        seconds: Seconds,
    ) -> None:
        self.own = own
        self.term = term
        self.term_start: Vlsn = NULL_VLSN
        self.electable: tuple[Incarnation, ...] = ()
        self.needed = {Acks.NONE: 0, Acks.MAJORITY: 1, Acks.ALL: 0}
        """The number of replicas that an append needs besides this node, by its acks."""
        self.synced: dict[Incarnation, Vlsn] = {}
        self.durable: Vlsn = NULL_VLSN
        self._on_durable = on_durable
        self._clock = clock
        self._seconds = seconds
        self._none: deque[Append] = deque()
        self._majority: deque[Append] = deque()
        self._all: deque[Append] = deque()
        self._repeats: list[Append] = []
        self._known_durable: Vlsn = NULL_VLSN
        """The DTVLSN from before this term, which this term's count does not prove."""

    def set_group(self, electable: Collection[Incarnation], term_start: Vlsn) -> None:
        """Sets the members that count from now on, also for acknowledgements noted before."""
        self.electable = tuple(electable)
        total, own = len(electable), self.own in electable
        self.needed = {Acks.NONE: 0, Acks.MAJORITY: majority(total) - own, Acks.ALL: total - own}
        self.term_start = term_start
        self._count()
        if self._all:
            self._release(self._all, synced_by_all(self.synced, self.electable), Acks.ALL)
        if self._repeats:
            self.release_repeats()

    def sealed(self, appends: list[Pending]) -> None:
        """Notes that these appends have their VLSNs, which are above all earlier ones."""
        for append in appends:
            assert isinstance(append, Append)
            if append.acks is Acks.MAJORITY:
                self._majority.append(append)
            elif append.acks is Acks.NONE:
                self._none.append(append)
            else:
                self._all.append(append)

    def repeat(self, append: Append, *, durable: Vlsn) -> None:
        """Accepts an append that is in the log already. ``durable`` is the log's DTVLSN. The append is answered by
        ``release_repeats`` or a later acknowledgement."""
        self._known_durable = max(self._known_durable, durable)
        self._repeats.append(append)

    def release_repeats(self) -> None:
        """Answers the repeats that meet their policies.

        An entry of an earlier term may be synced everywhere and still be rolled back, until an entry of this term is
        durable after it. So ALL waits for that entry, as MAJORITY does.
        """
        durable = max(self.durable, self._known_durable)
        reached = {
            Acks.NONE: self.synced.get(self.own, NULL_VLSN),
            Acks.MAJORITY: min(durable, durable_vlsn(self.synced, self.electable, term_start=Vlsn(1))),
            Acks.ALL: min(durable, synced_by_all(self.synced, self.electable)),
        }
        left = []
        for append in self._repeats:
            if append.settled:
                continue
            if append.last > reached[append.acks]:
                left.append(append)
                continue
            count = synced_count(self.synced, self.electable, append.last)
            place = Vlsn(append.first), Vlsn(append.last), Term(append.term)
            append.settle(Appended(*place, append.last <= durable, count, append.acks, duplicate=True))
        self._repeats = left

    def note(self, incarnation: Incarnation, synced: Vlsn) -> None:
        """Notes that ``incarnation`` has synced everything up to ``synced``. A lower VLSN than before changes
        nothing."""
        if synced <= self.synced.get(incarnation, NULL_VLSN):
            return
        self.synced[incarnation] = synced
        if synced > self.durable:
            self._count()
        if incarnation == self.own and self._none:
            self._release(self._none, synced, Acks.NONE)
        if self._all:
            self._release(self._all, synced_by_all(self.synced, self.electable), Acks.ALL)
        if self._repeats:
            self.release_repeats()

    def withdraw(self, incarnation: Incarnation) -> None:
        """Forgets the VLSN that ``incarnation`` has synced, until it is noted again."""
        self.synced.pop(incarnation, None)

    def _count(self) -> None:
        durable = durable_vlsn(self.synced, self.electable, term_start=self.term_start)
        if durable > self.durable:
            self.durable = durable
            try:
                self._on_durable(durable)  # first, so that any node shows an answered append to a linearizable read
            finally:
                if self._majority:
                    self._release(self._majority, durable, Acks.MAJORITY)

    def fail(self, error: Callable[[], VlsnLogError]) -> None:
        """Ends the term: answers every waiting append with ``error``."""
        for queue in (self._none, self._majority, self._all):
            while queue:
                queue.popleft().settle(error())
        repeats, self._repeats = self._repeats, []
        for append in repeats:
            append.settle(error())

    def answer(self, append: Append) -> None:
        """Answers an append of ``UnsyncedAppends`` at its promised durability."""
        self._seconds.add(self._clock() - append.since)
        place = Vlsn(append.first), Vlsn(append.last), Term(append.term)
        count = synced_count(self.synced, self.electable, append.last)
        durable = append.last <= self.durable
        append.settle(Appended(*place, durable, count, append.acks, durability=append.promised))

    def _release(self, queue: deque[Append], upto: Vlsn, acks: Acks) -> None:
        if not queue or queue[0].last > upto:
            return
        now = self._clock()
        count_at, count = 0, 0
        while queue and queue[0].last <= upto:
            append = queue.popleft()
            if append.last > count_at:
                # The number of nodes that synced this far; counted again only past the first node that stops short.
                count = synced_count(self.synced, self.electable, append.last)
                count_at = min([at for at in self.synced.values() if at >= append.last], default=append.last)
            self._seconds.add(now - append.since)
            append.settle(
                Appended(
                    Vlsn(append.first),
                    Vlsn(append.last),
                    Term(append.term),
                    append.last <= self.durable,
                    count,
                    acks,
                )
            )
