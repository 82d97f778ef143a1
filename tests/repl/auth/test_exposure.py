"""Nodes that serve addresses beyond loopback: whether they start, and which levels they speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.auth.exposure import check_exposure, is_exposed, missing_lines
from repl.config import NodeConfig, load_node_config
from repl.node.status import status
from tests.seam.nodes import Group
from vlsn.errors import BadArgument
from vlsn.ids import NodeName
from vlsn.levels import LEVELS, SIGNED

SAFE: dict[str, Any] = {
    "tls": "require",
    "tls_cert": Path("n1.pem"),
    "tls_key": Path("n1.key"),
    "tls_ca": Path("ca.pem"),
    "group_key": Path("group.key"),
    "anonymous": "none",
}


def config(url: str = "https://10.0.0.1:7701", listen: str = "10.0.0.1:7701", **settings: Any) -> NodeConfig:
    return NodeConfig(name=NodeName("n1"), dir=Path("/n1"), members={NodeName("n1"): url}, listen=listen, **settings)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("group_key", None, 'group_key = "group.key"'),
        ("anonymous", "all", 'anonymous = "none"'),
        ("anonymous", "append", 'anonymous = "none"'),
    ],
)
def test_each_protection_is_needed_beyond_loopback(name: str, value: object, line: str) -> None:
    assert missing_lines(config(**SAFE)) == []
    assert missing_lines(config(**{**SAFE, name: value})) == [line]


def test_a_node_without_anything_is_named_all_lines() -> None:
    lines = ['tls = "require"', 'group_key = "group.key"', 'anonymous = "none"']
    assert missing_lines(config("http://10.0.0.1:7701", anonymous="all")) == lines


@pytest.mark.parametrize(
    ("url", "listen", "exposed"),
    [
        ("http://127.0.0.1:7701", "", False),
        ("http://localhost:7701", "[::1]:7701", False),
        ("http://127.0.0.1:7701", "0.0.0.0:7701", True),
        ("http://10.0.0.1:7701", "127.0.0.1:7701", True),
        ("http://n1.example:7701", "10.0.0.1:7701", True),
    ],
)
def test_loopback_needs_nothing(url: str, listen: str, exposed: bool) -> None:
    assert is_exposed(config(url, listen)) is exposed
    assert not is_exposed(config(url, listen, insecure=True))


@pytest.mark.parametrize("raw", ["true", "True", True])
def test_insecure_is_true_or_false(raw: object) -> None:
    flags = {"name": "n1", "dir": "/n1", "members": ["n1=http://127.0.0.1:7701"]}
    assert load_node_config(flags={**flags, "insecure": raw}, environment={}).insecure is True
    assert load_node_config(flags=flags, environment={"VLSNLOG_INSECURE": "false"}).insecure is False
    with pytest.raises(BadArgument, match="neither true nor false"):
        load_node_config(flags=flags, environment={"VLSNLOG_INSECURE": "1"})


async def test_an_exposed_node_with_an_empty_log_does_not_start() -> None:
    group = Group(1, 1, levels=LEVELS, insecure=False)
    node = group.made("n1")
    disk = node.member.seams.disk
    with pytest.raises(BadArgument, match=r'its log is empty; add tls = "require", anonymous = "none"'):
        await node.start()
    with pytest.raises(FileNotFoundError):
        disk.list("/n1")


async def test_a_directory_without_a_log_is_an_empty_log_and_one_that_lost_its_node_file_is_not() -> None:
    group = Group(4, 1, levels=LEVELS, insecure=False)
    disk = group.machines["n1"].boot().seams.disk
    disk.make_directory("/n1")
    with pytest.raises(BadArgument, match="its log is empty"):
        check_exposure(group.config("n1"), disk)
    disk.open("/n1/00000001.vlog", write=True, create=True).close()
    check_exposure(group.config("n1"), disk)


async def test_an_exposed_node_of_an_earlier_level_starts_and_holds_the_level_back() -> None:
    group = Group(2, 1, levels=LEVELS.below(SIGNED), keyed=True)
    await group.start()
    await group.serving()
    group.kill("n1")
    group.settings["insecure"] = False
    group.machines["n1"].levels = LEVELS
    await group.start()
    await group.serving()
    node = group.nodes["n1"]
    assert node.member.seams.levels.max == SIGNED - 1
    assert node.opened().log.view.level == SIGNED - 1
    said = status(node)
    assert said["insecure"] and said["protection_missing"] == ['tls = "require"', 'anonymous = "none"']
    (event,) = [each for each in node.member.events.since(1, 100)["events"] if each["event"] == "insecure"]
    assert event["level"] == "warning" and not event["allowed"]


async def test_an_exposed_node_of_level_5_does_not_start() -> None:
    group = Group(3, 1, levels=LEVELS)
    await group.start()
    await group.serving()
    assert group.nodes["n1"].opened().log.view.level == SIGNED
    group.kill("n1")
    group.settings["insecure"] = False
    disk = group.machines["n1"].disk
    before = sorted(disk.list("/n1"))
    with pytest.raises(BadArgument, match="its log is of level 5; add"):
        check_exposure(group.config("n1"), disk)
    node = group.made("n1")
    with pytest.raises(BadArgument, match="its log is of level 5; add"):
        await node.start()
    assert sorted(disk.list("/n1")) == before
