"""``vlsnlog certs``: certificates that openssl verifies, private files, and nothing replaced."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from repl.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["certs", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def openssl(*arguments: object) -> str:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openssl_verifies_what_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "ca", tmp_path) == (0, f"{tmp_path / 'ca.pem'}\n", "")
    hosts = ("--host", "n1.example", "--host", "10.1.2.3")
    assert run(capsys, "node", "n1", tmp_path / "n1", "--ca", tmp_path, "--group", "orders", *hosts)[0] == 0
    assert run(capsys, "client", "app", tmp_path, "--ca", tmp_path, "--group", "orders")[0] == 0

    strict = ("verify", "-x509_strict", "-CAfile", tmp_path / "ca.pem")
    node = tmp_path / "n1" / "n1.pem"
    for purpose in ("sslserver", "sslclient"):
        openssl(*strict, "-purpose", purpose, "-verify_hostname", "n1.example", "-verify_ip", "10.1.2.3", node)
    openssl(*strict, "-purpose", "sslclient", tmp_path / "app.pem")
    text = openssl("x509", "-in", node, "-noout", "-text")
    assert "URI:vlsnlog:orders/n1, DNS:n1.example, IP Address:10.1.2.3" in text
    assert "prime256v1" in text
    assert "URI:vlsnlog:orders/client/app" in openssl("x509", "-in", tmp_path / "app.pem", "-noout", "-text")
    for path in (*tmp_path.glob("*.*"), *(tmp_path / "n1").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_client_certificate_serves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "ca", tmp_path)
    run(capsys, "client", "app", tmp_path, "--ca", tmp_path)
    refused = subprocess.run(
        ["openssl", "verify", "-purpose", "sslserver", "-CAfile", tmp_path / "ca.pem", tmp_path / "app.pem"],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert refused.returncode != 0


@pytest.mark.parametrize("left", ["n1.pem", "n1.key"])
def test_no_file_is_replaced(left: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "ca", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    status, _, err = run(capsys, "ca", tmp_path)
    assert (status, "is there already" in err) == (2, True)
    (tmp_path / left).write_text("mine")
    status, _, err = run(capsys, "node", "n1", tmp_path, "--ca", tmp_path)
    assert (status, str(tmp_path / left) in err) == (2, True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {**before, tmp_path / left: b"mine"}


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "node", "n1", tmp_path, "--ca", tmp_path)
    assert status == 2
    assert "`vlsnlog certs ca DIR` makes them" in err
    run(capsys, "ca", tmp_path / "one")
    run(capsys, "ca", tmp_path / "two")
    (tmp_path / "two" / "ca.key").write_bytes((tmp_path / "one" / "ca.key").read_bytes())
    status, _, err = run(capsys, "node", "n1", tmp_path, "--ca", tmp_path / "two")
    assert (status, "is not the key of" in err) == (2, True)
    for arguments in (("n/1", tmp_path), ("ca", tmp_path), ("n1", tmp_path, "--host", "ä.example")):
        status, _, err = run(capsys, "node", *arguments, "--ca", tmp_path / "one")
        assert status == 2
        assert err.count("\n") == 1
    assert not (tmp_path / "n1.key").exists()
