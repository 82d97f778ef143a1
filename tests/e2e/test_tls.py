"""Everything that calls a node calls one that speaks TLS alone, and says what is wrong where it cannot."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from repl import connect, connect_sync
from repl.client.client import Client
from repl.client.sync import SyncClient
from tests.e2e.cdc_pages import example, toml
from tests.e2e.commands import run
from tests.e2e.secure_node import SecureNode, secure_node
from tests.e2e.test_cdc import eventually
from tests.repl.net.tls.certificates import authority
from vlsn.errors import Misdirected, Unreachable, VlsnLogError

GIVE_UP_S = 1.0
UNTRUSTED = "TLS: certificate verify failed: .*; is its authority in tls_ca"
PLAIN = f"this node speaks TLS alone: use https://|{UNTRUSTED}"
"""A client that knows the rule goes on by https, and then cannot trust the node."""


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, ca: Path) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("node"), ca) as made:
        yield made


@pytest.fixture(params=[UNTRUSTED, PLAIN], ids=["without the authority", "by http"])
def wrong(request: pytest.FixtureRequest, node: SecureNode) -> tuple[str, str]:
    """A URL by which the node cannot be called, and the reason."""
    said: str = request.param
    return (node.plain if said is PLAIN else node.url), said


COMMANDS: dict[str, tuple[str, ...]] = {
    "read": ("read",),
    "tail": ("read", "--follow"),
    "append": ("append", "--key", "k", "v"),
    "status": ("status",),
    "group": ("group", "show"),
    "destinations": ("dest", "list"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_tls_is_the_reason(wrong: tuple[str, str], command: str) -> None:
    url, said = wrong
    began = time.monotonic()
    ended = run(*COMMANDS[command], "--url", url, stdin=b"line\n")
    assert ended.status == (1 if command == "status" else 2)
    assert _matches(said, ended.err + ended.out.decode())
    assert "start one, or correct --url" not in ended.err
    assert time.monotonic() - began < 60


def _matches(said: str, text: str) -> bool:
    return any(all(part in text for part in each.split(".*")) for each in said.split("|"))


CALLS: dict[str, Callable[[Client[Any]], Coroutine[Any, Any, object]]] = {
    "append": lambda log: log.append(b"v"),
    "read": lambda log: anext(log.read()),
    "tail": lambda log: anext(log.tail()),
    "linearizable": lambda log: log.durable_vlsn(consistency="linearizable"),
    "status": lambda log: log.group_name(),
    "transaction": lambda log: _transaction(log),
    "destination": lambda log: anext(aiter(log.destination("d"))),
    "consumer": lambda log: _first(log.consumer("c")),
}


async def _first(entries: Any) -> object:
    async for entry in entries:
        return entry
    return None


async def _transaction(log: Client[Any]) -> None:
    async with log.transaction() as txn:
        await txn.append(b"v")


@pytest.mark.parametrize("call", CALLS)
async def test_a_client_says_that_tls_is_the_reason(wrong: tuple[str, str], call: str) -> None:
    url, said = wrong
    async with connect(url, timeout_s=GIVE_UP_S) as log, asyncio.timeout(60):
        with pytest.raises((Unreachable, Misdirected), match=said):
            await CALLS[call](log)


@pytest.mark.parametrize("call", ["append", "read", "tail"])
def test_a_client_for_threads_says_that_tls_is_the_reason(wrong: tuple[str, str], call: str) -> None:
    url, said = wrong
    calls: dict[str, Callable[[SyncClient[Any]], object]] = {
        "append": lambda log: log.append(b"v"),
        "read": lambda log: next(log.read()),
        "tail": lambda log: next(log.tail()),
    }
    with connect_sync(url, timeout_s=GIVE_UP_S) as log, pytest.raises(VlsnLogError, match=said):
        calls[call](log)


def test_a_port_without_tls_is_named_as_the_reason(group: Any) -> None:
    url = group.master.replace("http://", "https://")
    ended = run("read", "--url", url)
    assert "TLS: " in ended.refused() and "does the port speak TLS?" in ended.err


def test_commands_call_a_node_by_tls(node: SecureNode) -> None:
    to = ("--url", node.url, "--tls-ca", node.ca)
    appended = run("append", "--key", "cli", "by a command", *to)
    assert (appended.status, appended.err) == (0, ""), appended
    read = run("read", "--key", "cli", *to)
    assert (read.status, read.out) == (0, b"by a command\n"), read
    assert run("read", "--follow", "--limit", "1", *to).out == b"begun\n"
    status = run("status", "--json", *to)
    assert status.status == 0 and json.loads(status.out)["nodes"][0]["state"] == "MASTER", status
    for command in (("group", "show"), ("dest", "list"), ("consumer", "list"), ("cdc", "list"), ("clean", "--dry-run")):
        ended = run(*command, *to)
        assert (ended.status, ended.err) == (0, ""), (command, ended)


async def test_the_async_client_calls_a_node_by_tls(node: SecureNode) -> None:
    async with connect(node.url, tls=node.trusted, exactly_once=True) as log, asyncio.timeout(60):
        await log.destinations.put("d", prefix="async")
        vlsn = await log.append(b"async", key=b"async")
        assert [entry.value async for entry in log.read(vlsn)] == [b"async"]
        assert (await anext(log.tail(vlsn))).value == b"async"
        messages = aiter(log.destination("d"))
        message = await anext(messages)
        assert message.value == b"async"
        await log.destination("d").ack([message])
        async with log.transaction() as txn:
            await txn.append(b"in a transaction")


def test_the_client_for_threads_calls_a_node_by_tls(node: SecureNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLSNLOG_TLS_CA", node.ca)
    with connect_sync(node.url) as log:
        vlsn = log.append(b"sync")
        assert next(log.tail(vlsn)).value == b"sync"
        assert [entry.value for entry in log.read(vlsn)] == [b"sync"]


def test_an_export_reads_a_node_by_tls(node: SecureNode, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    ended = run("export", node.url, "--to", lake, "--format", "json", "--tls-ca", node.ca)
    assert ended.status == 0, ended
    [first, *_] = [json.loads(line) for path in sorted(lake.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    assert first["value"] == "begun"
    refused = run("export", node.url, "--to", tmp_path / "none", "--format", "json")
    assert refused.status == 2 and _matches(UNTRUSTED, refused.err), refused


def test_cdc_children_of_a_node_with_tls_consume_and_mirror_by_tls(tmp_path: Path, ca: Path) -> None:
    with secure_node(tmp_path / "target", ca, group="elsewhere") as target:
        mirror = example("mirror.md", url=target.url)
        mirror["options"] |= {"ca_file": target.ca}
        mirror["options"].pop("cert_file", None)
        mirror["options"].pop("key_file", None)
        lines = example("json-lines.md", directory=str(tmp_path / "lines"), compress="none")
        tables = f"{toml(mirror)}\n{toml(lines)}"
        with secure_node(tmp_path / "origin", ca, group="origin", tables=tables) as origin:
            with connect_sync(origin.url, tls=origin.trusted) as log:
                log.append(b"for both")

            def mirrored() -> bool:
                with connect_sync(target.url, tls=target.trusted) as log:
                    return b"for both" in [entry.value for entry in log.read(consistency="linearizable")]

            eventually(mirrored, "the mirror has the entry", 120.0)
            written = (tmp_path / "lines").rglob
            eventually(lambda: any(b"for both" in each.read_bytes() for each in written("*.open")), "a line", 120.0)
