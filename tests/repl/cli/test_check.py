"""``vlsnlog check``: what it finds on a machine, in a node's settings, and in a running group."""

from __future__ import annotations

import json
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from repl.auth import group_key
from repl.cli import check
from repl.cli.main import main
from repl.config import load_node_config
from tests.repl.cli.shell import NOWHERE, Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import master_of_two
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


def config(tmp_path: Path, port: int, *more: str) -> Path:
    """Writes the settings of a node of two, whose other member is nowhere."""
    path = tmp_path / "node.toml"
    group_key.make(PosixDisk(), str(tmp_path / "group.key"), SystemRandom())
    path.write_text(
        "\n".join(
            [
                *('name = "n1"', 'dir = "data"', 'group_key = "group.key"', *more),
                *("[members]", f'n1 = "http://127.0.0.1:{port}"', f'n2 = "{NOWHERE}"'),
            ]
        )
    )
    return path


def found(shell: Shell, *arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Returns the exit status, and by check what came of it."""
    result = shell("check", *arguments, "--json")
    document = json.loads(result.out)
    assert document["well"] == (result.status == 0)
    by_check: dict[str, list[tuple[str, str]]] = {}
    for each in document["checks"]:
        by_check.setdefault(each["check"], []).append((each["outcome"], each["said"]))
    return result.status, by_check


def test_a_node_that_may_start_is_well_and_its_members_may_be_away(shell: Shell, tmp_path: Path, port: int) -> None:
    status, checks = found(shell, "--config", str(config(tmp_path, port)))
    assert status == 0, checks
    assert [each for each, _ in checks["member"]] == ["note"]
    assert checks["port"] == [("ok", "is free; the node is not running")]
    assert checks["syncs"][0][0] == "ok" and "fdatasync: p50" in checks["syncs"][0][1]
    assert not (tmp_path / "data").exists(), "nothing is made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["group.key", "node.toml"]


def test_a_member_that_is_away_from_a_node_with_a_log_needs_a_look(shell: Shell, tmp_path: Path, port: int) -> None:
    path = config(tmp_path, port)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "node.id").touch()
    status, checks = found(shell, "--config", str(path))
    assert status == 1 and checks["member"][0][0] == "look" and "is it started" in checks["member"][0][1]


@pytest.mark.parametrize(
    ("line", "what", "words"),
    [
        ("election_timeout_s = 0.1", "settings", "heartbeat_s"),
        ('listen = "0.0.0.0:7701"', "protection", "anonymous"),
        ("readers_max = 1000000", "descriptors", "ulimit -n"),
        ('group_key = "none.key"', "key", "none.key"),
    ],
)
def test_settings_that_cannot_work_need_a_look(
    shell: Shell, tmp_path: Path, port: int, line: str, what: str, words: str
) -> None:
    path = config(tmp_path, port, line)
    if line.startswith("group_key"):
        path.write_text(path.read_text().replace('group_key = "group.key"\n', "", 1))
    status, checks = found(shell, "--config", str(path))
    assert status == 1 and checks[what][-1][0] == "look" and words in checks[what][-1][1], checks


def test_a_port_of_another_process_needs_a_look(shell: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        status, checks = found(shell, "--config", str(config(tmp_path, other.getsockname()[1])))
    assert status == 1 and checks["port"][0][0] == "look", checks


def test_a_directory_in_memory_needs_a_look(shell: Shell, tmp_path: Path, port: int) -> None:
    if check._file_system(Path("/dev/shm")) != "tmpfs":
        pytest.skip("this machine has no /dev/shm")
    path = config(tmp_path, port)
    path.write_text(path.read_text().replace('dir = "data"', 'dir = "/dev/shm/vlsnlog-none"'))
    status, checks = found(shell, "--config", str(path))
    assert status == 1 and checks["disk"] == [
        ("look", "is memory (tmpfs): it loses everything with the machine; change `dir`")
    ]


def test_certificates_are_found_before_they_end(shell: Shell, tmp_path: Path, port: int) -> None:
    certs = tmp_path / "certs"
    assert main(["certs", "ca", str(certs)]) == main(["certs", "node", "n1", str(certs), "--ca", str(certs)]) == 0
    tls = [f'tls_{name} = "certs/{file}"' for name, file in (("cert", "n1.pem"), ("key", "n1.key"), ("ca", "ca.pem"))]
    path = config(tmp_path, port, 'tls = "allow"', *tls)
    status, checks = found(shell, "--config", str(path))
    assert status == 0 and [each for each, _ in checks["certificate"]] == ["ok", "ok"], checks
    (certs / "n1.key").write_text((certs / "ca.key").read_text())
    status, checks = found(shell, "--config", str(path))
    assert status == 1 and "KEY_VALUES_MISMATCH" in checks["certificate"][0][1]


@pytest.mark.parametrize(("days", "outcome"), [(-1, "look"), (3, "look"), (13.9, "look"), (14.1, "ok"), (300, "ok")])
def test_an_end_in_less_than_two_weeks_needs_a_look(days: float, outcome: str) -> None:
    (line,) = check._certificates({"n1": time.time() + 86_400 * days})
    assert (line.outcome, line.where) == (outcome, "n1")


def test_a_certificate_that_is_not_valid_yet_needs_a_look(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    key, now, name = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC), x509.Name([])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now + timedelta(days=2)).not_valid_after(now + timedelta(days=90))
    (tmp_path / "n1.pem").write_bytes(built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (line,) = check._ends(str(tmp_path / "n1.pem"))
    assert line.outcome == "look" and "is valid from" in line.said


@pytest.mark.parametrize(("ahead_s", "outcome"), [(0.4, "ok"), (-1.9, "ok"), (2.1, "look"), (-3600.0, "look")])
def test_clocks_that_are_apart_need_a_look(ahead_s: float, outcome: str) -> None:
    answers = {"n1": check._Answer({"node": "n1"}, 0.1), "n2": check._Answer({"node": "n2"}, ahead_s)}
    (line,) = check._clocks(answers)
    assert line.outcome == outcome and (outcome == "ok" or line.where == "n2")


def test_versions_and_keys_that_differ_need_a_look() -> None:
    nodes: list[dict[str, Any]] = [
        {"node": "n1", "version": "0.1.0", "key": {"signs": "k1"}},
        {"node": "n2", "version": "0.2.0", "key": {"signs": "k2"}},
    ]
    assert [each.outcome for each in (*check._versions(nodes), *check._keys(nodes))] == ["look", "look"]
    assert [each.outcome for each in (*check._versions(nodes[:1]), *check._keys(nodes[:1]))] == ["ok", "ok"]


def test_a_running_group_is_well_or_names_who_is_not(shell: Shell) -> None:
    status, checks = found(shell)
    assert status == 0 and {"member", "versions", "clock"} <= checks.keys(), checks
    with ServedNode(master_of_two) as served:
        status, checks = found(shell, "--url", served.url)
        printed = shell("check", "--url", served.url)
    assert status == 1 and any(said.startswith("is UNREACHABLE") for _, said in checks["group"])
    assert printed.status == 1 and b"look  group" in printed.out and b"need a look\n" in printed.out
    status, checks = found(shell, "--url", NOWHERE)
    assert status == 1 and checks["member"][0][0] == "look"


def test_a_member_that_is_another_node_needs_a_look(tmp_path: Path, port: int) -> None:
    settings = load_node_config(path=config(tmp_path, port), environment={})
    for status in ({"node": "n2", "group": "another"}, {"node": "n9", "group": settings.group}):
        lines = list(check._members(settings, {"n1": check._Answer({}, 0.0, "off"), "n2": check._Answer(status, 0.0)}))
        assert (lines[0].outcome, lines[0].check) == ("look", "member") and "correct `members`" in lines[0].said


def test_a_member_that_does_not_sign_needs_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"node": "n1", "state": "MASTER", "url": "http://h:1", "key": {"signs": "k1", "unsigned": ["n2"]}}

    async def ask(urls: object) -> list[dict[str, Any]]:
        return [node]

    async def none(urls: object) -> dict[str, Any]:
        return {}

    for name, made in (("ask", ask), ("_asked", none), ("_scraped", none)):
        monkeypatch.setattr(check, name, made)
    found = [each for each in check.lines_of_group(["http://h:1"]) if each.check == "key" and each.outcome == "look"]
    assert [each.said for each in found] == ["n2 did not sign with the group's key"]
