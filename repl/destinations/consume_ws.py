"""``WS /v1/destinations/{name}/consume``: sends messages of a destination to one worker, within the worker's credit.

    credit ─► take ─► answers handed out ─► one confirmation of leadership for all of them ─► sent, in order
    ack ─► noted ─► durable ─► answered

1. While a majority confirms this node's leadership for some messages, the next messages are already handed out. Each
   message is sent only after its own confirmation.
2. A message that was handed out and not sent when the worker leaves counts as never delivered. A sent message stays
   reserved for the worker until its deadline, or until the worker returns it unread.
3. The order of a key holds within one connection. Later messages of a key may follow earlier messages to the same
   worker, but wait if another worker has the earlier messages. A worker that connects again counts as another
   worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from repl.destinations import consume_messages, message_columns
from repl.destinations.consume_messages import (
    ACKED,
    ACKS_UNANSWERED_MAX,
    ALIVE_S,
    CREDIT_MAX,
    END,
    FAILED,
    HELLO,
    MESSAGES,
    head,
    parted,
)
from repl.destinations.delivered import Delivered
from repl.destinations.delivery import Worker
from repl.destinations.handed import Handed, Holder
from repl.web import problem
from vlsn.errors import BadBody, ChannelClosed, TooLarge, VlsnLogError
from vlsn.format.vlsn_set import VlsnSet
from vlsn.seams import Channel
from vlsn.together import together

MESSAGES_MAX = 10_000


def _nothing() -> None:
    """Does nothing. Used as the function to call after the send of a message that holds no room."""


class Consuming:
    """The connection of one worker."""

    _channel: Channel

    def __init__(self, worker: Worker, most: int, handed: Handed) -> None:
        self._worker = worker
        self._most = most
        self._greeted = False
        self._credit = 0
        self._may_take = asyncio.Event()
        self._handed = Holder(handed)
        """The room for answers that are handed out and not sent."""
        self._unconfirmed: deque[Delivered] = deque()
        """The answers (groups of messages) for which leadership is not confirmed yet."""
        self._to_confirm = asyncio.Event()
        self._out: deque[tuple[bytes, Callable[[], None]]] = deque()
        """The WebSocket messages to send, each with a function to call after the send."""
        self._to_send = asyncio.Event()
        self._unanswered = 0
        """The number of acknowledgements that this node has not answered yet."""
        self._room = asyncio.Event()
        self._done: list[int] = []
        """The numbers of acknowledgements that are durable and not answered yet."""

    def idle(self) -> bool:
        return not self._handed.answers and not self._out and not self._unanswered

    async def run(self, channel: Channel) -> None:
        """Serves the worker until it leaves or sends an unreadable message. Any other error is sent to the worker."""
        self._channel = channel
        try:
            await together(receive=self._receive(), take=self._take(), confirm=self._confirm(), send=self._send())
        except* (ChannelClosed, BadBody):
            pass
        except* VlsnLogError as errors:
            fault: BaseException = errors
            while isinstance(fault, BaseExceptionGroup):
                fault = fault.exceptions[0]
            assert isinstance(fault, VlsnLogError)
            channel.send_now(head(END) + problem.document(fault))
        finally:
            self._worker.recall(self._handed.answers)
            self._handed.leave()
            self._out.clear()  # the functions in this queue refer to this object, which is a cycle

    # Receiving.

    async def _receive(self) -> None:
        while True:
            await self._channel.deliver(self._heard)
            while self._unanswered >= ACKS_UNANSWERED_MAX:
                self._room.clear()
                await self._room.wait()

    def _heard(self, message: bytes) -> bool:
        kind, number, rest = parted(message)
        if not self._greeted:  # the worker must send first: a message that the node sent earlier could be lost
            self._greeted = True
            self._put(head(HELLO) + self._worker.uuid.encode())
        match kind:
            case consume_messages.CREDIT:
                self._credit += number
                if self._credit > CREDIT_MAX:
                    raise BadBody(f"the worker's credit is {self._credit} messages; at most {CREDIT_MAX}")
                self._may_take.set()
            case consume_messages.ACK:
                self._ack(number, VlsnSet.unpack(bytes(rest)))
            case consume_messages.UNREAD:
                unread = VlsnSet.unpack(bytes(rest))
                if unread.count <= CREDIT_MAX:
                    self._worker.unread(unread.vlsns())
            case _:
                raise BadBody(f"a worker sends no message of kind {kind!r}")
        return self._unanswered < ACKS_UNANSWERED_MAX

    def _ack(self, number: int, vlsns: VlsnSet) -> None:
        self._unanswered += 1
        try:
            if vlsns.count > MESSAGES_MAX:
                raise TooLarge(f"{vlsns.count} VLSNs; at most {MESSAGES_MAX}")
            told = self._worker.ack(vlsns)
        except VlsnLogError as error:
            self._refuse(number, error)
        else:
            told.add_done_callback(partial(self._acked, number))

    def _acked(self, number: int, told: asyncio.Future[None]) -> None:
        error = None if told.cancelled() else told.exception()
        if isinstance(error, VlsnLogError):
            self._refuse(number, error)
        elif error is None:
            self._done.append(number)
            self._to_send.set()

    def _refuse(self, number: int, error: VlsnLogError) -> None:
        self._put(head(FAILED, number) + problem.document(error), partial(self._answered, 1))

    def _answered(self, count: int) -> None:
        self._unanswered -= count
        self._room.set()

    # Sending.

    async def _take(self) -> None:
        while True:
            while self._credit <= 0 or self._handed.is_full:
                self._may_take.clear()
                await self._may_take.wait()
            self._taken(*await self._worker.take(min(self._credit, self._most), ALIVE_S, self._handed))

    def _taken(self, messages: Delivered, number: int) -> None:
        """Accounts for messages that were taken. A separate function is needed so that no stack frame keeps the
        messages while the caller waits for more. ``_send_first`` is a function for the same reason."""
        if number:
            self._credit -= len(messages.columns)
            self._unconfirmed.append(messages)
        self._to_confirm.set()

    async def _confirm(self) -> None:
        while True:
            await self._to_confirm.wait()
            self._to_confirm.clear()
            count = len(self._unconfirmed)
            await self._worker.confirm()
            for _ in range(count):
                self._confirmed(self._unconfirmed.popleft())
            if not count and not self._out:
                self._put(head(MESSAGES))

    def _confirmed(self, messages: Delivered) -> None:
        encoded = message_columns.encode(messages.columns, messages.attempts, behind=head(MESSAGES))
        self._put(encoded, self._answer_sent)

    def _answer_sent(self) -> None:
        self._handed.sent()
        self._may_take.set()

    async def _send(self) -> None:
        while True:
            if not self._out and not self._done:
                self._to_send.clear()
                await self._to_send.wait()
            if self._done:
                done, self._done = self._done, []
                await self._handed.send(self._channel.send(head(ACKED) + np.array(done, "<u4").tobytes()))
                self._answered(len(done))
            if self._out:
                await self._send_first()

    async def _send_first(self) -> None:
        message, sent = self._out[0]
        await self._handed.send(self._channel.send(message))
        self._out.popleft()
        sent()

    def _put(self, message: bytes, sent: Callable[[], None] = _nothing) -> None:
        self._out.append((message, sent))
        self._to_send.set()
