"""The trail of orders and refusals, of a real node on fakes: its lines, its files, and what is not in it."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import msgspec
import pytest

from repl.auth.sessions import CLI
from repl.auth.signatures import HEADER, NO_SESSION, Signer, digest, sign_call
from repl.auth.tokens import TokenRecord, new_secret
from repl.node.gateway import Gateway
from repl.node.trail import FILE_BYTES_MAX, FILES_MAX, LINES_MAX, REFUSALS_A_SECOND, TrailFile
from repl.web.types import BytesBody, Headers, Request, Response
from tests.fakes.loop import virtual
from tests.fakes.machine import ProcessDisk
from tests.fakes.random import SeededRandom
from tests.repl.web.calls import JSON
from tests.repl.web.calls import json as json_of
from tests.repl.web.one_node import OneNode, started
from vlsnlog.testing.fakes.disk import FakeDisk

SECRET = new_secret(SeededRandom(1))
ROTATE, CREATE = "/v1/admin/rotate", "/v1/admin/tokens/abcdefgh"
FROM = "192.0.2.7:40112"


async def called(
    node: OneNode, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> Response:
    sent = Request(method, target, Headers({**JSON, **(headers or {})}), BytesBody(body), FROM)
    answer = await Gateway(node.services).handle(sent)
    assert isinstance(answer, Response)
    return answer


def disk_of(node: OneNode) -> FakeDisk:
    disk = node.member.seams.disk
    assert isinstance(disk, ProcessDisk)
    return disk._disk


async def lines(node: OneNode, count: int) -> list[dict[str, Any]]:
    """Returns the trail once it has so many lines."""
    disk, path = disk_of(node), f"{node.member.config.dir}/admin.jsonl"
    async with asyncio.timeout(10):
        while not disk.exists(path) or disk.durable_content(path).count(b"\n") < count:  # noqa: ASYNC110 (a worker's)
            await asyncio.sleep(0.05)
    return [msgspec.json.decode(line) for line in disk.durable_content(path).splitlines()]


def events(node: OneNode, name: str) -> list[dict[str, Any]]:
    return [each for each in node.member.events.since(1, 1_000)["events"] if each["event"] == name]


def short(line: dict[str, Any]) -> tuple[str, str, str]:
    return line["actor"]["user"]["uid"], line["api"]["operation"], line["status_code"]


@virtual
async def test_each_order_and_each_refusal_has_a_line_and_an_event() -> None:
    node = await started(keyed=True, anonymous="append")
    keys = node.member.keyring.keys
    assert keys is not None

    def signed(target: str, session: str, n: int) -> str:
        by = Signer(sender=CLI, to="n1:7701", process="00000000000000ff", session=session, n=n)
        return sign_call(keys.signing, by, group="sim", method="POST", target=target, body=digest(b"")).header()

    await node.services.tokens.create(SECRET.id, TokenRecord(("admin",), SECRET.sha256), 10.0)
    bearing = {"Authorization": f"Bearer {SECRET.text}"}
    assert (await called(node, "POST", ROTATE)).status == 401
    session = json_of(await called(node, "POST", ROTATE, {HEADER: signed(ROTATE, NO_SESSION, 1)}))["session"]
    again = {HEADER: signed(ROTATE, session, 1)}
    assert (await called(node, "POST", ROTATE, again)).status == 200
    assert (await called(node, "POST", ROTATE, again)).status == 401, "it is replayed"
    assert (await called(node, "POST", f"{ROTATE}?x=1", bearing)).status == 400
    assert (await called(node, "GET", "/v1/status")).status == 200, "no order"
    wrong = msgspec.json.encode({"token": new_secret(SeededRandom(2)).text})
    assert (await called(node, "POST", "/v1/session", body=wrong)).status == 401
    found = await lines(node, 5)
    assert [short(line) for line in found] == [
        ("", f"POST {ROTATE}", "401"),
        ("key:one", f"POST {ROTATE}", "200"),
        ("", f"POST {ROTATE}", "401"),
        (SECRET.id, f"POST {ROTATE}", "400"),
        ("", "POST /v1/session", "401"),
    ]
    assert [line["status_id"] for line in found] == [2, 1, 2, 2, 2] and found[0]["status_detail"] == "unauthorized"
    assert found[3]["http_request"]["url"] == {"path": ROTATE, "query_string": "x=1"}
    assert all(line["src_endpoint"] == {"ip": "192.0.2.7", "port": 40112} for line in found)
    assert all((line["class_uid"], line["device"]["name"]) == (6003, "n1") for line in found)
    assert [(each["who"], each["status"]) for each in events(node, "admin.called")] == [
        ("key:one", 200),
        (SECRET.id, 400),
    ]
    assert events(node, "admin.refused")[0]["count"] == 2
    await node.stop()


@virtual
async def test_nothing_secret_is_in_the_trail_or_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """A token in a header, in a path, in a query, percent-written; a body; a right signature and a wrong one."""
    node = await started(keyed=True, anonymous="append")
    bearing = {"Authorization": f"Bearer {SECRET.text}"}
    await called(node, "POST", ROTATE, bearing)
    await called(node, "DELETE", f"/v1/admin/tokens/{SECRET.text}")
    await called(node, "DELETE", f"/v1/admin/tokens/{SECRET.text.replace('_', '%5F')}")
    await called(node, "POST", f"{ROTATE}?token={SECRET.text}")
    await called(node, "PUT", CREATE, body=msgspec.json.encode({"sha256": SECRET.sha256, "roles": ["read"]}))
    await called(
        node,
        "POST",
        ROTATE,
        {HEADER: f"v1 key=one from=@cli to=n1 process={'a' * 16} session={'b' * 32} n=1 mac={'c' * 64}"},
    )
    found = await lines(node, 6)
    text = "".join((msgspec.json.encode(found).decode(), str(node.member.events.since(1, 1_000)), caplog.text))
    for secret in (SECRET.secret, SECRET.sha256, "c" * 64, "b" * 32):
        assert secret not in text
    assert text.count("vlt_…") >= 3
    await node.stop()


@virtual
async def test_refusals_have_few_lines_and_the_next_one_counts_the_rest() -> None:
    node = await started(keyed=True, anonymous="append")
    for _ in range(REFUSALS_A_SECOND + 25):
        assert (await called(node, "POST", ROTATE)).status == 401
    await lines(node, REFUSALS_A_SECOND)
    await asyncio.sleep(2.0)
    assert (await called(node, "POST", ROTATE)).status == 401
    found = await lines(node, REFUSALS_A_SECOND + 1)
    assert len(found) == REFUSALS_A_SECOND + 1 and found[-1]["unmapped"] == {"refusals_not_shown": 25}
    await node.stop()


@virtual
async def test_a_full_disk_loses_lines_and_refuses_nothing() -> None:
    node = await started(keyed=True, anonymous="all")
    disk = disk_of(node)
    await called(node, "GET", "/v1/admin/tokens")
    await lines(node, 1)
    disk.fail_at(lambda call: call.path.endswith("admin.jsonl"), code=errno.ENOSPC, times=100)
    assert (await called(node, "POST", ROTATE)).status == 200
    async with asyncio.timeout(10):
        while not events(node, "audit.lost"):  # noqa: ASYNC110 (a worker's)
            await asyncio.sleep(0.05)
    disk.mend()
    assert (await called(node, "POST", ROTATE)).status == 200
    assert len(await lines(node, 2)) == 2, "the one between is lost"
    await node.stop()


@virtual
async def test_lines_that_wait_are_bounded_and_the_last_are_written_at_the_stop() -> None:
    node = await started(keyed=True, anonymous="all")
    for _ in range(LINES_MAX + 5):
        await called(node, "GET", "/v1/admin/tokens")
    assert events(node, "audit.lost")[0]["count"] == 5
    await lines(node, LINES_MAX)
    await called(node, "GET", "/v1/admin/tokens")
    disk, path = disk_of(node), f"{node.member.config.dir}/admin.jsonl"
    await node.stop()
    assert disk.durable_content(path).count(b"\n") == LINES_MAX + 1


def test_ten_files_are_kept_and_none_is_larger_than_the_limit() -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    trail, line = TrailFile(disk, "/d"), b"%06d" + b"." * 1_017 + b"\n"
    count = 12 * FILE_BYTES_MAX // 1_024
    for first in range(0, count, 64):
        trail.append([line % number for number in range(first, first + 64)])
    names = disk.files("/d")
    assert len(names) == FILES_MAX and all(len(disk.content(name)) <= FILE_BYTES_MAX for name in names)
    order = ["admin.jsonl", *(f"admin.{number}.jsonl" for number in range(1, FILES_MAX))]
    kept = b"".join(disk.content(f"/d/{name}") for name in reversed(order)).splitlines()
    assert [int(each[:6]) for each in kept] == list(range(count - len(kept), count))


def test_a_line_that_was_cut_short_spoils_no_other() -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    disk.write_content("/d/admin.jsonl", b'{"a":1}\n{"b', mode=0o600)
    TrailFile(disk, "/d").append([b'{"c":3}\n'])
    assert disk.content("/d/admin.jsonl") == b'{"a":1}\n{"b\n{"c":3}\n'
