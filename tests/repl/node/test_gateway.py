"""Routing, segments, status pages, admin and the founding question."""

from __future__ import annotations

from importlib import import_module

import pytest

from repl.node.gateway import Gateway
from repl.read.segments_http import byte_range
from repl.web import problem
from repl.web.limits import SEGMENT_PIECE_BYTES, SEGMENT_STREAMS_MAX
from tests.repl.web.calls import JSON, ChunkedBody, UnreadableBody, call, json, refused, request, whole_body
from tests.repl.web.memory_node import MemoryNode
from vlsn.errors import BadArgument, Damaged, NotInLog, Trimmed, VlsnLogError, by_slug
from vlsn.format.own_entries import FOUNDING_FIELD
from vlsn.limits import KIB


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/entries", "/v1/entries/", "/favicon.ico", "/v1/status/", "//", "/%"]
)
async def test_routes_unknown_path_is_not_found(path: str) -> None:
    refused(await call(MemoryNode(), "GET", path), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/entries", "GET, HEAD, POST"),
        ("DELETE", "/v1/entries/5", "GET, HEAD"),
        ("POST", "/v1/status", "GET, HEAD"),
        ("GET", "/v1/admin/rotate", "POST"),
        ("HEAD", "/v1/peer/hello", "POST"),
        ("POST", "/v1/segments/1", "GET, HEAD"),
        ("OPTIONS", "/", "GET, HEAD"),
        ("BREW", "/v1/tail", "GET, HEAD"),
    ],
)
async def test_routes_other_method_is_not_allowed(method: str, path: str, allow: str) -> None:
    response = await call(MemoryNode(), method, path)
    refused(response, 405, "not-allowed")
    assert response.headers["Allow"] == allow


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/%73tatus"),
        ("GET", "/%68ealthz"),
        ("GET", "/v1%2Fstatus"),
        ("POST", "/v1/%61dmin/rotate"),
        ("POST", "/v1/admin/%72otate"),
        ("GET", "/v1/%65ntries/1"),
        ("GET", "/v1/%63onsumers/billing"),
        ("POST", "/v1/cdc/lines/%70ause"),
        ("GET", "/v1/destinations/orders/%6Dessages"),
        ("POST", "/v1/transactions/t-0000000000000001-1-1/%63ommit"),
        ("POST", "/v1/transactions/t-0000000000000001-1-1/%65ntries"),
    ],
)
async def test_routes_fixed_parts_of_a_path_are_not_percent_written(method: str, path: str) -> None:
    node = MemoryNode()
    refused(await call(node, method, path, JSON), 404, "not-found")
    assert not node.calls


async def test_routes_a_name_or_number_may_be_percent_written() -> None:
    node = MemoryNode(files={1: b"x"})
    put = await call(node, "PUT", "/v1/consumers/%62illing", JSON, b'{"next":2}')
    assert json(put)["name"] == "billing"
    assert json(await call(node, "GET", "/v1/consumers/billing"))["next"] == 2
    assert (
        json(await call(node, "PUT", "/v1/consumers/other%2Fbilling", JSON, b'{"next":2}'))["name"] == "other/billing"
    )
    node.append(b"v")
    assert (await call(node, "GET", "/v1/entries/%32")).body == b"v"
    assert await whole_body(await call(node, "GET", "/v1/segments/%31")) == b"x"


@pytest.mark.parametrize(
    "coding",
    [
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "identity, gzip"},
        {"Content-Encoding": ""},
        {"Transfer-Encoding": "gzip, chunked"},
        {"Transfer-Encoding": "chunked, gzip"},
        {"Transfer-Encoding": "identity"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/entries", {"Content-Type": "application/octet-stream"}),
        ("POST", "/v1/admin/rotate", JSON),
        ("PUT", "/v1/consumers/billing", JSON),
        ("POST", "/v1/peer/hello", JSON),
        ("DELETE", "/v1/consumers/billing", {}),
        ("GET", "/v1/status", {}),
    ],
)
async def test_a_body_in_another_coding_is_refused_on_every_call(
    method: str, path: str, headers: dict[str, str], coding: dict[str, str]
) -> None:
    node = MemoryNode()
    refused(await call(node, method, path, {**headers, **coding}, UnreadableBody(10)), 415, "unsupported-type")
    assert not node.submissions and not node.calls and not node.positions


