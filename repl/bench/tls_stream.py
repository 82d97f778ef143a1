"""One TLS connection on loopback, as fast as OpenSSL alone makes it: the upper limit of a byte stream by TLS.

this process, a thread ──► 64 KiB a call ──► python -m repl.bench.tls_stream CERT KEY, which counts the bytes
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from repl.tls_files import TlsFiles, client_context
from vlsn.limits import KIB
from vlsn.real.disk import PosixDisk

SECONDS: Final = 0.5
PIECE_BYTES: Final = 64 * KIB
ANSWER_S: Final = 30.0
"""The most seconds that either process waits for the other one."""
_NUMBER_BYTES: Final = 8


async def tls_stream(certificates: Path) -> float:
    """Returns the MB/s of a stream between two processes with the certificate of ``n1``."""
    return await asyncio.to_thread(_streamed, certificates)


def _streamed(certificates: Path) -> float:
    context = client_context(TlsFiles(ca=str(certificates / "ca.pem")), PosixDisk())
    process = subprocess.Popen(
        [sys.executable, "-m", "repl.bench.tls_stream", certificates / "n1.pem", certificates / "n1.key"],
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to this process only; the other one ends with its connection
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        with (
            socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            piece = bytes(PIECE_BYTES)
            began = time.perf_counter()
            sent = 0
            while time.perf_counter() < began + SECONDS:
                stream.sendall(piece)
                sent += len(piece)
            plain_end = stream.unwrap()
            received = int.from_bytes(plain_end.recv(_NUMBER_BYTES, socket.MSG_WAITALL), "big")
            elapsed = time.perf_counter() - began
        assert received == sent
        return round(received / elapsed / 1e6, 1)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(cert: str, key: str) -> None:
    """Runs in the other process: prints its port, reads one stream to its end, and answers how many bytes it had."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        server.settimeout(ANSWER_S)
        plain, _ = server.accept()
    plain.settimeout(ANSWER_S)
    with context.wrap_socket(plain, server_side=True) as stream:
        room, received = bytearray(PIECE_BYTES), 0
        while size := stream.recv_into(room):
            received += size
        with stream.unwrap() as end:
            end.sendall(received.to_bytes(_NUMBER_BYTES, "big"))


if __name__ == "__main__":
    main(*sys.argv[1:])
