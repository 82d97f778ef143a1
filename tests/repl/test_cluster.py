"""The local cluster: its directories, and real processes that start, die and come back."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl import connect_sync
from repl.cluster import Cluster, Node, NodeEnded, ending_with, free_base_port, prepare
from repl.config import load_node_config, read_file
from repl.net.network import AiohttpNetwork
from vlsn import Log
from vlsn.errors import BadArgument
from vlsn.real.disk import PosixDisk

WAIT_S = 120.0


async def test_prepare_writes_a_directory_a_node_whose_paths_are_its_own(tmp_path: Path) -> None:
    base = free_base_port()
    cluster = prepare(tmp_path, AiohttpNetwork(), base_port=base, settings={"segment_bytes": 1 << 20})
    assert cluster.urls == [f"http://127.0.0.1:{base + at}" for at in range(3)]
    config = load_node_config(path=tmp_path / "n2" / "node.toml", environment={})
    assert (config.name, config.dir, config.port, config.segment_bytes) == ("n2", tmp_path / "n2", base + 1, 1 << 20)
    assert list(config.members) == ["n1", "n2", "n3"]
    shutil.copytree(tmp_path / "n2", tmp_path / "copy")
    assert load_node_config(path=tmp_path / "copy" / "node.toml", environment={}).dir == tmp_path / "copy"


async def test_nodes_with_certificates_speak_tls_by_their_own_files(tmp_path: Path) -> None:
    base, made = free_base_port(), tmp_path / "made"
    cluster = prepare(tmp_path / "group", AiohttpNetwork(), base_port=base, certificates=made)
    assert cluster.urls == [f"https://127.0.0.1:{base + at}" for at in range(3)]
    for node in cluster.nodes:
        config = load_node_config(path=node.config_path, environment={})
        files = made / f"{node.name}.pem", made / f"{node.name}.key", made / "ca.pem"
        assert (config.tls, config.tls_cert, config.tls_key, config.tls_ca) == ("require", *files)
        foreign = {"VLSNLOG_TLS": "allow", "VLSNLOG_TLS_CA": "/another/ca.pem"}
        assert load_node_config(path=node.config_path, environment=foreign | node.environment).tls_ca == files[2]
        assert load_node_config(path=node.config_path, environment=foreign | node.environment).tls == "require"


async def test_settings_of_all_nodes_are_written_whatever_their_shape(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(
        'segment_bytes = "1MiB"\nhosts = ["log.example.org", "h:80"]\nretention_age_s = 60\n'
        '[[cdc]]\nname = "one"\nconsumer = "a:B"\noptions = { path = "/ü/😀", list = [1, { a = true }] }\n'
        '[[cdc]]\nname = "two"\nconsumer = "a:C"\nrun_on = "master"\n'
    )
    prepare(tmp_path / "made", AiohttpNetwork(), base_port=free_base_port(), settings=read_file(path))
    for name in ("n1", "n2", "n3"):
        made = load_node_config(path=tmp_path / "made" / name / "node.toml", environment={})
        assert (made.segment_bytes, made.hosts, made.retention_age_s) == (1 << 20, ("log.example.org", "h:80"), 60)
        assert [(each.name, each.run_on) for each in made.cdc] == [("one", "node"), ("two", "master")]
        assert made.cdc[0].options == {"path": "/ü/😀", "list": [1, {"a": True}]}


async def test_prepare_again_changes_ports_and_nothing_else(tmp_path: Path) -> None:
    base = free_base_port()
    prepare(tmp_path, AiohttpNetwork(), base_port=base, group="mine")
    path = tmp_path / "n1" / "node.toml"
    path.write_text("# mine\nheartbeat_s = 0.5\n" + path.read_text().replace("127.0.0.1:", "localhost:"))
    before = path.read_text()
    prepare(tmp_path, AiohttpNetwork(), base_port=base + 3)
    after = path.read_text()
    assert after != before
    for at in range(3):
        after = after.replace(f":{base + 3 + at}", f":{base + at}")
    assert after == before
    assert load_node_config(path=tmp_path / "n2" / "node.toml", environment={}).group == "mine"


async def test_prepare_of_a_directory_whose_nodes_run_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    prepare(tmp_path, AiohttpNetwork(), base_port=free_base_port())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    running = PosixDisk().lock(str(tmp_path / "n2" / "LOCK"))
    with pytest.raises(BadArgument, match="n2 belongs to a running node"):
        prepare(tmp_path, AiohttpNetwork(), base_port=free_base_port())
    assert {path: path.read_bytes() for path in before} == before
    running.release()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadArgument, match="is taken"):
            prepare(tmp_path, AiohttpNetwork(), base_port=taken.getsockname()[1] - 2)
    assert {path: path.read_bytes() for path in before} == before


async def test_prepare_in_the_directory_of_a_node_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    Log.open(tmp_path / "n1").close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadArgument, match="n1 holds a log of its own"):
        prepare(tmp_path / "n1", AiohttpNetwork(), base_port=free_base_port())
    assert sorted(tmp_path.rglob("*")) == before


async def test_prepare_writes_a_lost_config_again(tmp_path: Path) -> None:
    prepare(tmp_path, AiohttpNetwork(), base_port=free_base_port(), group="mine")
    shutil.rmtree(tmp_path / "n2")
    prepare(tmp_path, AiohttpNetwork(), base_port=free_base_port())
    assert load_node_config(path=tmp_path / "n2" / "node.toml", environment={}).group == "mine"


async def test_prepare_of_a_group_without_a_name_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="group: 'a b' is no name"):
        prepare(tmp_path / "new", AiohttpNetwork(), base_port=free_base_port(), group="a b")
    assert not (tmp_path / "new").exists()


async def test_prepare_refuses_what_does_not_fit(tmp_path: Path) -> None:
    base = free_base_port()
    prepare(tmp_path, AiohttpNetwork(), base_port=base, group="mine")
    with pytest.raises(BadArgument, match="cluster of 3"):
        prepare(tmp_path, AiohttpNetwork(), base_port=base, nodes=5)
    with pytest.raises(BadArgument, match="belongs to group mine"):
        prepare(tmp_path, AiohttpNetwork(), base_port=base, group="yours")
    with pytest.raises(BadArgument, match="no room"):
        prepare(tmp_path, AiohttpNetwork(), base_port=65_535)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a cluster of before may have left TIME_WAIT
        taken.bind(("127.0.0.1", base + 1))
        taken.listen()
        with pytest.raises(BadArgument, match=f"port {base + 1} is taken"):
            prepare(tmp_path, AiohttpNetwork(), base_port=base)
    (tmp_path / "n3" / "node.toml").write_text('name = "n1"\n')
    with pytest.raises(BadArgument):
        prepare(tmp_path, AiohttpNetwork(), base_port=base)


async def test_a_node_that_cannot_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    network = AiohttpNetwork()
    with ending_with(prepare(tmp_path, network, base_port=free_base_port(1), nodes=1)) as cluster:
        path = tmp_path / "n1" / "node.toml"
        path.write_text(path.read_text().replace("[members]", 'segment_bytes = "1 mile"\n[members]'))
        cluster.nodes[0].start()
        with pytest.raises(NodeEnded, match="segment_bytes: '1 mile'"):
            await cluster.answering(cluster.nodes[0])
    await network.close()


class Command:
    """``vlsnlog cluster`` as a process."""

    def __init__(self, directory: Path, base_port: int, *more: str) -> None:
        self.directory = directory
        self.urls = [f"http://127.0.0.1:{base_port + at}" for at in range(3)]
        arguments = ("cluster", "--dir", str(directory), "--base-port", str(base_port), *more)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "repl.cli.start", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._unread = b""

    def lines_until(self, last: str) -> list[str]:
        """Reads the pipe itself: what a stream had buffered, ``select`` would not see."""
        assert self.process.stdout is not None
        pipe, lines, deadline = self.process.stdout.fileno(), list[str](), time.monotonic() + WAIT_S
        while last not in lines:
            while b"\n" not in self._unread:
                assert select.select([pipe], [], [], deadline - time.monotonic())[0], lines
                more = os.read(pipe, 65_536)
                assert more, (lines, self.process.stderr and self.process.stderr.read())
                self._unread += more
            line, _, self._unread = self._unread.partition(b"\n")
            lines.append(line.decode())
        return lines

    def pid(self, name: str) -> int:
        return int((self.directory / name / "node.pid").read_text())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def command(directory: Path, base_port: int, *more: str) -> Iterator[Command]:
    one = Command(directory, base_port, *more)
    try:
        yield one
    finally:
        one.end()


def wait_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], WAIT_S)[0], f"process {pid} still runs"
    finally:
        os.close(descriptor)


@pytest.mark.real
@pytest.mark.feature("vlsnlog cluster")
def test_cluster_starts_loses_a_node_gets_it_back_and_resumes(tmp_path: Path) -> None:
    base = free_base_port()
    with command(tmp_path, base) as cluster:
        lines = cluster.lines_until("ready cluster")
        assert lines[:3] == [f"ready n{at + 1} {cluster.urls[at]}" for at in range(3)]
        with connect_sync(",".join(cluster.urls)) as log:
            first = log.append(b"all there")
            victim = cluster.pid("n3")
            os.kill(victim, signal.SIGKILL)
            wait_gone(victim)
            log.append(b"one is missing")
            alone = subprocess.Popen(
                [sys.executable, "-m", "repl.cli.start", "node", "--config", str(tmp_path / "n3" / "node.toml")],
                stderr=subprocess.DEVNULL,
            )
            try:
                last = log.append(b"it starts")
                asyncio.run(_wait_durable(cluster.urls, last))
                assert cluster.pid("n3") == alone.pid
                with connect_sync(cluster.urls[2]) as third:
                    values = [entry.value for entry in third.read(first)]
                assert values == [b"all there", b"one is missing", b"it starts"]
            finally:
                alone.terminate()
                alone.wait(WAIT_S)
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(WAIT_S) == 0
        assert cluster.process.stderr is not None
        assert "n3 was ended by SIGKILL and is left so" in cluster.process.stderr.read()
    base = free_base_port()
    with command(tmp_path, base, "--nodes", "3") as cluster:
        cluster.lines_until("ready cluster")
        with connect_sync(",".join(cluster.urls)) as log:
            assert [entry.value for entry in log.read(first)] == [b"all there", b"one is missing", b"it starts"]
        pids = [cluster.pid(name) for name in ("n1", "n2", "n3")]
        cluster.process.kill()
        for pid in pids:
            wait_gone(pid)


async def _wait_durable(urls: list[str], vlsn: int) -> None:
    network = AiohttpNetwork()
    try:
        async with asyncio.timeout(WAIT_S):
            await Cluster(Path(), [Node(f"n{at}", Path(), url) for at, url in enumerate(urls, 1)], network).durable(
                vlsn
            )
    finally:
        await network.close()


@pytest.mark.real
def test_settings_of_a_config_file_are_every_new_nodes_and_a_file_fits_any_segment(tmp_path: Path) -> None:
    base = free_base_port(1)
    config = tmp_path / "all.toml"
    config.write_text('segment_bytes = 65536\nname = "n9"\nlisten = "127.0.0.1:1"\n')
    lines = tmp_path / "lines"
    written = [b"%06d " % number + b"x" * (number % 700) for number in range(6_000)]
    lines.write_bytes(b"\n".join(written) + b"\n")
    assert lines.stat().st_size > 30 * 65536
    directory = tmp_path / "data"
    with command(directory, base, "--nodes", "1", "--config", str(config)) as cluster:
        cluster.lines_until("ready cluster")
        assert load_node_config(path=directory / "n1" / "node.toml", environment={}).segment_bytes == 65536
        appending = [sys.executable, "-m", "repl.cli.start", "append", "--url", cluster.urls[0], "--file", str(lines)]
        appended = subprocess.run(appending, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert (appended.returncode, appended.stderr) == (0, "")
        first, last = map(int, appended.stdout.split())
        assert last - first + 1 == len(written)
        with connect_sync(cluster.urls[0]) as log:
            assert [entry.value for entry in log.read()] == written