async def test_the_codings_that_are_none_are_read() -> None:
    node = MemoryNode()
    sent = {"Content-Type": "application/octet-stream", "Content-Encoding": "Identity", "Transfer-Encoding": "Chunked"}
    assert (await call(node, "POST", "/v1/entries", sent, ChunkedBody([b"v"]))).status == 200
    assert node.entries[-1].value == b"v"


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("GET", "/v1/status", {}, b""),
        ("GET", "/v1/entries", {}, b""),
        ("POST", "/v1/entries", {"Content-Type": "application/octet-stream"}, b"v"),
        ("POST", "/v1/transactions", JSON, b""),
        ("GET", "/v1/produce", {"Upgrade": "websocket", "Connection": "Upgrade"}, b""),
    ],
)
async def test_a_call_that_is_meant_for_another_log_is_refused_unheard(
    method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    node = MemoryNode()
    named = {**headers, FOUNDING_FIELD: "00000000000000ab-8"}
    assert Gateway(node.services).quick(request(method, path, named, body)) is None
    refused(await call(node, method, path, named, body), 409, "wrong-group")
    assert not node.submissions and not node.calls
    if path != "/v1/produce":
        assert (await call(node, method, path, {**headers, FOUNDING_FIELD: node.founding}, body)).status == 200


@pytest.mark.parametrize(
    "path", ["/v1/status?x=1", "/v1/segments?x=1", "/v1/segments/1?x=1", "/v1/produce?x=1", "/v1/feed?x=1"]
)
async def test_routes_unknown_parameter_is_a_bad_argument(path: str) -> None:
    node = MemoryNode(files={1: b"x"})
    refused(await call(node, "GET", path), 400, "bad-argument")


def test_problem_every_slug_has_a_status_and_comes_back_as_its_class() -> None:
    # Those that are defined outside of vlsn.errors, too, whichever tests were run before.
    for module in ("repl.audit.source", "repl.client.sink_batch", "repl.cluster", "repl.export.manifest"):
        import_module(module)
    for slug, kind in by_slug().items():
        facts = {Trimmed: {"first": 3}, NotInLog: {"vlsn": 9, "term": 2, "found": 4}}.get(kind, {})
        error = kind("why", **facts)
        assert 400 <= problem.status_of(slug) <= 599
        back = problem.error_of(problem.document(error))
        assert type(back).slug == slug
        assert str(back) == "why"


def test_problem_keeps_the_facts_of_its_error() -> None:
    trimmed = problem.error_of(problem.document(Trimmed("gone", first=9)))
    damaged = problem.error_of(problem.document(Damaged("rot", file="f", offset=8, vlsn=7)))
    elsewhere = problem.error_of(problem.document(NotInLog("not here", vlsn=9, term=2, found=4)))
    assert isinstance(elsewhere, NotInLog)
    assert (elsewhere.vlsn, elsewhere.term, elsewhere.found) == (9, 2, 4)
    assert isinstance(trimmed, Trimmed)
    assert isinstance(damaged, Damaged)
    assert (trimmed.first, damaged.file, damaged.offset, damaged.vlsn) == (9, "f", 8, 7)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"type":5}', b'{"type":"new-kind","detail":"d"}', b"\xff"])
def test_problem_of_another_make_is_the_root_class(body: bytes) -> None:
    assert type(problem.error_of(body)) is VlsnLogError


def test_problem_detail_is_cut_and_always_utf8() -> None:
    document = problem.document(BadArgument("\ud800" + "ü" * 100_000))
    assert len(document) <= problem.DOCUMENT_BYTES_MAX
    document.decode("utf-8")


SEGMENT = bytes(range(256)) * 40


