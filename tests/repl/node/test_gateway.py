"""Routing, segments, status pages, admin and the founding question."""

from __future__ import annotations

import asyncio
from importlib import import_module

import pytest

from repl.node.gateway import Gateway
from repl.node.status import founding
from repl.read.segments_http import byte_range
from repl.web import problem
from repl.web.limits import SEGMENT_PIECE_BYTES, SEGMENT_STREAMS_MAX
from tests.fakes.loop import virtual
from tests.repl.web.calls import JSON, ChunkedBody, UnreadableBody, call, json, refused, request, whole_body
from tests.repl.web.one_node import FIRST, OneNode, masterless, started
from tests.seam.nodes import BIG, CLEANS, SEGMENT
from vlsn.errors import BadArgument, Damaged, NotInLog, Trimmed, VlsnLogError, by_slug
from vlsn.format.own_entries import FOUNDING_FIELD
from vlsn.limits import KIB, MIB


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/entries", "/v1/entries/", "/favicon.ico", "/v1/status/", "//", "/%"]
)
async def test_routes_unknown_path_is_not_found(path: str) -> None:
    refused(await call(await started(), "GET", path), 404, "not-found")


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
    response = await call(await started(), method, path)
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
    refused(await call(await started(), method, path, JSON), 404, "not-found")


async def test_routes_a_name_or_number_may_be_percent_written() -> None:
    node = await started()
    put = await call(node, "PUT", "/v1/consumers/%62illing", JSON, b'{"next":2}')
    assert json(put)["name"] == "billing"
    assert json(await call(node, "GET", "/v1/consumers/billing"))["next"] == 2
    assert (
        json(await call(node, "PUT", "/v1/consumers/other%2Fbilling", JSON, b'{"next":2}'))["name"] == "other/billing"
    )
    await node.append(b"v")
    assert (await call(node, "GET", f"/v1/entries/%3{FIRST + 2}")).body == b"v"
    assert await whole_body(await call(node, "GET", "/v1/segments/%31")) == await file_of(node)


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
    node = await started()
    refused(await call(node, method, path, {**headers, **coding}, UnreadableBody(10)), 415, "unsupported-type")
    assert not node.asked and node.opened().log.view.range.last < FIRST


async def test_the_codings_that_are_none_are_read() -> None:
    node = await started()
    sent = {"Content-Type": "application/octet-stream", "Content-Encoding": "Identity", "Transfer-Encoding": "Chunked"}
    assert (await call(node, "POST", "/v1/entries", sent, ChunkedBody([b"v"]))).status == 200
    assert node.submitted == [(None, b"v")]


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
    node = await started()
    named = {**headers, FOUNDING_FIELD: "00000000000000ab-8"}
    assert Gateway(node.services).quick(request(method, path, named, body)) is None
    refused(await call(node, method, path, named, body), 409, "wrong-group")
    assert not node.asked
    if path != "/v1/produce":
        assert (await call(node, method, path, {**headers, FOUNDING_FIELD: founding(node)}, body)).status == 200


@pytest.mark.parametrize(
    "path", ["/v1/status?x=1", "/v1/segments?x=1", "/v1/segments/1?x=1", "/v1/produce?x=1", "/v1/feed?x=1"]
)
async def test_routes_unknown_parameter_is_a_bad_argument(path: str) -> None:
    refused(await call(await started(), "GET", path), 400, "bad-argument")


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


async def file_of(node: OneNode) -> bytes:
    return await whole_body(await call(node, "GET", "/v1/segments/1"))


