"""``/v1/transactions`` against a real node on fakes: what its routes take, refuse and pass on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.api import Handle
from repl.node.gateway import Gateway
from repl.node.node import Node
from repl.web.limits import PIECE_BYTES, STAGED_S
from tests.repl.web.calls import BATCH, JSON, NDJSON, OCTETS, ChunkedBody, UnreadableBody, call, json, refused, request
from tests.repl.web.one_node import FIRST, TERM, follower, masterless, started
from vlsn.errors import BadArgument
from vlsn.format import batch
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.ids import NUMBER_MAX
from vlsn.limits import BODIES_IN_FLIGHT_BYTES_MAX, ENTRY_BYTES_MAX, MIB

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def begun(node: Node | Gateway) -> str:
    response = await call(node, "POST", "/v1/transactions", JSON)
    said = json(response)
    assert (response.status, said["expires_s"]) == (200, STAGED_S)
    return f"/v1/transactions/{said['transaction']}"


async def test_a_transaction_is_what_its_calls_staged_in_their_order_and_answered_as_an_append() -> None:
    node = await started(segment_bytes=2 * MIB)
    path = await begun(node)
    many = b'{"value":"many"}\n' * (PIECE_BYTES // 10)
    staged = 0
    for kind, key, body, count in (
        (OCTETS, "?key=k", b"a", 1),
        (OCTETS, "", b"", 1),
        (NDJSON, "", b'{"value":"b","key":"l"}\n{"value":"c"}', 2),
        (BATCH, "", batch.encode([b"d", b"e"]), 2),
        (NDJSON, "", many, many.count(b"\n")),
    ):
        response = await call(node, "POST", f"{path}/entries{key}", kind, body)
        staged += count
        assert (response.status, json(response)) == (200, {"staged": staged})
    assert not node.asked
    response = await call(node, "POST", f"{path}/commit?acks=all&timeout=5", {})
    assert json(response) == {
        "first": FIRST,
        "last": FIRST + staged,
        "term": TERM,
        "durable": True,
        "synced": 1,
        "acks": "all",
        "durability": {"local": "sync", "replica": "sync"},
    }
    wanted = [(b"k", b"a"), (None, b""), (b"l", b"b"), (None, b"c"), (None, b"d"), (None, b"e")]
    assert node.submitted[:6] == wanted
    lines = bytes((await call(node, "GET", f"/v1/entries?from={FIRST + staged - 1}&kinds=all&txns=true")).body)
    told = [msgspec.json.decode(line) for line in lines.splitlines()]
    assert [(each["kind"], each["txn"]) for each in told] == [("DATA", FIRST), ("COMMIT", FIRST)]
    assert [(submission.sequence, born) for submission, born in node.asked] == [(HANDLE_SEQUENCE, NUMBER_MAX)]


async def test_a_begin_may_name_what_it_begins() -> None:
    node = await started()
    said = json(await call(node, "POST", "/v1/transactions?id=00000000000000ff", JSON))
    assert said["transaction"].startswith("t-00000000000000ff-") and said["bytes_max"] > 0
    for wrong in ("id=ff", "id=0000000000000000", "id=8000000000000000", "name=a"):
        refused(await call(node, "POST", f"/v1/transactions?{wrong}", JSON), 400, "bad-argument")


async def test_a_commit_passes_its_producers_name_on() -> None:
    node = await started()
    path = await begun(node)
    response = await call(node, "POST", f"{path}/commit?producer=00000000000000ff&sequence=0&born=0", JSON)
    assert response.status == 200
    [(submission, born)] = node.asked
    assert (submission.producer, submission.sequence, born) == (255, 0, 0)


async def test_a_node_that_is_not_the_master_redirects_every_call() -> None:
    path, node = "/v1/transactions/t-0000000000000001-1-1", await follower()
    for method, target, kind in (
        ("POST", "/v1/transactions", JSON),
        ("POST", f"{path}/entries?key=k&after=0", OCTETS),
        ("POST", f"{path}/commit?acks=all", JSON),
        ("DELETE", path, {}),
    ):
        response = await call(node, method, target, kind, UnreadableBody(1) if kind == OCTETS else b"")
        assert (response.status, response.headers["Location"]) == (307, f"http://n1:7701{target}")
    refused(await call(await masterless(), "POST", f"{path}/commit", JSON), 503, "no-master")


@pytest.mark.parametrize(
    ("method", "call_path", "kind", "status", "slug"),
    [
        ("POST", "/entries?after=x", OCTETS, 400, "bad-argument"),
        ("POST", "/entries?after=0&rewinds=-1", OCTETS, 400, "bad-argument"),
        ("POST", "/entries?acks=none", OCTETS, 400, "bad-argument"),
        ("POST", "/entries?key=k", NDJSON, 400, "bad-argument"),
        ("POST", "/entries", JSON, 415, "unsupported-type"),
        ("POST", "/commit?acks=some", JSON, 400, "bad-argument"),
        ("POST", "/commit?key=k", JSON, 400, "bad-argument"),
        ("POST", "/commit?producer=00000000000000ff", JSON, 400, "bad-argument"),
        ("POST", "/commit?timeout=0", JSON, 400, "bad-argument"),
        ("POST", "/commit", FORM, 415, "unsupported-type"),
        ("POST", "/commit/", JSON, 404, "not-found"),
        ("POST", "/entries/1", JSON, 404, "not-found"),
        ("DELETE", "?x=1", {}, 400, "bad-argument"),
        ("DELETE", "/commit", {}, 405, "not-allowed"),
        ("GET", "", {}, 405, "not-allowed"),
    ],
)
async def test_what_is_no_call_is_refused(
    method: str, call_path: str, kind: dict[str, str], status: int, slug: str
) -> None:
    node = await started()
    path = await begun(node)
    refused(await call(node, method, path + call_path, kind), status, slug)
    assert not node.asked
    assert json(await call(node, "POST", f"{path}/entries?after=0", OCTETS, b"")) == {"staged": 1}


async def test_entries_are_bounded_as_those_of_an_append_and_leave_no_bytes_counted() -> None:
    node = await started()
    gateway = Gateway(node.services)
    path = await begun(gateway)
    refused(
        await call(gateway, "POST", f"{path}/entries", OCTETS, UnreadableBody(ENTRY_BYTES_MAX + 1)), 413, "too-large"
    )
    huge = ChunkedBody([b"." * (1 << 20)] * 2)
    refused(await call(gateway, "POST", f"{path}/entries", OCTETS, huge), 413, "too-large")
    refused(await call(gateway, "POST", f"{path}/entries", NDJSON, b"nonsense"), 400, "bad-body")
    named = batch.encode([b"v"], producer=(255, 8))
    refused(await call(gateway, "POST", f"{path}/entries", BATCH, named), 400, "bad-argument")
    whole = batch.encode([b"." * ENTRY_BYTES_MAX] * 15)
    for _ in range(2 * BODIES_IN_FLIGHT_BYTES_MAX // len(whole)):
        refused(await call(gateway, "POST", f"{path}/entries", BATCH, whole), 413, "too-large")


async def test_a_client_that_leaves_its_commit_leaves_nothing_waiting() -> None:
    node = await started(hold=True)
    path = await begun(node)
    gateway = Gateway(node.services)
    waits = asyncio.create_task(gateway.handle(request("POST", f"{path}/commit", JSON)))
    await node.until_unanswered(1)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert node.unanswered == 0


async def test_a_commit_that_is_not_acknowledged_in_its_time_has_an_unknown_outcome() -> None:
    node = await started(hold=True)
    path = await begun(node)
    refused(await call(node, "POST", f"{path}/commit?timeout=0.01", JSON), 504, "outcome-unknown")


@given(st.integers(1, NUMBER_MAX), st.integers(0, NUMBER_MAX), st.integers(1, NUMBER_MAX))
def test_a_handle_is_read_as_it_was_given_out(id: int, born: int, term: int) -> None:
    handle = Handle(id, born, term)
    assert Handle.parse(str(handle)) == handle


@given(st.one_of(st.text(max_size=60), st.from_regex(r"t-[0-9a-f]{15,17}-[0-9]{1,21}-[0-9]{1,21}", fullmatch=True)))
def test_any_text_is_a_handle_in_one_spelling_or_none(text: str) -> None:
    try:
        handle: Any = Handle.parse(text)
    except BadArgument:
        return
    assert str(handle) == text and all(0 <= number <= NUMBER_MAX for number in handle) and handle.id
