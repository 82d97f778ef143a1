"""Sends appends to the master: one connection takes groups of appends from the queue, and sends without waiting for
answers.

A group is sent as one batch, and its answer wakes every waiter of the group. Python code runs once for each group; an
append costs only one list append and one future.

1. An append is sent again only if it cannot have been logged. That is certain if it was never sent, if its refusal says
   so, or if the node had closed the idle connection before. An append that was sent and never answered raises
   ``OutcomeUnknown``. The groups of an exactly-once client have names in the log (``identity.py``). So an exactly-once
   client sends its unanswered groups again, in order, until they are answered or their timeout is over.
2. Groups are sent in the order of their appends. If the node refuses a group, it also refuses all groups sent after it;
   the client then sends all of them again in the same order.
3. Every append has a deadline. After its deadline an append fails with the reason that kept it waiting. An append whose
   token the master refuses fails at once.
4. Memory is bounded: at most ``IN_FLIGHT_*`` is unanswered, and the queue is bounded, too.
5. A master of an older vlsnlog does not accept, in one message, a transaction that sets positions or states. Such a
   transaction fails with ``NoSets``, and is not sent to an older master.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec
from tenacity import RetryCallState

from repl.api import Acks
from repl.client.backoff import retrying
from repl.client.endpoints import Endpoints
from repl.client.group import Group, Waking
from repl.client.identity import Identities
from repl.client.queue import AppendQueue
from repl.produce_messages import ANSWERS_MESSAGE_BYTES_MAX, TIMEOUT_MS_MAX, TRANSACTION_SETS, Answer, decode_answers
from repl.web import problem
from repl.web.types import GAVE_WAY, Network
from vlsn.durability import GroupDurability
from vlsn.errors import (
    BadArgument,
    BadBody,
    ChannelClosed,
    Forbidden,
    LogClosed,
    OutcomeUnknown,
    OutOfSequence,
    TooLarge,
    Unauthorized,
    UnknownProducer,
    Unreachable,
    VlsnLogError,
)
from vlsn.format.records import JSON_FAULTS
from vlsn.limits import PRODUCER_REMEMBERED_MAX
from vlsn.seams import Channel, Random
from vlsn.together import failure_of, together

IN_FLIGHT_GROUPS_MAX: Final = PRODUCER_REMEMBERED_MAX
"""The most groups that may be unanswered: as many as the log remembers of a producer, because all may be sent again."""
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
WATCH_PERIOD_S: Final = 0.1
ANSWER_GRACE_S: Final = 1.0
"""The client waits this many seconds past an append's deadline for the node's own answer."""
SILENCE_S: Final = 2.0
"""Once the oldest unanswered group has waited this many seconds, nothing more is sent, because the node may hang."""
LOOK_AFTER_S: Final = 0.5
"""Once the oldest unanswered group has waited this many seconds, the client asks all nodes which of them leads. While
the master stays silent, the client asks again at the same interval."""
LOOK_SOON_S: Final = 0.1
LOOKS_SOON: Final = 15
"""After this many searches for the successor of a silent master, the client searches less often. A silent master
usually has a successor within a second or two."""
CONNECT_TIMEOUT_S: Final = 5.0


class _Refusal(msgspec.Struct):
    after: int | None = None


class NoSets(VlsnLogError):
    """The master does not accept, in one message, a transaction that sets positions or states. Nothing was sent."""

    retry_safe = True


class Producer:
    """Sends the queue's appends over one connection at a time, on one event loop."""

    def __init__(
        self,
        endpoints: Endpoints,
        network: Network,
        *,
        acks: Acks,
        timeout_s: float,
        random: Random | None = None,
        durability: GroupDurability | None = None,
    ) -> None:
        """Prepares the connection. An exactly-once client draws its producer names from ``random``."""
        self.queue = AppendQueue(timeout_s, named=random is not None)
        self._identities = Identities(random) if random is not None else None
        self._endpoints = endpoints
        self._network = network
        self._acks = acks
        self._durability = durability
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[Group] = deque()
        self._in_flight_bytes = 0
        self._refused: list[Group] = []
        self._waking = Waking(acks)
        self._next_id = 1
        self._fault: VlsnLogError | None = None
        """The first refusal on this connection; after a refusal nothing more is sent on the connection."""
        self._last_fault: VlsnLogError = Unreachable("no master took the append in time")
        self._progress = False
        self._takes_sets = False
        """True if the current master accepts, in one message, transactions that set positions or states."""
        self._closing = False
        self._leaving: set[asyncio.Task[None]] = set()
        """Connections that are being closed."""
        self._may_send = asyncio.Event()
        self._settled = asyncio.Event()
        self._silent = asyncio.Event()
        self._hung = asyncio.Event()

    async def flush(self) -> None:
        """Returns once every append is answered or has failed, including appends that are queued meanwhile."""
        while self.queue or self._in_flight or self._refused:
            self._settled.clear()
            await self._settled.wait()

    async def last_answers(self) -> None:
        """After a refusal on this connection, waits for the answers that are still due, or for the loss of the
        connection. Returns at once if nothing was refused. The node also refuses the groups sent after a refused
        group; their refusals prove that these groups are not in the log."""
        while self._fault is not None and self._in_flight:
            self._settled.clear()
            await self._settled.wait()

    def stop(self) -> None:
        """Stops sending; groups that still wait fail. Call ``flush`` first to send all groups and receive their
        answers."""
        self._closing = True
        error = LogClosed("the client was closed before this append was sent")
        for group in self._refused:
            group.fail(error)
        self._refused.clear()
        self.queue.close(error)
        self.queue.work.set()  # wakes the task that waits for work, so that the task ends
        self._settle()

    def close(self) -> None:
        """Stops like ``stop``, but does not wait for the answers to groups that were sent."""
        self.stop()
        self._fail_in_flight("the client was closed before the answer")

    async def run(self) -> None:
        """Runs the client's connections until this task is cancelled. However ``run`` ends, no append is left
        waiting."""
        try:
            await together(watch=self._watch(), connect=self._connect_forever())
        finally:
            self.close()
            for task in self._leaving:
                task.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)

    # The connections.

    async def _connect_forever(self) -> None:
        while not self._closing:
            await self.queue.work.wait()
            await retrying(_is_ours, sleep=self._pause, before_sleep=self._note_fault)(self._session)

    def _note_fault(self, state: RetryCallState) -> None:
        fault = state.outcome.exception() if state.outcome is not None else None
        if isinstance(fault, VlsnLogError):
            self._last_fault = fault

    async def _pause(self, seconds: float) -> None:
        """Pauses for ``seconds``, or until no append waits any more. So a later append does not wait for the end of
        a pause that began before it."""
        if self.queue:
            self._settled.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._settled.wait()
            except TimeoutError:
                pass

    async def _session(self) -> None:
        """Runs one connection: finds the master, connects, and sends until the connection is lost.

        Returns if nothing is left to do, or if an append was answered before the connection was lost; then the next
        attempt starts without delay. In all other cases raises the error that ended the connection.
        """
        if not self.queue:
            return
        async with self._endpoints.turns:
            try:
                url, term = await self._endpoints.master(), self._endpoints.term
                channel = await self._connect(url)
            except (Unauthorized, Forbidden) as error:  # it will not pass while this token is sent
                self.queue.fail(error)
                self._settle()
                return
        self._progress, self._fault = False, None
        self._silent.clear()
        self._hung.clear()
        fault: VlsnLogError = Unreachable(f"the connection to {url} was lost")
        untaken = False
        try:
            await together(
                send=self._send(channel),
                receive=self._receive(channel),
                hung=self._end_when_hung(url),
                unseated=self._end_when_unseated(url, term),
            )
        except* VlsnLogError as faults:
            fault = self._fault or _first(faults)
            untaken = faults.subgroup(_gave_way) is not None
        finally:
            self._end_session(fault, untaken=untaken)
            await self._leave(channel)
        if not self._progress:
            raise fault

    async def _connect(self, url: str) -> Channel:
        try:
            channel = await self._network.connect(
                f"{url}/v1/produce?types={TRANSACTION_SETS}",
                message_bytes_max=ANSWERS_MESSAGE_BYTES_MAX,
                timeout_s=CONNECT_TIMEOUT_S,
            )
        except BadArgument:  # a node of an older version
            self._takes_sets = False
            return await self._network.connect(
                f"{url}/v1/produce", message_bytes_max=ANSWERS_MESSAGE_BYTES_MAX, timeout_s=CONNECT_TIMEOUT_S
            )
        self._takes_sets = True
        return channel

    async def _leave(self, channel: Channel) -> None:
        """Closes the channel. The close handshake of a silent node is awaited only while this client ends."""
        mine = asyncio.current_task()
        if self._closing or mine is None or mine.cancelling():
            await channel.close()
        else:
            task = asyncio.create_task(channel.close(), name="leave")
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        failure_of(task)  # ignores the error: the connection is closed in any case

    def _end_session(self, fault: VlsnLogError, *, untaken: bool) -> None:
        """Moves refused groups back to the front of the queue. With ``untaken``, unanswered groups count as refused.
        Without ``untaken`` an exactly-once client moves unanswered groups back, too; any other client reports
        ``OutcomeUnknown`` for them."""
        self._last_fault = fault
        if untaken and not self._closing:
            self._refused += self._in_flight
            self._in_flight.clear()
        if self._closing:
            self._fail_in_flight(f"not acknowledged: {fault}")
        elif self._identities is None:
            self._fail_unnamed(f"not acknowledged: {fault}")
        for group in self._in_flight:
            group.uncertain = True
        back = [*self._refused, *self._in_flight]
        if self._identities is not None:
            self._identities.settle(back)
        self._refused.clear()
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self.queue.put_back(back)
        self._settle()

    def _fail_in_flight(self, why: str) -> None:
        for group in self._in_flight:
            group.fail(_unknown(why))
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._settle()

    def _fail_unnamed(self, why: str) -> None:
        """Fails unanswered groups that must not be sent again. Transactions may be sent again, because each has a
        name of its own."""
        for group in self._in_flight:
            if group.identity is None:
                group.fail(_unknown(why))
        self._in_flight = deque(group for group in self._in_flight if group.identity is not None)

    def _settle(self) -> None:
        self._may_send.set()
        if not self.queue and not self._in_flight and not self._refused:
            self._settled.set()

    # Sending.

    async def _send(self, channel: Channel) -> None:
        work, may_send = self.queue.work, self._may_send
        while True:
            if not self.queue:
                await work.wait()
            if not self._ready():
                may_send.clear()
                await may_send.wait()
            elif self.queue:
                group = self.queue.take()
                if group.sets and not self._takes_sets:
                    group.fail(NoSets("the master is of an older vlsnlog"))
                    self._settle()
                    continue
                await channel.send(self._message(group))
            elif self._closing:
                return

    def _ready(self) -> bool:
        if self._fault is not None:
            return False
        return not self._in_flight or (
            len(self._in_flight) < IN_FLIGHT_GROUPS_MAX
            and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX
            and self._loop.time() - self._in_flight[0].sent_at < SILENCE_S
        )

    def _message(self, group: Group) -> bytes:
        """Makes the message of a group. After this call the group may be in the log."""
        now = group.sent_at = self._loop.time()
        group.id = self._next_id
        self._next_id += 1
        self._in_flight.append(group)
        self._in_flight_bytes += group.size
        timeout_ms = min(max(1, int((group.deadline - now) * 1000)), TIMEOUT_MS_MAX)
        if self._identities is not None:
            self._identities.name(group, self._endpoints.durable)
        return b"".join((group.header(self._acks, timeout_ms, self._durability), *group.parts()))

    # Answers.

    async def _receive(self, channel: Channel) -> None:
        try:
            while True:
                if not self._waking.wake_some():
                    await asyncio.sleep(0)
                    continue
                self._settle()
                if self._fault is not None and not self._in_flight:
                    raise self._fault
                await channel.deliver(self._take)
        finally:
            self._waking.wake_all()  # the waiters wake also after a cancel, because their appends are acknowledged

    def _take(self, message: bytes) -> bool:
        """Processes the answers in one message from the node. Returns True once all waiters of the answered groups
        are awake."""
        for answer in decode_answers(message):
            self._answered(answer)
        if not self._waking.wake_some() or self._fault is not None:
            return False
        self._settle()
        return True

    def _answered(self, answer: Answer) -> None:
        if not self._in_flight or self._in_flight[0].id != answer.id:
            raise BadBody(f"the node answered request {answer.id}, which is not the next one")
        group = self._in_flight.popleft()
        self._in_flight_bytes -= group.size
        if not answer.done:
            self._refuse(group, answer.problem)
            return
        self._progress = True
        if answer.durable:
            self._endpoints.called_durable(answer.last)
        if self._identities is not None:
            self._identities.acknowledged(group)
        self._waking.put(group, answer)

    def _refuse(self, group: Group, document: bytes) -> None:
        error = problem.error_of(document)
        self._fault = self._fault or error
        if self._closing:
            group.fail(error)
            return
        if error.transient or _was_not_submitted(document) or self._comes_again(group, error):
            self._refused.append(group)
            return
        if isinstance(error, Unauthorized):  # the next connection may have another token, or ends the wait
            self._refused.append(group)
            return
        self._progress = True
        if not group.uncertain and group.identity is not None and not group.identity.fixed:
            group.identity = None  # another group may use the sequence now
        if isinstance(error, TooLarge | BadBody | Forbidden) and len(group.waiters) > 1 and not group.uncertain:
            # One invalid append made the node refuse the whole batch. Nothing was logged, so each append is sent alone.
            self._refused.extend(group.split())
        else:
            group.fail(error)

    def _comes_again(self, group: Group, error: VlsnLogError) -> bool:
        """Returns whether a producer may send ``group`` once more. The question arises after a refusal that leaves open
        whether the group is in the log."""
        identity = group.identity
        if identity is None:
            return False
        if isinstance(error, OutcomeUnknown):
            group.uncertain = True
            return True
        if identity.fixed or group.uncertain:
            return False
        if isinstance(error, OutOfSequence | UnknownProducer):
            identity.broken = True
            group.identity = None
            return True
        return False

    # Silent masters.

    async def _end_when_hung(self, url: str) -> None:
        await self._hung.wait()
        raise Unreachable(f"{url} does not answer")

    async def _end_when_unseated(self, url: str, term: int) -> None:
        """Ends the connection once another node leads. A master that is stopped or cut off is silent, but its
        connections stay open."""
        while True:
            await self._silent.wait()
            leads, looks = await self._leader(), 0
            while leads != url or looks:
                if leads not in ("", url) and self._endpoints.term > term:
                    raise Unreachable(f"{url} does not answer, and {leads} leads now")
                if looks == LOOKS_SOON or not self._is_silent():
                    break
                await asyncio.sleep(LOOK_SOON_S)
                async with self._endpoints.turns:
                    leads, looks = await self._leader(but=url), looks + 1
            await asyncio.sleep(LOOK_AFTER_S)
            self._silent.clear()

    async def _leader(self, *, but: str = "") -> str:
        """Returns the master's URL, or "" if no node is known to lead. The node at ``but`` is not asked."""
        try:
            return await self._endpoints.master(but=but)
        except VlsnLogError:
            return ""

    async def _watch(self) -> None:
        while True:
            if not self._in_flight:
                await self.queue.work.wait()
            await asyncio.sleep(WATCH_PERIOD_S)
            now = self._loop.time()
            if self.queue.fail_late(now, self._last_fault):
                self._settle()
            if self._in_flight:
                if self._is_silent():
                    self._silent.set()
                if self._is_hung(now):
                    self._hung.set()
                self._may_send.set()

    def _is_silent(self) -> bool:
        return bool(self._in_flight) and self._in_flight[0].sent_at + LOOK_AFTER_S < self._loop.time()

    def _is_hung(self, now: float) -> bool:
        """Returns whether the master counts as hung. An exactly-once client gives up early, because it may send its
        appends again. Any other client waits as long as an answer may arrive."""
        if self._identities is not None and self._in_flight[0].sent_at + SILENCE_S < now:
            return True
        return min(group.deadline for group in self._in_flight) + ANSWER_GRACE_S < now


def _is_ours(fault: BaseException) -> bool:
    return isinstance(fault, VlsnLogError)


def _unknown(why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"sent, but {why}; it may have been logged")


def _was_not_submitted(document: bytes) -> bool:
    """Returns whether the request was refused only because an earlier request was refused (field ``after``)."""
    try:
        return msgspec.json.decode(document, type=_Refusal).after is not None
    except JSON_FAULTS:
        return False


def _gave_way(fault: BaseException) -> bool:
    """Returns whether the node closed the connection because the connection was idle. If so, the node has answered
    every request that it received."""
    return isinstance(fault, ChannelClosed) and fault.code == GAVE_WAY


def _first(faults: BaseExceptionGroup[VlsnLogError]) -> VlsnLogError:
    fault = faults.exceptions[0]
    return _first(fault) if isinstance(fault, BaseExceptionGroup) else fault
