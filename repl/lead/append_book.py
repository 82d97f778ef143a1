"""Pending acknowledgements: the sealed appends that wait for replicas, in VLSN order.

When an append is answered depends on its acks policy. NONE waits only for the master's sync. MAJORITY waits until the
DTVLSN (the highest VLSN that a majority has synced) reaches the append. ALL also waits until every electable member has
synced the append. Only a replica that is being fed counts, because a replica that has left may have lost its log.

Each policy has a queue, in which VLSNs rise. So an acknowledgement settles appends at the heads of the queues. A
*repeat* is an append that was in the log before it was sent again. Repeats wait for the same conditions, in no
order.
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
        """The type of the error that the append gets if it times out while it is held."""
        self.puts: Puts | None = None
        """The names that the append's COMMIT sets."""
        self.promised = SYNCED
        """The durability at which the append is answered. If that is less than ``SYNCED``, ``unsynced_appends``
        answers the append."""

    def settle(self, result: Appended | VlsnLogError) -> None:
        if not self.settled:
            self.settled = True
            # ``done`` and this append refer to each other; this cycle would keep a batch's bytes until a garbage
            # collection.
            done, self.done = self.done, _nobody
            try:
                done(result)
            # an error in one caller's function must affect neither other callers nor the feed
            except Exception as fault:
                told = {"message": "an append's answer was not taken", "exception": fault}
                asyncio.get_running_loop().call_exception_handler(told)

    def refused(self, error: VlsnLogError) -> None:
        """Answers an append that was refused before it was sealed."""
        if self.puts is not None:
            self.puts.unlogged()
        self.settle(refusal_of(error))

    def take_back(self) -> None:
        if self.held:
            self.settle(self.held_as(self.held))

    def hold(self, why: str, error: type[VlsnLogError], doubt: asyncio.Future[None] | None) -> None:
        """Notes why the append is held before the queue, and the error for its timeout. ``why`` is "" once the
        append is no longer held."""
        self.held, self.held_as, self.doubt = why, error, doubt

    def refuse(self, error: VlsnLogError) -> None:
        """Answers an append that was refused while it was held."""
        self.settle(error)

    def expire(self) -> None:
        """Ends the wait of an append that has timed out. An append that is still held is not logged. An append that
        is queued or sealed may still become durable."""
        self.take_back()
        self.settle(OutcomeUnknown("not acknowledged in time: it may still become durable, or be rolled back"))


def refusal_of(error: VlsnLogError) -> VlsnLogError:
    """Returns the error for a client whose append was refused with ``error`` before it was logged. If the log has
    failed, this process ends and another node becomes the master. So the client gets ``NotMaster``, and sends the
    append to the next master."""
    if isinstance(error, LogFailed):
        return NotMaster(f"the log of this node has failed, nothing of this append was logged: {error}")
    return error


def _nobody(_: Appended | VlsnLogError) -> None:
    raise AssertionError("an append is answered once")


class AppendBook:
    """Counts acknowledgements, raises the durable end (DTVLSN) and answers appends. Each term in which this node is the
    master has its own ``AppendBook``."""

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
        """For each acks policy, the number of replicas that an append needs besides this node."""
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
        """The durable end (DTVLSN) of earlier terms. The acknowledgements of this term do not prove it."""

    def set_group(self, electable: Collection[Incarnation], term_start: Vlsn) -> None:
        """Sets the members whose syncs count from now on. Acknowledgements that were noted before are counted anew."""
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
        """Notes that these appends were sealed, with VLSNs above those of all earlier appends."""
        for append in appends:
            assert isinstance(append, Append)
            if append.acks is Acks.MAJORITY:
                self._majority.append(append)
            elif append.acks is Acks.NONE:
                self._none.append(append)
            else:
                self._all.append(append)

    def repeat(self, append: Append, *, durable: Vlsn) -> None:
        """Accepts an append that is in the log already. ``durable`` is the log's durable end. The append is answered by
        ``release_repeats`` or by a later acknowledgement."""
        self._known_durable = max(self._known_durable, durable)
        self._repeats.append(append)

    def release_repeats(self) -> None:
        """Answers the repeated appends whose policies are met.

        An entry of an earlier term may be synced on all nodes and still be rolled back, until an entry of this term
        is durable after it. So the policy ALL also waits for a durable entry of this term, as MAJORITY does.
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
        """Notes that ``incarnation`` has synced all entries up to ``synced``. A VLSN below the noted one changes
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
                # this comes before the answers, because a linearizable read at any node must show an answered append
                self._on_durable(durable)
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
        """Answers an append of ``UnsyncedAppends`` when it has reached its promised durability."""
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
                # The nodes are counted once for all appends up to the first VLSN at which one of the nodes stops.
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
