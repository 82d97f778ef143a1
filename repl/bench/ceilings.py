"""Measures the speed of this machine's disk and sockets without our code, as an upper limit for the benchmark.

The speeds vary with the machine's other work. So they are measured in the same run as the benchmark, on the same file
system. Measuring the disk and the sockets takes about one second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import numpy as np
from aiohttp import web

from repl.bench.raw_disk import synced_writes
from repl.bench.report import Ceilings
from repl.bench.tls_stream import tls_stream

MIB = 1 << 20
SYNCS = 200
WRITES = 64
ECHO_SECONDS = 0.5
ECHO_IN_FLIGHT = 64
ECHO_BYTES = 128


async def measure_ceilings(directory: Path, certificates: Path | None = None) -> Ceilings:
    """Measures the disk in ``directory`` (with a temporary file of 32 MiB), and sockets on loopback. With
    ``certificates``, those of a cluster's nodes, also measures a stream of TLS."""
    small, large = [await asyncio.to_thread(synced_writes, directory, *each) for each in ((512, SYNCS), (MIB, WRITES))]
    return Ceilings(
        fdatasync_p50_ms=round(float(np.median(small)), 4),
        ws_msgs_per_s=round(await _websocket(), 1),
        seq_write_mb_per_s=round(len(large) * MIB / float(large.sum()) / 1e3, 1),
        tls_stream_mb_per_s=None if certificates is None else await tls_stream(certificates),
    )


async def _websocket() -> float:
    """Returns how many messages are echoed in a second between this process and another, with ``ECHO_IN_FLIGHT``
    unanswered at a time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "repl.bench.ceilings",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to this process only; the other one ends with its standard input
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{port}/", compress=0) as socket,
        ):
            payload = bytes(ECHO_BYTES)
            for _ in range(ECHO_IN_FLIGHT):
                await socket.send_bytes(payload)
            start = time.perf_counter()
            count = 0
            while time.perf_counter() - start < ECHO_SECONDS:
                await socket.receive_bytes()
                await socket.send_bytes(payload)
                count += 1
            return count / (time.perf_counter() - start)
    finally:
        process.stdin.close()
        await process.wait()


async def _echo(request: web.BaseRequest) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(compress=False)
    await socket.prepare(request)
    with suppress(ConnectionResetError):  # the connection may be reset, for example after a Ctrl-C
        async for message in socket:
            await socket.send_bytes(message.data)
    return socket


async def _serve_echo() -> None:
    """Runs in the other process: prints its port, and echoes messages until its standard input ends."""
    runner = web.ServerRunner(web.Server(_echo))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await runner.cleanup()


def main() -> None:
    import uvloop

    uvloop.run(_serve_echo())


if __name__ == "__main__":
    main()
