"""A worker of a destination: takes messages, and acknowledges each message or returns it for redelivery.

    async for message in log.destination("orders"):
        …
        await message.ack()

1. At most ``prefetch`` messages are taken at once, and are delivered one by one. If the worker is quick, it requests
   the next messages before it has processed these. A message that is neither acknowledged nor returned in time is
   delivered again, to any worker that requests messages.
2. Acknowledgements that are made while a call is waiting for its answer share the next call. ``ack`` returns once the
   acknowledgement is durable. With ``wait=False``, ``ack`` returns at once; if such an acknowledgement is lost, the
   message is delivered again.
3. If a destination was dropped and created again, a worker of the old destination acknowledges nothing of the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, overload

import msgspec

from repl.client.destination_stream import ACKS_MAX, DestinationStream, Vlsns, column_of, joined
from repl.client.destinations import AGAIN_S, Destinations
from repl.destinations.message_batch import Taken
from repl.shared import undisturbed
from vlsn.errors import BadArgument, ChannelClosed, Unreachable, VlsnLogError
from vlsn.format.arrays import need_numpy
from vlsn.state.destination_settings import key_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PREFETCH: Final = 100
PREFETCH_MAX: Final = 10_000
QUICK_S: Final = 0.5
"""A worker counts as quick if it processes its messages within this many seconds. A quick worker is sent the next
messages ahead of time."""
AHEAD: Final = 8
"""Up to this many times ``prefetch`` messages may be sent to a quick worker and not processed yet."""
TOGETHER: Final = 4
"""Up to this many times ``prefetch`` messages are sent to a quick worker at once. Larger answers cost the master
less."""
AHEAD_MAX: Final = 20_000
"""The most messages that may be sent to one worker and not processed yet: half of a node's limit."""
WAIT_S: Final = 20.0
"""The seconds that one call waits for messages. After a call without messages, the worker calls again."""


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message as it was delivered. ``attempt`` is the number of this delivery, from 1 on."""

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
        """Acknowledges the message. With ``wait`` the acknowledgement is durable on return. Raises ``NotFound`` if
        the destination was dropped. After the client's timeout, raises ``Unreachable``, ``NotMaster`` or
        ``OutcomeUnknown``."""
        await self._of.ack([self], wait=wait)

    async def nack(self, reason: str = "given back", *, delay_s: float | None = None) -> None:
        """Returns the message, to be delivered again after ``delay_s`` seconds (0 to 86,400), or after the
        destination's delay if ``delay_s`` is None. After its last attempt the message becomes a dead letter, with
        ``reason`` as the cause. Raises the same errors as ``ack``, and ``BadArgument``."""
        await self._of.nack([self], reason, delay_s=delay_s)


class Messages(Sequence[Message]):
    """Messages that were taken together. ``Message`` objects are made only when the sequence is first read, so
    acknowledging the whole sequence is cheap."""

    __slots__ = ("_made", "_of", "_stream", "_taken", "uuid")

    def __init__(self, of: Destination, uuid: str, taken: Taken, stream: DestinationStream | None = None) -> None:
        self._of = of
        self._stream = stream
        self._taken = taken
        self._made: list[Message] | None = None
        self.uuid = uuid

    @property
    def vlsns(self) -> npt.NDArray[np.int64]:
        """The VLSNs of the messages, ascending, as an array. Raises ``ModuleNotFoundError`` without NumPy."""
        need_numpy("Messages.vlsns")
        import numpy as np

        return np.frombuffer(self._taken.vlsns, np.int64)

    @property
    def column(self) -> Vlsns:
        """The VLSNs of the messages, ascending, as a view."""
        return self._taken.vlsns

    def left_at(self, seen: int) -> None:
        """Notes that the worker stops after it has read the first ``seen`` messages. The other messages are returned
        when the worker's connection closes."""
        if self._stream is not None and seen < len(self):
            self._stream.pass_over(self.column[seen:])

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
    """The acknowledgements of one destination that the next call sends together."""

    told: asyncio.Future[None]
    """A future that completes once these acknowledgements are durable."""
    columns: list[Vlsns] = field(default_factory=list)


