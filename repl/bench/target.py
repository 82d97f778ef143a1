"""The target of a benchmark: a cluster that runs at a URL, or a temporary cluster in its own directory.

A temporary cluster consists of ordinary processes. Its nodes may be killed and started again. At the end a temporary
cluster is removed together with its data.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from repl.client.connect import connect
from repl.client.endpoints import Endpoints
from repl.cluster import Node, free_base_port, prepare
from repl.config import DEFAULT_GROUP
from repl.net.certificates import HOSTS, make_authority, make_for
from repl.net.network import AiohttpNetwork
from repl.net.tls import node_uri
from repl.tls_files import TlsFiles
from vlsn.errors import BadArgument, NoSpace

NODES = 3
START_S = 120.0
FREE_BYTES_KEPT = 2 << 30
"""The bytes that must stay free on the disk after the most that a benchmark may write; otherwise the run is refused."""


def check_space(directory: Path, bytes_max: int) -> None:
    """Raises ``NoSpace`` unless ``bytes_max`` more fit on the disk and ``FREE_BYTES_KEPT`` stay free."""
    free = shutil.disk_usage(directory).free
    if free < bytes_max + FREE_BYTES_KEPT:
        raise NoSpace(
            f"{directory} has {free >> 20} MiB free; up to {bytes_max >> 20} MiB would be written and"
            f" {FREE_BYTES_KEPT >> 20} MiB stay free: lower --bytes-max or choose another TMPDIR"
        )


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises ``BadArgument`` if ``value`` is not between ``low`` and ``high``."""
    if not low <= value <= high:
        raise BadArgument(f"{name}: {value} is out of range; it must be {low} to {high}")


class Given:
    """A cluster that runs already."""

    token: Final = None
    """The token of the environment, if it has one."""
    tls: Final = None
    """The TLS files of the environment."""

    def __init__(self, urls: str) -> None:
        self.urls = urls
        self.directory = Path(tempfile.gettempdir())

    async def __aenter__(self) -> Self:
        """Connects. Raises ``Unreachable`` or ``NotMaster`` if the cluster cannot be measured."""
        await master_url(self)
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None


class Own:
    """Three nodes in a temporary directory (``TMPDIR``), or in the directory ``within``.

    ``settings`` are settings of the nodes, such as ``checkpoint_bytes``. With ``tls`` the nodes speak TLS alone, with
    certificates that are made for this cluster.
    """

    token: Final = ""

    def __init__(
        self,
        settings: Mapping[str, str | int | float] | None = None,
        *,
        within: Path | None = None,
        tls: bool = False,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="vlsnlog-bench-", dir=within))
        self._settings = settings
        self.certificates = self.directory / "certificates" if tls else None
        self.tls = TlsFiles(ca=str(self.certificates / "ca.pem")) if self.certificates is not None else None
        """The files with which clients call this cluster."""

    @property
    def urls(self) -> str:
        return ",".join(self.cluster.urls)

    @property
    def last(self) -> Node:
        """The node that a benchmark may kill and start; never the first master."""
        return self.cluster.nodes[-1]

    async def __aenter__(self) -> Self:
        if self.certificates is not None:
            _make_certificates(self.certificates)
        self.network = AiohttpNetwork(tls=self.tls)
        self.cluster = prepare(
            *(self.directory, self.network),
            nodes=NODES,
            base_port=free_base_port(NODES),
            settings=self._settings,
            certificates=self.certificates,
        )
        try:
            self.prepared()
            for node in self.cluster.nodes:
                node.start()
            async with asyncio.timeout(START_S):
                for node in self.cluster.nodes:
                    await self.cluster.answering(node)
                await self.cluster.serving()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def prepared(self) -> None:
        """Called after the nodes' config files were written, before the nodes start."""

    async def _end(self) -> None:
        self.cluster.kill()
        await self.network.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def start(self, node: Node) -> float:
        """Starts a node that has ended. Returns the seconds until the node answered its first request."""
        began = time.perf_counter()
        node.start()
        await self.cluster.answering(node)
        return time.perf_counter() - began

    async def stop(self, node: Node) -> None:
        """Stops a node cleanly."""
        node.send(signal.SIGTERM)
        async with asyncio.timeout(30):
            while node.running:  # noqa: ASYNC110 (another process: there is no event)
                await asyncio.sleep(0.01)

    async def synced(self, node: Node, vlsn: int) -> None:
        """Waits until the node has synced ``vlsn``."""
        async with asyncio.timeout(120):
            while (await self.status(node.url))["range"]["last_sync"] < vlsn:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def status(self, url: str) -> dict[str, Any]:
        return (await Endpoints(self.network, [url]).status(url)).document

    async def master_node(self) -> Node:
        """Finds the node that leads."""
        return self.cluster.node((await self.master())["node"])

    async def master(self) -> dict[str, Any]:
        """Requests the master's status."""
        return await self.status(await Endpoints(self.network, self.cluster.urls).master())


def _make_certificates(directory: Path) -> None:
    make_authority(directory)
    for number in range(1, NODES + 1):
        name = f"n{number}"
        make_for(name, directory, directory, node_uri(DEFAULT_GROUP, name), HOSTS, serves=True)


async def master_url(target: Given | Own) -> str:
    """Returns the master's URL. Raises ``NotMaster``, ``Unreachable``."""
    async with connect(target.urls, token=target.token, tls=target.tls) as log:
        return await log.endpoints.master()