async def test_segments_list_them() -> None:
    response = await call(MemoryNode(files={1: SEGMENT, 2: b""}), "GET", "/v1/segments")
    document = json(response)
    assert document["segments"] == [{"number": 1, "end": len(SEGMENT)}, {"number": 2, "end": 0}]
    assert (document["group"], document["node"]) == ("g", "n1")


async def test_segments_whole_file() -> None:
    data = SEGMENT * (2 * SEGMENT_PIECE_BYTES // len(SEGMENT) + 1)
    response = await call(MemoryNode(files={3: data}), "GET", "/v1/segments/3")
    assert (response.status, response.headers["Content-Length"]) == (200, str(len(data)))
    assert "Content-Range" not in response.headers
    assert await whole_body(response) == data


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=100-", 100, 10240),
        ("bytes=-24", 10216, 10240),
        ("bytes=-99999", 0, 10240),
        ("bytes=10239-99999", 10239, 10240),
        ("bytes= 5 - 6 ", 5, 7),
    ],
)
async def test_segments_range(asked: str, start: int, end: int) -> None:
    response = await call(MemoryNode(files={1: SEGMENT}), "GET", "/v1/segments/1", {"Range": asked})
    assert response.status == 206
    assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/10240"
    assert response.headers["Content-Length"] == str(end - start)
    assert await whole_body(response) == SEGMENT[start:end]


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=10240-",
        "bytes=-0",
        "bytes=0-1,3-4",
        "lines=0-1",
        "bytes=a-b",
        "x",
        "bytes=-" + "9" * 30,
    ],
)
async def test_segments_bad_range_is_a_bad_argument(asked: str) -> None:
    node = MemoryNode(files={1: SEGMENT})
    refused(await call(node, "GET", "/v1/segments/1", {"Range": asked}), 400, "bad-argument")


def test_byte_range_of_an_empty_file_is_all_of_it_or_refused() -> None:
    assert byte_range("", 0) == (0, 0)
    with pytest.raises(BadArgument):
        byte_range("bytes=0-", 0)


async def test_segments_absent_and_trimmed_ones() -> None:
    node = MemoryNode(files={5: SEGMENT}, trimmed_files=4)
    refused(await call(node, "GET", "/v1/segments/4"), 410, "trimmed")
    for number in ("6", "x", "-1", "99999999999999999999999", "1.0"):
        refused(await call(node, "GET", f"/v1/segments/{number}"), 404, "not-found")


async def test_segments_head_reads_nothing_and_takes_no_place() -> None:
    gateway = Gateway(MemoryNode(files={1: SEGMENT}).services)
    for _ in range(SEGMENT_STREAMS_MAX + 1):
        response = await call(gateway, "HEAD", "/v1/segments/1")
        assert (response.status, response.headers["Content-Length"], response.stream) == (200, "10240", None)


async def test_segments_streams_are_few_and_given_back() -> None:
    gateway = Gateway(MemoryNode(files={1: SEGMENT}).services)
    open_ones = [await call(gateway, "GET", "/v1/segments/1") for _ in range(SEGMENT_STREAMS_MAX)]
    refused(await call(gateway, "GET", "/v1/segments/1"), 429, "queue-full")
    for response in open_ones:
        assert await whole_body(response) == SEGMENT
    assert (await call(gateway, "GET", "/v1/segments/1")).status == 200


async def test_segments_cleaned_in_the_middle_fail_the_stream() -> None:
    node = MemoryNode(files={1: bytes(2 * SEGMENT_PIECE_BYTES)})
    response = await call(node, "GET", "/v1/segments/1")
    assert response.stream is not None
    await anext(response.stream)
    node.files.clear()
    with pytest.raises(Damaged):
        await anext(response.stream)
    await response.stream.aclose()


