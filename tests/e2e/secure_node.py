"""A group of one node process that speaks TLS alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repl import TlsFiles, connect_sync
from repl.cluster import free_base_port, prepare
from repl.net.network import AiohttpNetwork
from tests.repl.net.tls.certificates import files_of

START_S = 60.0


@dataclass(frozen=True, slots=True)
class SecureNode:
    """``ca`` is the file of its authority; ``url`` begins with ``https://``."""

    url: str
    ca: str
    directory: Path

    @property
    def plain(self) -> str:
        """The URL of someone who does not know that the port speaks TLS."""
        return self.url.replace("https://", "http://")

    @property
    def trusted(self) -> TlsFiles:
        return TlsFiles(ca=self.ca)


@contextmanager
def secure_node(directory: Path, ca: Path, *, group: str = "demo", tables: str = "") -> Iterator[SecureNode]:
    """Starts the node, with an entry ``begun`` in its log. ``ca`` is the directory of an authority, ``tables`` are
    added to its settings."""
    network = AiohttpNetwork()
    cluster = prepare(directory, network, nodes=1, base_port=free_base_port(1), group=group)
    [node] = cluster.nodes
    files = files_of(node.name, node.directory, ca, group=group)
    text = node.config_path.read_text().replace("http://", "https://")
    lines = f'tls = "require"\ntls_cert = "{files.cert}"\ntls_key = "{files.key}"\ntls_ca = "{files.ca}"\n'
    node.config_path.write_text(f"{lines}{text}\n{tables}\n")
    made = SecureNode(node.url.replace("http://", "https://"), files.ca, node.directory)
    try:
        node.start()
        with connect_sync(made.url, tls=made.trusted, timeout_s=START_S) as log:
            log.append(b"begun")
        yield made
    finally:
        node.kill()
        asyncio.run(network.close())
