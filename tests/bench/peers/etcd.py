"""etcd, three members, driven two ways.

Native: h2load keeps N Put calls in flight over a few HTTP/2 connections, each with the same bytes; every Put of a key
is a revision of its own.  Gateway: wrk on the JSON gateway (``POST /v3/kv/put``), a connection a client, which is how
a user without gRPC reaches it; each of its Puts has its own key.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

from repl.bench.wrk import run_wrk, wrk_installed
from tests.bench.peers.h2load import run_h2load
from tests.bench.peers.peer import VALUE, Figure, Peer, Work, free_ports

NATIVE = "h2load, gRPC, N Puts in flight"
GATEWAY = "wrk, 64 connections, JSON gateway"
IN_FLIGHT = (1, 64, 1024)

# Keys are base64 of 12 digits; 12 is a multiple of 3, so each run of 3 digits is encoded alone.
_SCRIPT = """
local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function base64(text)
  return (text:gsub("...", function(part)
    local a, b, c = part:byte(1, 3)
    local n = a * 65536 + b * 256 + c
    local out = ""
    for shift = 18, 0, -6 do
      local at = math.floor(n / 2 ^ shift) %% 64
      out = out .. digits:sub(at + 1, at + 1)
    end
    return out
  end))
end
wrk.method = "POST"
local count = 0
request = function()
  count = count + 1
  local key = base64(string.format("%%05d%%07d", %(salt)d, count))
  return wrk.format(nil, "/v3/kv/put", nil, '{"key":"' .. key .. '","value":"%(value)s"}')
end
"""


def put_request(key: bytes, value: bytes) -> bytes:
    """A PutRequest in gRPC's envelope; key and value shorter than 128 bytes."""
    message = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\0" + len(message).to_bytes(4, "big") + message


class Etcd(Peer):
    name = "etcd"
    needs = "etcd", "h2load"
    install = "apt-get install etcd-server nghttp2-client"
    _rounds = 0

    async def start(self, directory: Path) -> list[Work]:
        ports = free_ports(6)
        clients, peers = ports[:3], ports[3:]
        members = ",".join(f"e{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
        for at in range(3):
            client, peer = f"http://127.0.0.1:{clients[at]}", f"http://127.0.0.1:{peers[at]}"
            command = ["etcd", "--name", f"e{at}", "--data-dir", str(directory / f"etcd{at}"), "--logger", "zap"]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--initial-cluster", members, "--quota-backend-bytes", str(8 << 30), "--log-level", "error"]
            self._serve(command, log=directory / f"etcd{at}.log")
        await self._until("etcd", lambda: self._find_leader(clients))
        works = [
            Work(
                f"{count} client" + ("s" if count > 1 else ""),
                NATIVE.replace("N Puts", "1 Put" if count == 1 else f"{count} Puts"),
                lambda seconds, count=count: self._put(count, seconds),  # type: ignore[misc]
            )
            for count in IN_FLIGHT
        ]
        if wrk_installed():
            works.append(Work("64 connections, JSON", GATEWAY, self._gateway))
        return works

    async def _find_leader(self, ports: list[int]) -> bool:
        """Clients talk to the leader, as a client that cares for speed would."""
        for port in ports:
            status = await asyncio.to_thread(_post, port, "/v3/maintenance/status")
            if "leader" in status and status["leader"] == status["header"]["member_id"]:
                self.port = port
                return True
        return False

    async def _put(self, in_flight: int, seconds: float) -> Figure:
        """A call that failed is answered with 200, but makes no revision."""
        before = await self._revision()
        done = await run_h2load(
            f"http://127.0.0.1:{self.port}/etcdserverpb.KV/Put",
            body=put_request(b"vlsnlog", VALUE),
            headers=("content-type: application/grpc", "te: trailers"),
            in_flight=in_flight,
            seconds=seconds,
        )
        failed = max(0, done.answered - (await self._revision() - before))
        per_s = (done.answered - failed) / done.seconds
        return Figure(per_s, done.p50_ms, done.p99_ms, done.refused + failed)

    async def _revision(self) -> int:
        status = await asyncio.to_thread(_post, self.port, "/v3/maintenance/status")
        return int(status["header"]["revision"])

    async def _gateway(self, seconds: float) -> Figure:
        self._rounds += 1
        script = _SCRIPT % {"salt": 50_000 + self._rounds, "value": base64.b64encode(VALUE).decode()}
        done = await run_wrk(f"http://127.0.0.1:{self.port}", script=script, connections=64, seconds=seconds)
        return Figure(done.per_s, done.p50_ms, done.p99_ms, done.errors)


def _post(port: int, path: str) -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=2) as answer:
        document: dict[str, Any] = json.load(answer)
        return document