async def test_status_health_metrics_and_page() -> None:
    node = MemoryNode()
    assert json(await call(node, "GET", "/v1/status"))["state"] == "MASTER"
    assert json(await call(node, "GET", "/healthz"))["alive"] is True
    assert b"vlsnlog_last_vlsn 1\n" in (await call(node, "GET", "/metrics")).body
    page = await call(node, "GET", "/")
    assert page.headers["Content-Type"].startswith("text/html")
    html = bytes(page.body)
    assert html.lower().startswith(b"<!doctype html>")
    assert b"http://" not in html.replace(b"http://www.w3.org/", b"")
    assert b"https://" not in html


async def test_readyz_says_why_not() -> None:
    node = MemoryNode()
    assert (await call(node, "GET", "/readyz")).status == 200
    node.reasons = ["no master is known", "lags 5 s"]
    document = refused(await call(node, "GET", "/readyz"), 503, "not-ready")
    assert document["reasons"] == node.reasons


async def test_admin_calls_the_node() -> None:
    node = MemoryNode()
    assert json(await call(node, "POST", "/v1/admin/checkpoint")) == {"id": 1}
    assert json(await call(node, "POST", "/v1/admin/rotate")) == {"segment": 2}
    assert json(await call(node, "POST", "/v1/admin/clean?dry_run=true")) == {"segments": []}
    assert json(await call(node, "POST", "/v1/admin/clean")) == {"segments": []}
    assert node.calls == ["checkpoint", "rotate", "dry run", "clean"]
    refused(await call(node, "POST", "/v1/admin/clean?dry_run=perhaps"), 400, "bad-argument")
    refused(await call(node, "POST", "/v1/admin/clean?dryrun=true"), 400, "bad-argument")


async def test_peer_hello_is_an_object_of_bounded_size() -> None:
    node = MemoryNode()
    assert json(await call(node, "POST", "/v1/peer/hello", JSON, body=b'{"group":"g"}')) == {"heard": "g"}
    for body in (b"", b"[]", b"{", b"\xff", b"{}", b'{"group":' + b"[" * 60_000):
        refused(await call(node, "POST", "/v1/peer/hello", JSON, body=body), 400, "bad-body")
    refused(await call(node, "POST", "/v1/peer/hello", JSON, body=UnreadableBody(64 * 1024 + 1)), 413, "too-large")


async def test_events_are_asked_for_from_any_number_on() -> None:
    node = MemoryNode()
    assert (await call(node, "GET", "/v1/events")).body == b'{"first":1,"next":1001,"events":[]}'
    assert (await call(node, "GET", "/v1/events?from=5&limit=2")).body == b'{"first":1,"next":7,"events":[]}'
    for wrong in ("from=0", "limit=1001", "after=1"):
        refused(await call(node, "GET", f"/v1/events?{wrong}"), 400, "bad-argument")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/admin/checkpoint"),
        ("POST", "/v1/admin/rotate"),
        ("POST", "/v1/admin/clean"),
        ("POST", "/v1/admin/restore"),
        ("POST", "/v1/admin/transfer"),
        ("POST", "/v1/cdc/lines/pause"),
        ("POST", "/v1/cdc/lines/resume"),
        ("POST", "/v1/transactions"),
        ("DELETE", "/v1/transactions/t-0000000000000001-1-1"),
        ("DELETE", "/v1/consumers/billing"),
        ("DELETE", "/v1/destinations/orders"),
        ("DELETE", "/v1/sinks/orders"),
    ],
)
async def test_what_a_call_is_not_asked_by_its_body_is_refused_there(method: str, path: str) -> None:
    """``{"dry_run": true}`` in the body of a cleaning is no dry run: it must not be a cleaning either."""
    for body in (b'{"dry_run":true}', b'{"at":5}', b"[]", b"null", b"x", b"\xff", b"[" * 60_000):
        refused(await call(MemoryNode(), method, path, JSON, body), 400, "bad-body")
    refused(await call(MemoryNode(), method, path, JSON, b" " * (64 * KIB + 1)), 413, "too-large")
    for body in (b"", b"{}", b" {} \n"):
        assert (await call(MemoryNode(), method, path, JSON, body)).status not in (400, 413, 500)
