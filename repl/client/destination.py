"""A worker of a destination: takes messages, and acknowledges each, or gives it back.

    async for message in log.destination("orders"):
        …
        await message.ack()

1. Messages are taken ``prefetch`` at once at most, and given out one by one; the next ones are on their way meanwhile
   where the worker is quick. A message that is neither acknowledged nor given back in time is delivered again, to any
   worker that asks.
2. Acknowledgements that come while one call is on its way go together with the next. ``ack`` returns once it is
   durable. With ``wait=False`` it returns at once, and a message whose acknowledgement is lost is delivered again.
3. A worker of a destination that was dropped and made anew acknowledges nothing of the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, overload

import msgspec
import numpy as np

from repl.client.destination_stream import ACKS_MAX, DestinationStream
from repl.client.destinations import AGAIN_S, Destinations
from repl.destinations.message_batch import Taken
from vlsn.errors import BadArgument, ChannelClosed, Unreachable, VlsnLogError
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.state.destinations import key_of

PREFETCH: Final = 100
PREFETCH_MAX: Final = 10_000
QUICK_S: Final = 0.5
"""A worker that finishes its messages within so many seconds receives the next ones ahead."""
AHEAD: Final = 8
"""Times ``prefetch`` that may be on their way to such a worker …"""
TOGETHER: Final = 4
"""… and that are granted, and sent, at once: they share the master's cost of an answer."""
AHEAD_MAX: Final = 20_000
"""Messages that may be on their way to one worker at most, half of a node's limit."""
WAIT_S: Final = 20.0
"""Seconds that one call waits for messages; then it is made again."""


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message as it was delivered; ``attempt`` counts deliveries from 1."""

    _of: Destination
    uuid: str
    vlsn: int
    attempt: int
    time: int
    key: bytes | None
    value: bytes

    def __repr__(self) -> str:
        return f"Message(vlsn={self.vlsn}, attempt={self.attempt}, key={self.key!r}, {len(self.value)} bytes)"

    async def ack(self, *, wait: bool = True) -> None:
        """Acknowledges the message: durable on return, with ``wait``. Raises ``NotFound`` where the destination is
        gone; past the client's time ``Unreachable``, ``NotMaster``, ``OutcomeUnknown``."""
        await self._of.ack([self], wait=wait)

    async def nack(self, reason: str = "given back", *, delay_s: float | None = None) -> None:
        """Gives the message back, to be delivered again after ``delay_s``, 0 to 86,400 seconds; None: after the
        destination's delay. After its last attempt it is dead, for this ``reason``. Raises as ``ack``,
        ``BadArgument``."""
        await self._of.nack([self], reason, delay_s=delay_s)


class Messages(Sequence[Message]):
    """Messages that were taken together. Each is made when somebody first looks at one of them: a worker that
    acknowledges them as a whole pays for none by itself."""

    __slots__ = ("_made", "_of", "_stream", "_taken", "uuid")

    def __init__(self, of: Destination, uuid: str, taken: Taken, stream: DestinationStream | None = None) -> None:
        self._of = of
        self._stream = stream
        self._taken = taken
        self._made: list[Message] | None = None
        self.uuid = uuid

    @property
    def vlsns(self) -> Vlsns:
        """Their VLSNs, ascending, as an array."""
        return self._taken.vlsns

    def left_at(self, seen: int) -> None:
        """Notes that the worker has looked at so many of them and leaves: the others go back with its connection."""
        if self._stream is not None and seen < len(self):
            self._stream.pass_over(self.vlsns[seen:])

    def _messages(self) -> list[Message]:
        if self._made is None:
            taken = self._taken
            vlsns, times, tried = taken.vlsns.tolist(), taken.times.tolist(), taken.attempts
            attempts = [tried.get(vlsn, 1) for vlsn in vlsns] if tried else repeat(1)
            keys, values = taken.keys_and_values()
            self._made = list(map(Message, repeat(self._of), repeat(self.uuid), vlsns, attempts, times, keys, values))
        return self._made

    def __len__(self) -> int:
        return len(self._taken.vlsns)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages())

    @overload
    def __getitem__(self, at: int) -> Message: ...

    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...

    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        return self._messages()[at]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Messages({self.uuid!r}, {len(self)} messages)"


@dataclass(slots=True)
class _Gathered:
    """Acknowledgements of one destination that the next call makes."""

    told: asyncio.Future[None]
    """Done once it is durable."""
    columns: list[Vlsns] = field(default_factory=list)


