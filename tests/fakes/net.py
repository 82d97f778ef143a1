"""A network in one process: delays, partitions, cut connections and dead hosts, from a seed.

    net = FakeNet(loop, Random(7))
    n1, n2 = net.host("n1"), net.host("n2")      each is the ``Network`` of one process
    await n1.serve("n1", 7701, handler)          await n2.connect("http://n1:7701/v1/feed", …)
    net.split(["n1"], ["n2", "n3"])              both ways, between the groups
    net.block("n1", "n2")                        one way only: n2 does not hear n1
    net.heal()                                   net.cut("n1", "n2")      net.kill("n2")

A request or connect waits while its way is blocked, until its timeout; messages on a channel wait for at most
``stall_s`` (``tests/fakes/channel.py``).  A host that is dead or does not listen refuses at once.
A narrow link (``bytes_per_s``, ``width``) carries one message after the other, over all connections of its direction.
Only a message of one packet does not wait for another connection's bulk, as with fair queueing.
A new host with the same name is a new process: every connection of the old one is cut.

Messages under way are lost when their process ends, or gives up.  ``late_rate`` is the probability that the network
still delivers one: perhaps to a process that was started since, or from an ended one.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from contextvars import Context
from functools import cache
from random import Random
from typing import Any
from urllib.parse import urlsplit

from repl.web import problem
from repl.web.types import BytesBody, Handler, Headers, Keeps, Quick, Request, Response, Upgrade
from tests.fakes.channel import Connection, FakeChannel
from tests.fakes.loop import Owner, Tasks, ended, wake
from vlsn.errors import ChannelClosed, Unreachable
from vlsn.histogram import Histogram
from vlsn.limits import MIB
from vlsn.seams import Buffer
from vlsnlog.testing.fakes.disk import StopHere

PACKET_BYTES = 1500
HELD_UP_S = 0.1
CLOSE_S = 2.0
"""Seconds for which a closing listener lets requests under way run."""
FIRST_PORT = 49_152


class FakeNet:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        *,
        delay_s: tuple[float, float] = (0.000_2, 0.002),
        stall_s: float = 2.0,
        window_bytes: int = MIB,
        cut_rate: float = 0.0,
        late_rate: float = 0.0,
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.default_delay_s = delay_s
        self.delays_s: dict[tuple[str, str], tuple[float, float]] = {}
        """Delays by (source, target) that differ from the default: a slow link."""
        self.bytes_per_s: dict[tuple[str, str], float] = {}
        """Rates by (source, target) of narrow links; 0 for other links."""
        self.width: Callable[[str, str], float] | None = None
        """Draws ``bytes_per_s`` of a way at its first message."""
        self.held_up = 0
        """The number of messages that a narrow link delayed for longer than ``HELD_UP_S``."""
        self._busy_until: dict[tuple[str, str], float] = {}
        self.stall_s = stall_s
        self.window_bytes = window_bytes
        self.cut_rate = cut_rate
        """The probability that a sent message cuts its connection instead."""
        self.late_rate = late_rate
        """The probability that a message under way arrives although its sender has ended."""
        self.late = 0
        """The number of messages that arrived after the end of their sender's process, or of their first receiver."""
        self.on_said: Callable[[str, str, str, bytes], None] = lambda source, target, path, body: None
        """Is called when an answer of status 200 to a request of ``target`` has arrived."""
        self.on_answered: Callable[[Request, bytes], None] = lambda request, body: None
        """Is called with a request and its body when an answer of status 200 to it has arrived."""
        self.on_taken: Callable[[str, str, bytes], None] = lambda source, target, message: None
        """Is called when ``target`` has read a message of a channel whose sender still runs."""
        self.on_internal: Callable[[str, str, bytes], None] = lambda name, path, body: None
        """Is called when a host has answered with a fault of its own."""
        self.listeners: dict[tuple[str, int], FakeListener] = {}
        self.connections: list[Connection] = []
        self.owners: dict[tuple[str, int], str] = {}
        """The host that listens at an address, or did."""
        self.ports = itertools.count(FIRST_PORT)
        self._hosts: dict[str, FakeHost] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._dark: set[str] = set()
        self._changed = asyncio.Event()
        self._bringing: set[asyncio.Task[Any]] = set()

    def host(self, name: str, owner: Owner | None = None) -> FakeHost:
        """Returns the network of a new process on that host; its handlers' tasks belong to ``owner``."""
        self.kill(name)  # also after a silent end
        self._dark.discard(name)
        self._hosts[name] = host = FakeHost(self, name, owner or Owner())
        self._change()
        return host

    # Faults.

    def block(self, source: str, target: str) -> None:
        """Lets nothing from ``source`` arrive at ``target``."""
        self._blocked.add((source, target))

    def split(self, *groups: Iterable[str]) -> None:
        """Blocks all ways between the groups; inside a group nothing is blocked."""
        sides = [list(group) for group in groups]
        for one, other in itertools.permutations(sides, 2):
            for source, target in itertools.product(one, other):
                self.block(source, target)

    def unblock(self, ways: Iterable[tuple[str, str]]) -> None:
        """Opens these ways (source, target), also those that others have blocked."""
        self._blocked.difference_update(ways)
        self._change()

    def heal(self) -> None:
        """Opens every way; connections that are not cut by then continue."""
        self._blocked.clear()
        self._change()

    def cut(self, one: str, other: str) -> None:
        """Closes all channels between the two, at both ends."""
        for connection in self._between(one, other):
            connection.cut("the connection was cut")

    def kill(self, name: str, *, silent: bool = False) -> None:
        """Ends the process: its tasks are cancelled, its connections reset.  With ``silent`` its machine ends too: no
        connection is reset, and its peers only notice missing messages."""
        host = self._hosts.pop(name, None)
        if host is not None:
            host.end()
        if silent:
            self._dark.add(name)
        for connection in self.connections:
            if name not in connection.hosts:
                continue
            if connection.left == name:
                connection.hang_up()
            elif self.draws_late():
                connection.leave(name, silent=silent)
            elif silent:
                connection.abandon(name)
            else:
                connection.cut(f"{name} is gone")

    def forget(self, name: str) -> None:
        """Forgets a host, so that its address refuses, after ``kill``, silent or not."""
        self._dark.discard(name)
        self._change()

    # The part that connections use.

    def delay_s(self, source: str, target: str) -> float:
        low, high = self.delays_s.get((source, target), self.default_delay_s) if self.delays_s else self.default_delay_s
        return low + (high - low) * self.rng.random()

    def carries_s(self, source: str, target: str, size: int, from_s: float) -> float:
        if not self.bytes_per_s and self.width is None:
            return from_s
        way = source, target
        rate = self.bytes_per_s.get(way)
        if rate is None:
            rate = self.bytes_per_s[way] = self.width(*way) if self.width is not None else 0.0
        if not rate:
            return from_s
        done = self._busy_until[way] = max(from_s, self._busy_until.get(way, 0.0)) + size / rate
        if size <= PACKET_BYTES:
            return from_s + size / rate
        self.held_up += done - from_s > HELD_UP_S
        return done

    def unsent(self, source: str, target: str, size: int, due: float) -> None:
        """Stops sending the bytes that would arrive until ``due``."""
        rate = self.bytes_per_s.get((source, target)) if self.bytes_per_s else None
        if rate and due > self.loop.time():
            self._busy_until[source, target] -= min(size / rate, due - self.loop.time())

    def blocked(self, source: str, target: str) -> bool:
        if not self._blocked and not self._dark:
            return False
        if source == target:
            return source in self._dark
        return (source, target) in self._blocked or source in self._dark or target in self._dark

    def draws_cut(self) -> bool:
        return self.cut_rate > 0 and self.rng.random() < self.cut_rate

    def draws_late(self) -> bool:
        return self.late_rate > 0 and self.rng.random() < self.late_rate

    def came_late(self) -> None:
        self.late += 1

    def taken(self, source: str, target: str, message: bytes) -> None:
        self.on_taken(source, target, message)

    @property
    def brings(self) -> int:
        """Returns the number of requests under way, or being served, whose senders no longer wait for them."""
        return len(self._bringing)

    def bring(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs the network's own work, even if both processes have ended."""
        self.go_on(self.loop.create_task(coroutine, context=Context()))

    def go_on(self, task: asyncio.Task[Any]) -> None:
        """Lets a request continue without its waiter."""
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def passage(self, source: str, target: str, size: int = 0) -> None:
        """Waits while one packet, or ``size`` bytes, passes, however long the way is blocked."""
        arrived = self.loop.create_future()
        due = self.loop.time() + self.delay_s(source, target)
        if size:
            due = self.carries_s(source, target, size, due)
        self.loop.call_at(due, wake, arrived)
        try:
            await arrived
        except asyncio.CancelledError:
            self.unsent(source, target, size, due)
            raise
        while self.blocked(source, target):
            self._changed.clear()
            await self._changed.wait()

    def open(self, client: str, server: str, *, client_bytes_max: int, server_bytes_max: int) -> Connection:
        self.connections = [connection for connection in self.connections if not connection.over]
        opened = Connection(self, client, server, client_bytes_max=client_bytes_max, server_bytes_max=server_bytes_max)
        self.connections.append(opened)
        return opened

    def _between(self, one: str, other: str) -> list[Connection]:
        return [connection for connection in self.connections if {*connection.hosts} == {one, other}]

    def _change(self) -> None:
        self._changed.set()
        for connection in list(self.connections):
            connection.move()


class FakeHost:
    """``repl.web.types.Network`` of one process."""

    def __init__(self, net: FakeNet, name: str, owner: Owner) -> None:
        self._net = net
        self.name = name
        self.alive = True
        self._owner = owner
        self._dialled: list[Connection] = []

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> FakeListener:
        """Serves; ``quick`` is an optional shortcut, which this network does not use, and it has connections without
        end, so none are kept."""
        self._check()
        port = port or next(self._net.ports)
        if (host, port) in self._net.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        self._net.owners[host, port] = self.name
        listener = self._net.listeners[host, port] = FakeListener(self._net, self, (host, port), handler)
        return listener

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Buffer = b"",
        timeout_s: float,
        peer: str = "",  # who answers shows a certificate, and this network has none
    ) -> Response:
        try:
            async with asyncio.timeout(timeout_s):
                answer, _ = await self._exchange(method, url, headers or {}, bytes(body))
        except TimeoutError:
            raise Unreachable(f"{method} {url}: no answer in {timeout_s} s") from None
        assert isinstance(answer, Response), "an upgrade for a request that asked for none"
        return answer

    async def connect(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        message_bytes_max: int,
        timeout_s: float,
        check: Callable[[Response], None] | None = None,
        peer: str = "",
    ) -> FakeChannel:
        asked = {"Connection": "Upgrade", "Upgrade": "websocket", **(headers or {})}
        try:
            async with asyncio.timeout(timeout_s):
                answer, connection = await self._exchange("GET", url, asked, b"", message_bytes_max)
        except TimeoutError:
            raise Unreachable(f"{url}: no answer in {timeout_s} s") from None
        if check is not None:
            try:
                check(answer if isinstance(answer, Response) else Response(101, Headers(answer.headers)))
            except BaseException:
                if connection is not None:
                    connection.cut("the client did not take the upgrade")
                raise
        if connection is not None:
            self._dialled = [*(each for each in self._dialled if not each.over), connection]
            return connection.client
        assert isinstance(answer, Response)
        if answer.status >= 400:
            raise problem.error_of(bytes(answer.body))
        raise Unreachable(f"{url}: status {answer.status} instead of an upgrade")

    async def close(self) -> None:
        """Closes every channel that this process has dialled."""
        for connection in self._dialled:
            await connection.client.close()
        self._dialled.clear()

    def end(self) -> None:
        self.alive = False
        self._owner.end()
        for address, listener in list(self._net.listeners.items()):
            if listener.host is self:
                del self._net.listeners[address]

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task of this process, even if another process's message causes it."""
        return self._net.loop.create_task(coroutine, context=self._owner.context())

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, message_bytes_max: int = 0
    ) -> tuple[Response | Upgrade, Connection | None]:
        self._check()
        base, _, query = url.partition("?")
        address, host, path = _place(base)
        target = f"{path}?{query}" if query else path
        server = self._net.owners.get(address, address[0])  # a host that is cut off cannot refuse either
        request = Request(method, target, Headers({"Host": host, **headers}), BytesBody(body), self.name)
        there = self._net.listeners.get(address)
        try:
            await self._net.passage(self.name, server, len(body))
        except asyncio.CancelledError:
            if there is not None and self._net.draws_late():
                self._net.bring(self._come_late(server, address, request, message_bytes_max))
            raise
        listener = self._net.listeners.get(address)
        if listener is None:
            await self._net.passage(server, self.name)
            raise Unreachable(f"{url}: connection refused", refused=True)
        if there is not None and listener is not there:
            self._net.came_late()
        answer, connection = await self._served(listener, request, message_bytes_max, url)
        size = len(answer.body) if isinstance(answer, Response) else 0
        try:
            await self._net.passage(server, self.name, size)
            self._check()
        except BaseException:
            if connection is not None:
                connection.cut("the client gave up before the upgrade arrived")
            raise
        if isinstance(answer, Response) and answer.status == 200:
            self._net.on_said(server, self.name, path, bytes(answer.body))
            self._net.on_answered(request, body)
        return answer, connection

    async def _served(
        self, listener: FakeListener, request: Request, message_bytes_max: int, url: str
    ) -> tuple[Response | Upgrade, Connection | None]:
        task = listener.host.start(listener.answer(request, self.name, message_bytes_max))
        listener.serving.add(task)
        try:
            await ended(task)
        except asyncio.CancelledError:
            if not self._net.blocked(self.name, listener.host.name) and not self._net.draws_late():
                task.cancel()  # a handler is cancelled when its client leaves
            else:
                self._net.go_on(task)
            raise
        if task.cancelled() or task.exception() is not None:  # the process has ended in the middle
            raise Unreachable(f"{url}: the connection was reset")
        result: tuple[Response | Upgrade, Connection | None] = task.result()
        return result

    async def _come_late(self, server: str, address: tuple[str, int], request: Request, message_bytes_max: int) -> None:
        """Delivers a request whose sender has ended, or given up, meanwhile; its answer is lost."""
        await self._net.passage(self.name, server)
        listener = self._net.listeners.get(address)
        if listener is None:
            return
        self._net.came_late()
        task = listener.host.start(listener.answer(request, self.name, message_bytes_max))
        listener.serving.add(task)
        await ended(task)
        if not task.cancelled() and task.exception() is None and task.result()[1] is not None:
            task.result()[1].cut("the client is gone")

    def _check(self) -> None:
        if not self.alive:
            raise Unreachable(f"the process on {self.name} is gone")


