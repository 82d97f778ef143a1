"""Raw connections and WebSocket frames, as no client library sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

UPGRADE_S = 30.0
TEXT, BINARY, CONTINUATION, CLOSE, PING = 1, 2, 0, 8, 9
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_BYTES_AT_ONCE = 64 * 1024


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """Packs a frame as a client sends it; a mask of zeros leaves the payload as it is."""
    size, more = len(payload), b""
    if size >= 126:
        size, more = (126, size.to_bytes(2, "big")) if size < 1 << 16 else (127, size.to_bytes(8, "big"))
    return bytes([fin << 7 | opcode, 0x80 | size]) + more + bytes(4) + payload


@asynccontextmanager
async def upgraded(url: str, path: str) -> AsyncIterator[Upgraded]:
    """Opens a WebSocket. Raises ``ConnectionError``, also if the upgrade is refused, and ``TimeoutError``."""
    host, port = address(url)
    async with asyncio.timeout(UPGRADE_S):
        reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(UPGRADE_S):
            writer.write(UPGRADE.format(path=path, host=f"{host}:{port}").encode())
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as cut:
                raise ConnectionResetError("cut off before the upgrade") from cut
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ConnectionRefusedError(head.partition(b"\r\n")[0].decode("latin-1"))
        yield Upgraded(reader, writer)
    finally:
        writer.close()


class Upgraded:
    """A WebSocket that sends as fast as the node reads. It drops received bytes, except the reason of a close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last = b""
        self._dropping = asyncio.create_task(self._drop())
        self.sent = 0
        """Bytes sent."""

    async def send(self, one: bytes, times: int, *, until: float) -> bool:
        """Says whether all was sent; false once the other side closes, or after ``until`` (loop time)."""
        loop = asyncio.get_running_loop()
        at_once = max(1, _BYTES_AT_ONCE // len(one))
        piece = one * at_once
        while times > 0 and loop.time() < until and not self._dropping.done():
            part = piece if times >= at_once else one * times
            try:
                self._writer.write(part)
                await asyncio.wait(
                    [asyncio.ensure_future(self._writer.drain()), self._dropping],
                    timeout=until - loop.time(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            except ConnectionError:
                return False
            times -= at_once
            self.sent += len(part)
        return times <= 0

    async def ended(self, until: float) -> str:
        """Says how the other side has closed it: the close code, ``cut off``, or ``still open``."""
        loop = asyncio.get_running_loop()
        await asyncio.wait([self._dropping], timeout=max(0.0, until - loop.time()))
        if not self._dropping.done():
            self._dropping.cancel()
            return "still open"
        tail = self._last
        at = tail.rfind(bytes([0x80 | CLOSE]))
        return str(int.from_bytes(tail[at + 2 : at + 4], "big")) if at >= 0 and len(tail) >= at + 4 else "cut off"

    async def _drop(self) -> None:
        try:
            while came := await self._reader.read(_BYTES_AT_ONCE):
                self._last = (self._last + came)[-200:]
        except ConnectionError:
            return
