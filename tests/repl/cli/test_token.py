"""``vlsnlog token`` against a real node whose orders need the group's key: output, exit status and effect."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from repl.auth import group_key
from repl.auth.tokens import parse
from repl.cli.signing import GROUP_KEY
from repl.credentials.bearer import VARIABLE as TOKEN
from tests.fakes.random import SeededRandom
from tests.repl.cli.shell import Result, Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import started
from vlsn.limits import MIB
from vlsn.real.disk import PosixDisk

DAY_US = 86_400_000_000


@pytest.fixture
def served() -> Iterator[ServedNode]:
    with ServedNode(partial(started, keyed=True, anonymous="append", segment_bytes=2 * MIB)) as one:
        yield one


@pytest.fixture
def signing(shell: Shell, served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line, with the group's key in its environment."""
    keys = served.node.member.keyring.keys
    assert keys is not None
    path = str(tmp_path / "group.key")
    group_key.replace(PosixDisk(), path, keys, SeededRandom(1))
    monkeypatch.setenv(GROUP_KEY, path)
    return shell


def listed(shell: Shell) -> dict[str, dict[str, Any]]:
    result = shell("token", "list", "--json")
    assert result.status == 0, result
    return {each["id"]: each for each in json.loads(result.out)["tokens"]}


def refused(result: Result) -> str:
    assert (result.status, result.out) == (2, b""), result
    assert result.err.count("\n") == 1
    return result.err


def test_a_token_is_made_and_printed_once(signing: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--keys", "order-", "--names", "shop", "--expires", "30d", "--title", "the shop", "--appends-per-s", "50")
    made = signing("token", "create", "--roles", "append,consume", *given)
    assert made.status == 0 and re.fullmatch(rb"vlt_[a-z0-9]{8}_[A-Za-z0-9_-]{43}\n", made.out), made
    secret = parse(made.out.decode().strip())
    assert secret is not None
    shown = listed(signing)[secret.id]
    assert (shown["roles"], shown["keys"], shown["names"]) == (["append", "consume"], "order-", "shop")
    assert (shown["title"], shown["by"], shown["appends_per_s"]) == ("the shop", "key:one", 50)
    assert shown["expires_us"] == pytest.approx(time.time() * 1e6 + 30 * DAY_US, abs=60e6)
    for text in (signing("token", "list"), signing("token", "list", "--json")):
        assert text.status == 0 and secret.id.encode() in text.out and secret.secret.encode() not in text.out
    monkeypatch.delenv(GROUP_KEY)
    assert "this call needs the role admin" in refused(signing("rotate"))
    monkeypatch.setenv(TOKEN, secret.text)
    assert "lacks the role admin" in refused(signing("rotate"))


def test_a_token_that_administers_is_the_maker_of_others(signing: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(signing("token", "create", "--roles", "admin", "--json").out)
    assert made["token"].startswith(f"vlt_{made['id']}_") and made["expires_us"] == 0
    monkeypatch.delenv(GROUP_KEY)
    monkeypatch.setenv(TOKEN, made["token"])
    assert signing("rotate").status == 0
    other = json.loads(signing("token", "create", "--roles", "read", "--json").out)
    assert listed(signing)[other["id"]]["by"] == made["id"]
    assert signing("token", "revoke", made["id"]).status == 0, "its own"
    assert "revoked" in refused(signing("rotate"))


def test_a_rotated_token_works_beside_its_successor_for_the_overlap(signing: Shell, served: ServedNode) -> None:
    now = served.node.member.seams.clock.wall_us()
    first = json.loads(signing("token", "create", "--roles", "read", "--json").out)["id"]
    made = signing("token", "rotate", first, "--overlap", "1h")
    successor = parse(made.out.decode().strip())
    assert made.status == 0 and successor is not None
    tokens = listed(signing)
    assert tokens[successor.id]["roles"] == ["read"] and tokens[successor.id]["expires_us"] == 0
    assert tokens[first]["expires_us"] == pytest.approx(now + 3600e6, abs=60e6)
    second = json.loads(signing("token", "rotate", successor.id, "--json").out)
    assert (second["before"], second["overlap_s"]) == (successor.id, 0) and second["token"].startswith("vlt_")
    revoked = signing("token", "revoke", first)
    assert (revoked.status, revoked.out) == (0, f"token {first} is revoked\n".encode())
    assert "there is no token" in refused(signing("token", "revoke", first))
    assert first not in listed(signing)


def test_a_certificate_is_a_token_without_a_secret(signing: Shell) -> None:
    made = signing("token", "create", "--roles", "read", "--uri", "spiffe://example/app")
    assert re.fullmatch(rb"[a-z0-9]{8}\n", made.out)
    id = made.out.decode().strip()
    assert listed(signing)[id]["uri"] == "spiffe://example/app"
    assert f"are the token {id}" in refused(
        signing("token", "create", "--roles", "read", "--uri", "spiffe://example/app")
    )
    assert "has no secret" in refused(signing("token", "rotate", id))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create",), "--roles"),
        (("create", "--roles", "key"), "one or more of metrics"),
        (("create", "--roles", "read,read"), "one or more of metrics"),
        (("create", "--roles", "read", "--expires", "30"), "no span of time"),
        (("create", "--roles", "read", "--expires", "-1d"), "no span of time"),
        (("create", "--roles", "read", "--expires", "999999999w"), "no span of time"),
        (("create", "--roles", "read", "--expires", "0s"), "at least a second"),
        (("create", "--roles", "read", "--uri", "nothing"), "no URI"),
        (("create", "--roles", "read", "--bytes-per-s", "-1"), "--bytes-per-s"),
        (("create", "--roles", "read", "--keys", "k" * 600), "keys: more than"),
        (("revoke", "ABC"), "no ID of a token"),
        (("revoke", "vlt_abcdefgh_secret"), "without its secret"),
        (("rotate", "abcdefgh", "--overlap", "60d"), "overlap_s"),
    ],
)
def test_a_bad_order_is_refused_before_anything_is_made(signing: Shell, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(signing("token", *arguments))
    assert listed(signing) == {}
