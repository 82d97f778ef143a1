"""The key that a node on loopback makes by itself, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.auth import group_key
from repl.auth.default_key import anonymous_of, with_key
from repl.config import NodeConfig
from repl.credentials.loopback import is_loopback
from tests.fakes.random import SeededRandom
from vlsn.errors import BadArgument
from vlsn.ids import NodeName
from vlsnlog.testing.fakes.disk import FakeDisk

HOME = {"HOME": "/home/a"}


def config(*hosts: str, **settings: Any) -> NodeConfig:
    members = {NodeName(f"n{n}"): f"http://{host}:{7700 + n}" for n, host in enumerate(hosts, 1)}
    return NodeConfig(name=NodeName("n1"), dir=Path("/n1"), members=members, group="demo", **settings)


def test_nodes_of_one_user_on_loopback_share_a_key_that_the_first_makes() -> None:
    disk = FakeDisk()
    three = config("127.0.0.1", "localhost", "[::1]")
    first = with_key(three, disk, SeededRandom(1), HOME).group_key
    again = with_key(three, disk, SeededRandom(2), HOME).group_key
    assert first == again == Path("/home/a/.local/state/vlsnlog/demo.key")
    assert len(group_key.read(disk, str(first)).keys) == 1
    elsewhere = with_key(three, disk, SeededRandom(1), {**HOME, "XDG_STATE_HOME": "/state"}).group_key
    assert elsewhere == Path("/state/vlsnlog/demo.key")
    assert with_key(three, disk, SeededRandom(1), {**HOME, "XDG_STATE_HOME": "state"}).group_key == first


@pytest.mark.parametrize(
    "made",
    [
        config("127.0.0.1", "10.0.0.2"),
        config("n1.example"),
        config("127.0.0.1", listen="0.0.0.0:7701"),
        config("10.0.0.1", listen="127.0.0.1:7701"),
    ],
)
def test_beyond_loopback_no_key_is_made(made: NodeConfig) -> None:
    disk = FakeDisk()
    assert with_key(made, disk, SeededRandom(1), HOME) == made
    assert disk.calls == []


def test_a_key_that_the_settings_name_is_the_key() -> None:
    disk, named = FakeDisk(), config("127.0.0.1", group_key=Path("/etc/group.key"))
    assert with_key(named, disk, SeededRandom(1), HOME) == named
    assert disk.calls == []


def test_without_a_home_the_command_that_makes_a_key_is_named() -> None:
    with pytest.raises(BadArgument, match="vlsnlog key create FILE"):
        with_key(config("127.0.0.1"), FakeDisk(), SeededRandom(1), {"HOME": "relative"})
    full = FakeDisk()
    full.fail_at(lambda call: call.name == "make_directory")
    with pytest.raises(BadArgument, match="vlsnlog key create FILE"):
        with_key(config("127.0.0.1"), full, SeededRandom(1), HOME)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("128.0.0.1", False), ("127.0.0.1.example", False), ("localhost.example", False), ("", False)],
)  # fmt: skip
def test_loopback_is_known_by_its_addresses(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("host", "settings", "expected"),
    [
        ("127.0.0.1", {"group_key": Path("/k")}, "append"),
        ("127.0.0.1", {}, "all"),
        ("10.0.0.1", {"group_key": Path("/k")}, "all"),
        ("127.0.0.1", {"group_key": Path("/k"), "anonymous": "all"}, "all"),
        ("127.0.0.1", {"group_key": Path("/k"), "anonymous": "none"}, "none"),
        ("10.0.0.1", {"anonymous": "append"}, "append"),
    ],
)
def test_calls_without_a_token_may_not_administer_a_group_on_loopback_that_has_a_key(
    host: str, settings: dict[str, Any], expected: str
) -> None:
    assert anonymous_of(config(host, **settings)) == expected
