"""A local cluster, whose nodes are child processes, each with its own directory.

    DIR/group.key      the key with which its nodes know each other
    DIR/n1/node.toml   its settings; paths in it are relative to it, so a copied directory is a node of its own
    DIR/n1/node.log    what it says            DIR/n1/node.pid   the process that was started last

1. A node's pid file is written before the node is reported as answering.
2. Nodes end together with this process, however it ends: each node asks the kernel for SIGKILL when its parent dies
   (``repl.node.lifeline``). For the kernel the parent is a *thread*, so start nodes from a thread that lives as long as
   this process.
3. The nodes' statuses show whether the cluster serves. No entry is written to find out whether the cluster serves.
4. A node that dies is not started again.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from repl import config
from repl.auth import group_key
from repl.client.endpoints import Endpoints, Status
from repl.node.lifeline import PARENT_VARIABLE, write_pid
from repl.web.types import Network
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.segments.directory import LOCK_NAME

CONFIG_FILE: Final = "node.toml"
KEY_FILE: Final = "group.key"
LOG_FILE: Final = "node.log"
STOP_S: Final = 15.0
POLL_S: Final = 0.05

OF_ONE_NODE: Final = ("NAME", "DIR", "LISTEN", "MEMBER", "MEMBERS", "GROUP", "CONFIG", "LOG_LEVEL")
"""The settings that apply to one node only, or to one command."""
_LISTEN_PORT = re.compile(r'^(listen\s*=\s*"[^"]*:)\d+(")', re.MULTILINE)


class NodeEnded(VlsnLogError):
    """A node's process ended before it answered. The message contains the last line of its log."""

    slug = "bad-argument"
    retry_safe = True


