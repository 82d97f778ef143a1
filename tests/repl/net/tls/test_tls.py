"""TLS on real sockets, on both event loops: one port, members by their names, files read again, handshakes rationed."""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from repl.client.endpoints import Endpoints
from repl.net import client_network, entrance, tls
from repl.net.client_network import ClientNetwork
from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.net.tls import Own, TlsFiles, Trust
from repl.tls_files import FILE_BYTES_MAX, Authorities
from repl.web import problem
from repl.web.types import Request, Response, Upgrade
from tests.fakes.stopping import StoppingDisk
from tests.repl.net.tls.certificates import GROUP, HOST, authority, files_of, trust_of
from vlsn.errors import BadArgument, ChannelClosed, Misdirected, Unreachable, VlsnLogError
from vlsn.real.disk import PosixDisk
from vlsn.seams import Channel

Caller = type[AiohttpNetwork] | type[ClientNetwork]
RESETS = 600
CALLERS = 12


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    return authority(tmp_path / "ca")


async def handle(request: Request) -> Response | Upgrade:
    """Answers members' calls as the gateway does, and everything else to anybody."""
    try:
        if request.path == "/v1/peer/hello":
            request.check_member(request.query["sender"])
        if request.path == "/v1/status":
            return Response(200, {}, b'{"node":"n1","state":"MASTER"}')
        if request.path == "/channel":
            return Upgrade(_echo, 1 << 20)
    except VlsnLogError as error:
        return problem.response(error)
    return Response(200, {}, f"{request.method} {await request.body(1 << 20)!r}".encode())


async def _echo(channel: Channel) -> None:
    while True:
        try:
            await channel.send(await channel.receive())
        except ChannelClosed:
            return


@asynccontextmanager
async def serving(trust: Trust, *, plain: bool) -> AsyncIterator[HttpListener]:
    network = AiohttpNetwork(tls=trust, plain=plain)
    listener = await network.serve(HOST, 0, handle)
    try:
        yield listener
    finally:
        await listener.close()
        await network.close()


@pytest.fixture(params=[AiohttpNetwork, ClientNetwork])
def caller(request: pytest.FixtureRequest) -> Caller:
    made: Caller = request.param
    return made


@asynccontextmanager
async def calling(files: TlsFiles | Trust | None = None, caller: Caller | None = None) -> AsyncIterator[ClientNetwork]:
    network = AiohttpNetwork(tls=files) if caller is None or isinstance(files, Trust) else caller(tls=files)
    try:
        yield network
    finally:
        await network.close()


def secure(listener: HttpListener) -> str:
    return listener.url.replace("http://", "https://")


def insecure(listener: HttpListener) -> str:
    return listener.url.replace("https://", "http://")


async def test_one_port_speaks_both_under_allow(tmp_path: Path, ca: Path, caller: Caller) -> None:
    async with (
        serving(trust_of("n1", tmp_path, ca), plain=True) as listener,
        calling(TlsFiles(ca=str(ca / "ca.pem")), caller) as network,
    ):
        assert listener.url.startswith("http://")
        for url in (listener.url, secure(listener)):
            answer = await network.request("POST", f"{url}/x", body=b"v" * 300_000, timeout_s=5)
            assert answer.status == 200
            assert len(answer.body) > 300_000
            channel = await network.connect(f"{url}/channel", message_bytes_max=1 << 20, timeout_s=5)
            await channel.send(b"m" * 200_000)
            assert await channel.receive() == b"m" * 200_000
            await channel.close()


async def test_require_refuses_what_is_plain(tmp_path: Path, ca: Path, caller: Caller) -> None:
    async with (
        serving(trust_of("n1", tmp_path, ca), plain=False) as listener,
        calling(TlsFiles(ca=str(ca / "ca.pem")), caller) as network,
    ):
        assert (await network.request("GET", f"{listener.url}/", timeout_s=5)).status == 200
        refused = await network.request("GET", f"{insecure(listener)}/", timeout_s=5)
        assert (refused.status, refused.headers["Vlsnlog-Tls"]) == (421, "require")
        assert isinstance(problem.error_of(bytes(refused.body)), Misdirected)


async def test_a_client_that_only_reads_asks_by_https_where_plain_http_is_refused(
    tmp_path: Path, ca: Path, caller: Caller
) -> None:
    async with (
        serving(trust_of("n1", tmp_path, ca), plain=False) as listener,
        calling(TlsFiles(ca=str(ca / "ca.pem")), caller) as network,
    ):
        plain = insecure(listener)
        endpoints = Endpoints(network, [plain, "http://127.0.0.1:1"])
        answer = await endpoints.request("POST", f"{plain}/v1/x", body=b"v", timeout_s=5)
        assert (answer.status, bytes(answer.body)) == (200, b"POST b'v'")
        assert endpoints.readable == [listener.url, "http://127.0.0.1:1"]
        assert (await endpoints.status(plain)).url == (await endpoints.status(listener.url)).url == listener.url


