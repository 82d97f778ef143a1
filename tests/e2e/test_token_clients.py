"""Clients with tokens against a group of real nodes that answer nobody else: each way in, and nothing that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from repl import Unauthorized, connect_sync
from repl.auth.tokens import Secret, new_secret
from tests.e2e.calls import call
from tests.e2e.commands import run
from tests.e2e.group import NAMES, Group
from tests.fakes.random import SeededRandom
from tests.repl.credentials.test_bearer import written

pytestmark = pytest.mark.real
ALL = ("metrics", "read", "append", "consume", "define", "admin")
ONE, OTHER, APPENDS = (new_secret(SeededRandom(number)) for number in range(1, 4))
JSON = {"Content-Type": "application/json"}


def create(group: Group, secret: Secret, *roles: str) -> None:
    body = json.dumps({"sha256": secret.sha256, "roles": roles}).encode()
    assert call("PUT", f"{group.master}/v1/admin/tokens/{secret.id}", headers=JSON, body=body).status in (200, 201)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Three nodes that need tokens, which were made before."""
    made = Group(tmp_path / "group", anonymous="all", election_timeout_s=1.0)
    try:
        made.start()
        create(made, ONE, *ALL)
        create(made, APPENDS, "append")
        made.settle()
        made.stop(*NAMES)
        for name in NAMES:
            path = made.config(name)
            path.write_text(path.read_text().replace('"all"', '"none"'))
        made.launch()

        def ready() -> bool:
            with suppress(OSError):
                return all(call("GET", f"{url}/readyz", timeout_s=5).status == 200 for url in made.urls.values())
            return False

        made.until(ready, "the nodes serve")
        yield made
    finally:
        made.end()


def test_every_client_carries_a_token_and_nothing_shows_it(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = ",".join(group.urls.values())
    path = written(tmp_path / "token", ONE.text)
    refused = run("append", "--url", urls, "value")
    assert "token" in refused.refused()
    appended = run("append", "--url", urls, "--token-file", path, "value")
    assert appended.status == 0, appended
    monkeypatch.setenv("VLSNLOG_TOKEN_FILE", path)
    with connect_sync(group.urls["n3"]) as log:
        log.append_many([b"%d" % number for number in range(100)], keys=[b"k"] * 100)
        with log.transaction() as txn:
            txn.append(b"last")
    with connect_sync(urls, token=APPENDS.text) as log:
        log.append(b"by a token of appends alone")
    read = run("read", "--url", group.urls["n2"], "--format", "raw")
    assert read.status == 0 and read.out.count(b"\n") == 103, read
    outputs = [appended.out, read.out]
    commands: list[tuple[str | Path, ...]] = [
        ("status", "--url", urls),
        ("group", "show", "--url", urls),
        ("consumer", "list", "--url", urls),
        ("dest", "create", "orders", "--prefix", "k", "--url", group.urls["n3"]),
        ("cdc", "list", "--url", urls),
        ("rotate", "--url", urls),
        ("export", urls, "--to", tmp_path / "lake", "--format", "json"),
        ("audit", *group.urls.values(), "--out", tmp_path / "report.json"),
    ]
    for command in commands:
        ended = run(*command)
        assert ended.status == 0, (command, ended)
        outputs += [ended.out, ended.err.encode()]
    group.stop(*NAMES)
    left = [each for each in tmp_path.rglob("*") if each.is_file() and each != Path(path)]
    assert len(left) > 10 and any("lake" in str(each) for each in left)
    for file in left:
        assert ONE.secret.encode() not in file.read_bytes(), file
    assert ONE.secret.encode() not in b"".join(outputs)


def test_a_client_goes_on_with_the_new_token_of_its_file(group: Group, tmp_path: Path) -> None:
    urls = ",".join(group.urls.values())
    path = written(tmp_path / "token", ONE.text)
    admin = {**JSON, "Authorization": f"Bearer {ONE.text}"}

    def order(method: str, url: str, target: str, body: bytes = b"{}") -> int:
        return call(method, url + target, headers=admin, body=body).status

    with connect_sync(urls, token_file=path, exactly_once=True) as log, connect_sync(urls, token=ONE.text) as old:
        log.append(b"1")
        old.append(b"2")
        tail = log.tail(from_vlsn=1)
        assert next(tail).value == b"1"
        body = json.dumps({"sha256": OTHER.sha256, "roles": ALL}).encode()
        assert any(order("PUT", url, f"/v1/admin/tokens/{OTHER.id}", body) == 200 for url in group.urls.values())
        written(tmp_path / "token", OTHER.text)
        assert any(order("DELETE", url, f"/v1/admin/tokens/{ONE.id}") == 200 for url in group.urls.values())
        log.append(b"3")
        assert [next(tail).value for _ in range(2)] == [b"2", b"3"]
        with pytest.raises(Unauthorized):
            old.append(b"4")