class FakeListener:
    def __init__(self, net: FakeNet, host: FakeHost, address: tuple[str, int], handler: Handler) -> None:
        self._net = net
        self._handler = handler
        self._address = address
        self._channels: set[asyncio.Task[Any]] = set()
        self.host = host
        self.serving = Tasks()
        self.url = f"http://{address[0]}:{address[1]}"
        self.untaken_bytes = self.given_up = 0  # its clients read everything at once
        self.lateness = Histogram((0.1,))
        self.tls_not_after_s = 0.0

    async def close(self) -> None:
        if self._net.listeners.get(self._address) is self:
            del self._net.listeners[self._address]
        for task in sorted(self._channels, key=hash):
            task.cancel()
        if serving := self.serving.alive:
            _, late = await asyncio.wait(serving, timeout=CLOSE_S)
            for task in sorted(late, key=hash):
                task.cancel()
        if self._channels:
            await asyncio.wait(self._channels)

    async def answer(
        self, request: Request, client: str, message_bytes_max: int
    ) -> tuple[Response | Upgrade, Connection | None]:
        try:
            answer = await self._handler(request)
            if isinstance(answer, Response) and answer.stream is not None:
                async with aclosing(answer.stream) as stream:
                    answer = Response(answer.status, answer.headers, b"".join([piece async for piece in stream]))
        except Exception as fault:
            context = {"message": f"the handler of {self.url} raised", "exception": fault}
            self._net.loop.call_exception_handler(context)
            answer = problem.response(problem.internal(fault, "a request"))
        if isinstance(answer, Response):
            if answer.status == 500 and self.host.alive:
                self._net.on_internal(self.host.name, request.path, bytes(answer.body))
            return Response(answer.status, Headers(answer.headers), bytes(answer.body)), None
        connection = self._net.open(
            client,
            self.host.name,
            client_bytes_max=message_bytes_max,
            server_bytes_max=answer.message_bytes_max,
        )
        task = self.host.start(self._run(answer, connection.server))
        self._channels.add(task)
        task.add_done_callback(self._channels.discard)
        return answer, connection

    async def _run(self, upgrade: Upgrade, channel: FakeChannel) -> None:
        try:
            await upgrade.run(channel)
        except (ChannelClosed, StopHere):
            pass
        except Exception as fault:
            context = {"message": f"a channel of {self.url} raised", "exception": fault}
            self._net.loop.call_exception_handler(context)
        finally:
            await channel.close()


@cache
def _place(base: str) -> tuple[tuple[str, int], str, str]:
    """Returns address, Host header and path of a URL without its query."""
    parts = urlsplit(base)
    return (parts.hostname or "", parts.port or 80), parts.netloc, parts.path or "/"
