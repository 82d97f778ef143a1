"""``WS /v1/produce``: batches of one producer, sent without waiting for answers, answered in order
(``repl/produce_messages.py``).

    receive ─► decode ─► appends.submit           no task and no queue between these three
    done ─► the request's slot ─► one message with every known answer at the head of the line

1. Answers are sent in the order of the requests, whatever order the node completes them in.
2. After the first refusal every later request is refused, with the same type and with ``after``, the id of the request
   that was refused first. Later requests are not submitted, and held requests are cancelled. A request that may be
   logged keeps its own answer. While a refusal is undecided (``Pending.doubt``), nothing more is read.
3. Nothing more is read while ``REQUESTS_IN_FLIGHT_MAX`` requests or about ``PRODUCER_BYTES_IN_FLIGHT_MAX`` bytes have
   no answer.
4. When the producer leaves, its submissions stay submitted; their answers are dropped.
5. If other producers have taken all the room, one request waits in line for room (``produce_line``), and nothing more
   is read.
6. Each connection has one producer. If the slots for connections run out, an idle producer's connection is closed
   (``types.GAVE_WAY``). The close code says that unanswered requests were not accepted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from repl.api import Appended, CommitSets, Pending
from repl.lead.append_http import SUBMITTED, NodeAppends, decode_batch
from repl.lead.produce_line import Line
from repl.lead.transactions_http import decode_sets
from repl.produce_messages import (
    GRAMMAR,
    REQUEST_MESSAGE_BYTES_MAX,
    REQUESTS_IN_FLIGHT_MAX,
    TYPES_MAX,
    Asked,
    decode_request,
    done_answer,
    refused_answer,
)
from repl.web import problem, query
from repl.web.calls import Call, known, whole
from repl.web.grants import Grant
from repl.web.limits import PRODUCER_BYTES_IN_FLIGHT_MAX, AppendLimits, Budget
from repl.web.mastership import redirect
from repl.web.types import Request, Response, Upgrade, require_upgrade
from vlsn.errors import BadBody, ChannelClosed, QueueFull, VlsnLogError, bare
from vlsn.format.submission import Submission, Transaction
from vlsn.seams import Channel
from vlsn.together import together

_TYPES = whole("types", "The highest type of message that the client will send.", 1, TYPES_MAX)
_KNOWN = known(_TYPES)
CALLS = (
    Call(
        "append",
        "GET",
        "/v1/produce",
        "Append over a WebSocket",
        (_TYPES,),
        errors=SUBMITTED,
        text=f"Batches are sent without waiting for answers. At most {REQUESTS_IN_FLIGHT_MAX:,} requests and about "
        f"{PRODUCER_BYTES_IN_FLIGHT_MAX:,} bytes have no answer; a message has at most "
        f"{REQUEST_MESSAGE_BYTES_MAX:,} bytes.",
        messages=GRAMMAR,
    ),
)


class ProduceRoutes:
    def __init__(self, appends: NodeAppends, bodies: Budget, limits: AppendLimits) -> None:
        self._appends = appends
        self._bodies = bodies
        self._limits = limits
        self._line = Line(bodies)

    async def produce(self, request: Request) -> Response | Upgrade:
        query.only(request.query, _KNOWN)
        # ``types`` names the message types that the client will send; this node supports all of them
        query.whole(request.query, "types", None, 1, TYPES_MAX)
        if not self._appends.member.is_master():
            return redirect(self._appends.member, request)
        require_upgrade(request)
        producer = _Producer(self._appends, self._bodies, self._limits, self._line, request.grant)
        return Upgrade(producer.run, REQUEST_MESSAGE_BYTES_MAX, producer.idle)


class _Slot:
    """A request of a producer whose answer is not sent yet."""

    __slots__ = ("_producer", "answer", "deadline", "held", "id", "pending")

    def __init__(self, producer: _Producer, id: int, deadline: float) -> None:
        self._producer = producer
        self.id = id
        self.deadline = deadline
        self.held = 0
        self.pending: Pending | None = None
        self.answer = b""

    def done(self, result: Appended | VlsnLogError) -> None:
        if self.answer:
            return
        if isinstance(result, Appended):
            self.answer = done_answer(self.id, result)
        else:
            self.answer = self._producer.refuse(self.id, result)
        self._producer.answered(self)


class _Waiting(NamedTuple):
    """A request for which there is no room yet."""

    slot: _Slot
    submission: Submission
    sets: CommitSets | None
    asked: Asked
    size: int


class _Producer:
    """The requests of one producer's connection, from receipt to answer."""

    _channel: Channel

    def __init__(self, appends: NodeAppends, bodies: Budget, limits: AppendLimits, line: Line, grant: Grant) -> None:
        self._appends = appends
        self._grant = grant
        self._bodies = bodies
        self._limits = limits
        self._line = line
        self._waiting: _Waiting | None = None
        """The request that waits in line for room in a full budget."""
        self._loop = asyncio.get_running_loop()
        self._slots: deque[_Slot] = deque()
        self._bytes = 0
        self._next_id: int | None = None
        self._doubt: asyncio.Future[None] | None = None
        self._refused: tuple[int, VlsnLogError] | None = None
        self._answers: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        """The event loop's time at which the timer is due. The time is kept here because uvloop returns no
        ``TimerHandle`` for a call due within a millisecond."""

    def idle(self) -> bool:
        return not self._slots

    async def run(self, channel: Channel) -> None:
        """Serves the producer until it leaves, or sends an invalid request."""
        self._channel = channel
        try:
            await together(receive=self._receive(), send=self._send())
        except* (ChannelClosed, BadBody):
            pass
        finally:
            self._leave()

    async def _receive(self) -> None:
        while True:
            await self._channel.deliver(self._take)
            while self._full:
                self._room = self._loop.create_future()
                await self._room

    @property
    def _full(self) -> bool:
        return (
            len(self._slots) >= REQUESTS_IN_FLIGHT_MAX
            or self._bytes >= PRODUCER_BYTES_IN_FLIGHT_MAX
            or self._waiting is not None
            or (self._doubt is not None and not self._doubt.done() and self._refused is None)
        )

    def _take(self, message: bytes) -> bool:
        """Receives a request. Returns whether there is room for another request."""
        asked = decode_request(message)
        id, timeout_ms = asked.id, asked.timeout_ms
        if id != (id if self._next_id is None else self._next_id):
            raise BadBody(f"request {id} came where {self._next_id} was due")
        self._next_id = id + 1
        slot = _Slot(self, id, self._loop.time() + timeout_ms / 1000)
        self._slots.append(slot)
        if self._refused is not None:
            first, error = self._refused
            slot.answer = refused_answer(id, problem.document(error, after=first))
            self.answered(slot)
            return not self._full
        try:
            self._submit(slot, message, asked)
        except VlsnLogError as error:
            slot.done(error)
        return not self._full

    def _submit(self, slot: _Slot, message: bytes, asked: Asked) -> None:
        submission: Submission
        sets = decode_sets(asked.sets) if asked.sets else None
        if sets is not None and len(message) == asked.batch_at:
            submission = Transaction((), b"", asked.transaction or (0, 0))
        else:
            submission = batch = decode_batch(memoryview(message)[asked.batch_at :], self._limits)
            if asked.born is not None and (asked.transaction is None) != (batch.producer != 0):
                raise BadBody("a producer's batch must name the producer, a transaction's batch must not")
            if asked.transaction is not None:
                submission = Transaction([batch], b"", asked.transaction)
        if self._grant.ends:
            self._grant.check(submission)
            if sets is not None:
                self._grant.check_sets(sets)
        if self._line or not self._put(slot, submission, sets, asked, len(message)):
            self._line.wait(self._again, len(message))
            self._waiting = _Waiting(slot, submission, sets, asked, len(message))
        if self._timer is None or slot.deadline < self._timer_s:
            self._arm(slot.deadline)

    def _put(self, slot: _Slot, submission: Submission, sets: CommitSets | None, asked: Asked, size: int) -> bool:
        """Submits a request if there is room. Returns whether there was. Raises the node's refusal."""
        try:
            self._bodies.take(size)
        except QueueFull:
            return False
        slot.held = size
        self._bytes += size
        try:
            slot.pending = self._appends.submit(submission, asked.acks, slot.done, asked.born, asked.durability, sets)
        except QueueFull:
            self._release(slot)
            return False
        self._doubt = slot.pending.doubt
        if self._doubt is not None:
            self._doubt.add_done_callback(lambda _: self._wake_receiver())
        return True

    def _again(self) -> bool:
        """Tries once more to submit the waiting request (``produce_line.Try``)."""
        waiting = self._waiting
        assert waiting is not None
        try:
            if not self._put(*waiting):
                return False
        except VlsnLogError as error:
            self._no_longer_waiting()
            waiting.slot.done(error)
        else:
            self._no_longer_waiting()
        return True

    def _no_longer_waiting(self) -> None:
        self._waiting = None
        self._line.leave(self._again)
        self._wake_receiver()

    def refuse(self, id: int, error: VlsnLogError) -> bytes:
        """Returns the answer of a failed request. After the first failure, later requests are refused because of it."""
        if self._refused is None:
            self._refused = (id, bare(error))
            self._take_back(id)
            self._appends.member.counts.refused[error.slug] += 1
        first, why = self._refused
        if id > first and error.retry_safe:  # the refused request is certainly not logged
            return refused_answer(id, problem.document(why, after=first))
        return refused_answer(id, problem.document(error))

    def _take_back(self, id: int) -> None:
        """Cancels the requests after ``id`` that are not logged."""
        for slot in list(self._slots):
            if slot.id > id and slot.pending is not None and not slot.answer:
                slot.pending.take_back()
        if self._waiting is not None:
            slot = self._waiting.slot
            self._no_longer_waiting()
            slot.done(QueueFull("the request was waiting for room"))

    def answered(self, slot: _Slot) -> None:
        """Sends the answer of a lone request at once, because sending it in a task would cost a turn of the event
        loop."""
        waiter = self._answers
        if waiter is None or waiter.done() or slot is not self._slots[0]:
            return
        if len(self._slots) == 1 and self._channel.send_now(slot.answer):
            self._take_answers()
        else:
            waiter.set_result(None)

    async def _send(self) -> None:
        while True:
            answers = self._take_answers()
            if answers:
                await self._channel.send(b"".join(answers))
            else:
                self._answers = self._loop.create_future()
                await self._answers
                self._answers = None

    def _take_answers(self) -> list[bytes]:
        answers: list[bytes] = []
        slots = self._slots
        while slots and slots[0].answer:
            slot = slots.popleft()
            answers.append(slot.answer)
            self._release(slot)
        if answers:
            self._wake_receiver()
        return answers

    def _wake_receiver(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _release(self, slot: _Slot) -> None:
        if slot.held:
            self._bodies.give(slot.held)
            self._bytes -= slot.held
            slot.held = 0

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(when, self._expire), when

    def _expire(self) -> None:
        """Ends the requests that have timed out, and sets the timer for the next request."""
        self._timer = None
        now = self._loop.time()
        waiting = [slot for slot in self._slots if not slot.answer]
        for slot in waiting:
            if slot.deadline <= now and slot.pending is not None:
                slot.pending.expire()
            elif slot.deadline <= now and self._waiting is not None and self._waiting.slot is slot:
                self._no_longer_waiting()
                slot.done(
                    QueueFull("there was no room for the request before its timeout: other requests had all of it")
                )
        later = [slot.deadline for slot in waiting if slot.deadline > now]
        if later:
            self._arm(min(later))

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._line.leave(self._again)
        for slot in self._slots:
            self._release(slot)
            if slot.pending is not None and not slot.answer:
                slot.pending.expire()
        self._slots.clear()  # each slot refers to its producer, which is a cycle
