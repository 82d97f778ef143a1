"""Three node processes that speak TLS alone: members by their certificates, clients by https."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from pathlib import Path

import pytest

from repl.client.connect import connect
from repl.client.endpoints import Endpoints
from repl.cluster import Cluster, Node, ending_with, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from repl.tls_files import TlsFiles
from tests.repl.net.tls.certificates import authority, files_of
from vlsn.errors import BadArgument, NotMaster, Unreachable

SETTLE_S = 240.0
CLIENTS = 2_000
QUIET_S = 3.0
"""A replica that missed heartbeats would have stood by then."""


def secured(cluster: Cluster, ca: Path, mode: str = "require") -> None:
    """Gives each node a certificate, and each member an https URL, where TLS is required."""
    for node in cluster.nodes:
        files = files_of(node.name, node.directory, ca)
        text = node.config_path.read_text()
        if mode == "require":
            text = text.replace("http://", "https://")
            node.url = node.url.replace("http://", "https://")
        lines = f'tls = "{mode}"\ntls_cert = "{node.name}.pem"\ntls_key = "{node.name}.key"\ntls_ca = "{files.ca}"\n'
        node.config_path.write_text(lines + text)


@pytest.mark.real
@pytest.mark.feature("TLS")
async def test_a_group_speaks_tls_alone(tmp_path: Path) -> None:
    ca = authority(tmp_path / "ca")
    trusted = TlsFiles(ca=str(ca / "ca.pem"))
    network = AiohttpNetwork(tls=trusted)
    cluster = prepare(tmp_path, network, base_port=free_base_port(), group="demo")
    secured(cluster, ca)
    wrong = files_of("n1", tmp_path / "wrong", ca)
    n3 = cluster.node("n3")
    right = n3.config_path.read_text()
    n3.config_path.write_text(right.replace("n3.pem", wrong.cert).replace("n3.key", wrong.key))
    with ending_with(cluster):
        n3.start()
        while n3.ended is None:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
        assert n3.ended == 2
        assert "vlsnlog:demo/n3" in n3.last_words()
        n3.config_path.write_text(right)
        for node in cluster.nodes:
            node.start()
        async with asyncio.timeout(SETTLE_S):
            master = await cluster.serving()
        async with connect(",".join(cluster.urls), tls=trusted, exactly_once=True, timeout_s=SETTLE_S) as log:
            last = (await log.append_many([b"%d" % number for number in range(1_000)]))[1]
            async with asyncio.timeout(SETTLE_S):
                await cluster.durable(last)
            assert len([entry async for entry in log.read()]) == 1_000
            cluster.node(master).kill()
            await log.append(b"after the master is gone")
        async with AsyncExitOf(AiohttpNetwork(tls=TlsFiles())) as stranger:
            with pytest.raises(Unreachable, match="TLS"):
                await stranger.request(
                    "GET", f"{next(node.url for node in cluster.nodes if node.running)}/healthz", timeout_s=5
                )
        await cluster.stop()
    await network.close()


@pytest.mark.real
async def test_a_group_moves_to_tls_without_a_stop(tmp_path: Path) -> None:
    ca = authority(tmp_path / "ca")
    trusted = TlsFiles(ca=str(ca / "ca.pem"))
    network = AiohttpNetwork(tls=trusted)
    cluster = prepare(tmp_path, network, base_port=free_base_port(), group="demo")
    secured(cluster, ca, "allow")
    with ending_with(cluster):
        for node in cluster.nodes:
            node.start()
        async with asyncio.timeout(SETTLE_S):
            await cluster.serving()
        async with connect(",".join(cluster.urls), tls=trusted, exactly_once=True, timeout_s=SETTLE_S) as log:
            await log.append(b"plain")
            for node in cluster.nodes:
                node.url = node.url.replace("http://", "https://")
                await moved(cluster, node.name, node.url)
            for node in cluster.nodes:
                await required(cluster, node)
                await log.append(node.name.encode())
            assert [entry.value async for entry in log.read()] == [b"plain", b"n1", b"n2", b"n3"]
        for node in cluster.nodes:
            plain = node.url.replace("https", "http")
            refused = await network.request("GET", f"{plain}/v1/status", timeout_s=SETTLE_S)
            assert refused.status == 421
            assert (await Endpoints(network, [plain]).status(plain)).url == node.url, "a client goes on by https"
        await cluster.stop()
    await network.close()


@pytest.mark.real
@pytest.mark.long
async def test_clients_that_all_come_back_cause_no_second_election(tmp_path: Path) -> None:
    ca = authority(tmp_path / "ca")
    trusted = TlsFiles(ca=str(ca / "ca.pem"))
    network = AiohttpNetwork(tls=trusted)
    cluster = prepare(tmp_path, network, base_port=free_base_port(), group="demo")
    secured(cluster, ca)
    context = ssl.create_default_context(cafile=trusted.ca)
    with ending_with(cluster):
        for node in cluster.nodes:
            node.start()
        async with asyncio.timeout(SETTLE_S):
            master = await cluster.serving()
            held = await asyncio.gather(*(opened(cluster.node(master).url, context) for _ in range(CLIENTS)))
            before = (await Endpoints(network, cluster.urls).status(cluster.node(master).url)).term
            cluster.node(master).kill()
            left = [node.url for node in cluster.nodes if node.running]
            while (url := await leading(network, left)) not in left:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.05)
            back = await asyncio.gather(*(opened(url, context) for _ in range(CLIENTS)))
            await asyncio.sleep(QUIET_S)
            after = await Endpoints(network, left).status(url)
        assert (after.master, after.term) == (after.node, before + 1)
        for writer in (*held, *back):
            writer.close()
        await cluster.stop()
    await network.close()


async def leading(network: AiohttpNetwork, urls: list[str]) -> str:
    try:
        return await Endpoints(network, urls).master()
    except (NotMaster, Unreachable):
        return ""


async def opened(url: str, context: ssl.SSLContext) -> asyncio.StreamWriter:
    """Connects as often as it takes, and is answered once."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context, ssl_handshake_timeout=10)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            return writer
        except (OSError, EOFError):
            await asyncio.sleep(0.1)