async def test_connections_that_are_reset_while_tls_begins_harm_no_other(
    tmp_path: Path, ca: Path, caller: Caller
) -> None:
    listening = socket.create_server((HOST, 0), backlog=512)
    threading.Thread(target=reset_each, args=(listening,), daemon=True).start()
    url = f"https://{HOST}:{listening.getsockname()[1]}/"
    faults: list[BaseException] = []
    async with (
        serving(trust_of("n1", tmp_path, ca), plain=False) as listener,
        calling(TlsFiles(ca=str(ca / "ca.pem")), caller) as network,
    ):

        async def call() -> None:
            for _ in range(RESETS // CALLERS):
                try:
                    await network.request("GET", url, timeout_s=0.1)
                except Unreachable:
                    continue
                except RuntimeError as fault:  # uvloop's word for a descriptor that somebody else has closed
                    faults.append(fault)

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        assert faults == []
        assert (await network.request("GET", f"{listener.url}/", timeout_s=5)).status == 200


def reset_each(listening: socket.socket) -> None:
    """Resets each connection within 80 ms, as the kernel does with those of a process that is killed."""
    chance = random.Random(1)
    while True:
        try:
            accepted, _ = listening.accept()
        except OSError:
            return
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        threading.Timer(chance.uniform(0.0, 0.08), accepted.close).start()


async def test_a_client_trusts_its_authorities_and_the_host_alone(tmp_path: Path, ca: Path, caller: Caller) -> None:
    other = authority(tmp_path / "other")
    async with serving(trust_of("n1", tmp_path, ca), plain=True) as listener:
        for files in (TlsFiles(), TlsFiles(ca=str(other / "ca.pem"))):
            async with calling(files, caller) as network:
                with pytest.raises(Unreachable, match=r"self-signed|unable to get"):
                    await network.request("GET", f"{secure(listener)}/", timeout_s=5)
        async with calling(TlsFiles(ca=str(ca / "ca.pem")), caller) as network:
            await network.request("GET", f"{secure(listener)}/", timeout_s=5)
    files = files_of("n1", tmp_path / "elsewhere", ca, host="n1.example")
    async with (
        serving(Trust(files, own=Own(GROUP, "n1", "n1.example")), plain=True) as listener,
        calling(TlsFiles(ca=str(ca / "ca.pem")), caller) as network,
    ):
        with pytest.raises(Unreachable, match="IP address mismatch"):
            await network.request("GET", f"{secure(listener)}/", timeout_s=5)


@pytest.mark.parametrize("channel", [False, True])
async def test_who_is_called_must_be_named_by_its_certificate(tmp_path: Path, ca: Path, channel: bool) -> None:
    seen: list[str] = []

    async def noting(request: Request) -> Response | Upgrade:
        seen.append(request.path)
        return await handle(request)

    network = AiohttpNetwork(tls=trust_of("n2", tmp_path, ca))
    listener = await network.serve("127.0.0.1", 0, noting)
    async with calling(trust_of("n1", tmp_path, ca)) as own:

        async def call(peer: str) -> None:
            if channel:
                url = f"{secure(listener)}/channel"
                opened = await own.connect(url, message_bytes_max=1 << 20, timeout_s=5, peer=peer)
                await opened.close()
            else:
                await own.request("GET", f"{secure(listener)}/", timeout_s=5, peer=peer)

        with pytest.raises(Unreachable, match="does not name vlsnlog:demo/n3"):
            await call("n3")
        assert seen == []
        await call("n2")
        with pytest.raises(Unreachable, match="does not name vlsnlog:demo/n3"):
            await call("n3")  # no connection to n2 is taken for one to n3
        assert len(seen) == 1
    await listener.close()
    await network.close()


async def test_who_calls_must_be_named_by_its_certificate(tmp_path: Path, ca: Path, caller: Caller) -> None:
    async def status(files: TlsFiles | Trust, sender: str) -> int:
        async with calling(files, caller) as network:
            url = f"{secure(listener)}/v1/peer/hello?sender={sender}"
            return (await network.request("POST", url, timeout_s=5)).status

    async with serving(trust_of("n1", tmp_path, ca), plain=True) as listener:
        n2 = trust_of("n2", tmp_path, ca)
        assert await status(n2, "n2") == 200
        assert await status(n2, "n3") == 403
        assert await status(n2, "") == 403
        assert await status(TlsFiles(ca=str(ca / "ca.pem")), "n2") == 403
        assert await status(files_of("n2", tmp_path / "theirs", ca, group="other"), "n2") == 403
        assert await status(files_of("n2", tmp_path / "client", ca, kind="client"), "n2") == 403


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, ca: Path, caller: Caller) -> None:
    other = authority(tmp_path / "other")
    mine = files_of("n2", tmp_path, other)
    async with (
        serving(trust_of("n1", tmp_path, ca), plain=True) as listener,
        calling(TlsFiles(str(ca / "ca.pem"), mine.cert, mine.key), caller) as network,
    ):
        with pytest.raises(Unreachable):
            await network.request("GET", f"{secure(listener)}/", timeout_s=5)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_tls_is_1_2_or_later(tmp_path: Path, ca: Path, version: ssl.TLSVersion) -> None:
    async with serving(trust_of("n1", tmp_path, ca), plain=True) as listener:
        context = ssl.create_default_context(cafile=str(ca / "ca.pem"))
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        port = int(listener.url.rpartition(":")[2])
        if version == ssl.TLSVersion.TLSv1_1:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(HOST, port, ssl=context)
            return
        _, writer = await asyncio.open_connection(HOST, port, ssl=context)
        writer.close()


