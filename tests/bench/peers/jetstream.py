"""NATS JetStream: a pull consumer, explicit acknowledgement, three replicas, ``sync_interval: always``.

Batches of 1,000; each message is acknowledged by itself, as explicit acknowledgement asks for, with an answer that is
counted; the acknowledgements of a batch go out together, and with them the request for the next one.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench.peers.peer import AHEAD, BATCH, FILL_BATCH, VALUE, VALUE_BYTES, Peer, Work, free_ports

NODES = 3
READ_BYTES = 1 << 18
PENDING_MAX = 20_000
ANSWER_S = 60.0
ANSWERS, MESSAGES = b"1", b"2"
"""The subscriptions: answers come to the inbox ``a``, messages that were asked for to ``i``."""
_CONFIG = """
server_name: n{number}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{store}", sync_interval: always }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""


class JetStream(Peer):
    name = "NATS JetStream"
    needs = ("nats-server",)
    install = "go install github.com/nats-io/nats-server/v2@latest"

    async def start(self, directory: Path) -> list[Work]:
        ports, routes = free_ports(NODES), free_ports(NODES)
        self.port = ports[0]
        named = ", ".join(f"nats://127.0.0.1:{route}" for route in routes)
        for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
            config = directory / f"nats{number}.conf"
            store = directory / f"nats{number}"
            config.write_text(_CONFIG.format(number=number, port=port, route=route, store=store, routes=named))
            self._serve(["nats-server", "-c", str(config)], log=directory / f"nats{number}.log")
        await self._until("NATS with three replicas", self._made)
        return []

    async def _made(self) -> bool:
        async with _Connection(self.port) as nats:
            stream = {"name": "log", "subjects": ["m"], "num_replicas": NODES, "storage": "file", "retention": "limits"}
            made = await nats.ask("$JS.API.STREAM.CREATE.log", stream)
            if "error" in made:
                return False
            config = {
                "durable_name": "c",
                "ack_policy": "explicit",
                "max_ack_pending": PENDING_MAX,
                "num_replicas": NODES,
            }
            made = await nats.ask("$JS.API.CONSUMER.CREATE.log.c", {"stream_name": "log", "config": config})
            return "error" not in made

    async def fill(self, messages: int) -> None:
        async with _Connection(self.port) as nats:
            for at in range(0, messages, FILL_BATCH):
                count = min(FILL_BATCH, messages - at)
                nats.write(b"PUB m a %d\r\n%b\r\n" % (VALUE_BYTES, VALUE) * count)
                await nats.until(answers=count)

    async def consume(self, messages: int) -> float:
        async with _Connection(self.port) as nats:
            start = time.perf_counter()
            done = answered = 0
            nats.write(_next(min(BATCH, messages)))
            while done < messages:
                replies = await nats.until(messages=min(BATCH, messages - done))
                done += len(replies)
                acks = b"".join(b"PUB %b a 4\r\n+ACK\r\n" % reply for reply in replies)
                nats.write(acks + (_next(min(BATCH, messages - done)) if done < messages else b""))
                if done - answered > AHEAD * BATCH:
                    await nats.until(answers=BATCH)
                    answered += BATCH
            await nats.until(answers=done - answered)
            return time.perf_counter() - start


def _next(count: int) -> bytes:
    asked = json.dumps({"batch": count, "expires": int(ANSWER_S * 1e9)}).encode()
    return b"PUB $JS.API.CONSUMER.MSG.NEXT.log.c i %d\r\n%b\r\n" % (len(asked), asked)


class _Connection:
    """A client's connection, and what has come of it and was not asked for yet."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._left = b""
        self._answers: list[bytes] = []
        self._replies: list[bytes] = []

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        await self._reader.readline()  # INFO
        self.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n')
        self.write(b"SUB a %b\r\nSUB i %b\r\n" % (ANSWERS, MESSAGES))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def ask(self, subject: str, document: dict[str, Any]) -> dict[str, Any]:
        sent = json.dumps(document).encode()
        self.write(b"PUB %b a %d\r\n%b\r\n" % (subject.encode(), len(sent), sent))
        await self.until(answers=1)
        answer: dict[str, Any] = json.loads(self.last or b'{"error": "none"}')
        return answer

    async def until(self, *, answers: int = 0, messages: int = 0) -> list[bytes]:
        """Waits for so many of both, and returns the subjects that acknowledge the messages."""
        async with asyncio.timeout(ANSWER_S):
            while len(self._answers) < answers or len(self._replies) < messages:
                data = await self._reader.read(READ_BYTES)
                if not data:
                    raise RuntimeError("NATS has closed the connection")
                self._take(self._left + data)
        self.last = self._answers[answers - 1] if answers else b""
        replies, self._replies = self._replies[:messages], self._replies[messages:]
        del self._answers[:answers]
        return replies

    def _take(self, data: bytes) -> None:
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                size = int(words[-1])
                if len(data) < end + 2 + size + 2:
                    break
                payload = data[end + 2 : end + 2 + size]
                if words[2] == ANSWERS:
                    self._answers.append(payload)
                elif line.startswith(b"MSG "):
                    self._replies.append(words[3])
                else:
                    raise RuntimeError(f"NATS gives no message: {payload!r}")
                end += size + 2
            elif line == b"PING":
                self.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise RuntimeError(line.decode())
            at = end + 2
        self._left = data[at:]
