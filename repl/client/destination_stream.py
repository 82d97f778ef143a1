"""A worker's connection to the master of a destination. The master sends as many messages as the worker has granted;
the worker sends acknowledgements.

When the connection is lost, unanswered acknowledgements are passed to ``lost``, which makes them again by calls.
When the worker closes a working connection, it names the messages that were sent and not processed. A node sends
some message every few seconds. The worker leaves a node that is silent for ``SILENT_S``, because TCP alone would
wait a quarter of an hour for a machine without power.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from repl.destinations import message_batch
from repl.destinations.consume_messages import (
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
from repl.destinations.message_batch import Taken
from repl.web import problem
from vlsn.errors import BadBody, ChannelClosed, Unreachable, VlsnLogError
from vlsn.format.arrays import works_for
from vlsn.seams import Channel

SILENT_S: Final = 4 * ALIVE_S
"""If the master sends no message for this many seconds, the worker leaves it."""
LOOK_AGAIN_S: Final = 0.5
ACKS_MAX: Final = 10_000
"""The most messages that one acknowledgement covers."""
UNSENT_MAX: Final = 4
"""The most acknowledgements that wait for the socket. At this limit ``ack`` waits, too."""
LAST_WORD_S: Final = 2.0
"""The most seconds that a closing worker tries to name the messages that it has not processed."""
Vlsns: TypeAlias = memoryview
"""A column of VLSNs (i64)."""
Lost = Callable[[str, Vlsns, asyncio.Future[None]], None]


@dataclass(slots=True)
class _Ack:
    """One acknowledgement message, with all VLSNs that it covers."""

    told: asyncio.Future[None]
    columns: list[Vlsns] = field(default_factory=list)
    count: int = 0

    def vlsns(self) -> Vlsns:
        return joined(self.columns)


def column_of(vlsns: Iterable[int]) -> Vlsns:
    """Makes a column of single VLSNs."""
    return memoryview(array("q", vlsns))


def packed(vlsns: Vlsns) -> bytes:
    """Packs VLSNs in any order for a message (``vlsn_set``)."""
    return works_for(len(vlsns)).pack_vlsns(vlsns)


def joined(columns: Sequence[Vlsns]) -> Vlsns:
    """Joins columns, in the same order."""
    return columns[0] if len(columns) == 1 else memoryview(b"".join(columns)).cast("q")


class DestinationStream:
    """One connection of a worker, from ``open`` until it is lost or closed. Use a connection on one event loop only."""

    def __init__(self, channel: Channel, lost: Lost, most: int = ACKS_MAX) -> None:
        self._channel = channel
        self._lost = lost
        self._most = most
        self.uuid = ""
        self.fault: VlsnLogError | None = None
        """The error that ended the connection, or None while it works."""
        self._arrived: deque[Taken] = deque()
        self._passed_over: list[Vlsns] = []
        """Messages that ``next`` returned and the worker did not process."""
        self._came = asyncio.Event()
        self._heard_s = asyncio.get_running_loop().time()
        self._sending = asyncio.Lock()
        self._numbered = 0
        self._acks: dict[int, _Ack] = {}
        """The acknowledgements that are not durable yet, by number."""
        self._open = 0
        """The number of the acknowledgement that may still include more messages; 0 for none."""
        self._unsent: dict[int, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, channel: Channel, lost: Lost, *, most: int = ACKS_MAX) -> DestinationStream:
        """Opens the connection, and waits for the node's first message. ``next`` will return up to ``most`` messages
        at once. Raises ``Unreachable``, or the error with which the node refuses the worker."""
        stream = cls(channel, lost, most)
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
            self._end(
                error
                if not isinstance(error, ChannelClosed)
                else Unreachable(f"the connection to the master was lost: {error}")
            )

    async def _watch(self) -> None:
        """Ends the connection when the master is silent for too long."""
        is_late = False
        while self.fault is None:
            left = self._heard_s + SILENT_S - asyncio.get_running_loop().time()
            if left <= 0 and is_late:
                self._end(Unreachable(f"the master was silent for {SILENT_S:g} s"))
                await self._channel.close()
                return
            # this process may have been stopped, so messages that have arrived meanwhile are read first
            is_late = left <= 0
            await asyncio.sleep(max(left, LOOK_AGAIN_S))

    def _take(self, message: bytes) -> bool:
        kind, number, rest = parted(message)
        self._heard_s = asyncio.get_running_loop().time()
        if kind == MESSAGES:
            taken = message_batch.decode(bytes(rest))
            if len(taken.vlsns):
                self._arrived += taken.parts(self._most)
        elif kind == ACKED:
            if len(rest) % 4:
                raise BadBody(f"{len(rest)} bytes are no numbers of acknowledgements")
            for each in memoryview(rest).cast("I").tolist():
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
            raise BadBody(f"a master sends no message of the kind {kind!r}")
        self._came.set()
        return True

    def _settle(self, number: int, error: VlsnLogError | None) -> None:
        ack = self._acks.pop(number, None)
        if ack is None or ack.told.done():
            return
        told = ack.told
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)
            told.exception()  # marks the error as seen, because the caller may not wait for the future

    def _end(self, error: VlsnLogError) -> None:
        if self.fault is None:
            self.fault = error
        self._came.set()
        acks, self._acks, self._open = self._acks, {}, 0
        for ack in acks.values():
            self._lost(self.uuid, ack.vlsns(), ack.told)

    async def _until_more(self) -> None:
        """Waits until the node sends more. Raises the error that has ended the connection."""
        if self.fault is not None:
            raise self.fault
        self._came.clear()
        await self._came.wait()

    async def grant(self, messages: int) -> None:
        """Allows the node to send ``messages`` more messages. If the connection is lost, ``next`` first returns the
        messages that had arrived, then raises the error."""
        try:
            async with self._sending:
                await self._channel.send(head(CREDIT, messages))
        except ChannelClosed as error:
            self._end(Unreachable(f"the connection to the master was lost: {error}"))

    async def next(self) -> Taken:
        """Returns messages in the order in which they were sent. After the last one that had arrived, raises the
        error that has ended the connection."""
        while not self._arrived:
            await self._until_more()
        return self._arrived.popleft()

    async def ack(self, vlsns: Vlsns) -> asyncio.Future[None]:
        """Acknowledges up to ``ACKS_MAX`` messages, together with other acknowledgements of the same turn of the event
        loop. The returned future completes once the acknowledgements are durable. If the connection is lost, the future
        is passed to ``lost``."""
        while True:
            ack = self._acks.get(self._open)
            if ack is not None and ack.count + len(vlsns) <= ACKS_MAX:
                break
            if self.fault is not None:
                told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._lost(self.uuid, vlsns, told)
                return told
            if len(self._unsent) < UNSENT_MAX:
                ack = self._begin_ack()
                break
            # another caller may have begun an acknowledgement by then
            await asyncio.wait([next(iter(self._unsent.values()))])
        ack.columns.append(vlsns)
        ack.count += len(vlsns)
        return ack.told

    def _begin_ack(self) -> _Ack:
        self._numbered += 1
        self._open = number = self._numbered
        ack = self._acks[number] = _Ack(asyncio.get_running_loop().create_future())
        self._unsent[number] = asyncio.create_task(self._send_ack(number, ack), name="an acknowledgement")
        return ack

    def pass_over(self, vlsns: Vlsns) -> None:
        """Notes that the worker has not processed ``vlsns``, which ``next`` had returned. ``close`` reports these
        messages to the node."""
        self._passed_over.append(vlsns)

    async def _send_ack(self, number: int, ack: _Ack) -> None:
        """Sends one acknowledgement. The send runs as a separate task, because several callers share the
        acknowledgement and one caller may be cancelled."""
        try:
            async with self._sending:
                if self._open == number:
                    self._open = 0
                await self._channel.send(head(ACK, number) + packed(ack.vlsns()))
        except ChannelClosed as error:
            self._end(Unreachable(f"the connection to the master was lost: {error}"))
        finally:
            del self._unsent[number]

    @property
    def unanswered(self) -> list[asyncio.Future[None]]:
        """The futures of the acknowledgements that are not durable yet."""
        return [ack.told for ack in self._acks.values()]

    async def close(self) -> None:
        """Reports to the master which messages the worker has not processed, and closes the connection.
        Acknowledgements without an answer are passed to ``lost``. Waits at most ``LAST_WORD_S`` for a master that
        reads nothing."""
        try:
            if self.fault is None:
                self.fault = Unreachable("the worker has left")
                if self._arrived or self._passed_over:
                    with suppress(ChannelClosed, TimeoutError):
                        async with asyncio.timeout(LAST_WORD_S), self._sending:
                            await self._channel.send(head(UNREAD) + packed(self._unread()))
        finally:
            for task in (self._reading, self._watching, *self._unsent.values()):
                if task is not None:
                    task.cancel()
            self._arrived.clear()
            self._end(Unreachable("the worker has left"))
            await self._channel.close()

    def _unread(self) -> Vlsns:
        """Returns the VLSNs of the messages that the worker has not processed, including those that have just
        arrived."""
        columns = [*self._passed_over, *(each.vlsns for each in self._arrived)]
        self._arrived.clear()
        return joined(columns)
