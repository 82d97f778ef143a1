"""A worker's connection to the master of a destination: messages as far as it gives credit, acknowledgements beside.

Everything that is under way when the connection is lost is given to ``lost``: acknowledgements are made again by calls,
and what was not looked at is said to be so where the connection still stands.  A node says something every few seconds:
one that is silent for ``SILENT_S`` is left, whoever waits for it and for what; TCP alone would wait a quarter of an
hour for a machine that has lost its power.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from repl.http import message_batch, problem
from repl.http.consume_messages import (
    ACK,
    ACKED,
    ALIVE_S,
    CREDIT,
    END,
    FAILED,
    HELLO,
    MESSAGES,
    UNREAD,
    head,
    parted,
)
from repl.http.message_batch import Taken
from vlsn.errors import BadBody, ChannelClosed, Unreachable, VlsnLogError
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.seams import Channel

SILENT_S: Final = 4 * ALIVE_S
"""Seconds after which a master that says nothing is left."""
LOOK_AGAIN_S: Final = 0.5
Lost = Callable[[str, Vlsns, asyncio.Future[None]], None]


class DestinationStream:
    """One connection, from ``open`` to its loss or ``close``.  On one event loop."""

    def __init__(self, channel: Channel, lost: Lost) -> None:
        self._channel = channel
        self._lost = lost
        self.uuid = ""
        self.fault: VlsnLogError | None = None
        """The fault that has ended it."""
        self._arrived: deque[Taken] = deque()
        self._came = asyncio.Event()
        self._heard_s = asyncio.get_running_loop().time()
        self._sending = asyncio.Lock()
        self._numbered = 0
        self._acks: dict[int, tuple[Vlsns, asyncio.Future[None]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, channel: Channel, lost: Lost) -> DestinationStream:
        """Waits for the node's first word. Raises what it refuses the worker with, ``Unreachable``."""
        stream = cls(channel, lost)
        stream._reading = asyncio.create_task(stream._read(), name="a destination's messages")
        stream._watching = asyncio.create_task(stream._watch(), name="a destination's master")
        try:
            await stream.grant(0)
            while not stream.uuid:
                await stream._until_more()
        except BaseException:
            await stream.close()
            raise
        return stream

    async def _read(self) -> None:
        try:
            while True:
                await self._channel.deliver(self._take)
        except VlsnLogError as error:
            self._end(error if not isinstance(error, ChannelClosed) else Unreachable(f"the master is gone: {error}"))

    async def _watch(self) -> None:
        """Leaves a master that says nothing."""
        is_late = False
        while self.fault is None:
            left = self._heard_s + SILENT_S - asyncio.get_running_loop().time()
            if left <= 0 and is_late:
                self._end(Unreachable(f"the master says nothing for {SILENT_S:g} s"))
                await self._channel.close()
                return
            is_late = left <= 0  # it may be this process that stood still: what has come meanwhile is read first
            await asyncio.sleep(max(left, LOOK_AGAIN_S))

    def _take(self, message: bytes) -> bool:
        kind, number, rest = parted(message)
        self._heard_s = asyncio.get_running_loop().time()
        if kind == MESSAGES:
            taken = message_batch.decode(bytes(rest))
            if len(taken.vlsns):
                self._arrived.append(taken)
        elif kind == ACKED:
            for each in np.frombuffer(rest, "<u4").tolist():
                self._settle(each, None)
            return True
        elif kind == FAILED:
            self._settle(number, problem.error_of(bytes(rest)))
            return True
        elif kind == HELLO:
            self.uuid = bytes(rest).decode("ascii", "replace")
        elif kind == END:
            raise problem.error_of(bytes(rest))
        else:
            raise BadBody(f"a master says nothing of the kind {kind!r}")
        self._came.set()
        return True

    def _settle(self, number: int, error: VlsnLogError | None) -> None:
        _, told = self._acks.pop(number, (None, None))
        if told is None or told.done():
            return
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)
            told.exception()  # who has not waited for it is not asked

    def _end(self, error: VlsnLogError) -> None:
        if self.fault is None:
            self.fault = error
        self._came.set()
        acks, self._acks = self._acks, {}
        for vlsns, told in acks.values():
            self._lost(self.uuid, vlsns, told)

    async def _until_more(self) -> None:
        """Waits for more from the node. Raises what has ended the connection."""
        if self.fault is not None:
            raise self.fault
        self._came.clear()
        await self._came.wait()

    async def grant(self, messages: int) -> None:
        """Lets the node send so many more. Where the connection is lost ``next`` says so, behind what had come."""
        try:
            async with self._sending:
                await self._channel.send(head(CREDIT, messages))
        except ChannelClosed as error:
            self._end(Unreachable(f"the master is gone: {error}"))

    async def next(self) -> Taken:
        """Returns messages in the order in which they were sent. Raises what has ended the connection, once all that
        had come is given out."""
        while not self._arrived:
            await self._until_more()
        return self._arrived.popleft()

    async def ack(self, vlsns: Vlsns) -> asyncio.Future[None]:
        """Acknowledges; the future is done once that is durable, and goes to ``lost`` with the connection."""
        self._numbered += 1
        number, told = self._numbered, asyncio.get_running_loop().create_future()
        self._acks[number] = vlsns, told
        try:
            async with self._sending:
                await self._channel.send(head(ACK, number) + VlsnSet.of(vlsns).pack())
        except ChannelClosed as error:
            self._end(Unreachable(f"the master is gone: {error}"))
        return told

    @property
    def unanswered(self) -> list[asyncio.Future[None]]:
        """The acknowledgements that are not durable yet."""
        return [told for _, told in self._acks.values()]

    async def close(self) -> None:
        """Says what was not looked at, and leaves; acknowledgements under way are lost here."""
        unread, self._arrived = self._arrived, deque()
        if self.fault is None:
            self.fault = Unreachable("the worker has left")
            try:
                if unread:
                    vlsns = np.concatenate([each.vlsns for each in unread])
                    async with self._sending:
                        await self._channel.send(head(UNREAD) + VlsnSet.of(vlsns).pack())
            except ChannelClosed:
                pass
        for task in (self._reading, self._watching):
            if task is not None:
                task.cancel()
        self._end(self.fault)
        await self._channel.close()