class Destination:
    """One worker of a destination, made by ``Client.destination``. Iterate over the worker. After an error you may
    iterate over the same worker again."""

    def __init__(self, destinations: Destinations, name: str, *, prefetch: int = PREFETCH) -> None:
        key_of(name)
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise BadArgument(f"prefetch: {prefetch} is not in 1–{PREFETCH_MAX}")
        self.name = name
        self._destinations = destinations
        self._prefetch = prefetch
        self._gathered: dict[str, _Gathered] = {}
        """The VLSNs to acknowledge, by the uuid of their destination. The destinations are kept apart so that a dropped
        one fails only its own acknowledgements."""
        self._calling: _Gathered | None = None
        """The acknowledgements that were sent and are not answered yet."""
        self._sending: asyncio.Task[None] | None = None
        self._streams: list[DestinationStream] = []
        """The open connections, one for each running iteration, oldest first."""

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
        """Yields the messages in batches, as the node sent them; each batch has one or more messages. If the master
        is lost, the worker connects to the next master."""
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
        """Takes up to ``most`` messages. Waits up to ``wait_s`` seconds for the first message, and may return no
        messages."""
        uuid, taken = await self._destinations.take(self.name, self._prefetch if most is None else most, wait_s)
        return Messages(self, uuid, taken)

    async def ack(self, messages: Sequence[Message], *, wait: bool = True) -> None:
        """Acknowledges several messages, as ``Message.ack`` acknowledges one."""
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
            await undisturbed(told)

    def _call(self, uuid: str, vlsns: Vlsns) -> asyncio.Future[None]:
        """Acknowledges messages by a call, which other acknowledgements may share. The returned future completes once
        the acknowledgements are durable."""
        gathered = self._gathered.get(uuid)
        if gathered is None:
            gathered = self._gathered[uuid] = _Gathered(asyncio.get_running_loop().create_future())
        gathered.columns.append(vlsns)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name=f"acks of {self.name}")
        return gathered.told

    def _call_again(self, uuid: str, vlsns: Vlsns, told: asyncio.Future[None]) -> None:
        """Acknowledges messages again, because the connection was lost before the master had answered."""
        self._call(uuid, vlsns).add_done_callback(partial(_pass_on, told))

    async def nack(
        self, messages: Sequence[Message], reason: str = "given back", *, delay_s: float | None = None
    ) -> None:
        """Returns several messages, as ``Message.nack`` returns one. More than ``ACKS_MAX`` messages take several
        calls."""
        for uuid, vlsns in _by_uuid(messages):
            # later messages first, because the return of a message also recalls the later messages of its key
            later = sorted(set(vlsns), reverse=True)
            for at in range(0, len(later), ACKS_MAX):
                await self._destinations.nack(self.name, later[at : at + ACKS_MAX], reason, uuid, delay_s=delay_s)

    async def flush(self) -> None:
        """Returns once every acknowledgement made so far is durable. If an acknowledgement failed, raises its error
        (see ``Message.ack``)."""
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
                    vlsns = sorted(set(joined(gathered.columns)))
                    for at in range(0, len(vlsns), ACKS_MAX):
                        await self._destinations.ack(self.name, vlsns[at : at + ACKS_MAX], uuid)
                except Exception as error:
                    gathered.told.set_exception(error)
                    gathered.told.exception()  # marks the error as seen, because some callers do not wait
                else:
                    gathered.told.set_result(None)
        finally:
            for each in (self._calling, *self._gathered.values()):
                if each is not None:
                    each.told.cancel()  # this task was cancelled; a future that is already complete does not change
            self._gathered, self._calling, self._sending = {}, None, None


def _pass_on(told: asyncio.Future[None], done: asyncio.Future[None]) -> None:
    if told.done():
        return
    if done.cancelled():
        told.cancel()
    elif (error := done.exception()) is not None:
        told.set_exception(error)
        told.exception()  # marks the error as seen, because some callers do not wait
    else:
        told.set_result(None)


def _by_uuid(messages: Sequence[Message]) -> Iterator[tuple[str, Vlsns]]:
    """Yields the messages' VLSNs, grouped by the uuid of their destination. A destination that is dropped and created
    again gets a new uuid."""
    if isinstance(messages, Messages):
        yield messages.uuid, messages.column
        return
    for uuid in dict.fromkeys(message.uuid for message in messages):
        yield uuid, column_of(message.vlsn for message in messages if message.uuid == uuid)
