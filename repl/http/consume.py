"""``WS /v1/destinations/{name}/consume``: one worker of a destination, sent messages as far as it has given credit.

    credit ─► take ─► answers handed out ─► one confirmation of the lead for all of them ─► sent, in order
    ack ─► noted ─► durable ─► told

1. Messages are handed out while the lead is confirmed for those before them; nothing is sent unconfirmed.
2. What was handed out and not sent when the worker leaves is as if it had not been out.  What was sent stays out until
   its time is over, or the worker says that it has not looked at it.
3. Order in a key holds along one connection: later messages of a key may follow earlier ones to the same worker, and
   wait for any other.  A worker that connects again is another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

import numpy as np

from repl.http import consume_messages, message_batch, problem
from repl.http.consume_messages import (
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
from repl.http.services import DestinationWorker, Messages
from vlsn.errors import BadBody, ChannelClosed, TooLarge, VlsnLogError
from vlsn.format.vlsn_set import VlsnSet
from vlsn.seams import Buffer, Channel
from vlsn.together import together

MESSAGES_MAX = 10_000
ANSWERS_MAX = 8
"""Answers of one worker that are handed out, and not sent yet."""


class Consuming:
    """One worker's connection."""

    _channel: Channel

    def __init__(self, worker: DestinationWorker, most: int) -> None:
        self._worker = worker
        self._most = most
        self._greeted = False
        self._credit = 0
        self._may_take = asyncio.Event()
        self._handed: deque[int] = deque()
        """Answers that are handed out, and not sent."""
        self._unconfirmed: list[Messages] = []
        """Those of them for which the lead is not confirmed yet."""
        self._to_confirm = asyncio.Event()
        self._out: deque[tuple[list[Buffer], bool]] = deque()
        """Pieces to be sent, and whether they are the first answer that was handed out."""
        self._to_send = asyncio.Event()
        self._acking = 0
        self._room = asyncio.Event()
        self._done: list[int] = []
        """Acknowledgements that are durable, and not told yet."""

    def idle(self) -> bool:
        return not self._handed and not self._out and not self._acking

    async def run(self, channel: Channel) -> None:
        """Serves the worker until it leaves, or sends what nobody can read; tells it what else ended it."""
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
            self._worker.recall(self._handed)

    # What the worker says.

    async def _receive(self) -> None:
        while True:
            await self._channel.deliver(self._heard)
            while self._acking >= ACKS_UNANSWERED_MAX:
                self._room.clear()
                await self._room.wait()

    def _heard(self, message: bytes) -> bool:
        kind, number, rest = parted(message)
        if not self._greeted:  # in every protocol here who connects speaks first: what came before would be lost
            self._greeted = True
            self._put(head(HELLO), self._worker.uuid.encode())
        match kind:
            case consume_messages.CREDIT:
                self._credit += number
                if self._credit > CREDIT_MAX:
                    raise BadBody(f"a worker that would be sent {self._credit} messages; at most {CREDIT_MAX}")
                self._may_take.set()
            case consume_messages.ACK:
                self._ack(number, VlsnSet.unpack(bytes(rest)))
            case consume_messages.UNREAD:
                unread = VlsnSet.unpack(bytes(rest))
                if unread.count <= CREDIT_MAX:
                    self._worker.unread(unread.vlsns())
            case _:
                raise BadBody(f"a worker says nothing of the kind {kind!r}")
        return self._acking < ACKS_UNANSWERED_MAX

    def _ack(self, number: int, vlsns: VlsnSet) -> None:
        try:
            if vlsns.count > MESSAGES_MAX:
                raise TooLarge(f"{vlsns.count} VLSNs; at most {MESSAGES_MAX}")
            told = self._worker.ack(vlsns)
        except VlsnLogError as error:
            self._put(head(FAILED, number), problem.document(error))
            return
        self._acking += 1
        told.add_done_callback(partial(self._acked, number))

    def _acked(self, number: int, told: asyncio.Future[None]) -> None:
        self._acking -= 1
        self._room.set()
        if told.cancelled():
            return
        error = told.exception()
        if isinstance(error, VlsnLogError):
            self._put(head(FAILED, number), problem.document(error))
        elif error is None:
            self._done.append(number)
            self._to_send.set()

    # What it is sent.

    async def _take(self) -> None:
        while True:
            while self._credit <= 0 or len(self._handed) >= ANSWERS_MAX:
                self._may_take.clear()
                await self._may_take.wait()
            messages, number = await self._worker.take(min(self._credit, self._most), ALIVE_S)
            if number:
                self._credit -= len(messages.columns)
                self._handed.append(number)
                self._unconfirmed.append(messages)
            self._to_confirm.set()

    async def _confirm(self) -> None:
        while True:
            await self._to_confirm.wait()
            self._to_confirm.clear()
            handed, self._unconfirmed = self._unconfirmed, []
            await self._worker.confirm()
            for messages in handed:
                self._out.append(([head(MESSAGES), message_batch.encode(messages.columns, messages.attempts)], True))
            if not handed:
                self._put(head(MESSAGES))
            self._to_send.set()

    async def _send(self) -> None:
        while True:
            if not self._out and not self._done:
                self._to_send.clear()
                await self._to_send.wait()
            if self._done:
                done, self._done = self._done, []
                await self._channel.send(head(ACKED) + np.array(done, "<u4").tobytes())
            if self._out:
                pieces, is_answer = self._out[0]
                await self._channel.send(b"".join(pieces))
                self._out.popleft()
                if is_answer:
                    self._handed.popleft()
                    self._may_take.set()

    def _put(self, *pieces: Buffer) -> None:
        self._out.append(([*pieces], False))
        self._to_send.set()
