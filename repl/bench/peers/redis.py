"""Redis with two replicas, every write appended and synced (``appendfsync always``), then ``WAIT 1``.

``WAIT 1`` says that one replica has *received* the write; unlike the others' acknowledgement it does not
say that the replica has synced it.  Driven by a client of our own: each connection sends RPUSH and WAIT
together and waits for both answers.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np

from repl.bench.peers.peer import VALUE, Daemons, Figure, Work, free_ports, lacking, until
from repl.bench.report import Samples

CLIENT = "own asyncio client, RPUSH + WAIT 1 a time (a replica received it, not synced)"
WAIT_MS = 5000


def command_of(*words: bytes) -> bytes:
    """Encodes a command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


_APPEND = command_of(b"RPUSH", b"log", VALUE) + command_of(b"WAIT", b"1", b"%d" % WAIT_MS)


class Redis:
    name = "Redis"

    def __init__(self) -> None:
        self._daemons = Daemons()
        self._port = 0

    def missing(self) -> str | None:
        return "apt-get install redis-server" if lacking("redis-server") else None

    async def start(self, directory: Path) -> list[Work]:
        ports = free_ports(3)
        self._port = ports[0]
        for number, port in enumerate(ports):
            data = directory / f"redis{number}"
            data.mkdir()
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
            command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
            command += ["--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0"]
            if number:
                command += ["--replicaof", "127.0.0.1", str(self._port)]
            self._daemons.start(command, log=directory / f"redis{number}.log")
        await until("Redis with two replicas", self._replicated, check=self._daemons)
        return [
            Work("1 client", CLIENT, lambda seconds: self._append(1, seconds)),
            Work("64 clients", CLIENT, lambda seconds: self._append(64, seconds)),
        ]

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the master."""
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def stop(self) -> None:
        self._daemons.stop()

    async def _replicated(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(command_of(b"RPUSH", b"ready", b"1") + command_of(b"WAIT", b"2", b"500"))
            await reader.readline()
            return await reader.readline() == b":2\r\n"
        finally:
            writer.close()

    async def _append(self, clients: int, seconds: float) -> Figure:
        samples = Samples()
        errors = 0
        start = time.perf_counter()
        stop = start + seconds

        async def client() -> None:
            nonlocal errors
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                while time.perf_counter() < stop:
                    began = samples.now()
                    writer.write(_APPEND)
                    pushed = await reader.readline()
                    received = await reader.readline()
                    if pushed[:1] == b":" and received[:1] == b":" and received[1:2] != b"0":
                        samples.since(began)
                    else:
                        errors += 1
            finally:
                writer.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
        p50, p99 = np.percentile(samples.milliseconds(), [50, 99])
        return Figure(len(samples) / (time.perf_counter() - start), float(p50), float(p99), errors)