class Destination:
    """One worker of a destination; made by ``Client.destination``.  Iterate over it, again after a fault too."""

    def __init__(self, destinations: Destinations, name: str, *, prefetch: int = PREFETCH) -> None:
        key_of(name)
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise BadArgument(f"prefetch: {prefetch} is not in 1–{PREFETCH_MAX}")
        self.name = name
        self._destinations = destinations
        self._prefetch = prefetch
        self._gathered: dict[str, _Gathered] = {}
        """VLSNs to be acknowledged, by the uuid of their destination: one that is gone fails for itself."""
        self._calling: _Gathered | None = None
        """The ones whose call is on its way."""
        self._sending: asyncio.Task[None] | None = None
        self._streams: list[DestinationStream] = []
        """The connections, one for each iteration under way, in the order in which they were made."""

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                seen = 0
                try:
                    for message in batch:
                        seen += 1
                        yield message
                finally:
                    batch.left_at(seen)

    async def batches(self) -> AsyncGenerator[Messages, None]:
        """Yields messages as they were sent together, one or more. A master that is lost is left for the next one."""
        loop, most = asyncio.get_running_loop(), self._prefetch
        together = min(most * TOGETHER, PREFETCH_MAX)
        while True:
            stream = await self._destinations.connect(self.name, most, together, self._call_again)
            self._streams.append(stream)
            granted, quick = 0, False
            try:
                while True:
                    wanted = min(most * AHEAD, AHEAD_MAX) if quick else most
                    if granted <= wanted - (together if quick else 1):
                        await stream.grant(wanted - granted)
                        granted = wanted
                    taken = await stream.next()
                    granted -= len(taken.vlsns)
                    began = loop.time()
                    yield Messages(self, stream.uuid, taken, stream)
                    quick = loop.time() - began < QUICK_S
            except (ChannelClosed, VlsnLogError) as error:
                if not (error.transient or isinstance(error, Unreachable | ChannelClosed)):
                    raise
                self._destinations.left()
            finally:
                try:
                    await stream.close()
                finally:
                    self._streams.remove(stream)
            await asyncio.sleep(AGAIN_S)

    async def take(self, most: int | None = None, wait_s: float = WAIT_S) -> Messages:
        """Takes up to ``most`` messages, and waits ``wait_s`` for the first; it may return none."""
        uuid, taken = await self._destinations.take(self.name, self._prefetch if most is None else most, wait_s)
        return Messages(self, uuid, taken)

    async def ack(self, messages: Sequence[Message], *, wait: bool = True) -> None:
        """Acknowledges messages, as ``Message.ack`` does one."""
        if not messages:
            return
        under_way = []
        for uuid, vlsns in _by_uuid(messages):
            stands = (each for each in reversed(self._streams) if each.fault is None and each.uuid == uuid)
            stream = next(stands, None)
            if stream is None:
                under_way.append(self._call(uuid, vlsns))
                continue
            under_way += [await stream.ack(vlsns[at : at + ACKS_MAX]) for at in range(0, len(vlsns), ACKS_MAX)]
        for told in under_way if wait else ():
            await asyncio.shield(told)

    def _call(self, uuid: str, vlsns: Vlsns) -> asyncio.Future[None]:
        """Acknowledges by a call, together with others; done once that is durable."""
        gathered = self._gathered.get(uuid)
        if gathered is None:
            gathered = self._gathered[uuid] = _Gathered(asyncio.get_running_loop().create_future())
        gathered.columns.append(vlsns)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name=f"acks of {self.name}")
        return gathered.told

    def _call_again(self, uuid: str, vlsns: Vlsns, told: asyncio.Future[None]) -> None:
        """Acknowledges what was under way on a connection that is lost."""
        self._call(uuid, vlsns).add_done_callback(partial(_pass_on, told))

    async def nack(
        self, messages: Sequence[Message], reason: str = "given back", *, delay_s: float | None = None
    ) -> None:
        """Gives messages back, as ``Message.nack`` does one; more than ``ACKS_MAX`` in several calls."""
        for uuid, vlsns in _by_uuid(messages):
            later = np.unique(vlsns)[::-1]  # the later ones first: one that comes back recalls those of its key
            for at in range(0, len(later), ACKS_MAX):
                part = later[at : at + ACKS_MAX].tolist()
                await self._destinations.nack(self.name, part, reason, uuid, delay_s=delay_s)

    async def flush(self) -> None:
        """Returns once everything acknowledged so far is durable. Raises as ``Message.ack`` where some of it failed."""
        under_way = [told for stream in self._streams for told in stream.unanswered]
        under_way += [each.told for each in (self._calling, *self._gathered.values()) if each is not None]
        if under_way:
            await asyncio.wait(under_way)
        for told in under_way:
            told.result()

    async def _send(self) -> None:
        try:
            while self._gathered:
                uuid = next(iter(self._gathered))
                self._calling = gathered = self._gathered.pop(uuid)
                try:
                    vlsns = np.unique(np.concatenate(gathered.columns))
                    for at in range(0, len(vlsns), ACKS_MAX):
                        await self._destinations.ack(self.name, VlsnSet.of(vlsns[at : at + ACKS_MAX]), uuid)
                except Exception as error:
                    gathered.told.set_exception(error)
                    gathered.told.exception()  # who has not waited for it is not asked
                else:
                    gathered.told.set_result(None)
        finally:
            for each in (self._calling, *self._gathered.values()):
                if each is not None:
                    each.told.cancel()  # of a task that was cancelled; nothing to one that is done
            self._gathered, self._calling, self._sending = {}, None, None


def _pass_on(told: asyncio.Future[None], done: asyncio.Future[None]) -> None:
    if told.done():
        return
    if done.cancelled():
        told.cancel()
    elif (error := done.exception()) is not None:
        told.set_exception(error)
        told.exception()  # who has not waited for it is not asked
    else:
        told.set_result(None)


def _by_uuid(messages: Sequence[Message]) -> Iterator[tuple[str, Vlsns]]:
    """Yields the VLSNs of messages by the destination that they are of: one that is made anew has another uuid."""
    if isinstance(messages, Messages):
        yield messages.uuid, messages.vlsns
        return
    for uuid in dict.fromkeys(message.uuid for message in messages):
        yield uuid, np.array([message.vlsn for message in messages if message.uuid == uuid], np.int64)
