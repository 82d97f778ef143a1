"""Groups in which nothing is wrong: founded, restarted one node after another, handed over and stopped, they log no
warning."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from repl import TlsFiles, connect_sync
from repl.client.sync import SyncClient
from repl.cluster import LOG_FILE, Cluster, Node, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from tests.repl.net.tls.certificates import authority, files_of

WAIT_S = 60.0
POLL_S = 0.02
UNTROUBLED_S = 5.0
"""The election timeout: a loaded machine may keep a master from answering for a while, and that is a warning."""


class Quiet:
    """A group of real nodes, with TLS if ``ca`` is the directory of an authority."""

    def __init__(self, cluster: Cluster, ca: Path | None) -> None:
        self.nodes = cluster.nodes
        self._files: TlsFiles | None = None
        if ca is not None:
            for node in self.nodes:
                files = files_of(node.name, node.directory, ca, group="vlsnlog")
                text = node.config_path.read_text().replace("http://", "https://")
                tls = f'tls = "require"\ntls_cert = "{files.cert}"\ntls_key = "{files.key}"\ntls_ca = "{files.ca}"\n'
                node.config_path.write_text(tls + text)
                node.url = node.url.replace("http://", "https://")
                self._files = TlsFiles(ca=files.ca)

    def start(self, *nodes: Node) -> None:
        for node in nodes:
            node.start()

    def append(self) -> None:
        """Appends one entry, and waits until every node serves it."""
        with connect_sync(",".join(node.url for node in self.nodes), tls=self._files, timeout_s=WAIT_S) as log:
            vlsn = log.append(b"value")
        for node in self.nodes:
            with connect_sync(node.url, tls=self._files, timeout_s=WAIT_S) as log:
                until(partial(_has, log, vlsn), f"{node.name} has VLSN {vlsn}")

    def stop(self, *nodes: Node) -> None:
        for node in nodes:
            node.send(signal.SIGTERM)
        until(lambda: not any(node.running for node in nodes), "the nodes have ended")
        assert [node.ended for node in nodes] == [0] * len(nodes)

    def loud(self) -> list[str]:
        """Returns the log's lines that are not of level INFO."""
        lines = [
            (node.name, line) for node in self.nodes for line in (node.directory / LOG_FILE).read_text().splitlines()
        ]
        return [f"{name}: {line}" for name, line in lines if not re.match(r"\S+ \S+ INFO ", line)]


def _has(log: SyncClient[Any], vlsn: int) -> bool:
    return log.durable_vlsn() >= vlsn


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(POLL_S)


@contextmanager
def quiet(directory: Path, nodes: int, ca: Path | None) -> Iterator[Quiet]:
    network = AiohttpNetwork()
    settings = {"election_timeout_s": UNTROUBLED_S}
    cluster = prepare(directory, network, nodes=nodes, base_port=free_base_port(nodes), settings=settings)
    try:
        yield Quiet(cluster, ca)
    finally:
        cluster.kill()
        asyncio.run(network.close())


@pytest.fixture(params=["plain", "tls"])
def ca(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return authority(tmp_path / "authority") if request.param == "tls" else None


@pytest.mark.parametrize("size", [1, 3])
def test_a_healthy_group_logs_no_warning(tmp_path: Path, ca: Path | None, size: int) -> None:
    with quiet(tmp_path / "group", size, ca) as group:
        group.start(*group.nodes)
        group.append()
        assert group.loud() == [], "founded"
        for node in group.nodes:
            group.stop(node)
            group.start(node)
            group.append()
        assert group.loud() == [], "restarted one after another"
        group.stop(*group.nodes)
        assert group.loud() == [], "stopped"
        group.start(*group.nodes)
        group.append()
        assert group.loud() == [], "started again"
        group.stop(*reversed(group.nodes))
        assert group.loud() == []
