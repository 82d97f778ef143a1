"""One connection of the fake network: two wires, a channel at each end.

A wire carries whole messages in their order, each after a drawn delay.

1. Over a blocked way nothing moves.  If the way opens within ``stall_s``, all of it arrives, as with TCP.  After a
   longer block the connection is cut: both ends raise ``ChannelClosed``, and nothing of it arrives.
2. A sender waits while the other end has not read ``window_bytes`` of its wire.  The report of these reads uses the
   opposite way: if only that is blocked, the window fills, and stalls.
3. ``close`` travels after the messages: earlier messages are received before it, and its code with it.
4. A message over the receiver's limit closes the connection at that message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from vlsn.errors import ChannelClosed
from vlsn.seams import Buffer, Channel

SAME_TIME_S = 1e-9


class Ways(Protocol):
    """The part of the network that a connection uses."""

    loop: asyncio.AbstractEventLoop
    stall_s: float
    window_bytes: int

    def delay_s(self, source: str, target: str) -> float: ...

    def carries_s(self, source: str, target: str, size: int, from_s: float) -> float:
        """Returns when ``size`` bytes, which begin to arrive at ``from_s`` at the earliest, have all arrived."""
        ...

    def unsent(self, source: str, target: str, size: int, due: float) -> None:
        """Drops the bytes that would arrive until ``due``, so that the link is free for others."""
        ...

    def blocked(self, source: str, target: str) -> bool: ...

    def draws_cut(self) -> bool: ...

    def came_late(self) -> None: ...

    def taken(self, source: str, target: str, message: bytes) -> None: ...


class Signal:
    """Wakes the tasks that wait for it at this moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def given(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter


class Connection:
    def __init__(self, ways: Ways, client: str, server: str, *, client_bytes_max: int, server_bytes_max: int) -> None:
        self.hosts = (client, server)
        self.left = ""
        """The host whose process has ended, with messages under way."""
        self.reason = ""
        up = Wire(self, ways, client, server, server_bytes_max)
        down = Wire(self, ways, server, client, client_bytes_max)
        self.wires = (up, down)
        self.client = FakeChannel(ways, out=up, come=down)
        self.server = FakeChannel(ways, out=down, come=up)

    @property
    def over(self) -> bool:
        return all(wire.over for wire in self.wires)

    def cut(self, reason: str) -> None:
        """Makes both ends raise ``ChannelClosed`` from now on, and drops all messages under way."""
        self.reason = self.reason or reason
        for wire in self.wires:
            wire.drop()

    def abandon(self, host: str) -> None:
        """Ends that host silently: nothing more leaves it, not even a close."""
        (self.client, self.server)[self.hosts.index(host)].abandon()

    def leave(self, host: str, *, silent: bool) -> None:
        """Ends that host; its messages are still sent, with a close after them. If its end is ``silent``, its machine
        is gone too, and nothing is sent."""
        self.left, self.reason = host, self.reason or f"{host} is gone"
        (self.client, self.server)[self.hosts.index(host)].leave()
        if not silent:
            self.hang_up()

    def hang_up(self) -> None:
        """Reports the end to the remaining side, after messages under way, or when it sends."""
        gone = self.hosts.index(self.left)
        self.wires[gone].put(None)
        self.wires[1 - gone].drop()

    def move(self) -> None:
        """Is called when a way was opened or blocked."""
        for wire in self.wires:
            wire.move()

    def refuse(self, wire: Wire) -> None:
        """Closes the connection because of a message over ``wire``."""
        self.reason = self.reason or "a message over the limit"
        wire.end()
        self.wires[wire is self.wires[0]].put(None)


class Wire:
    """One direction.  ``None`` among its messages is the sender's close."""

    def __init__(self, connection: Connection, ways: Ways, source: str, target: str, bytes_max: int) -> None:
        self._connection = connection
        self._ways = ways
        self._source, self._target = source, target
        self._bytes_max = bytes_max
        self._under_way: deque[tuple[float, float, bytes | None]] = deque()
        """The arrival times of a message's first and last byte, with the message."""
        self._came = 0
        self._last_due = 0.0
        self._stuck_since: float | None = None
        self._untold = 0
        self.arrived: deque[bytes] = deque()
        self.held = 0
        """Sent bytes whose reads were not reported to the sender yet."""
        self.over = False
        self.code = 0
        """The code of the sender's close; 0 if the sender's process ended without one."""
        self.ignored = False
        """True if the receiver has closed its end."""
        self.readable = Signal(ways.loop)
        self.writable = Signal(ways.loop)

    def put(self, message: bytes | None) -> None:
        if self.over:
            return
        now = self._ways.loop.time()
        begin = max(self._last_due, now + self._ways.delay_s(self._source, self._target))
        due = self._last_due = self._ways.carries_s(self._source, self._target, len(message or b""), begin)
        self._under_way.append((begin, due, message))
        self.held += len(message or b"")
        self._ways.loop.call_at(due, self.move)

    def take(self) -> bytes:
        message = self.arrived.popleft()
        self._untold += len(message)
        self.move()
        if not self._connection.left:
            self._ways.taken(self._source, self._target, message)
        return message

    def move(self) -> None:
        """Moves everything that can move now."""
        ways, under_way = self._ways, self._under_way
        now = ways.loop.time() + SAME_TIME_S
        if self._untold and not ways.blocked(self._target, self._source):
            self.held -= self._untold
            self._untold = 0
            self.writable.set()
        if under_way and under_way[0][1] <= now and not ways.blocked(self._source, self._target):
            while not self.over and under_way and under_way[0][1] <= now:
                self._arrive(under_way.popleft()[2])
        stuck = not self.over and (bool(under_way and under_way[0][1] <= now) or self._untold > 0)
        if not stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
            self._ways.loop.call_later(self._ways.stall_s, self._give_up, now)

    @property
    def came(self) -> int:
        """Bytes that have arrived, including those of the message that is arriving."""
        if not self._under_way or self._ways.blocked(self._source, self._target):
            return self._came
        begin, due, message = self._under_way[0]
        passed = self._ways.loop.time() - begin
        return self._came + (
            int(len(message or b"") * min(1.0, max(0.0, passed / (due - begin)))) if due > begin else 0
        )

    def end(self) -> None:
        """Lets nothing more arrive; arrived messages can still be read."""
        self.over = True
        self.forget()
        for wire in self._connection.wires:  # the sender of the other direction must see it too
            wire.readable.set()
            wire.writable.set()

    def forget(self) -> None:
        """Drops what is under way; the wire itself stays."""
        while self._under_way:
            _, due, message = self._under_way.popleft()
            if message:
                self._ways.unsent(self._source, self._target, len(message), due)

    def drop(self) -> None:
        self.arrived.clear()
        self.end()

    def _arrive(self, message: bytes | None) -> None:
        self._came += len(message or b"")
        if self._connection.left and message is not None:
            self._ways.came_late()
        if message is None:
            self.end()
        elif len(message) > self._bytes_max:
            self._connection.refuse(self)
        elif self.ignored:
            self._untold += len(message)
        else:
            self.arrived.append(message)
            self.readable.set()

    def _give_up(self, since: float) -> None:
        if self._stuck_since == since and not self.over:
            self._connection.cut(f"nothing moved from {self._source} to {self._target} for {self._ways.stall_s} s")


class FakeChannel(Channel):
    """``vlsn.seams.Channel`` at one end of a connection."""

    def __init__(self, ways: Ways, *, out: Wire, come: Wire) -> None:
        self._ways = ways
        self._out, self._come = out, come
        self._closed = False

    async def send(self, message: Buffer) -> None:
        data = bytes(message)
        self._check()
        if self._ways.draws_cut():
            self._out._connection.cut("drawn from the seed")
        while self._out.held and self._out.held + len(data) > self._ways.window_bytes:
            self._check()
            await self._out.writable.given()
        self._check()
        self._out.put(data)

    def send_now(self, message: Buffer) -> bool:
        if self._closed or self._come.over or self._out.over or self._out.held:
            return False
        if self._ways.draws_cut():
            self._out._connection.cut("drawn from the seed")
            return False
        self._out.put(bytes(message))
        return True

    def received_bytes(self) -> int:
        return self._come.came

    async def receive(self) -> bytes:
        while not (self._come.arrived or self._closed or self._come.over):
            await self._come.readable.given()
        if self._closed or not self._come.arrived:
            raise self._gone()
        return self._come.take()

    async def close(self, code: int = 1000) -> None:
        if self._closed:
            return
        self._closed = self._come.ignored = True
        self._out.code = code
        self._out.put(None)
        self._come.readable.set()
        self._out.writable.set()

    def abandon(self) -> None:
        self._out.forget()
        self.leave()

    def leave(self) -> None:
        self._closed = self._come.ignored = True
        self._come.readable.set()
        self._out.writable.set()

    def _check(self) -> None:
        if self._closed or self._come.over or self._out.over:
            raise self._gone()

    def _gone(self) -> ChannelClosed:
        if self._closed:
            return ChannelClosed("this end was closed")
        reason = self._out._connection.reason
        return ChannelClosed(reason or "the other end was closed", code=0 if reason else self._come.code)
