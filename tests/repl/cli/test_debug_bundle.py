"""``vlsnlog debug-bundle``: what is in it, and that nothing secret is."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from zipfile import ZipFile

import pytest

from repl.auth import group_key
from repl.auth.tokens import new_secret
from repl.cli.debug_bundle import QUESTIONS
from repl.cli.main import main
from tests.repl.cli.shell import NOWHERE, Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import master_of_two
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk


def bundle(path: Path) -> dict[str, bytes]:
    with ZipFile(path) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


def test_it_has_what_each_node_says_and_names_who_is_silent(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "b.zip"
    with ServedNode(master_of_two) as served:
        result = shell("debug-bundle", "--url", served.url, "--out", str(out), "--json")
    document = json.loads(result.out)
    assert (result.status, document["nodes"], list(document["errors"])) == (0, ["n1"], ["n2"]), document
    files = bundle(out)
    assert {f"n1/{file}" for file in QUESTIONS} <= files.keys() and sorted(files) == document["files"]
    assert json.loads(files["n1/status.json"])["node"] == "n1" and b"# TYPE vlsnlog_" in files["n1/metrics.txt"]
    assert b"n2: is UNREACHABLE" in files["check.txt"] and "python" in json.loads(files["versions.json"])
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_a_group_that_is_silent_has_a_bundle_all_the_same(shell: Shell, tmp_path: Path) -> None:
    result = shell("debug-bundle", "--url", NOWHERE, "--out", str(tmp_path / "b.zip"))
    assert result.status == 1 and b"not in it: " in result.out
    assert b"Connection refused" in bundle(tmp_path / "b.zip")["errors.json"]


def test_a_file_that_is_there_is_not_replaced(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "b.zip").write_bytes(b"mine")
    refused = shell("debug-bundle", "--out", str(tmp_path / "b.zip"))
    assert refused.status == 2 and "replaces no file" in refused.err
    assert (tmp_path / "b.zip").read_bytes() == b"mine"


def test_no_secret_is_in_it(shell: Shell, tmp_path: Path) -> None:
    """Each kind of secret stands where somebody's mistake may have put it: in the logs and in the config."""
    directory = tmp_path / "n1"
    directory.mkdir()
    token = new_secret(SystemRandom())
    keys = group_key.make(PosixDisk(), str(directory / "group.key"), SystemRandom())
    key_line = (directory / "group.key").read_text().strip()
    assert main(["certs", "ca", str(tmp_path / "certs")]) == 0
    pem = (tmp_path / "certs" / "ca.key").read_text()
    hook = "whsec_" + "QUJD" * 8
    secrets = {
        "token": token.secret,
        "bearer": "abcdefgh.ijklmnop",
        "key": keys.keys[0].secret.hex(),
        "pem": pem.splitlines()[1],
        "hook": hook.removeprefix("whsec_"),
        "mac": "0123456789abcdef" * 4,
        "url": "alice:wonderland",
        "password": "rosebud7",
        "option": "only-mine-to-know",
        "nested": "also-mine",
    }
    (directory / "node.log").write_text(
        f"INFO n1 token={token.text}\nAuthorization: Bearer {secrets['bearer']}\n{key_line}\n{pem}\n{hook}\n"
        f"mac={secrets['mac']} https://{secrets['url']}@host:1/ host=db password={secrets['password']}\n"
    )
    (directory / "admin.jsonl").write_text(f'{{"by": "{token.text}"}}\n')
    (directory / "node.toml").write_text(
        f'name = "n1"\n[[cdc]]\nname = "a"\noptions = {{ word = "{secrets["option"]}" }}\n'
        f'[[cdc]]\nname = "b"\n[cdc.options]\nword = {{ inner = "{secrets["nested"]}" }}\n'
    )
    result = shell("debug-bundle", "--dir", str(directory), "--out", str(tmp_path / "b.zip"))
    assert result.status == 0, result
    files = bundle(tmp_path / "b.zip")
    assert {"n1/node.log", "n1/admin.jsonl", "n1/node.toml", "n1/files.txt"} <= files.keys()
    everything = b"".join(files.values()) + b"".join(name.encode() for name in files)
    assert [name for name, secret in secrets.items() if secret.encode() in everything] == []
    assert b"INFO n1 token=vlt_" in files["n1/node.log"] and b'"word" = "<removed>"' in files["n1/node.toml"]
    assert b"group.key" in files["n1/files.txt"] and "n1/group.key" not in files


@pytest.mark.parametrize("text", ["not [toml", "cdc = 7\n"])
def test_a_config_that_is_none_is_no_fault(shell: Shell, tmp_path: Path, text: str) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "node.toml").write_text(text)
    result = shell("debug-bundle", "--dir", str(tmp_path / "n1"), "--out", str(tmp_path / "b.zip"))
    assert result.status == 0, result
