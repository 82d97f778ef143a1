"""A gRPC client for etcd's Put alone, as thin as HTTP/2 allows.

One asyncio protocol a connection.  A call is a HEADERS frame (the same bytes each time: HPACK literals
without indexing, RFC 7541 §6.2.2) and a DATA frame with END_STREAM that holds one PutRequest; its stream
ends with the server's trailers.  A call that was answered with a message succeeded: gRPC sends errors as
trailers alone.  Flow control as RFC 9113 §5.2 asks: our own window is opened wide at the start and topped
up; the server's is honoured.

    frame: | length u24 | type u8 | flags u8 | stream u32 |        PutRequest: 0x0a len key 0x12 len value
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from struct import Struct
from typing import Final, cast

import numpy as np

from repl.bench.peers.peer import Figure
from repl.bench.report import Samples

CONNECTIONS_MAX = 8
ANSWER_S = 30.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER: Final = Struct(">HBBBI")  # length as u16 + u8
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_WINDOW: Final = 1 << 30


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Packs a header field without indexing and with a new name; both shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _request_headers(port: int) -> bytes:
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/etcdserverpb.KV/Put"),
        (b":authority", b"127.0.0.1:%d" % port),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return b"".join(_literal(name, value) for name, value in fields)


def put_request(key: bytes, value: bytes) -> bytes:
    """Packs a PutRequest in gRPC's envelope; key and value shorter than 128 bytes."""
    message = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\0" + len(message).to_bytes(4, "big") + message


class _Connection(asyncio.Protocol):
    """Keeps ``in_flight`` calls under way until ``stop``, then until the last is answered."""

    def __init__(self, port: int, *, in_flight: int, stop: float, value: bytes, prefix: bytes) -> None:
        self.samples = Samples()
        self.errors = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._headers = _request_headers(port)
        self._in_flight, self._stop, self._value, self._prefix = in_flight, stop, value, prefix
        self._received = bytearray()
        self._next_stream = 1
        self._began: dict[int, int] = {}
        self._answered: set[int] = set()
        self._send_window = 65_535
        self._waiting: deque[bytes] = deque()
        self._unread = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        settings = (4).to_bytes(2, "big") + _WINDOW.to_bytes(4, "big")  # SETTINGS_INITIAL_WINDOW_SIZE
        opened = _frame(_WINDOW_UPDATE, 0, 0, (_WINDOW - 65_535).to_bytes(4, "big"))
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + opened)
        self._transport.write(b"".join(self._call() for _ in range(self._in_flight)))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.errors += len(self._began)
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._received += data
        buffer, at, end = self._received, 0, len(self._received)
        finished = 0
        out = []
        while end - at >= 9:
            high, low, kind, flags, stream = _HEADER.unpack_from(buffer, at)
            size = high << 8 | low
            if end - at - 9 < size:
                break
            if kind == _DATA:
                self._answered.add(stream)
                self._unread += size
            elif kind == _WINDOW_UPDATE and stream == 0:
                self._send_window += int.from_bytes(buffer[at + 9 : at + 13], "big")
            elif kind == _SETTINGS and not flags & _ACK:
                out.append(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                out.append(_frame(_PING, _ACK, 0, bytes(buffer[at + 9 : at + 17])))
            elif kind == _GOAWAY:
                self._transport.close()
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                self._finish(stream)
                finished += 1
            at += 9 + size
        del self._received[:at]
        if self._unread > _WINDOW // 2:
            out.append(_frame(_WINDOW_UPDATE, 0, 0, self._unread.to_bytes(4, "big")))
            self._unread = 0
        if time.perf_counter() < self._stop:
            out += [self._call() for _ in range(finished)]
        elif not self._began and not self.ended.done():
            self.ended.set_result(None)
        out += self._admitted()
        if out:
            self._transport.write(b"".join(out))

    def _finish(self, stream: int) -> None:
        began = self._began.pop(stream)
        if stream in self._answered:
            self._answered.discard(stream)
            self.samples.since(began)
        else:
            self.errors += 1

    def _call(self) -> bytes:
        """Makes the next call's frames; holds its DATA back while the server's window is used up."""
        stream = self._next_stream
        self._next_stream += 2
        message = put_request(b"%b%08d" % (self._prefix, stream), self._value)
        self._began[stream] = self.samples.now()
        head = _frame(_HEADERS, _END_HEADERS, stream, self._headers)
        data = _frame(_DATA, _END_STREAM, stream, message)
        if self._waiting or self._send_window < len(message):
            self._waiting.append(data)
            return head
        self._send_window -= len(message)
        return head + data

    def _admitted(self) -> list[bytes]:
        out = []
        while self._waiting and self._send_window >= len(self._waiting[0]) - 9:
            self._send_window -= len(self._waiting[0]) - 9
            out.append(self._waiting.popleft())
        return out


async def put_many(port: int, *, in_flight: int, seconds: float, value: bytes, prefix: bytes) -> Figure:
    """Puts for ``seconds``, ``in_flight`` at a time over at most ``CONNECTIONS_MAX`` connections."""
    loop = asyncio.get_running_loop()
    count = min(in_flight, CONNECTIONS_MAX)
    start = time.perf_counter()
    connections: list[_Connection] = []
    for at in range(count):
        share = in_flight // count + (at < in_flight % count)
        _, connection = await loop.create_connection(
            lambda share=share, at=at: _Connection(  # type: ignore[misc]
                port, in_flight=share, stop=start + seconds, value=value, prefix=b"%b%02d" % (prefix, at)
            ),
            "127.0.0.1",
            port,
        )
        connections.append(connection)
    ended = [connection.ended for connection in connections]
    if (await asyncio.wait(ended, timeout=seconds + ANSWER_S))[1]:
        raise RuntimeError(f"etcd did not answer every Put within {ANSWER_S} s")
    elapsed = time.perf_counter() - start
    times = np.concatenate([connection.samples.milliseconds() for connection in connections])
    for connection in connections:
        connection._transport.close()
    if not len(times):
        raise RuntimeError("etcd answered no Put")
    p50, p99 = np.percentile(times, [50, 99])
    return Figure(len(times) / elapsed, float(p50), float(p99), sum(each.errors for each in connections))