async def moved(cluster: Cluster, name: str, url: str) -> None:
    ca = cluster.directory / "ca" / "ca.pem"
    command = [sys.executable, "-P", "-m", "repl.cli.start", "group", "move", f"{name}={url}", "--tls-ca", str(ca)]
    done = await asyncio.create_subprocess_exec(
        *command, "--url", ",".join(cluster.urls), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await done.communicate()
    assert done.returncode == 0, said.decode()
    assert url in said.decode()


async def required(cluster: Cluster, node: Node) -> None:
    """Starts a node again with https URLs and TLS alone; the others still have plain ones in their settings."""
    node.send(signal.SIGTERM)
    async with asyncio.timeout(SETTLE_S):
        while node.running:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
        text = node.config_path.read_text().replace("http://", "https://").replace('"allow"', '"require"')
        node.config_path.write_text(text)
        node.start()
        await cluster.answering(node)
        last = (await Endpoints(cluster._network, cluster.urls).status(await master_of(cluster))).durable
        await cluster.durable(last)


async def master_of(cluster: Cluster) -> str:
    return cluster.node(await cluster.serving()).url


class AsyncExitOf:
    """Closes a network at the end of a block."""

    def __init__(self, network: AiohttpNetwork) -> None:
        self._network = network

    async def __aenter__(self) -> AiohttpNetwork:
        return self._network

    async def __aexit__(self, *exception: object) -> None:
        await self._network.close()


async def test_files_that_are_not_there_are_said_before_a_connection(tmp_path: Path) -> None:
    network = AiohttpNetwork(tls=TlsFiles(ca=str(tmp_path / "none.pem")))
    with pytest.raises(BadArgument, match=r"tls_ca: .*none.pem: No such file"):
        await network.request("GET", "https://127.0.0.1:1/", timeout_s=1)
    await network.close()
