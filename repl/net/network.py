"""The network of a node: listeners and outgoing calls on this process's sockets, by privates of aiohttp where they save
time. ``client_network.py`` has the part that needs none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from ssl import SSLContext
from typing import Any, cast
from weakref import WeakSet

from aiohttp import ClientResponse, ClientWebSocketResponse, TCPConnector
from aiohttp.client_exceptions import ClientConnectorError
from aiohttp.client_proto import ResponseHandler

from repl.net.client_network import CLOSE_TURNS_MAX, ClientNetwork
from repl.net.listener import HttpListener
from repl.net.places import CONNECTIONS_MAX, HEAD_S, IDLE_S
from repl.net.tap import Tap
from repl.net.tls import LOOK_S, TlsFiles, Trust, end_over
from repl.net.websocket import WebSocketChannel
from repl.web.types import Handler, Keeps, Quick


class AiohttpNetwork(ClientNetwork):
    """The network of a node. Make it and use it on one event loop."""

    def __init__(
        self,
        *,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
        connections_max: int = CONNECTIONS_MAX,
        tls: Trust | TlsFiles | None = None,
        plain: bool = True,
        local_host: str = "",
    ) -> None:
        """Makes the network. ``head_s``: the seconds that a client of a listener has to send a head. ``idle_s``: the
        seconds that may pass between two of its requests. ``connections_max``: the most connections of a listener.

        ``tls``: a node's ``Trust``, by which a listener speaks TLS, and without TLS only if ``plain``; or the files for
        calls of https, by default those of the environment. ``local_host``: the address from which calls go out."""
        super().__init__(tls=tls if isinstance(tls, TlsFiles) else None)
        self._trust = tls if isinstance(tls, Trust) else None
        self._serves_tls = self._trust is not None
        self._plain = plain
        self._channels: WeakSet[WebSocketChannel] = WeakSet()
        """The channels of calls by https."""
        self._secure: set[asyncio.Transport] = set()
        """The connections of calls by https, until each is lost."""
        self._ending: set[asyncio.Task[None]] = set()
        self._head_s, self._idle_s = head_s, idle_s
        self._connections_max = connections_max
        self._local = (local_host, 0) if local_host else None

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> HttpListener:
        return await HttpListener.open(
            *(host, port, handler, quick, keeps),
            head_s=self._head_s,
            idle_s=self._idle_s,
            connections_max=self._connections_max,
            trust=self._trust if self._serves_tls else None,
            plain=self._plain,
        )

    async def close(self) -> None:
        for ending in self._ending:
            ending.cancel()
        if self._session is not None:
            await super().close()
            for transport in tuple(self._secure):
                transport.abort()  # a close would wait for the other side's goodbye, longer than the loop may run
            for _ in range(CLOSE_TURNS_MAX):
                if not self._secure:
                    break
                await asyncio.sleep(0)

    def _context(self, url: str, peer: str) -> SSLContext | bool:
        """Returns the TLS context of a call; True for one without TLS. Raises ``BadArgument``."""
        if not url.startswith("https:"):
            return True
        now = asyncio.get_running_loop().time()
        if self._trust is None:
            self._trust, self._looked_s = Trust(self._files or TlsFiles.of_environment()), now
        if not self._looked_s and self._serves_tls:  # a listener looks at the files
            self._looked_s = inf
            self._trust.shrunk.append(self._end_old)
        elif now - self._looked_s >= LOOK_S:
            self._looked_s = now
            self._trust.look()
        return self._trust.loaded.to(peer)

    def _end_old(self, contexts: frozenset[SSLContext]) -> None:
        """Ends the channels that were opened before an authority was removed. Other connections end by themselves,
        because none is used again in another context."""
        old = [each.abort for each in self._channels if each.context not in contexts]
        task = asyncio.create_task(end_over(old), name="tls")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _channel(
        self, opened: ClientWebSocketResponse, answer: ClientResponse, transport: asyncio.Transport, bytes_max: int
    ) -> WebSocketChannel:
        assert answer.connection is not None and answer.connection.protocol is not None
        protocol = answer.connection.protocol
        tap = Tap(bytes_max)
        protocol._payload_parser = tap.into(protocol._payload_parser)
        channel = WebSocketChannel(opened, transport, tap)
        if channel.context is not None:
            self._channels.add(channel)
        return channel

    def _connector(self) -> TCPConnector:
        connector = _Connector(self._local)
        made = partial(_Connection, self._secure, loop=asyncio.get_running_loop())
        connector._factory = cast("partial[ResponseHandler]", made)
        return connector


class _Connection(ResponseHandler):
    """One connection of a call; one of TLS is in ``secure`` while it lasts."""

    def __init__(self, secure: set[asyncio.Transport], *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._secure = secure
        self._kept: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if transport.get_extra_info("ssl_object") is not None:
            self._kept = cast("asyncio.Transport", transport)
            self._secure.add(self._kept)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._kept is not None:
            self._secure.discard(self._kept)
            self._kept = None


class _Connector(TCPConnector):
    """Lets uvloop make the sockets of connections.

    aiohttp gives it a socket of its own. If the other side resets that connection while TLS begins, uvloop has closed
    the descriptor and the socket closes it again. A later connection has that number by then: it is lost, no further
    one can use the number, and libuv ends the process. A member that is killed with connections in its backlog resets
    them all.
    """

    def __init__(self, local: tuple[str, int] | None) -> None:
        super().__init__(limit=0, local_addr=local)
        self._local = local

    async def _wrap_create_connection(
        self, *args: Any, addr_infos: list[Any], **how: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Connects to the first of the addresses that answers."""
        if not type(self._loop).__module__.startswith("uvloop"):
            return await super()._wrap_create_connection(*args, addr_infos=addr_infos, **how)
        if self._local is not None:
            how["local_addr"] = self._local
        for *_, (host, port, *_) in addr_infos[:-1]:
            with suppress(ClientConnectorError):
                return await self._wrap_existing_connection(*args, host=host, port=port, **how)
        host, port, *_ = addr_infos[-1][-1]
        return await self._wrap_existing_connection(*args, host=host, port=port, **how)