# Files read again.


def replace_files(files: TlsFiles, by: TlsFiles) -> None:
    for old, new in ((files.cert, by.cert), (files.key, by.key)):
        shutil.copy(new, f"{old}.new")
        Path(f"{old}.new").rename(old)


def events_of(name: str, directory: Path, ca: Path) -> tuple[Trust, TlsFiles, list[tuple[str, dict[str, Any]]]]:
    said: list[tuple[str, dict[str, Any]]] = []
    files = files_of(name, directory, ca)
    own_ca = directory / "own-ca.pem"
    shutil.copy(files.ca, own_ca)
    files = TlsFiles(str(own_ca), files.cert, files.key)
    return Trust(files, own=Own(GROUP, name, HOST), event=lambda name, **more: said.append((name, more))), files, said


async def test_bad_files_change_nothing_and_are_said_once(tmp_path: Path, ca: Path) -> None:
    trust, files, said = events_of("n1", tmp_path, ca)
    before = trust.loaded
    trust.look()
    assert said == []
    other = files_of("n1", tmp_path / "other", authority(tmp_path / "other"))
    stranger = files_of("n2", tmp_path, ca)
    for bad in (other, stranger):
        replace_files(files, bad)
        trust.look()
        trust.look()
        assert trust.loaded is before
    Path(files.cert).write_text("-----BEGIN")
    trust.look()
    Path(files.key).unlink()
    trust.look()
    assert [name for name, _ in said] == ["tls.reload-failed"] * 4
    assert "no member would accept it" in said[0][1]["why"]
    assert "vlsnlog:demo/n1" in said[1][1]["why"]
    replace_files(files, files_of("n1", tmp_path / "new", ca))
    trust.look()
    assert said[-1][0] == "tls.reloaded"
    assert trust.loaded is not before


async def test_a_new_certificate_is_shown_without_a_restart(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.02)
    trust, files, _ = events_of("n1", tmp_path, ca)
    async with serving(trust, plain=True) as listener:
        before = await shown(listener, ca)
        assert listener.tls_not_after_s == trust.loaded.not_after_s > 0
        new = files_of("n1", tmp_path / "new", ca)
        replace_files(files, new)
        async with asyncio.timeout(10):
            while (now := await shown(listener, ca)) == before:  # noqa: ASYNC110 (a look of the listener's task)
                await asyncio.sleep(0.02)
        assert now == ssl.PEM_cert_to_DER_cert(Path(new.cert).read_text())


