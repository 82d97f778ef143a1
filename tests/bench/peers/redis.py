"""Redis with two replicas, every write appended and synced (``appendfsync always``), then ``WAIT 1``.

``WAIT 1`` says that one replica has *received* the write; unlike the others' acknowledgement it does not
say that the replica has synced it.  Driven by a client of our own: each connection sends RPUSH and WAIT
together and waits for both answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from repl.bench.works import Call, timed
from tests.bench.load import plain_load
from tests.bench.peers.peer import VALUE, Figure, Peer, Work, figure_of, free_ports
from vlsn.errors import Unreachable

CLIENT = "own asyncio client, RPUSH + WAIT 1 a time (a replica received it, not synced)"
WAIT_MS = 5000


def command_of(*words: bytes) -> bytes:
    """Encodes a command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


_APPEND = command_of(b"RPUSH", b"log", VALUE) + command_of(b"WAIT", b"1", b"%d" % WAIT_MS)


class Redis(Peer):
    name = "Redis"
    needs = ("redis-server",)
    install = "apt-get install redis-server"

    async def start(self, directory: Path) -> list[Work]:
        ports = free_ports(3)
        self.port = ports[0]
        for number, port in enumerate(ports):
            data = directory / f"redis{number}"
            data.mkdir()
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
            command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
            command += ["--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0"]
            if number:
                command += ["--replicaof", "127.0.0.1", str(self.port)]
            self._serve(command, log=directory / f"redis{number}.log")
        await self._until("Redis with two replicas", self._replicated)
        return [
            Work("1 client", CLIENT, lambda seconds: self._append(1, seconds)),
            Work("64 clients", CLIENT, lambda seconds: self._append(64, seconds)),
        ]

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the master."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _replicated(self) -> bool:
        reader, writer = await self.connected()
        try:
            writer.write(command_of(b"RPUSH", b"ready", b"1") + command_of(b"WAIT", b"2", b"500"))
            await reader.readline()
            return await reader.readline() == b":2\r\n"
        finally:
            writer.close()

    async def _append(self, clients: int, seconds: float) -> Figure:
        links = [await self.connected() for _ in range(clients)]
        left = iter(links)

        def begin(_: Iterator[bytes]) -> Call:
            reader, writer = next(left)

            async def push() -> None:
                writer.write(_APPEND)
                pushed, received = await reader.readline(), await reader.readline()
                if pushed[:1] != b":" or received[:1] != b":" or received[1:2] == b"0":
                    raise Unreachable(f"Redis pushed {pushed!r}, received by {received!r} replicas")

            return push

        try:
            return figure_of(await timed(plain_load(seconds, clients), begin))
        finally:
            for _, writer in links:
                writer.close()
