"""Pending acknowledgements: the sealed appends that wait for replicas, in VLSN order.

An append is answered when its policy is met: NONE once the master has synced it, MAJORITY once the DTVLSN has reached
it, ALL once every electable member has synced it, too. Only a replica that is being fed counts: of one that is gone
nobody knows whether it still has its log. VLSNs rise in each of the three queues, so an acknowledgement settles appends
at their heads. A *repeat* is an append that was in the log before it was sent again: it waits for the same, in no
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
    """One append of a client; ``done`` is called exactly once."""

    __slots__ = ("acks", "done", "doubt", "held", "held_as", "promised", "puts", "settled", "since")

    def __init__(self, submission: Submission, acks: Acks, done: Done, since: float) -> None:
        super().__init__(submission)
        self.acks = acks
        self.done = done
        self.since = since
        self.settled = False
        self.doubt: asyncio.Future[None] | None = None
        self.held = ""
        """The reason why it is not in the log's queue yet (``repl.lead.held_appends``)."""
        self.held_as: type[VlsnLogError] = NotMaster
        """The error that it fails with for that reason."""
        self.puts: Puts | None = None
        """The names that its COMMIT sets."""
        self.promised = SYNCED
        """The durability that it is answered for; less than ``SYNCED``: by ``unsynced_appends``."""

    def settle(self, result: Appended | VlsnLogError) -> None:
        if not self.settled:
            self.settled = True
            # Let go of first: ``done`` leads back here, and a cycle would keep a batch's bytes until a collection.
            done, self.done = self.done, _nobody
            try:
                done(result)
            except Exception as fault:  # the boundary of one who asked: neither the others nor the feed are to suffer
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
        """Notes that it waits before the queue, and what it fails with if its time is over first; "": it does not."""
        self.held, self.held_as, self.doubt = why, error, doubt

    def refuse(self, error: VlsnLogError) -> None:
        """Answers one that was held, and never queued."""
        self.settle(error)

    def expire(self) -> None:
        """Expires the append: held back, nothing is logged; still queued or sealed, it may yet become durable."""
        self.take_back()
        self.settle(OutcomeUnknown("not acknowledged in time: it may still become durable, or be rolled back"))


def refusal_of(error: VlsnLogError) -> VlsnLogError:
    """Makes the error for a client whose append was refused for ``error`` before anything of it was logged. A log that
    has failed ends this process: another node will lead, and takes it."""
    if isinstance(error, LogFailed):
        return NotMaster(f"the log of this node has failed, nothing of this append was logged: {error}")
    return error


def _nobody(_: Appended | VlsnLogError) -> None:
    raise AssertionError("an append is answered once")


class AppendBook:
    """Acknowledgements in, answers and the DTVLSN out.  One for each term that this node leads."""

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
        """The replicas that an append needs beside this node, by its acks."""
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
        """Durable before this term, which its own count says nothing of."""

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
        """Notes that these have their VLSNs, above all earlier ones."""
        for append in appends:
            assert isinstance(append, Append)
            if append.acks is Acks.MAJORITY:
                self._majority.append(append)
            elif append.acks is Acks.NONE:
                self._none.append(append)
            else:
                self._all.append(append)

    def repeat(self, append: Append, *, durable: Vlsn) -> None:
        """Takes an append that lies in the log already; ``durable`` is the DTVLSN that the log knows. Answered by
        ``release_repeats``, or a later acknowledgement."""
        self._known_durable = max(self._known_durable, durable)
        self._repeats.append(append)

    def release_repeats(self) -> None:
        """Answers the repeats that meet their policies.

        An entry of an earlier term may be synced everywhere and still be rolled back, until an entry of this term is
        durable behind it. ALL waits for that, as MAJORITY does."""
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
        """Notes that ``incarnation`` has synced everything up to ``synced``; lower than before changes nothing."""
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
        """Forgets what ``incarnation`` has synced, until it is noted again."""
        self.synced.pop(incarnation, None)

    def _count(self) -> None:
        durable = durable_vlsn(self.synced, self.electable, term_start=self.term_start)
        if durable > self.durable:
            self.durable = durable
            try:
                self._on_durable(durable)  # first: an answered append can be read, linearizable, on any node
            finally:
                if self._majority:
                    self._release(self._majority, durable, Acks.MAJORITY)

    def fail(self, error: Callable[[], VlsnLogError]) -> None:
        """Ends the term: answers every append still waiting with ``error``."""
        for queue in (self._none, self._majority, self._all):
            while queue:
                queue.popleft().settle(error())
        repeats, self._repeats = self._repeats, []
        for append in repeats:
            append.settle(error())

    def answer(self, append: Append) -> None:
        """Answers an append of ``UnsyncedAppends``, at the durability it was promised."""
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
                # Nodes that synced this far: asked again only where one of them stops short.
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