class Node:
    """One child process that runs a node. ``environment`` has variables in addition to those of this process.
    ``launcher`` is a program, with its arguments, that runs the node's command (``nsenter --net=…``)."""

    def __init__(
        self,
        name: str,
        directory: Path,
        url: str,
        *,
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.directory = directory
        self.url = url
        self.environment = dict(environment or {})
        self.python = sys.executable
        """The Python interpreter that runs the node; a different vlsnlog may be installed for it."""
        self._launcher = tuple(launcher)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config_path(self) -> Path:
        return self.directory / CONFIG_FILE

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit status of the node's process; minus the number of the signal if a signal ended it. None means that
        the process runs, or was never started."""
        return None if self._process is None else self._process.poll()

    def how_it_ended(self) -> str:
        """Returns ``ended with status 2`` or ``was ended by SIGKILL``. Call this once the process has ended."""
        assert self.ended is not None
        if self.ended >= 0:
            return f"ended with status {self.ended}"
        return f"was ended by {signal.Signals(-self.ended).name}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process and writes its pid file."""
        assert not self.running
        command = [
            *self._launcher,
            self.python,
            "-P",
            "-m",
            "repl.cli.start",
            "node",
            "--config",
            str(self.config_path),
        ]
        with open(self.directory / LOG_FILE, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment() | self.environment,
                process_group=0,
            )
        write_pid(self.directory, self._process.pid)

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL, and returns when the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Returns the last line of the node's log."""
        try:
            lines = (self.directory / LOG_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Cluster:
    """Nodes n1, n2 … under one directory. ``prepare`` makes a cluster. Use it on one event loop."""

    def __init__(self, directory: Path, nodes: list[Node], network: Network) -> None:
        self.directory = directory
        self.nodes = nodes
        self._network = network

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    async def answering(self, node: Node) -> Status:
        """Returns the node's status once the node answers over HTTP. Raises ``NodeEnded``."""
        endpoints = Endpoints(self._network, [node.url])
        while True:
            try:
                status = await endpoints.status(node.url)
            except VlsnLogError:
                status = None
            if node.ended is not None:
                raise NodeEnded(
                    f"{node.name} {node.how_it_ended()}: {node.last_words()} (all of it in {node.directory / LOG_FILE})"
                )
            if status is not None and status.node == node.name:
                return status
            await asyncio.sleep(POLL_S)

    async def serving(self) -> str:
        """Returns the master's name once the master accepts appends with a majority. A node that leads may not have a
        majority yet. So this call waits until the master's durable end (DTVLSN) reaches, in its own term, the last VLSN
        that its log had when it was first seen as master."""
        seen: dict[tuple[str, int], int] = {}
        endpoints = Endpoints(self._network, self.urls)
        while True:
            for status in await endpoints.statuses(self.urls):
                if isinstance(status, Status) and status.document.get("state") == "MASTER":
                    last = int((status.document.get("range") or {}).get("last") or 0)
                    target = seen.setdefault((status.node, status.term), last) or last
                    if target and int(status.document.get("dtvlsn") or 0) >= target:
                        return status.node
            await asyncio.sleep(POLL_S)

    async def durable(self, vlsn: int) -> None:
        """Returns once every node serves durable reads up to ``vlsn``."""
        endpoints = Endpoints(self._network, self.urls)
        while True:
            answers = await endpoints.statuses(self.urls)
            if all(isinstance(each, Status) and _readable(each) >= vlsn for each in answers):
                return
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Ends every node cleanly. Nodes that do not end in time get SIGKILL."""
        for node in self.nodes:
            if node.running:
                node.send(signal.SIGTERM)
                node.send(signal.SIGCONT)
        deadline = asyncio.get_running_loop().time() + STOP_S
        while True:
            if not any(node.running for node in self.nodes) or asyncio.get_running_loop().time() > deadline:
                self.kill()
                return
            await asyncio.sleep(POLL_S)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


def prepare(
    directory: Path,
    network: Network,
    *,
    nodes: int | None = None,
    base_port: int = 7701,
    group: str | None = None,
    settings: Mapping[str, Any] | None = None,
    certificates: Path | None = None,
) -> Cluster:
    """Prepares a cluster in ``directory`` and writes the nodes' config files; starts nothing. If the directory has a
    cluster already, everything except the ports is kept. ``settings`` are written to new config files. With
    ``certificates``, a directory with ca.pem and each node's NAME.pem and NAME.key, the nodes speak TLS alone. Raises
    ``BadArgument`` for another number of nodes, a wrong group or setting, or a port that is in use."""
    directory = Path(os.path.abspath(directory))
    if (directory / LOCK_NAME).exists():
        raise BadArgument(
            f"dir: {directory} holds a log of its own; give a directory that has those of the nodes in it"
        )
    existing = sorted(directory.glob(f"n*/{CONFIG_FILE}"))
    size = len(config.load_node_config(path=existing[0], environment={}).members) if existing else nodes or 3
    if nodes is not None and nodes != size:
        raise BadArgument(f"nodes: {directory} holds a cluster of {size}; give --nodes {size} or another --dir")
    if base_port + size - 1 > 65_535:
        raise BadArgument(f"base_port: {base_port} leaves no room for {size} ports; choose a lower one")
    scheme = "http" if certificates is None else "https"
    urls = {f"n{number}": f"{scheme}://127.0.0.1:{base_port + number - 1}" for number in range(1, size + 1)}
    held = config.load_node_config(path=existing[0], environment={}).group if existing else None
    if group is not None:
        config.check_name("group", group)
    if group is not None and held is not None and group != held:
        raise BadArgument(f"group: {directory} belongs to group {held}; give that, or another --dir")
    for number, name in enumerate(urls):
        if PosixDisk().is_locked(str(directory / name / LOCK_NAME)):
            raise BadArgument(
                f"dir: {directory / name} belongs to a running node; stop that first, or give another --dir"
            )
        _check_port_free(base_port + number)
    settings = dict(settings or {})
    if not existing and "group_key" not in settings:
        group_key.make(PosixDisk(), str(directory / KEY_FILE), SystemRandom())
        settings["group_key"] = f"../{KEY_FILE}"
    for name in urls:
        own = settings | _tls_settings(name, certificates)
        _write_config(directory / name, name, urls, group or held or config.DEFAULT_GROUP, own)
    made = [
        Node(name, directory / name, url, environment=_variables(_tls_settings(name, certificates)))
        for name, url in urls.items()
    ]
    return Cluster(directory, made, network)


def _tls_settings(name: str, certificates: Path | None) -> dict[str, str]:
    if certificates is None:
        return {}
    files = {"tls_cert": f"{name}.pem", "tls_key": f"{name}.key", "tls_ca": "ca.pem"}
    return {"tls": "require", **{setting: str(certificates / file) for setting, file in files.items()}}


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns settings as environment variables, so that those of this process do not replace them."""
    return {config.ENVIRONMENT_PREFIX + name.upper(): value for name, value in settings.items()}


def free_base_port(nodes: int = 3) -> int:
    """Returns the first of ``nodes`` consecutive free ports, below the ports that Linux assigns to clients. Each
    process begins its search at another port, so that processes that start together do not collide."""
    for base in range(20_000 + os.getpid() * 16 % 10_000, 32_000, nodes):
        try:
            for port in range(base, base + nodes):
                _check_port_free(port)
        except BadArgument:
            continue
        return base
    raise BadArgument(f"base_port: no {nodes} free ports in a row; end what listens on them")


@contextmanager
def ending_with(cluster: Cluster) -> Iterator[Cluster]:
    """Kills the nodes that still run when the context ends."""
    try:
        yield cluster
    finally:
        cluster.kill()


def _readable(status: Status) -> int:
    """Returns the VLSN up to which readers of the node see the log. A replica may know a durable end (DTVLSN) above the
    entries that it has synced."""
    last_sync = (status.document.get("range") or {}).get("last_sync")
    return min(int(status.document.get("dtvlsn") or 0), int(last_sync or 0))


def _environment() -> dict[str, str]:
    """Returns this process's environment variables without the settings that apply to one node or to the client."""
    left_out = {config.ENVIRONMENT_PREFIX + name for name in OF_ONE_NODE}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, PARENT_VARIABLE: str(os.getpid())}


def _write_config(directory: Path, name: str, urls: Mapping[str, str], group: str, settings: Mapping[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / CONFIG_FILE
    port = urls[name].rpartition(":")[2]
    if path.exists():
        text = _with_ports(path.read_text(encoding="utf-8"), port, urls)
    else:
        text = _new_config(name, group, port, urls, settings)
    temporary = directory / f"{CONFIG_FILE}.new"
    temporary.write_text(text, encoding="utf-8")
    written = config.load_node_config(path=temporary, environment={})
    ports = {member: url.rpartition(":")[2] for member, url in written.members.items()}
    if written.name != name or ports != {member: url.rpartition(":")[2] for member, url in urls.items()}:
        raise BadArgument(f"{path}: is not the config of {name} among {', '.join(urls)}; restore it, or remove it")
    temporary.rename(path)


def _new_config(name: str, group: str, port: str, urls: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    own: dict[str, Any] = {"name": name, "group": group, "dir": ".", "listen": f"127.0.0.1:{port}"}
    own |= {key: value for key, value in settings.items() if key not in config.FILE_ONLY}
    lines = [*_lines(own), "", "[members]", *_lines(urls)]
    for key in settings.keys() & config.FILE_ONLY:
        for table in settings[key]:
            lines += ["", f"[[{key}]]", *_lines(table)]
    return "\n".join([*lines, ""])


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {config.toml_of(value)}" for key, value in table.items()]


def _with_ports(text: str, port: str, urls: Mapping[str, str]) -> str:
    """Changes the ports in a config file. Everything else stays, because it belongs to the file's owner."""
    text = _LISTEN_PORT.sub(rf"\g<1>{port}\g<2>", text)
    for member, url in urls.items():
        pattern = re.compile(rf'^({re.escape(member)}\s*=\s*"[^"]*:)\d+(")', re.MULTILINE)
        text = pattern.sub(rf"\g<1>{url.rpartition(':')[2]}\g<2>", text)
    return text


def _check_port_free(port: int) -> None:
    with socket.socket() as probe:
        # servers set this option as well, so a connection of the last server in TIME_WAIT does not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise BadArgument(f"base_port: port {port} is taken; end what listens there, or give --base-port") from None
