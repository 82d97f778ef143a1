"""The entrance of a port that speaks TLS: the first byte of a connection says which, and handshakes are rationed.

accepted ─► its first bytes, looked at and left there ─► TLS: waits for its handshake ─► ``connect`` with a context
                                                     └► plain: ``connect`` without one, or refused under ``require``

1. A handshake costs 0.5 ms of the event loop, 1.5 ms with a client's certificate. If thousands came at once, heartbeats
   would be late, and a replica would stand. So a turn of the loop begins ``HANDSHAKES_A_TURN``, and ``HANDSHAKES_MAX``
   are under way.
2. Members come first (``tls.PEER_MARK``), and ``PEERS_KEPT`` of the handshakes under way are theirs alone.
3. A client that has left while it waited costs no handshake.
4. ``ENTRANCE_MAX`` connections are here at most, and a quarter of those that the listener may have. For a further one
   the longest silent one is closed, or else the new one.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from repl.net.tls import HANDSHAKE_S, PEER_MARK, Trust
from repl.web import problem
from repl.web.types import TLS, TLS_ALONE
from vlsn.errors import Misdirected

HANDSHAKES_A_TURN = 4
HANDSHAKES_MAX = 64
PEERS_KEPT = 16
ENTRANCE_MAX = 4_096
PEEK_BYTES = 2_048
"""A ClientHello has about 500 bytes."""
SWEEP_S = 1.0
_TLS = 0x16
"""The first byte of a ClientHello's record; no method of HTTP begins with it."""
_MARK = PEER_MARK.encode()
_PLAIN_REFUSED = problem.document(Misdirected("this node speaks TLS alone: use https://"))
_TLS_HEADER = f"{TLS}: {TLS_ALONE}".encode()
_REFUSAL = (
    b"HTTP/1.1 421 Misdirected Request\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
    b"%b\r\nContent-Length: %d\r\n\r\n%b" % (_TLS_HEADER, len(_PLAIN_REFUSED), _PLAIN_REFUSED)
)
Connect = Callable[[socket.socket, ssl.SSLContext | None], Awaitable[None]]
"""Gives a connection its protocol, after the handshake if there is a context. Raises ``OSError``."""


class Entrance:
    """Connections of one listener before they have a protocol."""

    def __init__(self, connect: Connect, trust: Trust, *, plain: bool, head_s: float, most: int) -> None:
        """``plain``: connections without TLS are served, too. ``head_s``: the seconds until the first byte. ``most``:
        how many connections may be here."""
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._trust = trust
        self._plain = plain
        self._head_s = head_s
        self._most = most
        self._silent: dict[socket.socket, float] = {}
        """Connections whose first byte has not come, the oldest first, and when they came."""
        self._peers: deque[socket.socket] = deque()
        self._others: deque[socket.socket] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._shaking: set[asyncio.Task[None]] = set()
        self._shaking_others = 0
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failed = 0
        """Handshakes that failed."""
        self.left = 0
        """Clients that left before their handshake began."""
        self.most = 0
        """The most handshakes that were under way at once."""

    def arrive(self, accepted: socket.socket) -> None:
        """Takes a connection that was just accepted."""
        if len(self._silent) + len(self._peers) + len(self._others) + len(self._shaking) >= self._most:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                accepted.close()
                return
            self._drop(oldest)
        self._look(accepted)

    async def close(self) -> None:
        """Closes what has no protocol yet. Ends handshakes under way; plain connections get their protocol."""
        for each in (self._turn, self._timer):
            if each is not None:
                each.cancel()
        for silent in list(self._silent):
            self._drop(silent)
        for waiting in (*self._peers, *self._others):
            waiting.close()
        self._peers.clear()
        self._others.clear()
        for task in self._shaking:
            task.cancel()
        if tasks := self._tasks | self._shaking:
            await asyncio.wait(tasks)

    def _look(self, accepted: socket.socket) -> None:
        try:
            first = accepted.recv(PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._silent[accepted] = self._loop.time()
            self._loop.add_reader(accepted.fileno(), self._speaks, accepted)
            if self._timer is None:
                self._timer = self._loop.call_later(SWEEP_S, self._sweep)
            return
        except OSError:
            first = b""
        if not first:
            accepted.close()
        elif first[0] == _TLS:
            (self._peers if _MARK in first else self._others).append(accepted)
            self._begin_later()
        elif self._plain:
            self._run(self._connected(accepted, None), self._tasks)
        else:
            _refuse(accepted)

    def _speaks(self, silent: socket.socket) -> None:
        self._loop.remove_reader(silent.fileno())
        del self._silent[silent]
        self._look(silent)

    def _drop(self, silent: socket.socket) -> None:
        self._loop.remove_reader(silent.fileno())
        del self._silent[silent]
        silent.close()

    def _sweep(self) -> None:
        now = self._loop.time()
        for silent in [each for each, since in self._silent.items() if now - since > self._head_s]:
            self._drop(silent)
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._silent else None

    # Handshakes.

    def _begin_later(self) -> None:
        if self._turn is None and (self._peers or self._others) and len(self._shaking) < HANDSHAKES_MAX:
            self._turn = self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._turn = None
        begun = 0
        while begun < HANDSHAKES_A_TURN and (waiting := self._next()) is not None:
            accepted, peer = waiting
            if _has_left(accepted):
                self.left += 1
                accepted.close()
                continue
            begun += 1
            self._shaking_others += not peer
            self._run(self._shake(accepted, peer), self._shaking)
        self.most = max(self.most, len(self._shaking))
        if begun:
            self._begin_later()

    def _next(self) -> tuple[socket.socket, bool] | None:
        """Returns the connection whose handshake begins next, and whether it is a member's."""
        if len(self._shaking) >= HANDSHAKES_MAX:
            return None
        if self._peers:
            return self._peers.popleft(), True
        if self._others and self._shaking_others < HANDSHAKES_MAX - PEERS_KEPT:
            return self._others.popleft(), False
        return None

    async def _shake(self, accepted: socket.socket, peer: bool) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._connected(accepted, self._trust.loaded.server)
        except TimeoutError:
            self.failed += 1
            accepted.close()
        finally:
            self._shaking_others -= not peer
            self._loop.call_soon(self._begin_later)  # this task counts until it has ended

    async def _connected(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            await self._connect(accepted, context)
        except OSError:
            self.failed += context is not None
            accepted.close()

    def _run(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work, name="accepted")
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def room_of(connections_max: int) -> int:
    """Returns how many of the connections that a listener may have may be at its entrance."""
    return max(min(ENTRANCE_MAX, connections_max // 4), 1)


def _has_left(accepted: socket.socket) -> bool:
    """Says whether the other side has closed its connection, whatever it sent before."""
    poll = select.poll()
    poll.register(accepted.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _refuse(accepted: socket.socket) -> None:
    try:
        accepted.recv(1 << 16)  # a close with bytes that nobody read would reset the connection
        accepted.send(_REFUSAL)
    except OSError:
        pass
    accepted.close()