async def shown(listener: HttpListener, ca: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(ca / "ca.pem"))
    _, writer = await asyncio.open_connection(HOST, int(listener.url.rpartition(":")[2]), ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert isinstance(found, bytes)
    return found


async def test_old_connections_end_when_an_authority_is_gone(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "END_OLD_S", 0.3)
    monkeypatch.setattr("repl.net.listener.END_OLD_S", 0.3)
    trust, files, _ = events_of("n1", tmp_path, ca)
    other = authority(tmp_path / "other")
    both = (ca / "ca.pem").read_text() + (other / "ca.pem").read_text()
    Path(files.ca).write_text(both)
    trust.look()
    outgoing = files_of("n2", tmp_path, ca)
    async with serving(trust, plain=True) as listener, calling(outgoing) as network, calling() as plain:
        url = f"{secure(listener)}/channel"
        old = await network.connect(url, message_bytes_max=1 << 20, timeout_s=5)
        beside = await plain.connect(f"{listener.url}/channel", message_bytes_max=1 << 20, timeout_s=5)
        replace_files(files, files_of("n1", tmp_path / "new", other))
        trust.look()  # new certificate, both authorities: nobody is cut off
        fresh = files_of("n2", tmp_path / "new", other)
        async with calling(TlsFiles(str(other / "ca.pem"), fresh.cert, fresh.key)) as later:
            await old.send(b"still here")
            assert await old.receive() == b"still here"
            Path(files.ca).write_text((other / "ca.pem").read_text())
            trust.look()
            new = await later.connect(url, message_bytes_max=1 << 20, timeout_s=5)
            with pytest.raises(ChannelClosed):
                async with asyncio.timeout(5):
                    await old.receive()
            with pytest.raises(Unreachable):  # its certificate is of the authority that is gone
                await network.connect(url, message_bytes_max=1 << 20, timeout_s=5)
            for channel in (new, beside):
                await channel.send(b"goes on")
                assert await channel.receive() == b"goes on"
                await channel.close()


async def test_calls_end_too_when_an_authority_is_gone(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "END_OLD_S", 0.1)
    other = authority(tmp_path / "other")
    trust, files, _ = events_of("n1", tmp_path, ca)
    Path(files.ca).write_text((ca / "ca.pem").read_text() + (other / "ca.pem").read_text())
    trust.look()
    async with serving(trust_of("n2", tmp_path, ca), plain=True) as listener, calling(trust) as network:
        opened = await network.connect(f"{secure(listener)}/channel", message_bytes_max=1 << 20, timeout_s=5, peer="n2")
        shutil.copy(ca / "ca.pem", files.ca)
        trust.look()
        with pytest.raises(ChannelClosed):
            async with asyncio.timeout(5):
                await opened.receive()


async def test_a_client_looks_at_its_files_again(tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_network, "LOOK_S", 0.0)
    mine, other = tmp_path / "mine.pem", authority(tmp_path / "other")
    shutil.copy(other / "ca.pem", mine)
    async with (
        serving(trust_of("n1", tmp_path, ca), plain=True) as listener,
        calling(TlsFiles(ca=str(mine)), ClientNetwork) as network,
    ):
        with pytest.raises(Unreachable, match="authority in tls_ca"):
            await network.request("GET", f"{secure(listener)}/", timeout_s=5)
        shutil.copy(ca / "ca.pem", mine)
        assert (await network.request("GET", f"{secure(listener)}/", timeout_s=5)).status == 200
        for bad in (lambda: mine.write_text("no PEM"), mine.unlink):
            bad()
            assert (await network.request("GET", f"{secure(listener)}/", timeout_s=5)).status == 200
        shutil.copy(other / "ca.pem", mine)
        with pytest.raises(Unreachable, match="authority in tls_ca"):
            await network.request("GET", f"{secure(listener)}/", timeout_s=5)


async def test_a_clients_files_are_looked_at_through_the_disk_seam(tmp_path: Path, ca: Path) -> None:
    files = files_of("n1", tmp_path, ca)
    disk = StoppingDisk(PosixDisk())
    authorities = Authorities(files, disk)
    assert {call.path for call in disk.calls if call.name == "read"} == {files.ca, files.cert, files.key}
    disk.calls.clear()
    authorities.look()
    assert [call.path for call in disk.calls if call.name == "stamp"] == [files.ca, files.cert, files.key]


# The entrance.


async def test_handshakes_are_rationed_and_members_come_first(
    tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance, "HANDSHAKES_MAX", 6)
    monkeypatch.setattr(entrance, "PEERS_KEPT", 2)
    async with serving(trust_of("n1", tmp_path, ca), plain=True) as listener:
        room = listener.entrance
        assert room is not None
        slow = [await half_begun(listener) for _ in range(10)]
        async with asyncio.timeout(5):
            while len(room._others) != 6:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert room.most == 4
        async with calling(TlsFiles(ca=str(ca / "ca.pem"))) as client, calling(trust_of("n2", tmp_path, ca)) as member:
            answer = await member.request("GET", f"{secure(listener)}/", timeout_s=2, peer="n1")
            assert answer.status == 200
            with pytest.raises(Unreachable, match="no answer within"):
                await client.request("GET", f"{secure(listener)}/", timeout_s=0.3)
            for each in slow:
                each.close()
            assert (await client.request("GET", f"{secure(listener)}/", timeout_s=3)).status == 200
        assert room.most <= 6
        assert room.left >= 6  # no handshake for those that had left, nor for the one that waited in vain


async def test_a_handshake_that_stops_is_ended(tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "HANDSHAKE_S", 0.1)
    async with serving(trust_of("n1", tmp_path, ca), plain=True) as listener:
        slow = await half_begun(listener)
        async with asyncio.timeout(5):
            while await asyncio.get_running_loop().sock_recv(slow, 1000):
                pass
        slow.close()
        assert listener.entrance is not None
        assert listener.entrance.failed == 1


async def half_begun(listener: HttpListener) -> socket.socket:
    """Sends the head of a record that a ClientHello would be in."""
    end = socket.socket()
    end.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(end, (HOST, int(listener.url.rpartition(":")[2])))
    await loop.sock_sendall(end, bytes.fromhex("160301020001"))
    return end


async def test_silent_connections_end_and_give_way(tmp_path: Path, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "SWEEP_S", 0.02)
    monkeypatch.setattr(entrance, "ENTRANCE_MAX", 3)
    network = AiohttpNetwork(tls=trust_of("n1", tmp_path, ca), head_s=1.0, connections_max=64)
    listener = await network.serve(HOST, 0, handle)
    port = int(listener.url.rpartition(":")[2])
    order: list[int] = []
    streams = [await asyncio.open_connection(HOST, port) for _ in range(5)]
    try:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for number, (reader, _) in enumerate(streams):
                group.create_task(ended(reader, number, order))
        assert sorted(order[:2]) == [0, 1]  # for the two that came last
        assert sorted(order[2:]) == [2, 3, 4]
    finally:
        for _, writer in streams:
            writer.close()
        await listener.close()
        await network.close()


async def ended(reader: asyncio.StreamReader, number: int, order: list[int]) -> None:
    try:
        assert await reader.read() == b""
    except ConnectionError:
        pass
    order.append(number)


async def test_files_are_looked_at_through_the_disk_seam(tmp_path: Path, ca: Path) -> None:
    files = files_of("n1", tmp_path, ca)
    disk = StoppingDisk(PosixDisk())
    trust = Trust(files, own=Own(GROUP, "n1", HOST), disk=disk)
    assert {call.path for call in disk.calls if call.name == "read"} == {files.ca, files.cert, files.key}
    disk.calls.clear()
    trust.look()
    assert [call.path for call in disk.calls if call.name == "stamp"] == [files.ca, files.cert, files.key]


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
async def test_what_is_no_file_is_refused_at_once(tmp_path: Path, ca: Path, name: str) -> None:
    files = files_of("n1", tmp_path, ca)
    path = getattr(files, name)
    Path(path).unlink()
    os.mkfifo(path)
    with pytest.raises(BadArgument, match=f"tls_{name}: {path} is a FIFO where a regular file belongs"):
        Trust(files, own=Own(GROUP, "n1", HOST))
    Path(path).unlink()
    with open(path, "wb") as large:
        large.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(BadArgument, match=f"tls_{name}: {path}: has more than"):
        Trust(files, own=Own(GROUP, "n1", HOST))


async def test_a_closed_network_waits_for_no_goodbye(tmp_path: Path, ca: Path, caller: Caller) -> None:
    """The other side makes the handshake, and then never answers again."""
    files = files_of("n1", tmp_path, ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    loop, shaken = asyncio.get_running_loop(), asyncio.Event()

    def silent(listening: socket.socket) -> bool:
        raw, _ = listening.accept()
        with context.wrap_socket(raw, server_side=True) as connection:
            loop.call_soon_threadsafe(shaken.set)
            try:
                while select.select([connection], [], [], 3.0)[0]:
                    if not os.read(connection.fileno(), 65_536):
                        return True
            except ConnectionResetError:
                return True
        return False

    with socket.create_server((HOST, 0)) as listening:
        ended = asyncio.create_task(asyncio.to_thread(silent, listening))
        network = caller(tls=TlsFiles(ca=files.ca))
        url = f"https://{HOST}:{listening.getsockname()[1]}/"
        call = asyncio.create_task(network.request("GET", url, timeout_s=60))
        await shaken.wait()
        async with asyncio.timeout(10):
            if isinstance(network, AiohttpNetwork):
                while not network._secure:  # noqa: ASYNC110 (the client's end of the handshake)
                    await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await network.close()
        if isinstance(network, AiohttpNetwork):
            assert not network._secure
        else:
            assert not any(each.owns() for each in network._sockets)
        assert await ended