async def test_segments_are_listed_and_given_whole_or_in_part() -> None:
    node = await started(segment_bytes=4 * MIB)
    await node.append(*[bytes([at]) * 60_000 for at in range(2 * SEGMENT_PIECE_BYTES // 60_000 + 1)])
    document = json(await call(node, "GET", "/v1/segments"))
    assert (document["group"], document["node"]) == ("sim", "n1")
    (only,) = document["segments"]
    response = await call(node, "GET", "/v1/segments/1")
    data = await whole_body(response)
    assert (response.status, response.headers["Content-Length"]) == (200, str(len(data)))
    assert (only["number"], only["end"]) == (1, len(data)) and len(data) > 2 * SEGMENT_PIECE_BYTES
    assert "Content-Range" not in response.headers
    response = await call(node, "GET", "/v1/segments/1", {"Range": "bytes=100-199"})
    assert (response.status, response.headers["Content-Length"]) == (206, "100")
    assert response.headers["Content-Range"] == f"bytes 100-199/{len(data)}"
    assert await whole_body(response) == data[100:200]
    refused(await call(node, "GET", "/v1/segments/1", {"Range": "bytes=5-4"}), 400, "bad-argument")
    for number in ("6", "x", "-1", "99999999999999999999999", "1.0"):
        refused(await call(node, "GET", f"/v1/segments/{number}"), 404, "not-found")


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
def test_byte_range_is_cut_to_the_file(asked: str, start: int, end: int) -> None:
    assert byte_range(asked, 10240) == (start, end)


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
def test_byte_range_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(BadArgument):
        byte_range(asked, 10240)


def test_byte_range_of_an_empty_file_is_all_of_it_or_refused() -> None:
    assert byte_range("", 0) == (0, 0)
    with pytest.raises(BadArgument):
        byte_range("bytes=0-", 0)


@virtual
async def test_what_was_cleaned_away_is_trimmed() -> None:
    node = await started(**CLEANS, retention_bytes=8 * SEGMENT, hold_bytes_max=4 * SEGMENT)
    view = node.opened().log.view
    while view.synced_end(1) or view.range.first < 2:
        await node.append(BIG)
        await asyncio.sleep(0.01)
    refused(await call(node, "GET", "/v1/segments/1"), 410, "trimmed")
    refused(await call(node, "GET", "/v1/entries/1"), 410, "trimmed")
    for target in ("/v1/entries?from=2", "/v1/tail?from=1"):
        assert refused(await call(node, "GET", target), 410, "trimmed")["first"] == view.range.first
    assert (await call(node, "GET", "/v1/entries")).status == 200


async def test_segments_head_reads_nothing_and_takes_no_place() -> None:
    gateway = Gateway((await started()).services)
    for _ in range(SEGMENT_STREAMS_MAX + 1):
        response = await call(gateway, "HEAD", "/v1/segments/1")
        assert (response.status, response.stream) == (200, None)
        assert int(response.headers["Content-Length"]) > 0


async def test_segments_streams_are_few_and_given_back() -> None:
    gateway = Gateway((await started()).services)
    open_ones = [await call(gateway, "GET", "/v1/segments/1") for _ in range(SEGMENT_STREAMS_MAX)]
    refused(await call(gateway, "GET", "/v1/segments/1"), 429, "queue-full")
    for response in open_ones:
        assert await whole_body(response)
    assert (await call(gateway, "GET", "/v1/segments/1")).status == 200


async def test_segments_that_end_sooner_than_they_should_fail_the_stream() -> None:
    node = await started(segment_bytes=4 * MIB)
    await node.append(*[bytes(60_000)] * (2 * SEGMENT_PIECE_BYTES // 60_000))
    response = await call(node, "GET", "/v1/segments/1")
    assert response.stream is not None
    await anext(response.stream)

    async def short(number: int, start: int, end: int) -> bytes:
        return b""

    node.services.files.read_segment = short  # type: ignore[method-assign]
    with pytest.raises(Damaged):
        await anext(response.stream)
    await response.stream.aclose()


async def test_status_health_metrics_and_page() -> None:
    node = await started()
    assert json(await call(node, "GET", "/v1/status"))["state"] == "MASTER"
    assert json(await call(node, "GET", "/healthz"))["alive"] is True
    assert b"vlsnlog_durable_vlsn 3.0\n" in (await call(node, "GET", "/metrics")).body
    page = await call(node, "GET", "/")
    assert page.headers["Content-Type"].startswith("text/html")
    html = bytes(page.body)
    assert html.lower().startswith(b"<!doctype html>")
    assert b"http://" not in html.replace(b"http://www.w3.org/", b"")
    assert b"https://" not in html


async def test_readyz_says_why_not() -> None:
    assert (await call(await started(), "GET", "/readyz")).status == 200
    document = refused(await call(await masterless(), "GET", "/readyz"), 503, "not-ready")
    assert document["reasons"] and document["detail"] == "; ".join(document["reasons"])


async def test_admin_calls_the_node() -> None:
    node = await started()
    assert json(await call(node, "POST", "/v1/admin/checkpoint"))["id"] > 0
    assert json(await call(node, "POST", "/v1/admin/rotate"))["number"] > 1
    assert json(await call(node, "POST", "/v1/admin/clean?dry_run=true"))["segments"] == []
    assert json(await call(node, "POST", "/v1/admin/clean"))["segments"] == []
    refused(await call(node, "POST", "/v1/admin/clean?dry_run=perhaps"), 400, "bad-argument")
    refused(await call(node, "POST", "/v1/admin/clean?dryrun=true"), 400, "bad-argument")


async def test_peer_hello_is_an_object_of_bounded_size() -> None:
    node = await started()
    for body in (b"", b"[]", b"{", b"\xff", b"{}", b'{"group":' + b"[" * 60_000):
        refused(await call(node, "POST", "/v1/peer/hello", JSON, body=body), 400, "bad-body")
    refused(await call(node, "POST", "/v1/peer/hello", JSON, body=UnreadableBody(64 * 1024 + 1)), 413, "too-large")


async def test_events_are_asked_for_from_any_number_on() -> None:
    node = await started()
    found = json(await call(node, "GET", "/v1/events"))["events"]
    assert json(await call(node, "GET", "/v1/events?from=2&limit=1"))["events"] == found[1:2]
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
@virtual
async def test_what_a_call_is_not_asked_by_its_body_is_refused_there(method: str, path: str) -> None:
    """``{"dry_run": true}`` in the body of a cleaning is no dry run: it must not be a cleaning either."""
    node = await started()
    for body in (b'{"dry_run":true}', b'{"at":5}', b"[]", b"null", b"x", b"\xff", b"[" * 60_000):
        refused(await call(node, method, path, JSON, body), 400, "bad-body")
    refused(await call(node, method, path, JSON, b" " * (64 * KIB + 1)), 413, "too-large")
    for body in (b"", b"{}", b" {} \n"):
        assert (await call(node, method, path, JSON, body)).status not in (400, 413, 500)
