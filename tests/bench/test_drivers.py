"""The drivers count the right answers as acknowledged, against servers with set answers."""

from __future__ import annotations

import asyncio
import shutil
import struct
from pathlib import Path
from typing import ClassVar

import pytest
from aiohttp import web

from repl.bench.ceilings import measure_ceilings
from repl.bench.http_posts import post_many
from repl.bench.wrk import run_wrk, wrk_installed
from tests.bench.peers.etcd import put_request
from tests.bench.peers.h2load import H2loadFigures, figures_of, run_h2load


async def _serve(answers: list[int]) -> tuple[web.ServerRunner, str]:
    """Returns a server that answers each POST with the next status of ``answers``, then with 200."""
    left = list(answers)

    async def handle(request: web.BaseRequest) -> web.Response:
        assert await request.read() == b"x" * 10
        return web.Response(status=left.pop(0) if left else 200, body=b'{"first":1}')

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_post_many_counts_only_answers_of_200() -> None:
    runner, url = await _serve([503, 429, 307])
    try:
        done = await post_many(url, "/v1/entries", body=b"x" * 10, connections=4, seconds=0.3)
    finally:
        await runner.cleanup()
    assert done.errors == 3
    assert done.entries == len(done.latencies_ms) > 4
    assert done.bytes == done.entries * 10


@pytest.mark.skipif(not wrk_installed(), reason="wrk is not installed")
async def test_wrk_figures_leave_out_answers_of_400_and_above() -> None:
    runner, url = await _serve([503] * 7)
    try:
        script = 'wrk.method = "POST"\nwrk.body = string.rep("x", 10)\n'
        done = await run_wrk(url, script=script, connections=2, seconds=1)
    finally:
        await runner.cleanup()
    assert done.errors == 7
    assert done.requests > 0
    assert 0 < done.p50_ms <= done.p99_ms


def test_put_request_is_the_protobuf_in_grpc_s_envelope() -> None:
    assert put_request(b"key", b"v" * 4) == b"\0" + (11).to_bytes(4, "big") + b"\x0a\x03key" + b"\x12\x04vvvv"


def test_h2load_figures_leave_out_answers_of_anything_but_200() -> None:
    log = "1000000\t200\t500\n1000400\t503\t100\n1000500\t200\t1500\n"
    done = figures_of(log)
    assert (done.answered, done.refused, done.seconds) == (2, 1, 0.002)
    assert done.p50_ms == 1.0
    assert done.p99_ms == pytest.approx(1.49)


def test_h2load_figures_of_refusals_alone_are_no_times() -> None:
    assert figures_of("1000000\t503\t500\n") == H2loadFigures(0, 1, 0.0005, 0.0, 0.0)


class _Http2(asyncio.Protocol):
    """Answers every second call with 200, the others with 500, and keeps their bodies."""

    bodies: ClassVar[set[bytes]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""
        self._calls = 0
        transport.write(_frame(4, 0, 0, b""))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.startswith(b"PRI"):
            self._received = self._received[24:]
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, _, stream = struct.unpack(">BBI", self._received[3:9])
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind == 0:
                self.bodies.add(payload)
                self._answer(stream, size)

    def _answer(self, stream: int, size: int) -> None:
        self._calls += 1
        status = b"\x88" if self._calls % 2 else b"\x8e"  # RFC 7541, appendix A: 200 and 500
        self._transport.write(_frame(1, 5, stream, status) + _frame(8, 0, 0, size.to_bytes(4, "big")))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
async def test_h2load_sends_the_body_and_counts_the_answers() -> None:
    server = await asyncio.get_running_loop().create_server(_Http2, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        done = await run_h2load(
            f"http://127.0.0.1:{port}/put", body=b"value", headers=("te: trailers",), in_flight=4, seconds=1
        )
    finally:
        server.close()
    assert _Http2.bodies == {b"value"}
    assert done.answered > 10
    assert abs(done.answered - done.refused) < 0.35 * done.answered
    assert 0 < done.p50_ms <= done.p99_ms


@pytest.mark.real
async def test_ceilings_are_measured_and_leave_nothing_behind(tmp_path: Path) -> None:
    ceilings = await measure_ceilings(tmp_path)
    assert 0 < ceilings.fdatasync_p50_ms < 1_000
    assert ceilings.ws_msgs_per_s > 100
    assert ceilings.seq_write_mb_per_s > 1
    assert list(tmp_path.iterdir()) == []
