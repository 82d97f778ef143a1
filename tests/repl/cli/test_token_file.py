"""The token of commands: from the environment or a file, to members alone, and never shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from repl.auth.tokens import new_secret
from tests.fakes.random import SeededRandom
from tests.repl.audit.test_live import serving
from tests.repl.cli.shell import Shell
from tests.repl.client.group import ServedNode
from tests.repl.credentials.test_bearer import written
from tests.repl.node.test_access import made
from tests.repl.web.one_node import OneNode, started
from vlsn.limits import MIB

ONE, OTHER = new_secret(SeededRandom(1)), new_secret(SeededRandom(2))


async def strict() -> OneNode:
    node = await started(segment_bytes=2 * MIB, keyed=True, anonymous="none")
    await made(node, ONE, "metrics", "read", "append", "consume", "define", "admin")
    return node


@pytest.fixture
def shell(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    for name in ("VLSNLOG_TOKEN", "VLSNLOG_TOKEN_FILE"):
        monkeypatch.setenv(name, "")  # a command sets them for its children; the test takes them back
    with ServedNode(strict) as one:
        yield Shell(capfdbinary, monkeypatch, one.url)


COMMANDS = [
    ("append", "value"),
    ("read",),
    ("status",),
    ("group", "show"),
    ("consumer", "list"),
    ("dest", "list"),
    ("cdc", "list"),
    ("checkpoint",),
    ("rotate",),
]


def test_each_command_has_the_token_of_a_file_or_of_the_environment(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path / "token", ONE.text)
    for command in COMMANDS:
        refused = shell(*command)
        assert (refused.status, refused.err.count("\n")) == (2, 1) and "token" in refused.err, (command, refused)
        ended = shell(*command, "--token-file", path)
        assert (ended.status, ended.err) == (0, ""), (command, ended)
        monkeypatch.setenv("VLSNLOG_TOKEN_FILE", "")
        monkeypatch.setenv("VLSNLOG_TOKEN", ONE.text)
        assert shell(*command).status == 0, command
        monkeypatch.setenv("VLSNLOG_TOKEN", OTHER.text)
        assert OTHER.secret not in shell(*command).err
        assert shell(*command, "--token-file", path).status == 0, "what is on the command line counts"
        monkeypatch.setenv("VLSNLOG_TOKEN", "")
        monkeypatch.setenv("VLSNLOG_TOKEN_FILE", path)
        assert shell(*command).status == 0, command
        monkeypatch.setenv("VLSNLOG_TOKEN_FILE", "")


def test_a_command_says_what_is_wrong_with_its_token(shell: Shell, tmp_path: Path) -> None:
    for command in COMMANDS:
        for arguments, said in (
            (("--token-file", written(tmp_path / "open", ONE.text, 0o644)), "mode 0644"),
            (("--token-file", written(tmp_path / "empty", "")), "holds no token"),
            (("--token-file", ONE.text), "is a token itself"),
            (("--token", ONE.text), "--token"),
            (("--token-file", written(tmp_path / "token", ONE.text), "--url", "http://10.0.0.7:7701"), "https"),
        ):
            ended = shell(*command, *arguments)
            assert (ended.status, ended.out, ended.err.count("\n")) == (2, b"", 1), (command, ended)
            assert said in ended.err and ONE.secret not in ended.err, (command, ended)


class Node(BaseHTTPRequestHandler):
    """Redirects orders to ``to``, and lists ``members``."""

    to = ""
    members: tuple[str, ...] = ()

    def do_POST(self) -> None:
        self.send_response(307)
        self.send_header("Location", f"{self.to}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        members = [{"name": f"n{number}", "url": url} for number, url in enumerate(self.members)]
        names = ("group", "state", "master", "term", "vlsn", "durable")
        body = json.dumps({**dict.fromkeys(names, ""), "members": members}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Foreign(Node):
    calls = 0

    def do_POST(self) -> None:
        type(self).calls += 1
        super().do_POST()

    def do_GET(self) -> None:
        self.do_POST()


def test_an_order_follows_a_redirect_to_a_member_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path / "token", ONE.text)
    order = ("group", "set", "durability=sync", "--token-file", path)
    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), Foreign)) as foreign,
        serving(ThreadingHTTPServer(("127.0.0.1", 0), Node)) as node,
    ):
        Node.to, url = (f"http://127.0.0.1:{each.server_address[1]}" for each in (foreign, node))
        ended = shell(*order, "--url", url)
        assert ended.status == 2 and "which it does not list as a member" in ended.err and Foreign.calls == 0
        Node.members = (Node.to,)
        shell(*order, "--url", url)
        assert Foreign.calls > 0
